"""The text of `perf script` to frames: scan block by block, parse distinct parts, put the events together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelib.errors import BadTrace
from tracelib.schema import SAMPLES, SCHED, SOURCES
from tracelib.sources.files import hashed, sha256
from tracelib.sources.perf import frames, scheduler, switch_records, syscalls
from tracelib.sources.perf.health import PerfRemarks
from tracelib.sources.perf.joined import Text, joined
from tracelib.sources.perf.patterns import COMM_RECORD, EXTRA_LINE, LOSS, NO_TIME_HEAD, SHARE
from tracelib.sources.perf.threads import number_of, shared_ids, threads
from tracelib.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["UNTIMED", "read_text"]

UNTIMED = "events carry no time"

SCHEDULER = ["switch", "wakeup", "waking", "wakeup_new"]


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
    seen = _seen(text)
    who = threads(seen, text.header.host)
    if shared := shared_ids(seen):
        remarks.add(
            "info", f"{shared:,} thread ids were used by more than one process; each is shown as one thread"
        )
    events = text.events.with_columns(_thread(text, who), text.bases["cpu"].gather(text.events["base"]))
    # recorded twice, a switch is taken from its tracepoint, which also has the state
    unused = ["switched"] if (events["kind"] == "switch").any() else []
    samples, stacks = _samples(text, events)
    sched, unread = _sched(text, events.filter(~pl.col("kind").is_in(unused)), who)
    slices = _slices(remarks, text, events)
    if unread:
        remarks.add("warning", f"{unread:,} scheduler events could not be read")
    missing = scheduler.missing(sched)
    wide = text.header.system_wide if text.header.system_wide is not None else missing["from_idle"] > 0
    detected = remarks.missing_switches(missing, system_wide=wide) + unread
    timed = events.filter(~pl.col("kind").is_in(["record", *unused]))["ts_ns"]
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
        "first_ns": timed.min(),
        "last_ns": timed.max(),
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
            "sched": sched,
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


def _seen(text: Text) -> pl.DataFrame:
    """Return `tid`, `pid`, `comm`, `rank` of all that shows a thread: scheduler events before heads, heads by last use."""
    last_use = np.full(text.bases.height, -1, dtype=np.int64)
    last_use[text.events["base"].to_numpy()] = np.arange(text.events.height)
    shown = text.bases.select("tid", "pid", "comm", pl.Series("rank", last_use)).filter(pl.col("rank") >= 0)
    return pl.concat([*_named_in_scheduler(text), *_named_in_records(text), shown])


def _named_in_scheduler(text: Text) -> list[pl.DataFrame]:
    switch = scheduler.switches(text.says.filter(pl.col("kind") == "switch")["rest"])
    woken = scheduler.wakeups(text.says.filter(pl.col("kind").is_in(SCHEDULER[1:]))["rest"])
    pairs = [
        switch.select(pl.col("prev").alias("tid"), pl.col("prev_comm").alias("comm")),
        switch.select(pl.col("next").alias("tid"), pl.col("next_comm").alias("comm")),
        woken.select(pl.col("woken").alias("tid"), "comm"),
    ]
    return [
        pair.sort("tid", "comm").select(
            "tid", pl.lit(None, pl.Int64).alias("pid"), "comm", pl.lit(-2, pl.Int64).alias("rank")
        )
        for pair in pairs
    ]


def _named_in_records(text: Text) -> list[pl.DataFrame]:
    """Return the threads that PERF_RECORD_COMM lines name (`--show-task-events`), and those of PERF_RECORD_SWITCH lines."""
    record = text.says.filter(pl.col("event") == "PERF_RECORD_COMM")
    named = record.select(pl.col("rest").str.extract_groups(COMM_RECORD).struct.unnest())
    rank = pl.lit(-1, pl.Int64).alias("rank")
    switched = switch_records.named(text.says)
    return [
        named.select(pl.col("tid", "pid").cast(pl.Int64, strict=False), "comm", rank),
        switched.select("tid", "pid", pl.lit(None, pl.String).alias("comm"), rank),
    ]


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


def _sched(text: Text, events: pl.DataFrame, who: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the frame `sched`, and how many scheduler events could not be read."""
    by_record, unread = switch_records.switches(events, text.says, who)
    by_tracepoint, odd = _by_tracepoint(text, events, who)
    return pl.concat([by_tracepoint, by_record]), unread + odd


def _by_tracepoint(text: Text, events: pl.DataFrame, who: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    rest = text.says["rest"]
    switch, woken = scheduler.switches(rest), scheduler.wakeups(rest)
    said = pl.DataFrame(
        {
            "prev_thread": number_of(switch["prev"], who),
            "next_thread": number_of(switch["next"], who),
            "state": switch["prev_state"],
            "woken": number_of(woken["woken"], who),
            "target": woken["target"],
            "read": switch["prev"].is_not_null() | woken["woken"].is_not_null(),
        }
    ).with_row_index("says")
    found = events.filter(pl.col("kind").is_in(SCHEDULER)).join(
        said, on="says", how="left", maintain_order="left"
    )
    is_switch = pl.col("kind") == "switch"
    sched = found.filter("read").select(
        pl.lit(0, pl.Int32).alias("source"),
        "ts_ns",
        pl.when(is_switch).then("cpu").otherwise(pl.coalesce("target", "cpu")).alias("cpu"),
        pl.col("kind").cast(pl.String).cast(SCHED["event"]).alias("event"),
        pl.when(is_switch).then("prev_thread").otherwise("thread").alias("prev"),
        pl.when(is_switch).then("state").alias("prev_state"),
        pl.when(is_switch).then("next_thread").otherwise("woken").alias("next"),
    )
    return sched.match_to_schema(SCHED), found.height - sched.height


def _slices(remarks: PerfRemarks, text: Text, events: pl.DataFrame) -> pl.DataFrame:
    """Return system calls as slices, and remark on tracepoints that have no frame."""
    called = syscalls.calls(text.says, text.header.architecture, remarks)
    said = pl.concat([text.says, called], how="horizontal").with_row_index("says")
    traced = events.filter(pl.col("kind") == "tracepoint").join(
        said.drop("kind"), on="says", how="left", maintain_order="left"
    )
    rest = (
        traced.filter(pl.col("edge").is_null())
        .group_by("event")
        .len()
        .sort("len", "event", descending=[True, False])
    )
    remarks.counted("tracepoints that are counted only", rest)
    return syscalls.slices(traced, remarks)
