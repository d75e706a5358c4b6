"""The distinct parts of event heads: who and where (before the time), what (behind it)."""

from __future__ import annotations

import polars as pl

from tracelib.sources.perf.patterns import (
    EVENT,
    LATENCY_PREFIX,
    MODIFIERS,
    PREFIX,
    PROBE,
    PROBED,
    TRACEPOINT,
    VIRTUAL,
)

__all__ = ["KIND", "events", "prefixes"]

#: What an event is to the reader. `record`: PERF_RECORD_…, no event of its own, but for `switched`: PERF_RECORD_SWITCH….
KIND = pl.Enum(["sample", "switch", "wakeup", "waking", "wakeup_new", "tracepoint", "record", "switched"])
#: A line that `-F +metric` adds to an event: no event of its own.
METRIC = "metric"
LONGEST_CLOCK = 2**63 // 10**9
SCHEDULER = {
    "sched:sched_switch": "switch",
    "sched:sched_wakeup": "wakeup",
    "sched:sched_waking": "waking",
    "sched:sched_wakeup_new": "wakeup_new",
    "sched_switch": "switch",
    "sched_wakeup": "wakeup",
    "sched_waking": "waking",
    "sched_wakeup_new": "wakeup_new",
}


def prefixes(base: pl.Series) -> pl.DataFrame:
    """Return one row per `base`, the text before a time's point.

    Columns: `comm` (String, null = not printed), `pid` and `tid` (Int64, null = not printed; a single number is the
    tid), `cpu` (Int32, null = not printed, or "-1"), `seconds` (Int64, null = no time that fits 64 bits of nanoseconds).
    """
    cut = pl.DataFrame({"base": base}).select(
        pl.col("base").str.extract(r"(\d+)$").cast(pl.Int64, strict=False).alias("seconds"),
        pl.col("base")
        .str.replace(r"\d+$", "")
        .str.strip_chars_end(" \t")
        .str.replace(VIRTUAL, "")
        .alias("prefix"),
    )
    shown = cut["prefix"].drop_nulls()
    shown = shown.filter(shown != "")
    latency = shown.str.contains(LATENCY_PREFIX).sum() * 2 > len(shown)
    parts = [
        pl.col("prefix").str.extract_groups(pattern).struct.rename_fields(["comm", "thread", "cpu"])
        for pattern in ((LATENCY_PREFIX, *PREFIX) if latency else PREFIX)
    ]
    chosen = pl.coalesce(pl.when(part.struct.field("thread").is_not_null()).then(part) for part in parts)
    ids = pl.col("thread").str.strip_chars().str.splitn("/", 2).struct.rename_fields(["first", "second"])
    return (
        cut.with_columns(chosen.struct.unnest())
        .with_columns(ids.struct.unnest())
        .select(
            pl.col("comm").str.strip_chars().replace("", None),
            pl.when(pl.col("second").is_not_null())
            .then(pl.col("first"))
            .cast(pl.Int64, strict=False)
            .alias("pid"),
            pl.coalesce("second", "first").cast(pl.Int64, strict=False).alias("tid"),
            pl.when(~pl.col("cpu").str.starts_with("-"))
            .then(pl.col("cpu").str.strip_chars())
            .cast(pl.Int32, strict=False)
            .alias("cpu"),
            pl.when(pl.col("seconds") < LONGEST_CLOCK).then("seconds"),
        )
    )


def events(says: pl.Series) -> pl.DataFrame:
    """Return one row per `says`, the text behind a time: `period` (Int64), `event`, `rest` (String), `kind`."""
    parts = pl.DataFrame({"says": says}).select(pl.col("says").str.extract_groups(EVENT).struct.unnest())
    name = pl.coalesce("event", "branch")
    probe = name.str.contains(PROBE) | pl.col("rest").str.contains(PROBED)
    tracepoint = name.str.contains(TRACEPOINT) & (~name.str.contains(MODIFIERS) | probe)
    kind = (
        pl.when(name.str.starts_with("PERF_RECORD_SWITCH"))
        .then(pl.lit("switched"))
        .when(name.str.starts_with("PERF_RECORD_") | (name == METRIC))
        .then(pl.lit("record"))
        .when(name.is_in(list(SCHEDULER)))
        .then(name.replace(SCHEDULER))
        .when(tracepoint)
        .then(pl.lit("tracepoint"))
        .otherwise(pl.lit("sample"))
    )
    return parts.select(
        pl.col("period").cast(pl.Int64, strict=False),
        name.alias("event"),
        "rest",
        kind.cast(KIND).alias("kind"),
    )
