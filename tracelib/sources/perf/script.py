"""The text of `perf script` to frames: scanned, its distinct parts parsed, the events put together."""

from pathlib import Path

import numpy as np
import polars as pl

from tracelib.errors import BadTrace
from tracelib.schema import SAMPLES
from tracelib.sources.files import hashed, sha256
from tracelib.sources.health import source_frame
from tracelib.sources.kernel.threads import LESS_TRUSTED, NAMES, PROCESSES, number_of, threads
from tracelib.sources.perf import call_chains, kernel_events
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
    fields = kernel_events.scheduler_fields(text)
    who = _threads(remarks, text, fields)
    thread = number_of(text.bases["tid"], who).gather(text.events["base"])
    events = text.events.with_columns(thread, text.bases["cpu"].gather(text.events["base"]))
    # recorded twice, a switch is taken from its tracepoint, which also has the state
    unused = ["switched"] if (events["kind"] == "switch").any() else []
    samples, stacks = _samples(text, events)
    scheduled, unread = kernel_events.scheduler_events(
        text, events.filter(~pl.col("kind").is_in(unused)), fields, who
    )
    if unread:
        remarks.add("warning", f"{unread:,} scheduler events could not be read")
    detected = remarks.missing_switches(scheduled, system_wide=text.header.system_wide) + unread
    timed = events.filter(~pl.col("kind").is_in(["record", *unused]))
    during = timed.select(first=pl.col("ts_ns").min(), last=pl.col("ts_ns").max()).row(0)
    slices = kernel_events.system_calls(remarks, text, events, scheduled, during)
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
    other = kernel_events.named_by_switches(text.says.with_columns(last=last)).with_columns(
        name=pl.lit(None, pl.String)
    )
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
