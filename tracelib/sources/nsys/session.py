"""What an nsys export says of itself: recorder, clock, machine, options, and its own diagnostics.

Only the few fields named here are read. `META_DATA_CAPTURE`, `TARGET_INFO_SYSTEM_ENV` and `ProcessStreams` also hold the
profiled programs' environment, arguments and output, which must not get into a trace.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelib.sources.nsys.tables import Tables
    from tracelib.sources.remarks import Remarks

__all__ = ["add_diagnostics", "clock", "cpus", "diagnostics", "exported", "host", "option", "recorder"]

#: Tables of name-value pairs in which an export describes itself; the second until nsys 2023.
_EXPORT = ("META_DATA_EXPORT", "EXPORT_META_DATA")
#: Options of the recording that matter here: no other row of META_DATA_CAPTURE is used.
OPTIONS = {
    "switches": r"^LINUX_PERF_OPTIONS:COLLECTION_MODE$",
    "backtraces": r"^LINUX_PERF_OPTIONS:SAMPLES_PER_BACKTRACE$",
}
_NAME_VALUE = {"name": pl.String, "value": pl.String}
_LOST = re.compile(r"drop|\blost\b|\blose\b|discard|overflow", re.IGNORECASE)
#: How many: the number of things that "were lost", or what stands behind "lost"; other numbers are of other things.
_NUMBERS = (
    re.compile(r"\b(\d[\d,]*)\s+(?:[\w/-]+\s+){1,6}?(?:dropped|lost|discarded)\b", re.IGNORECASE),
    re.compile(r"\b(?:drop\w*|lost|lose|discard\w*)\W{1,3}(?:\w+\W+){0,4}?(\d[\d,]*)\b", re.IGNORECASE),
)
#: ENUM_DIAGNOSTIC_SEVERITY_LEVEL; 0 is unknown, 1 information, 4 verbose.
_WARNING, _ERROR = 2, 3


def exported(database: Tables) -> dict[str, str]:
    """Return what the exporter noted about itself, by name."""
    rows = pl.concat([database.read(table, _NAME_VALUE) for table in _EXPORT])
    rows = rows.filter(pl.col("name").str.starts_with("EXPORT_P") | pl.col("name").str.contains("TIME_SHIFT"))
    return dict(rows.drop_nulls().iter_rows())


def option(database: Tables, name: str) -> str | None:
    """Return the value of the recording's option `name` (a key of OPTIONS), None if it is not noted."""
    rows = database.read("META_DATA_CAPTURE", _NAME_VALUE).filter(pl.col("name").str.contains(OPTIONS[name]))
    values: list[str] = rows["value"].drop_nulls().to_list()
    return values[0] if values else None


def recorder(notes_of_export: Mapping[str, str]) -> str | None:
    """Return the version that exported the file: "nsys 2025.3.2"; the one that recorded it is not noted."""
    version = notes_of_export.get("EXPORT_PRODUCT_VERSION")
    return f"nsys {'.'.join(version.split('.')[:3])}" if version else None


def clock(database: Tables, notes_of_export: Mapping[str, str]) -> tuple[str, int | None]:
    """Return the clock of the file's times and what to add to them to get wall time, None if it does not tell.

    Times count from the session's start, unless the file was exported with ``--ts-normalize`` (then they are wall time);
    ``--ts-shift`` is added to either.
    """
    noted = (
        notes_of_export.get("EXPORT_PARAM_TIME_SHIFT")
        or notes_of_export.get("EXPORT_CONFIG_TIME_SHIFT")
        or "0"
    )
    shift = int(noted) if re.fullmatch(r"-?\d{1,18}", noted) else 0
    if notes_of_export.get("EXPORT_PARAM_TIME_NORMALIZE", "").lower() in ("true", "1"):
        return "realtime", -shift
    start = database.read("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": pl.Int64})[
        "utcEpochNs"
    ].drop_nulls()
    return "session", start[0] - shift if len(start) else None


def cpus(database: Tables) -> int | None:
    """Return the number of CPUs of the machine, None if it is not noted."""
    rows = database.read("TARGET_INFO_SYSTEM_ENV", _NAME_VALUE).filter(pl.col("name") == "CpuCores")
    counts = rows["value"].cast(pl.Int32, strict=False).drop_nulls()
    return counts[0] if len(counts) else None


def host(database: Tables) -> str | None:
    """Return the name of the machine that was recorded, None if it is not noted or there are several."""
    rows = database.read("TARGET_INFO_SYSTEM_ENV", _NAME_VALUE).filter(pl.col("name") == "Hostname")
    names = rows["value"].drop_nulls().unique()
    return (names[0] or None) if len(names) == 1 else None


def diagnostics(database: Tables) -> pl.DataFrame:
    """Return what nsys reported while it recorded: `severity` (ENUM_DIAGNOSTIC_SEVERITY_LEVEL), `text`, `count`."""
    rows = database.read("DIAGNOSTIC_EVENT", {"severity": pl.Int64, "text": pl.String}).drop_nulls()
    rows = rows.with_columns(pl.col("text").str.replace_all(r"\s+", " ").str.strip_chars())
    return rows.group_by("severity", "text", maintain_order=True).agg(count=pl.len())


def add_diagnostics(reported: pl.DataFrame, notes: Remarks) -> int:
    """Add nsys's own warnings and errors to `notes` and return the number of events that it says it lost."""
    lost = 0
    for severity, text, count in reported.iter_rows():
        is_loss = bool(_LOST.search(text))
        if is_loss:
            lost += _number_lost(text) * count
        if severity in (_WARNING, _ERROR) or is_loss:
            level = "error" if severity == _ERROR else "warning"
            times = f" ({count} times)" if count > 1 else ""
            notes.add(level, f"nsys reported{times}: {text}")
    return lost


def _number_lost(text: str) -> int:
    """Return how many events `text` says were lost, 0 if it does not say."""
    found = next((number for pattern in _NUMBERS if (number := pattern.search(text))), None)
    return int(found[1].replace(",", "")) if found else 0
