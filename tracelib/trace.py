"""The one thing that readers make and analyses take: a frozen bundle of frames, and how it shows itself.

Every text in a summary comes from untrusted files: none reaches a terminal or a page as it is.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tracelib.schema import FRAMES, SORT, empty
from tracelib.words import SERVER, count, counted, duration, plain

#: Frames whose rows are counted.
EVENTS = ("gpu_ops", "slices", "samples", "sched", "counters")
SOURCE_COLUMNS = ("file", "format", "recorder", "clock", "tied by", "error", "covers", "rows")
ROLE_COLUMNS = ("role", "rank", "processes", "threads", "names")
LEVELS = ("error", "warning", "info")
LONGEST_CELL, LONGEST_REMARK, MOST_IDS = 60, 300, 4


@dataclass(frozen=True, repr=False)
class Trace:
    """Frames of one or more trace files on one timeline; :mod:`tracelib.schema` lists the columns."""

    slices: pl.DataFrame
    gpu_ops: pl.DataFrame
    samples: pl.DataFrame
    stacks: pl.DataFrame
    sched: pl.DataFrame
    counters: pl.DataFrame
    threads: pl.DataFrame
    gpus: pl.DataFrame
    sources: pl.DataFrame
    health: pl.DataFrame

    @classmethod
    def of(cls, frames: Mapping[str, pl.DataFrame]) -> Trace:
        """Return a checked and sorted trace of `frames`; a frame that is not named is empty.

        Raises polars.exceptions.SchemaError if a frame's columns or dtypes differ from :mod:`tracelib.schema`
        (a defect of the reader).
        """
        made = {name: frames.get(name, empty(name)).match_to_schema(FRAMES[name]) for name in FRAMES}
        return cls(**{name: ordered(name, frame) for name, frame in made.items()}).check()

    def frames(self) -> dict[str, pl.DataFrame]:
        """Return the frames by name."""
        return {name: getattr(self, name) for name in FRAMES}

    def replace(self, **frames: pl.DataFrame) -> Trace:
        """Return a copy with some frames replaced."""
        return dataclasses.replace(self, **frames)

    def to_parquet(self, folder: str | Path) -> None:
        """Write each frame to `folder`, as `NAME-0.parquet`; files of those names are replaced."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name, rows in self.frames().items():
            write_parquet(rows, place / f"{name}-0.parquet")

    @classmethod
    def from_parquet(cls, folder: str | Path) -> Trace:
        """Return the trace in `folder`: of each frame the parts `NAME-0.parquet`, `NAME-1.parquet`, ….

        Raises FileNotFoundError if a frame is missing; polars.exceptions.PolarsError if a file is not
        Parquet, or its columns and dtypes are not those of :mod:`tracelib.schema`.
        """
        files = {}
        for name in FRAMES:
            parts = sorted(
                Path(folder).glob(f"{name}-*.parquet"), key=lambda part: int(part.stem.rpartition("-")[2])
            )
            if not parts:
                raise FileNotFoundError(f"{folder} has no {name}-0.parquet")
            files[name] = parts
        with ThreadPoolExecutor() as pool:  # most are so small that opening them is all of the work
            rows = pool.map(pl.read_parquet, files.values())
        return cls(
            **{name: part.match_to_schema(FRAMES[name]) for name, part in zip(FRAMES, rows, strict=True)}
        ).check()

    def __repr__(self) -> str:
        sources, roles = _source_rows(self), _role_rows(self)
        tables = text_table(SOURCE_COLUMNS, sources), text_table(ROLE_COLUMNS, roles)
        parts = [_headline(self), *tables, "\n".join(_remarks(self))]
        return "\n\n".join(part for part in parts if part)

    def _repr_html_(self) -> str:
        return _as_html(self)

    def show(self) -> Any:
        """Return the picture of the whole run on one axis, with its sentence, for Jupyter to draw."""
        # By name: what draws stands to the right of what holds the data.
        return importlib.import_module("tracelib.report.notebook_cells").shown(self)

    def check(self) -> Trace:
        """Return self if the frames are sound: schemas match, keys point to rows, no duration is negative.

        Raises AssertionError if a reader broke the contract; the message names the frame and column.
        """
        for name, rows in self.frames().items():
            rows.match_to_schema(FRAMES[name])
        for frame, column, target in (
            ("slices", "thread", "threads"),
            ("samples", "thread", "threads"),
            ("sched", "prev", "threads"),
            ("sched", "next", "threads"),
            ("gpu_ops", "gpu", "gpus"),
            ("samples", "stack", "stacks"),
        ):
            ids = getattr(self, target)[target[:-1]].unique()
            used = getattr(self, frame)[column].drop_nulls().unique()
            stray = used.filter((used >= 0) & ~used.is_in(ids.implode()))
            assert stray.is_empty(), (
                f"{frame}.{column} points to no row of {target}: {stray.head(3).to_list()}"
            )
        for name in ("slices", "gpu_ops"):
            shortest = getattr(self, name)["dur_ns"].min()
            assert shortest is None or shortest >= 0, f"{name}.dur_ns holds {shortest}"
        return self


def write_parquet(rows: pl.DataFrame, file: Path) -> None:
    """Write rows as Parquet without compression: read in half the time, and a twentieth of the text."""
    rows.write_parquet(file, compression="uncompressed", statistics=False)


def ordered(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the frame called `name` in its order; not copied if they stand in it."""
    descending = [name == "slices" and column == "dur_ns" for column in SORT[name]]
    if _in_order(frame, SORT[name], descending):
        return frame
    if name == "slices" and _inner_first(frame):
        frame = frame.reverse()  # of slices of one extent the later row is the inner one
    return frame.sort(SORT[name], descending=descending, maintain_order=True)


def _inner_first(slices: pl.DataFrame) -> bool:
    """Return whether the file wrote slices as they ended: the inner before the one around it."""
    start, end = pl.col("ts_ns"), pl.col("ts_ns") + pl.col("dur_ns")
    before, until = start.shift(1), end.shift(1)
    near = (pl.col("thread") == pl.col("thread").shift(1)) & ((start != before) | (end != until))
    around, inside = slices.select(
        around=(near & (start <= before) & (end >= until)).sum(),
        inside=(near & (start >= before) & (end <= until)).sum(),
    ).row(0)
    return bool(around > inside)


def _in_order(frame: pl.DataFrame, columns: Sequence[str], descending: Sequence[bool]) -> bool:
    """Say whether the rows stand in order, where that can be told cheaply: whole numbers without nulls."""
    keys = frame.select(columns)
    if keys.height < 2:
        return True
    if not all(dtype.is_integer() for dtype in keys.dtypes) or any(keys.null_count().row(0)):
        return False
    follows = pl.lit(value=True)  # a row may follow if the first key that differs goes the right way
    for column, down in reversed(list(zip(columns, descending, strict=True))):
        here, before = pl.col(column), pl.col(column).shift(1)
        follows = (here < before if down else here > before) | ((here == before) & follows)
    return bool(keys.lazy().select(follows.slice(1).all()).collect(engine="streaming").item())


def _as_html(trace: Trace) -> str:
    tables = _html_table(SOURCE_COLUMNS, _source_rows(trace)) + _html_table(ROLE_COLUMNS, _role_rows(trace))
    remarks = "".join(f"<li>{html.escape(line)}</li>" for line in _remarks(trace))
    return (
        f"<div><p><b>tracelib run</b>: {html.escape(_headline(trace))}</p>{tables}"
        f"<details><summary>Trace health</summary><ul>{remarks}</ul></details></div>"
    )


def _headline(trace: Trace) -> str:
    tied = trace.sources.filter(pl.col("tied_by").ne_missing("untied"))  # the others' times are not these
    first, last = tied["first_ns"].drop_nulls(), tied["last_ns"].drop_nulls()
    span = duration(max(last) - min(first) if first.len() and last.len() else None)
    rows = _row_counts({name: getattr(trace, name).height for name in EVENTS}) or "no events"
    files, gpus = counted(trace.sources.height, "file"), counted(trace.gpus.height, "GPU")
    return f"{files}, {gpus}, span {span}: {rows}"


def _row_counts(rows: dict[str, int]) -> str:
    return ", ".join(f"{count(number)} {name}" for name, number in rows.items() if number)


def _source_rows(trace: Trace) -> list[list[str]]:
    by_source = {name: dict(getattr(trace, name).group_by("source").len().iter_rows()) for name in EVENTS}
    rows = []
    for source in trace.sources.iter_rows(named=True):
        events = {name: sources.get(source["source"], 0) for name, sources in by_source.items()}
        span = None if source["first_ns"] is None else source["last_ns"] - source["first_ns"]
        error = "" if source["error_ns"] is None else duration(source["error_ns"])
        texts = [source[column] or "" for column in ("file", "format", "recorder", "clock", "tied_by")]
        cells = [*texts, error, duration(span), _row_counts(events)]
        rows.append([plain(cell, LONGEST_CELL) for cell in cells])
    return rows


def _role_rows(trace: Trace) -> list[list[str]]:
    server = trace.threads.filter(pl.col("role").is_in(SERVER))
    distinct = [pl.col(name).drop_nulls().unique().sort().head(MOST_IDS) for name in ("pid", "name")]
    roles = server.group_by("role", "rank").agg(*distinct, threads=pl.len())
    return [
        [
            role,
            "" if rank is None else str(rank),
            ", ".join(map(str, pids)),
            str(threads),
            plain(", ".join(names), LONGEST_CELL),
        ]
        for role, rank, pids, names, threads in roles.sort("role", "rank", nulls_last=True).iter_rows()
    ]


def _remarks(trace: Trace) -> list[str]:
    files = {
        number: f"{plain(file)}: " for number, file in trace.sources.select("source", "file").iter_rows()
    }
    rows = trace.health.select("source", pl.col("level").cast(pl.String), "message", "fix").rows()
    lines = []
    for source, level, message, fix in sorted(rows, key=lambda row: LEVELS.index(row[1])):
        advice = f" -> {plain(fix, LONGEST_REMARK)}" if fix else ""
        lines.append(f"{level}: {files.get(source, '')}{plain(message, LONGEST_REMARK)}{advice}")
    return lines


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the rows in columns, as text; "" without any."""
    if not rows:
        return ""
    lines = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def _html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
