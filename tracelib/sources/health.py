"""What a reader says about its file: the frame `sources`, and remarks, the rows of the frame `health`."""

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from tracelib.data import data
from tracelib.schema import HEALTH, SOURCES
from tracelib.trace import Trace

_REMARKS = data(__file__, "remarks.toml")


#: What a reader says of device work that it has no rows for.
UNREAD = "in a form that is not read"


def no_gpu_work(messages: Iterable[str]) -> str:
    """Return why a run has no GPU operations, from its remarks."""
    unread = any(UNREAD in message for message in messages)
    return f"the device's work was recorded {UNREAD}" if unread else "no GPU operation was recorded"


class Remarks:
    """Remarks on one file, in the order in which they were made."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, str, str, str]] = []

    def add(self, level: str, message: str, fix: str = "") -> None:
        """Add a remark: `level` is info, warning or error, `fix` what to do about it."""
        self._rows.append((0, level, message, fix))

    def say(self, name: str, **values: object) -> None:
        """Add the remark of this name in remarks.toml, filled in with `values`."""
        row = _REMARKS[name]
        self.add(row["level"], row["message"].format(**values), row.get("fix", "").format(**values))

    def count(self, number: int, what: str, fix: str = "") -> None:
        """Add a warning that `number` things are so, unless there are none."""
        if number:
            self.add("warning", f"{number} {what}", fix)

    def frame(self) -> pl.DataFrame:
        """Return the remarks as the frame `health` of source 0."""
        return pl.DataFrame(self._rows, schema=HEALTH, orient="row")


def source_frame(path: Path, form: str, **said: object) -> pl.DataFrame:
    """Return the frame `sources` of one file: its name and size, and what the reader `said`; else null."""
    row = {"source": 0, "file": path.name, "bytes": path.stat().st_size, "format": form, **said}
    return pl.DataFrame([dict.fromkeys(SOURCES) | row], schema=SOURCES)


def with_remark(trace: Trace, level: str, message: str, fix: str = "") -> Trace:
    """Return the trace of one file with one remark more."""
    more = Remarks()
    more.add(level, message, fix)
    return trace.replace(health=pl.concat([trace.health, more.frame()]))


def with_remarks(trace: Trace, texts: Iterable[str], fix: str = "", level: str = "warning") -> Trace:
    """Return `trace` with remarks on the whole run, of no one file."""
    rows = [(None, level, text, fix) for text in texts]
    return trace.replace(health=pl.concat([trace.health, pl.DataFrame(rows, schema=HEALTH, orient="row")]))
