"""Context switches as perf's own records (`perf record --switch-events`, `perf script --show-switch-events`).

From tools/perf/util/event.c (`perf_event__fprintf_switch`) and kernel/events/core.c (`perf_event_switch`). Recorded for
all processes, every switch has two records, of the thread that leaves and of the one that comes, a few hundred ns apart;
each names the other thread. Recorded for some processes, neither does::

    python 29760/29760 [001]  1759.734128922: PERF_RECORD_SWITCH_CPU_WIDE OUT preempt  next pid/tid:  2773/2773
    bash    2773/2773  [001]  1759.734133721: PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid: 29760/29760
    sleep   3269/3269         1758.044605392: PERF_RECORD_SWITCH OUT
"""

from __future__ import annotations

import polars as pl

from tracelib.schema import SCHED
from tracelib.sources.kernel.threads import number_of

RECORD = r"^(?P<way>IN|OUT)(?P<runnable> preempt)?\s*(?:(?:next|prev) pid/tid:\s*(?P<pid>-?\d+)/(?P<tid>-?\d+))?\s*$"


def _parsed(rest: pl.Series) -> pl.DataFrame:
    """Return one row per text of a record: `way` (IN, OUT, null = unreadable), `runnable`, `pid`, `tid` of the other thread."""
    parts = pl.DataFrame({"rest": rest}).select(pl.col("rest").str.extract_groups(RECORD).struct.unnest())
    return parts.with_columns(
        pl.col("pid", "tid").cast(pl.Int64, strict=False), pl.col("runnable").is_not_null()
    )


def named(says: pl.DataFrame) -> pl.DataFrame:
    """Return `tid`, `pid`, `last` of the threads that the records in `says` (`kind`, `rest`, `last`) name beside their own."""
    records = says.filter(pl.col("kind") == "switched")
    return _parsed(records["rest"]).select("tid", "pid", records["last"]).drop_nulls()


def switches(events: pl.DataFrame, says: pl.DataFrame, who: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the records among `events` (`ts_ns`, `cpu`, `thread`, `says`, `kind`) as rows of `sched`, and how many are unreadable.

    A thread that comes adds a row only where the record of the one that left is missing: else it is the same switch. The
    kernel says "preempt" of every thread that could have gone on running, so one that leaves without it is blocked, in
    a state that is not recorded: "other".
    """
    parsed = _parsed(says["rest"])
    parsed = parsed.with_columns(other=number_of(parsed["tid"], who)).with_row_index("says")
    recorded = events.filter(pl.col("kind") == "switched")
    found = recorded.join(parsed, on="says", how="left", maintain_order="left")
    out, cpu = pl.col("way") == "OUT", pl.col("cpu")
    readable = found.filter(pl.col("way").is_not_null())
    before = {name: pl.col(name).shift(1).over("cpu") for name in ("way", "other")}
    same = cpu.is_not_null() & (before["way"] == "OUT") & (before["other"] == pl.col("thread"))
    told = readable.sort("ts_ns", maintain_order=True).with_columns(same=same.fill_null(value=False))
    state = pl.when(out & pl.col("runnable")).then(pl.lit("R")).when(out).then(pl.lit("other"))
    rows = told.filter(out | ~pl.col("same")).select(
        pl.lit(0, pl.Int32).alias("source"),
        "ts_ns",
        "cpu",
        pl.lit("switch", SCHED["event"]).alias("event"),
        pl.when(out).then("thread").otherwise("other").alias("prev"),
        state.cast(SCHED["prev_state"]).alias("prev_state"),
        pl.when(out).then("other").otherwise("thread").alias("next"),
    )
    return rows.match_to_schema(SCHED), found.height - readable.height
