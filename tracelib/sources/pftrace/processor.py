"""Perfetto's trace processor: the one reader of its format, a program that asks and is asked in SQL."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelib.errors import BadTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["VARIABLE", "Query", "opened"]

#: Names the program where it is not on PATH.
VARIABLE = "TRACE_PROCESSOR_BIN"
PROGRAM = "trace_processor_shell"

if TYPE_CHECKING:
    #: SQL and the columns' dtypes, in their order, to a frame.
    Query = Callable[[str, Mapping[str, Any]], pl.DataFrame]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Query]:
    """Give what asks the trace at `path`.

    Raises
    ------
    BadTrace
        There is no program, or it refuses the file or a question.

    """
    program = _program(path)
    from perfetto.trace_processor.api import TraceProcessor, TraceProcessorConfig, TraceProcessorException  # noqa: PLC0415 (only when there is something to read)

    try:
        with contextlib.closing(
            TraceProcessor(trace=str(path), config=TraceProcessorConfig(bin_path=program))
        ) as processor:

            def query(sql: str, schema: Mapping[str, Any]) -> pl.DataFrame:
                rows = ([getattr(row, name) for name in schema] for row in processor.query(sql))
                return pl.DataFrame(list(rows), schema=dict(schema), orient="row")

            yield query
    except TraceProcessorException as error:
        raise BadTrace(path, "pftrace", "", f"{PROGRAM} does not read it", excerpt=str(error)) from error


def _program(path: Path) -> str:
    given = os.environ.get(VARIABLE)
    found = shutil.which(given or PROGRAM)
    if found is None:
        there = f"{VARIABLE}={given} is no program" if given else f"no `{PROGRAM}` is installed here"
        advice = (
            f"Get it from https://get.perfetto.dev/{PROGRAM} and set {VARIABLE} to its path, "
            "or give the files that this trace was made of."
        )
        raise BadTrace(
            path, "pftrace", "", f"Perfetto's format needs Perfetto's own reader, and {there}", advice=advice
        )
    return str(Path(found).resolve())
