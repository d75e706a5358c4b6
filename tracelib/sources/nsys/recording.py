"""What an nsys export says of its recording (clock, machine, options, diagnostics), and what it lacks.

Only the few fields named here are read. `META_DATA_CAPTURE`, `TARGET_INFO_SYSTEM_ENV` and `ProcessStreams`
also hold the profiled programs' environment, arguments and output, which must not get into a trace.
"""

import re
from collections.abc import Mapping

import polars as pl

from tracelib.sources.health import Remarks
from tracelib.sources.nsys.gpus import GPU_TABLES
from tracelib.sources.nsys.slices import NVTX, SYNCHRONIZATION, is_calls
from tracelib.sources.nsys.tables import UNKNOWN, Tables, shown_name
from tracelib.sources.nsys.threads import SAMPLES_TABLE, SCHED_TABLE

#: Tables of name-value pairs in which an export describes itself; the second until nsys 2023.
_EXPORT = ("META_DATA_EXPORT", "EXPORT_META_DATA")
#: Options of the recording that matter here: no other row of META_DATA_CAPTURE is used.
OPTIONS = {
    "switches": r"^LINUX_PERF_OPTIONS:COLLECTION_MODE$",
    "backtraces": r"^LINUX_PERF_OPTIONS:SAMPLES_PER_BACKTRACE$",
    "period": r"^LINUX_PERF_OPTIONS:SAMPLING_PERIOD$",
}
_NAME_VALUE = {"name": pl.String, "value": pl.String}
_LOST = re.compile(r"drop|\blost\b|\blose\b|discard|overflow", re.IGNORECASE)
#: How many: the number of things that "were lost", or what stands behind "lost"; other numbers are of other
#: things.
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


def period(database: Tables) -> int | None:
    """Return the sampling period that was asked for, None if none is noted (0: nothing was sampled)."""
    noted = option(database, "period") or ""
    return int(noted) or None if re.fullmatch(r"\d{1,18}", noted) else None


def recorder(notes_of_export: Mapping[str, str]) -> str | None:
    """Return the version that exported the file: "nsys 2025.3.2"; the one that recorded it is not noted."""
    version = notes_of_export.get("EXPORT_PRODUCT_VERSION")
    return f"nsys {'.'.join(version.split('.')[:3])}" if version else None


def clock(database: Tables, notes_of_export: Mapping[str, str]) -> tuple[str, int | None]:
    """Return the clock of the file's times and what to add to them to get wall time (None: it does not tell).

    Times count from the session's start, unless the file was exported with ``--ts-normalize`` (then they are
    wall time); ``--ts-shift`` is added to either.
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
    """Return what nsys reported: `severity` (ENUM_DIAGNOSTIC_SEVERITY_LEVEL), `text`, `count`."""
    rows = database.read("DIAGNOSTIC_EVENT", {"severity": pl.Int64, "text": pl.String}).drop_nulls()
    rows = rows.with_columns(pl.col("text").str.replace_all(r"\s+", " ").str.strip_chars())
    return rows.group_by("severity", "text", maintain_order=True).agg(count=pl.len())


def add_diagnostics(reported: pl.DataFrame, notes: Remarks) -> int:
    """Add nsys's own warnings and errors to `notes` and return the number of events that it says it lost."""
    lost = 0
    for severity, text, count in reported.iter_rows():
        is_loss = bool(_LOST.search(text))
        if is_loss:
            number = next(filter(None, (pattern.search(text) for pattern in _NUMBERS)), None)
            lost += count * int(number[1].replace(",", "")) if number else 0
        if severity in (_WARNING, _ERROR) or is_loss:
            level = "error" if severity == _ERROR else "warning"
            times = f" ({count} times)" if count > 1 else ""
            notes.add(level, f"nsys reported{times}: {text}")
    return lost


#: Real exports have some dozens of tables; one of thousands is not looked through.
_TABLES_COUNTED, _TABLES_SHOWN = 200, 12
_MOMENTS = ("start", "timestamp")
#: Tables of events that have a frame or a remark of their own.
_READ = {
    *GPU_TABLES.values(),
    SYNCHRONIZATION,
    NVTX,
    SCHED_TABLE,
    SAMPLES_TABLE,
    "GPU_METRICS",
    "DIAGNOSTIC_EVENT",
    "GENERIC_EVENTS",
}
_AGAIN = "Record with: nsys profile"
_LAUNCH = r"(?i)launch"
#: What the exporter notes of the limits it was given, and its option for each.
_LIMITS = {"EXPORT_PARAM_TABLES_TO_EXPORT": "tables", "EXPORT_PARAM_TIMES_TO_EXPORT": "times"}


def add_missing(database: Tables, read: Mapping[str, pl.DataFrame], notes: Remarks) -> None:
    """Add a remark for each kind of evidence that the frames in `read` lack."""
    again = (
        _AGAIN
        if not (limits := _limits(database, notes))
        else f"Export again without {limits}; else record with: nsys profile"
    )
    _add_gpu(dict(read["gpu_ops"]["kind"].value_counts().iter_rows()), read["slices"], again, notes)
    _add_host(set(read["slices"]["category"].unique().cast(pl.String)), again, notes)
    if read["sched"].height:
        _add_switches(database, notes)
    else:
        without = "no context switches: when threads ran and waited for a CPU is unknown"
        notes.add("info", without, f"{again} --cpuctxsw=system-wide (needs root)")
    if generic := database.read("GENERIC_EVENTS", {"timestamp": pl.Int64}).height:
        notes.say("generic_events", events=generic)
    _add_unread(database, notes)
    unknown = sum(int((read[frame]["name"] == UNKNOWN).sum()) for frame in ("slices", "gpu_ops"))
    notes.count(unknown, f"calls and kernels are called {UNKNOWN}: their names are not in the file")
    _add_samples(database, read["samples"].height, again, notes)


def _limits(database: Tables, notes: Remarks) -> str:
    """Say what the export was limited to, and return the options that did so; a report may hold more."""
    noted = exported(database)
    limits = {option_: noted[name] for name, option_ in _LIMITS.items() if noted.get(name)}
    for option_, value in limits.items():
        notes.say("export_limited", option=option_, value=shown_name(value))
    return " and ".join(f"--{option_}" for option_ in limits)


def _add_host(categories: set[str], again: str, notes: Remarks) -> None:
    if "annotation" not in categories:
        flag = "-t nvtx (and a program that emits ranges: PyTorch's emit_nvtx, a serving engine's own)"
        notes.add("info", "no NVTX ranges in this file", f"{again} {flag}")
    if "os" not in categories:
        notes.add("info", "no libc calls (OSRT) in this file", f"{again} -t osrt")


def _add_samples(database: Tables, samples: int, again: str, notes: Remarks) -> None:
    if not samples:
        without = "no CPU samples in this file: what threads did between traced calls it does not tell"
        notes.add("info", without, f"{again} --sample=system-wide")
        return
    every = option(database, "backtraces") or ""
    if re.fullmatch(r"[1-9]\d{0,8}", every) and every != "1":
        notes.say("some_stacks_walked", every=every)


def _add_unread(database: Tables, notes: Remarks) -> None:
    others = sorted(table for table in database.tables.keys() - _READ if not is_calls(database, table))
    counted = [(_rows(database, table), table) for table in others[:_TABLES_COUNTED]]
    unread = sorted(((rows, table) for rows, table in counted if rows), reverse=True)
    shown = ", ".join(f"{shown_name(table)} ({rows})" for rows, table in unread[:_TABLES_SHOWN])
    if unread:
        more = f" and {len(unread) - _TABLES_SHOWN} tables more" if len(unread) > _TABLES_SHOWN else ""
        notes.add("info", f"events that are counted, not read: {shown}{more}")


def _rows(database: Tables, table: str) -> int:
    """Return how many rows `table` has, 0 if they are not events."""
    moment = next((column for column in _MOMENTS if database.has(table, column)), None)
    return database.read(table, {moment: pl.Int64}).height if moment else 0


def _add_gpu(count: dict[str, int], slices: pl.DataFrame, again: str, notes: Remarks) -> None:
    if graphs := count.get("graph"):
        kernels_too = (
            f" (the {count['kernel']} kernels in this file ran beside them)" if count.get("kernel") else ""
        )
        notes.say("graphs_as_a_whole", graphs=graphs, kernels_too=kernels_too)
    elif count and not count.get("kernel"):
        notes.add("info", f"{sum(count.values())} copies and memsets, but no kernel in this file")
    elif not count:
        _add_no_gpu(slices, again, notes)


def _add_no_gpu(slices: pl.DataFrame, again: str, notes: Remarks) -> None:
    names = slices.filter(pl.col("category").is_in(["runtime", "driver"]))["name"].value_counts()
    if not (calls := int(names["count"].sum())):
        notes.add("warning", "no CUDA calls and no GPU activity in this file", f"{again} -t cuda,nvtx,osrt")
        return
    launches = int(names.filter(pl.col("name").cast(pl.String).str.contains(_LAUNCH))["count"].sum())
    calls_seen = f"{calls} CUDA calls ({launches} launches), but no kernel"
    if again != _AGAIN:
        unseen = f"{calls_seen}: GPU activity was not exported, or not recorded"
        notes.add("warning", unseen, f"{again} -t cuda")
        return
    notes.say("gpu_not_recorded", calls=calls_seen)


def _add_switches(database: Tables, notes: Remarks) -> None:
    notes.say("no_wakeups")
    if (mode := option(database, "switches")) and "system" not in mode.lower():
        notes.say("switches_of_some")
