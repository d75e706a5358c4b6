"""The text of `perf script` to frames: scanned, its distinct parts parsed, the events put together.

The kernel's events are tracepoints of the scheduler and of system calls, and perf's records of switches
(`perf record --switch-events`, `perf script --show-switch-events`): those of tools/perf/util/event.c
(`perf_event__fprintf_switch`) and kernel/events/core.c (`perf_event_switch`). Recorded for all processes,
every switch has two records, of the thread that leaves and of the one that comes, a few hundred ns apart;
each names the other thread. Recorded for some processes, neither does::

    py   29760/29760 [001] 1759.734128922: PERF_RECORD_SWITCH_CPU_WIDE OUT preempt  next pid/tid:  2773/2773
    bash  2773/2773  [001] 1759.734133721: PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid: 29760/29760
    sleep 3269/3269        1758.044605392: PERF_RECORD_SWITCH OUT
"""

from pathlib import Path

import numpy as np
import polars as pl

from tracelib.errors import BadTrace
from tracelib.schema import SAMPLES, SCHED, SCHED_EVENT, SLICES
from tracelib.sources.files import hashed, sha256
from tracelib.sources.health import source_frame
from tracelib.sources.kernel import sched, syscalls
from tracelib.sources.kernel.sched import LESS_TRUSTED, NAMES, PROCESSES, number_of, threads
from tracelib.sources.perf import call_chains
from tracelib.sources.perf.heads import NO_TIME_HEAD
from tracelib.sources.perf.remarks import PerfRemarks, not_understood, remark_on_text
from tracelib.sources.perf.scan import Text, scanned
from tracelib.trace import Trace

UNTIMED = "events carry no time"
TIME = "Print the time: perf script"
COMM_RECORD = r"^(?:exec: )?(?P<comm>.*):(?P<pid>\d+)/(?P<tid>\d+)$"


def read_text(path: Path, original: Path | None = None) -> Trace:
    """Return the trace in the `perf script` text at `path`; BadTrace if it holds no event with a time.

    `original` is the file that the text was made from, if that is another: `sources` names that one.
    """
    text = scanned(path)
    if text.events.is_empty():
        raise _nothing(path, text)
    steps = text.events["ts_ns"].diff()
    if text.events["ts_ns"][0] == 0 and (steps < 0).sum() * 4 > steps.len():
        reason, advice = "its times are those since the event before (--deltatime)", f"{TIME} --header --ns"
        raise BadTrace(original or path, "perf script text", "", reason, advice=advice)
    with hashed(original or path):  # what follows leaves a core idle
        return _made(text, original or path)


def _made(text: Text, path: Path) -> Trace:
    remarks = PerfRemarks()
    lost = remark_on_text(remarks, text)
    unknown_bytes = int(not_understood(text.other)["bytes"].sum())
    fields = scheduler_fields(text)
    who = _threads(remarks, text, fields)
    thread = number_of(text.bases["tid"], who).gather(text.events["base"])
    events = text.events.with_columns(thread, text.bases["cpu"].gather(text.events["base"]))
    # recorded twice, a switch is taken from its tracepoint, which also has the state
    unused = ["switched"] if (events["kind"] == "switch").any() else []
    samples, stacks = _samples(text, events)
    scheduled, unread = scheduler_events(text, events.filter(~pl.col("kind").is_in(unused)), fields, who)
    if unread:
        remarks.add("warning", f"{unread:,} scheduler events could not be read")
    detected = remarks.missing_switches(scheduled, system_wide=text.header.system_wide) + unread
    timed = events.filter(~pl.col("kind").is_in(["record", *unused]))
    during = timed.select(first=pl.col("ts_ns").min(), last=pl.col("ts_ns").max()).row(0)
    slices = system_calls(remarks, text, events, scheduled, during)
    source = source_frame(
        path,
        "perf",
        sha256=sha256(path),
        recorder=text.header.recorder,
        host=text.header.host,
        cpus=text.header.cpus,
        clock=text.header.clock,
        wall_offset_ns=text.header.wall_offset_ns,
        first_ns=during[0],
        last_ns=during[1],
        lost_declared=lost,
        lost_detected=detected,
        skipped_bytes=text.lost_bytes + text.ending.dropped_bytes + unknown_bytes,
    )
    return Trace.of(
        {
            "samples": samples,
            "stacks": stacks,
            "sched": scheduled,
            "slices": slices,
            "threads": who,
            "sources": source,
            "health": remarks.frame(),
        }
    )


def _nothing(path: Path, text: Text) -> BadTrace:
    untimed = text.other.filter(pl.col("text").str.contains(NO_TIME_HEAD))
    excerpt = text.other["text"][0] if text.other.height else ""
    if untimed.height:
        reason, excerpt = f"its {untimed.height:,} {UNTIMED}", untimed["text"][0]
        advice = f"{TIME} -F +time --ns"
    elif text.orphans:
        reason = f"{text.orphans:,} call-chain lines, but no event with a time"
        advice = "Print thread, time and event too: perf script --header --ns"
    else:
        reason, excerpt, advice = "it holds no event", excerpt or text.ending.dropped, text.damage or ""
    return BadTrace(path, "perf script text", "", reason, excerpt, advice)


def _threads(remarks: PerfRemarks, text: Text, fields: pl.DataFrame) -> pl.DataFrame:
    bases = text.bases.with_columns(last=_last_use(text.events["base"], text.bases.height) * 2)
    bases = bases.filter(pl.col("last") >= 0)
    last = _last_use(text.events["says"], text.says.height) * 2 + 1
    sides = [
        fields.select(tid=side, name=f"{side}_name", last=last - LESS_TRUSTED).drop_nulls("tid")
        for side in ("prev", "next")
    ]
    record = text.says.with_columns(last=last).filter(pl.col("event") == "PERF_RECORD_COMM")
    named = record.select(pl.col("rest").str.extract_groups(COMM_RECORD).struct.unnest(), "last")
    named = named.with_columns(pl.col("tid", "pid").cast(pl.Int64, strict=False)).drop_nulls("tid")
    other = named_by_switches(text.says.with_columns(last=last)).with_columns(name=pl.lit(None, pl.String))
    names = [bases.rename({"comm": "name"}), *sides, named.rename({"comm": "name"}), other]
    processes = pl.concat(rows.select(PROCESSES.names()) for rows in (bases, named, other)).drop_nulls()
    pairs = processes.filter((pl.col("tid") > 0) & (pl.col("pid") > 0)).select("tid", "pid").unique()
    if shared := pairs.group_by("tid").len().filter(pl.col("len") > 1).height:
        several = f"{shared:,} thread ids were used by more than one process; each is shown as one thread"
        remarks.add("info", several)
    return threads(pl.concat(rows.select(NAMES.names()) for rows in names), processes, text.header.host)


def _last_use(codes: pl.Series, height: int) -> pl.Series:
    """Return for each of `height` codes the place where it stands last in `codes`, -1 where it does not."""
    last = np.full(height, -1, dtype=np.int64)
    last[codes.to_numpy()] = np.arange(len(codes))
    return pl.Series("last", last)


def _samples(text: Text, events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frames `samples` and `stacks`: every event that is not a tracepoint."""
    is_sample = (events["kind"] == "sample").to_numpy()
    of_event = events["says"].to_numpy()
    chains, distinct = _chains(text, is_sample, of_event)
    stack, stacks = call_chains.stacks(chains, distinct, events.height)
    says = text.says.select("period", pl.col("event").cast(pl.Categorical()))
    sampled = events.with_columns(stack).filter(pl.Series(is_sample))
    samples = sampled.select(
        pl.lit(0, pl.Int32).alias("source"), "thread", "ts_ns", "cpu", *says[sampled["says"]], "stack"
    )
    return samples.match_to_schema(SAMPLES), stacks


def _chains(text: Text, is_sample: np.ndarray, says: np.ndarray) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `event`, `frame` of the samples' frames, innermost first, and the distinct `symbol`, `library`.

    A sample without a chain whose head shows the instruction has that as its only frame.
    """
    sampled = (text.says["kind"] == "sample") & (text.says["rest"] != "")
    inline = call_chains.inline_frames(pl.select(pl.when(sampled).then(text.says["rest"])).to_series())
    parsed = pl.concat([text.chain_lines, inline])
    distinct = parsed.drop_nulls("symbol").unique(maintain_order=True).with_row_index("frame")
    of_line = parsed.join(
        distinct, on=["symbol", "library"], how="left", nulls_equal=True, maintain_order="left"
    )["frame"]
    sampled_lines = text.frames.filter(pl.Series(is_sample).gather(text.frames["event"]))
    listed = sampled_lines.with_columns(of_line.gather(sampled_lines["frame"]).cast(pl.Int64)).drop_nulls()
    alone = is_sample.copy()
    alone[listed["event"].to_numpy()] = False
    events = np.flatnonzero(alone)
    single = pl.DataFrame(
        {
            "event": events,
            "frame": of_line.tail(text.says.height).gather(pl.Series(says[events])).cast(pl.Int64),
        }
    ).drop_nulls()
    chains = pl.concat([listed, single]).sort("event", maintain_order=True) if single.height else listed
    return chains, distinct


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
