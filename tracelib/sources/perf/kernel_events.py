"""Kernel events in a scanned text: tracepoints of scheduler and system calls, and perf's records of switches.

perf's records of switches (`perf record --switch-events`, `perf script --show-switch-events`) are those of
tools/perf/util/event.c (`perf_event__fprintf_switch`) and kernel/events/core.c (`perf_event_switch`).
Recorded for all processes, every switch has two records, of the thread that leaves and of the one that comes,
a few hundred ns apart; each names the other thread. Recorded for some processes, neither does::

    py   29760/29760 [001] 1759.734128922: PERF_RECORD_SWITCH_CPU_WIDE OUT preempt  next pid/tid:  2773/2773
    bash  2773/2773  [001] 1759.734133721: PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid: 29760/29760
    sleep 3269/3269        1758.044605392: PERF_RECORD_SWITCH OUT
"""

import polars as pl

from tracelib.schema import SCHED, SCHED_EVENT, SLICES
from tracelib.sources.kernel import sched, syscalls
from tracelib.sources.kernel.threads import number_of
from tracelib.sources.perf.remarks import PerfRemarks
from tracelib.sources.perf.scan import Text

SCHEDULER = SCHED_EVENT.categories.to_list()
#: Systems whose tracepoints are system calls.
SYSTEM_CALLS = ("syscalls:", "raw_syscalls:")
SWITCH_RECORD = (
    r"^(?P<way>IN|OUT)(?P<runnable> preempt)?\s*"
    r"(?:(?:next|prev) pid/tid:\s*(?P<pid>-?\d+)/(?P<tid>-?\d+))?\s*$"
)


def scheduler_fields(text: Text) -> pl.DataFrame:
    """Return what scheduler tracepoints say, one row per row of `text.says`."""
    is_scheduler = text.says["kind"].is_in(SCHEDULER)
    args = pl.select(pl.when(is_scheduler).then(text.says["rest"]).alias("args")).to_series()
    return sched.fields(text.says["kind"].cast(pl.String), args)


def scheduler_events(
    text: Text, events: pl.DataFrame, fields: pl.DataFrame, who: pl.DataFrame
) -> tuple[pl.DataFrame, int]:
    """Return the frame `sched`, and how many scheduler events could not be read."""
    by_record, unread = _by_records(events, text.says, who)
    recorded = events.filter(pl.col("kind").is_in(SCHEDULER))
    read = recorded.filter(fields["ok"].gather(recorded["says"]))
    rows = read.select("ts_ns", "cpu", "thread", text="says")
    by_tracepoint = sched.frame(rows, fields, who).match_to_schema(SCHED)
    return pl.concat([by_tracepoint, by_record]), unread + recorded.height - read.height


def _switch_records(rest: pl.Series) -> pl.DataFrame:
    """Return `way` (IN, OUT; null = unreadable), `runnable`, the other thread's `pid`, `tid` per record."""
    parts = pl.DataFrame({"rest": rest}).select(
        pl.col("rest").str.extract_groups(SWITCH_RECORD).struct.unnest()
    )
    return parts.with_columns(
        pl.col("pid", "tid").cast(pl.Int64, strict=False), pl.col("runnable").is_not_null()
    )


def named_by_switches(says: pl.DataFrame) -> pl.DataFrame:
    """Return `tid`, `pid`, `last` of the other threads that records of switches in `says` name."""
    records = says.filter(pl.col("kind") == "switched")
    return _switch_records(records["rest"]).select("tid", "pid", records["last"]).drop_nulls()


def _by_records(events: pl.DataFrame, says: pl.DataFrame, who: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the records among `events` as rows of `sched`, and how many are unreadable.

    A thread that comes adds a row only where the record of the one that left is missing: else it is the same
    switch. The kernel says "preempt" of every thread that could have gone on running, so one that leaves
    without it is blocked, in a state that is not recorded: "other".
    """
    parsed = _switch_records(says["rest"])
    parsed = parsed.with_columns(other=number_of(parsed["tid"], who)).with_row_index("says")
    recorded = events.filter(pl.col("kind") == "switched")
    records = recorded.join(parsed, on="says", how="left", maintain_order="left")
    out, cpu = pl.col("way") == "OUT", pl.col("cpu")
    readable = records.filter(pl.col("way").is_not_null())
    before = {name: pl.col(name).shift(1).over("cpu") for name in ("way", "other")}
    same = cpu.is_not_null() & (before["way"] == "OUT") & (before["other"] == pl.col("thread"))
    switches = readable.sort("ts_ns", maintain_order=True).with_columns(same=same.fill_null(value=False))
    state = pl.when(out & pl.col("runnable")).then(pl.lit("R")).when(out).then(pl.lit("other"))
    rows = switches.filter(out | ~pl.col("same")).select(
        pl.lit(0, pl.Int32).alias("source"),
        "ts_ns",
        "cpu",
        pl.lit("switch", SCHED["event"]).alias("event"),
        pl.when(out).then("thread").otherwise("other").alias("prev"),
        state.cast(SCHED["prev_state"]).alias("prev_state"),
        pl.when(out).then("other").otherwise("thread").alias("next"),
    )
    return rows.match_to_schema(SCHED), records.height - readable.height


def system_calls(
    remarks: PerfRemarks, text: Text, events: pl.DataFrame, scheduled: pl.DataFrame, during: tuple[int, int]
) -> pl.DataFrame:
    """Return system calls as slices, and remark on tracepoints that have no frame."""
    edges = _edges(text.says)
    traced = events.filter(pl.col("kind") == "tracepoint")
    is_edge = edges["ends"].is_not_null().gather(traced["says"])
    names = text.says["event"].gather(traced.filter(~is_edge)["says"]).to_frame()
    others = names.group_by("event").len().sort("len", "event", descending=[True, False])
    remarks.counted_only(others)
    called = traced.filter(is_edge)
    if called.is_empty():
        return pl.DataFrame(schema=SLICES)
    rows = called.select("ts_ns", "thread").hstack(edges[called["says"]])
    return syscalls.slices(rows, scheduled, during, remarks, text.header.architecture)


def _edges(says: pl.DataFrame) -> pl.DataFrame:
    """Return call, ends (null = not a system call), raw and number of each row of `says`."""
    edge_of = {
        event: edge
        for event in says["event"].drop_nulls().unique()
        if event.startswith(SYSTEM_CALLS) and (edge := syscalls.edge_of(event.partition(":")[2] + ":"))
    }
    event = pl.col("event")
    calls = event.replace_strict(
        {name: edge.call for name, edge in edge_of.items()}, default=None, return_dtype=pl.String
    )
    ends = event.replace_strict(
        {name: edge.ends for name, edge in edge_of.items()}, default=None, return_dtype=pl.Boolean
    )
    raw = event.str.starts_with("raw_")
    number = pl.when(raw).then(pl.col("rest").str.extract(syscalls.NUMBER)).cast(pl.Int32, strict=False)
    return says.select(call=calls.cast(pl.Categorical()), ends=ends, raw=raw, number=number)
