"""The text of `perf script` to frames: scan block by block, parse distinct parts, put the events together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelib.errors import BadTrace
from tracelib.schema import SAMPLES, SCHED, SCHED_EVENT, SLICES, SOURCES
from tracelib.sources.files import hashed, sha256
from tracelib.sources.kernel import sched, syscalls
from tracelib.sources.kernel.threads import LESS_TRUSTED, NAMES, PROCESSES, number_of, threads
from tracelib.sources.perf import frames, switch_records
from tracelib.sources.perf.health import PerfRemarks
from tracelib.sources.perf.joined import Text, joined
from tracelib.sources.perf.patterns import COMM_RECORD, EXTRA_LINE, LOSS, NO_TIME_HEAD, SHARE
from tracelib.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

UNTIMED = "events carry no time"

#: Systems whose tracepoints are system calls.
SYSTEM_CALLS = ("syscalls:", "raw_syscalls:")
SCHEDULER = SCHED_EVENT.categories.to_list()


def read_text(path: Path, original: Path | None = None) -> Trace:
    """Return the trace in the `perf script` text at `path`.

    `original` is the file that the text was made from, where that is another: it is the one that `sources` names.

    Raises
    ------
    BadTrace
        The file holds no event with a time.

    """
    text = joined(path)
    if text.events.is_empty():
        raise _nothing(path, text)
    with hashed(original or path):  # what follows leaves a core idle
        return _made(text, original or path)


def _made(text: Text, path: Path) -> Trace:
    """Return the trace in `text`; `path` is the file that `sources` names."""
    remarks = PerfRemarks()
    lost = _remark_on_text(remarks, text)
    fields = _scheduler_fields(text)
    who = _threads(remarks, text, fields)
    events = text.events.with_columns(_thread(text, who), text.bases["cpu"].gather(text.events["base"]))
    # recorded twice, a switch is taken from its tracepoint, which also has the state
    unused = ["switched"] if (events["kind"] == "switch").any() else []
    samples, stacks = _samples(text, events)
    scheduled, unread = _sched(text, events.filter(~pl.col("kind").is_in(unused)), fields, who)
    if unread:
        remarks.add("warning", f"{unread:,} scheduler events could not be read")
    detected = remarks.missing_switches(scheduled, system_wide=text.header.system_wide) + unread
    timed = events.filter(~pl.col("kind").is_in(["record", *unused]))
    during = timed.select(first=pl.col("ts_ns").min(), last=pl.col("ts_ns").max()).row(0)
    slices = _slices(remarks, text, events, scheduled, during)
    source = {
        "file": path.name,
        "sha256": sha256(path),
        "bytes": path.stat().st_size,
        "format": "perf",
        "recorder": text.header.recorder,
        "host": text.header.host,
        "cpus": text.header.cpus,
        "clock": text.header.clock,
        "wall_offset_ns": text.header.wall_offset_ns,
        "first_ns": during[0],
        "last_ns": during[1],
        "lost_declared": lost,
        "lost_detected": detected,
        "skipped_bytes": text.lost_bytes
        + text.ending.dropped_bytes
        + int(_unknown(text.other)["bytes"].sum()),
    }
    row = {"source": 0} | {name: source.get(name) for name in SOURCES.names() if name != "source"}
    return Trace.of(
        {
            "samples": samples,
            "stacks": stacks,
            "sched": scheduled,
            "slices": slices,
            "threads": who,
            "sources": pl.DataFrame([row], schema=SOURCES),
            "health": remarks.frame(),
        }
    )


def _nothing(path: Path, text: Text) -> BadTrace:
    """Return the reason why a file without events is refused."""
    untimed = text.other.filter(pl.col("text").str.contains(NO_TIME_HEAD))
    if untimed.height:
        return BadTrace(
            path,
            "perf script text",
            "",
            f"its {untimed.height:,} {UNTIMED}",
            untimed["text"][0],
            "Print the time: perf script -F +time --ns",
        )
    excerpt = text.other["text"][0] if text.other.height else ""
    if text.orphans:
        return BadTrace(
            path,
            "perf script text",
            "",
            f"{text.orphans:,} call-chain lines, but no event with a time",
            excerpt,
            "Print thread, time and event too: perf script --header --ns",
        )
    return BadTrace(
        path,
        "perf script text",
        "",
        "it holds no event",
        excerpt or text.ending.dropped,
        f"{text.damage or ''}",
    )


def _unknown(other: pl.DataFrame) -> pl.DataFrame:
    return other.filter(~pl.col("text").str.contains(EXTRA_LINE) & ~pl.col("text").str.contains(LOSS))


def _remark_on_text(remarks: PerfRemarks, text: Text) -> int:
    """Add what can be said of the text itself, and return how many events perf says it lost."""
    remarks.clock(text.header)
    remarks.subsampled(text.header)
    unknown = _unknown(text.other)
    remarks.unread(unknown.height, int(unknown["bytes"].sum()), unknown["text"].head(3).to_list())
    remarks.ending(text.ending, text.damage)
    if text.orphans:
        remarks.add("warning", f"{text.orphans:,} call-chain lines follow no readable event and are left out")
    if text.damaged:
        remarks.add("info", f"{text.damaged:,} places are no UTF-8 and shown as U+FFFD")
    records = text.events.filter(pl.col("kind") == "record").group_by("says").len()
    spoken = text.says.gather_every(1).with_row_index("says").join(records, on="says", how="inner")
    losses = pl.concat(
        [
            text.other.filter(pl.col("text").str.contains(LOSS)).select(
                "text", pl.lit(1, pl.UInt32).alias("len")
            ),
            spoken.filter(pl.col("event").str.contains("LOST")).select(
                pl.concat_str(pl.lit("lost "), "rest").alias("text"), "len"
            ),
        ]
    )
    number = pl.when(~pl.col("text").str.contains(SHARE)).then(
        pl.col("text").str.extract(LOSS)
    )  # not "lost 12.3%"
    count = number.cast(pl.Int64, strict=False).fill_null(1) * pl.col("len")
    lost = int(losses.select(count).to_series().sum())
    remarks.lost(lost, int(losses["len"].sum()))
    return lost


def _scheduler_fields(text: Text) -> pl.DataFrame:
    """Return what scheduler tracepoints say, one row per row of `text.says`."""
    is_scheduler = text.says["kind"].is_in(SCHEDULER)
    args = pl.select(pl.when(is_scheduler).then(text.says["rest"]).alias("args")).to_series()
    return sched.fields(text.says["kind"].cast(pl.String), args)


def _threads(remarks: PerfRemarks, text: Text, fields: pl.DataFrame) -> pl.DataFrame:
    """Return the frame `threads`, from heads, scheduler tracepoints and perf's own records."""
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
    other = switch_records.named(text.says.with_columns(last=last)).with_columns(name=pl.lit(None, pl.String))
    names = [bases.rename({"comm": "name"}), *sides, named.rename({"comm": "name"}), other]
    processes = pl.concat(rows.select(PROCESSES.names()) for rows in (bases, named, other)).drop_nulls()
    pairs = processes.filter((pl.col("tid") > 0) & (pl.col("pid") > 0)).select("tid", "pid").unique()
    if shared := pairs.group_by("tid").len().filter(pl.col("len") > 1).height:
        remarks.add(
            "info", f"{shared:,} thread ids were used by more than one process; each is shown as one thread"
        )
    return threads(pl.concat(rows.select(NAMES.names()) for rows in names), processes, text.header.host)


def _last_use(codes: pl.Series, height: int) -> pl.Series:
    """Return for each of `height` codes the place where it stands last in `codes`, -1 where it does not."""
    last = np.full(height, -1, dtype=np.int64)
    last[codes.to_numpy()] = np.arange(len(codes))
    return pl.Series("last", last)


def _thread(text: Text, who: pl.DataFrame) -> pl.Series:
    return number_of(text.bases["tid"], who).gather(text.events["base"])


def _samples(text: Text, events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frames `samples` and `stacks`: every event that is no tracepoint."""
    is_sample = (events["kind"] == "sample").to_numpy()
    of_event = events["says"].to_numpy()
    chains, distinct = _chains(text, is_sample, of_event)
    stack, stacks = frames.intern(chains["event"].to_numpy(), chains["frame"].to_numpy(), events.height)
    said = text.says.with_row_index("says").with_columns(pl.col("event").cast(pl.Categorical()))
    samples = (
        events.with_columns(pl.Series("stack", stack))
        .filter(pl.Series(is_sample))
        .join(said.select("says", "event", "period"), on="says", how="left", maintain_order="left")
        .select(
            pl.lit(0, pl.Int32).alias("source"),
            "thread",
            "ts_ns",
            "cpu",
            "event",
            "period",
            pl.when(pl.col("stack") >= 0).then("stack").alias("stack"),
        )
    )
    named = stacks.select(
        "stack",
        "depth",
        distinct["symbol"].gather(stacks["frame"]).cast(pl.Categorical()).alias("symbol"),
        distinct["library"].gather(stacks["frame"]).cast(pl.Categorical()).alias("library"),
    )
    return samples.match_to_schema(SAMPLES), named


def _chains(text: Text, is_sample: np.ndarray, says: np.ndarray) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `event`, `frame` of the samples' frames, innermost first, and the distinct frames (`symbol`, `library`).

    A sample without a chain whose head shows the instruction has that as its only frame.
    """
    sampled = (text.says["kind"] == "sample") & (text.says["rest"] != "")
    inline = frames.inline_frames(pl.select(pl.when(sampled).then(text.says["rest"])).to_series())
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


def _sched(
    text: Text, events: pl.DataFrame, fields: pl.DataFrame, who: pl.DataFrame
) -> tuple[pl.DataFrame, int]:
    """Return the frame `sched`, and how many scheduler events could not be read."""
    by_record, unread = switch_records.switches(events, text.says, who)
    found = events.filter(pl.col("kind").is_in(SCHEDULER))
    read = found.filter(fields["ok"].gather(found["says"]))
    rows = read.select("ts_ns", "cpu", "thread", text="says")
    by_tracepoint = sched.frame(rows, fields, who).match_to_schema(SCHED)
    return pl.concat([by_tracepoint, by_record]), unread + found.height - read.height


def _slices(
    remarks: PerfRemarks, text: Text, events: pl.DataFrame, scheduled: pl.DataFrame, during: tuple[int, int]
) -> pl.DataFrame:
    """Return system calls as slices, and remark on tracepoints that have no frame."""
    edges = _edges(text.says)
    traced = events.filter(pl.col("kind") == "tracepoint")
    is_edge = edges["ends"].is_not_null().gather(traced["says"])
    names = text.says["event"].gather(traced.filter(~is_edge)["says"]).to_frame()
    others = names.group_by("event").len().sort("len", "event", descending=[True, False])
    remarks.counted("tracepoints that are counted only", others)
    called = traced.filter(is_edge)
    if called.is_empty():
        return pl.DataFrame(schema=SLICES)
    rows = called.select("ts_ns", "thread").hstack(edges[called["says"]])
    return syscalls.slices(rows, scheduled, during, remarks, text.header.architecture)


def _edges(says: pl.DataFrame) -> pl.DataFrame:
    """Return what each row of `says` says of a system call: call, ends (null = it is none), raw, number."""
    edge_of = {
        event: edge
        for event in says["event"].drop_nulls().unique()
        if event.startswith(SYSTEM_CALLS) and (edge := syscalls.edge_of(event.partition(":")[2] + ":"))
    }
    events = list(edge_of)
    number = pl.when(pl.col("raw")).then(pl.col("rest").str.extract(syscalls.NUMBER))
    return says.select(
        pl.col("event")
        .replace_strict(
            events, [edge.call for edge in edge_of.values()], default=None, return_dtype=pl.String
        )
        .cast(pl.Categorical())
        .alias("call"),
        pl.col("event")
        .replace_strict(
            events, [edge.ends for edge in edge_of.values()], default=None, return_dtype=pl.Boolean
        )
        .alias("ends"),
        pl.col("event").str.starts_with("raw_").alias("raw"),
        "rest",
    ).select("call", "ends", "raw", number.cast(pl.Int32, strict=False).alias("number"))
