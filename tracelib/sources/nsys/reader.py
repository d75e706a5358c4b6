"""An nsys export, table by table, to a :class:`tracelib.trace.Trace`."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl

from tracelib.schema import FRAMES, IDLE, SORT
from tracelib.sources.files import sha256
from tracelib.sources.health import Remarks, source_frame
from tracelib.sources.nsys import gpus, recording, slices, threads
from tracelib.sources.nsys.tables import Tables, string_ids
from tracelib.trace import Trace, ordered

_GRAPH_LAUNCH = "GraphLaunch"


def trace_of(database: Tables, path: Path) -> Trace:
    """Return the frames of the open export `database`, which was read from `path`."""
    notes = Remarks()
    texts = string_ids(database)
    reported = recording.diagnostics(database)
    with ThreadPoolExecutor(1) as worker:  # hashing needs no interpreter: it runs while tables are decoded
        digest = worker.submit(_digest, database.files)
        read, given = _events(database, texts, reported, notes)
    first, last = _span(read)
    recording.add_missing(database, read, notes)
    lost = recording.add_diagnostics(reported, notes)
    frames = _numbered(database, texts, read, given, last or 0, notes)
    for damage in database.damage:
        notes.add("error", f"damaged: {damage}", "Export the file again from its .nsys-rep.")
    about = {"sha256": digest.result(), "first_ns": first, "last_ns": last, "lost_declared": lost}
    frames["sources"] = _source(database, path, about)
    frames["health"] = notes.frame()
    return Trace.of(frames)


def _events(
    database: Tables, texts: pl.DataFrame, reported: pl.DataFrame, notes: Remarks
) -> tuple[dict[str, pl.DataFrame], pl.DataFrame]:
    """Return the frames of events as the file has them, and the names that threads were given by NVTX.

    They have nsys's ids and are in the file's order.
    """
    host, given = slices.host_slices(database, texts, notes)
    operations = _with_process(gpus.gpu_ops(database, texts), host, notes)
    operations = slices.with_messages(operations, host, database, notes)
    read = {
        "slices": host,
        "gpu_ops": _with_graph_launches(operations, host),
        "samples": threads.samples(database, *threads.trigger(reported["text"], recording.period(database))),
        "sched": threads.switches(database),
        "counters": gpus.gpu_metrics(database),
    }
    return read, given


def _numbered(
    database: Tables,
    texts: pl.DataFrame,
    read: dict[str, pl.DataFrame],
    given: pl.DataFrame,
    last: int,
    notes: Remarks,
) -> dict[str, pl.DataFrame]:
    """Return the frames with the numbers of threads, GPUs and stacks in place of nsys's ids.

    Takes the frames out of `read`, so that each one's memory is free again once it has been rewritten.
    """
    ids = [
        read["slices"]["globalTid"],
        read["samples"]["globalTid"],
        read["sched"]["prev"],
        read["sched"]["next"],
    ]
    used = pl.concat([column.drop_nulls().unique().alias("globalTid") for column in ids])
    host = recording.host(database)
    thread_ids = threads.threads(database, texts, used.filter(used != IDLE), given, host)
    frames = {"threads": thread_ids.drop("globalTid"), "counters": read.pop("counters")}
    frames["gpus"], gpu = gpus.gpus(database, read["gpu_ops"], host, notes)
    frames["gpu_ops"] = _operations(read.pop("gpu_ops"), gpu, notes)
    del gpu
    frames["slices"] = _slices(read.pop("slices"), thread_ids, last, notes)
    frames["stacks"], stack_of = threads.call_chains(database, texts)
    frames["samples"] = _samples(read.pop("samples"), thread_ids, stack_of)
    frames["sched"] = _switches(read.pop("sched"), thread_ids)
    return frames


def _framed(frame: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return `rows` in order, with exactly the columns of `frame`; those that nsys does not know are null.

    Columns without a value are left out of the sort: with millions of rows they would take as much memory as
    the others.
    """
    schema = FRAMES[frame]
    nulls = [name for name in schema if name not in rows.columns or rows[name].null_count() == rows.height]
    filled = rows.select(
        name for name in schema if name not in nulls or (name in SORT[frame] and name in rows.columns)
    )
    absent = [pl.lit(None, schema[name]).alias(name) for name in nulls if name not in filled.columns]
    whole = ordered(frame, filled).with_columns(absent).with_columns(source=pl.lit(0, pl.Int32))
    return whole.select(schema.names()).match_to_schema(schema)


def _samples(rows: pl.DataFrame, thread_ids: pl.DataFrame, stack_of: pl.DataFrame) -> pl.DataFrame:
    rows = rows.with_columns(thread=threads.numbered(rows["globalTid"], thread_ids))
    return _framed("samples", rows.join(stack_of, on="id", how="left", maintain_order="left"))


def _switches(rows: pl.DataFrame, thread_ids: pl.DataFrame) -> pl.DataFrame:
    prev, next_ = _thread_or_idle(rows["prev"], thread_ids), _thread_or_idle(rows["next"], thread_ids)
    return _framed("sched", rows.with_columns(prev=prev, next=next_))


def _thread_or_idle(column: pl.Series, thread_ids: pl.DataFrame) -> pl.Series:
    idle = pl.DataFrame(
        {"globalTid": [IDLE], "thread": [IDLE]}, schema={"globalTid": pl.Int64, "thread": pl.Int32}
    )
    return threads.numbered(column, pl.concat([thread_ids.select("globalTid", "thread"), idle]))


def _slices(host: pl.DataFrame, thread_ids: pl.DataFrame, last: int, notes: Remarks) -> pl.DataFrame:
    thread = threads.numbered(host["globalTid"], thread_ids)
    if thread.null_count():  # the profiler's own overhead names none
        nowhere = host.filter(thread.is_null() & (host["category"] != "overhead")).height
        notes.count(nowhere, "host calls and ranges name no thread: they are shown on none")
    rows = _with_duration(host.with_columns(thread=thread), last, "host calls and ranges", notes)
    return _framed("slices", rows)


def _operations(gpu_rows: pl.DataFrame, gpu: pl.Series, notes: Remarks) -> pl.DataFrame:
    rows = gpu_rows.with_columns(gpu=gpu, pid=threads.pid("globalPid"))
    placed = _having(rows, "gpu")
    notes.count(rows.height - placed.height, "GPU operations left out: their device number makes no sense")
    return _framed("gpu_ops", _with_duration(placed, None, "GPU operations", notes))


def _having(rows: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return the rows with a value in `column`: as they are, not a copy, where all have one."""
    return rows.filter(pl.col(column).is_not_null()) if rows[column].null_count() else rows


def _with_duration(rows: pl.DataFrame, last: int | None, what: str, notes: Remarks) -> pl.DataFrame:
    """Return the rows that have a start, with `dur_ns`; an open one lasts until `last`, if given."""
    started = _having(rows, "ts_ns")
    notes.count(rows.height - started.height, f"{what} left out: they have no start")
    if last is not None and (open_ := started["end_ns"].null_count()):
        notes.count(
            open_, f"{what} were still open when recording stopped: they end at the file's last event"
        )
        started = started.with_columns(pl.col("end_ns").fill_null(pl.max_horizontal("ts_ns", pl.lit(last))))
    length = started.select(pl.col("end_ns") - pl.col("ts_ns")).to_series()
    notes.count(
        int((length < 0).sum()) + length.null_count(),
        f"{what} have an end before their start, or none: length 0",
    )
    return started.with_columns(dur_ns=length.fill_null(0).clip(lower_bound=0))


def _with_process(operations: pl.DataFrame, host: pl.DataFrame, notes: Remarks) -> pl.DataFrame:
    """Give operations that name no process (before 2021, or rewritten) the only one that made calls."""
    if not operations.height or operations["globalPid"].null_count() < operations.height:
        return operations
    callers = host.filter(pl.col("category").is_in(["runtime", "driver"]))
    if (caller := threads.only_process(callers["globalTid"])) is None:
        notes.say("operations_without_process")
        return operations
    notes.add("info", "GPU operations name no process: taken to be of the only one that made CUDA calls")
    return operations.with_columns(globalPid=pl.lit(caller, pl.Int64))


def _with_graph_launches(operations: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """Mark operations whose call launched a graph: older exports do not say so in the row."""
    names = host["name"].unique()
    launching = names.filter(names.cast(pl.String).str.contains(_GRAPH_LAUNCH))
    calls = host.filter(pl.col("name").is_in(launching.implode()) & pl.col("correlation").is_not_null())
    if not calls.height:
        return operations
    calls = calls.select(
        process=threads.process("globalTid"), correlation="correlation", launched=pl.lit(value=True)
    )
    rows = operations.with_columns(process=threads.process("globalPid"))
    rows = rows.join(calls.unique(), on=["process", "correlation"], how="left", maintain_order="left")
    graph = pl.coalesce("graph", pl.when("launched").then(0))
    return rows.with_columns(graph=graph).drop("process", "launched")


def _span(read: dict[str, pl.DataFrame]) -> tuple[int | None, int | None]:
    times = [
        frame[column] for frame in read.values() for column in ("ts_ns", "end_ns") if column in frame.columns
    ]
    firsts = [frame["ts_ns"].min() for frame in read.values()]
    lasts = [column.max() for column in times]
    return (
        min((first for first in firsts if isinstance(first, int)), default=None),
        max((last for last in lasts if isinstance(last, int)), default=None),
    )


def _source(database: Tables, path: Path, about: dict[str, str | int | None]) -> pl.DataFrame:
    exported = recording.exported(database)
    clock, wall_offset = recording.clock(database, exported)
    ranks = threads.ranks(database)["rank"].unique()
    return source_frame(
        path,
        "nsys",
        **about,
        rank=ranks[0] if len(ranks) == 1 else None,
        bytes=sum(file.stat().st_size for file in database.files),
        host=recording.host(database),
        recorder=recording.recorder(exported),
        cpus=recording.cpus(database),
        clock=clock,
        wall_offset_ns=wall_offset,
        lost_detected=0,
        skipped_bytes=database.lost_bytes,
    )


def _digest(files: list[Path]) -> str:
    """Return the SHA-256 of the file, or that of the digests of several."""
    digests = [sha256(file) for file in files]
    return digests[0] if len(files) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
