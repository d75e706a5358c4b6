"""Why a GPU waits in a collective, from what its straggler did (docs/numbers.md, "Ledger 1").

While the straggler's device idles, its own cause of that counts. While it computes, the wait is imbalance
only as far as it computes longer than the waiting rank did since both were last together: computing that
merely began late is late for what held its begin up.

Rank by rank: of the collectives that met follows when each rank is asked what it did (:func:`asked`); its
answer is a *line* (:func:`line`), and each rank's waiting is cut by the lines of its own stragglers
(:func:`collective_wait`). Only intervals pass from one rank to another, never sums, so any number of ranks
together gives the same pieces as each alone.
"""

import polars as pl

from tracelib.analyses.gpu_time import USEFUL
from tracelib.intervals import in_order, overlay, union

#: The columns of a piece of lost time that say who is to blame, and whether that thread had a CPU.
BLAME = ["thread", "cause", "sub_cause", "what", "cpu_state"]
IMBALANCE, IN_ANOTHER = ("imbalance", None), ("unattributed", "straggler waits in another collective")
#: States in which a device is at work.
BUSY = (*USEFUL, "collective")
_SPAN = ["ts_ns", "dur_ns"]


def waits(whole_collectives: pl.DataFrame, start_ns: int) -> pl.DataFrame:
    """Return how long each GPU waited for which straggler, and since when all of its group were in none.

    Takes the frame of that name and when the window begins. One row per wait: `gpu` (Int32), `ts_ns`,
    `dur_ns` (Int64), `straggler` (Int32), `since` (Int64), `wait` (Int64: its number). Sorted by `gpu`,
    `ts_ns`.
    """
    matched = whole_collectives.filter("matched").sort("gpu", "ts_ns")
    before = (pl.col("ts_ns") + pl.col("dur_ns")).shift(1).over("gpu", order_by="ts_ns").fill_null(start_ns)
    since = matched.with_columns(_before=before).with_columns(since=pl.col("_before").max().over("event"))
    rows = since.filter(pl.col("wait_ns") > 0).with_row_index("wait")
    return rows.select("gpu", "ts_ns", "straggler", "since", pl.col("wait").cast(pl.Int64), dur_ns="wait_ns")


def asked(waits: pl.DataFrame) -> pl.DataFrame:
    """Return when each GPU is asked what it did, since another waits for it, or did since they were together.

    Takes what :func:`waits` returns. One row per stretch: `gpu` (Int32), `ts_ns`, `dur_ns` (Int64). Sorted.
    """
    begin = pl.min_horizontal("since", "ts_ns")
    length = pl.col("ts_ns") + pl.col("dur_ns") - begin
    return union(waits.select(gpu="straggler", ts_ns=begin, dur_ns=length), "gpu")


def line(asked: pl.DataFrame, gpu_states: pl.DataFrame, idle: pl.DataFrame) -> pl.DataFrame:
    """Return what GPUs did when they are asked: their state, and the cause of their idling.

    Takes what :func:`asked` returns; the frame `gpu_states`; and the idle pieces of
    :func:`tracelib.analyses.lost.lost` (`gpu`, `ts_ns`, `dur_ns` and `BLAME`); both of all GPUs that are
    asked.

    One row per stretch: `gpu`, `ts_ns`, `dur_ns`, `state` (as in `gpu_states`) and `BLAME` (null unless
    idle). Sorted by `gpu`, `ts_ns`.
    """
    states = overlay(asked, gpu_states.select("gpu", *_SPAN, "state"), "gpu").drop_nulls("state")
    idling = pl.col("state") == "idle"
    told = overlay(states.filter(idling), in_order(idle.select("gpu", *_SPAN, *BLAME), "gpu"), "gpu")
    return in_order(pl.concat([states.filter(~idling), told], how="diagonal"), "gpu")


def collective_wait(gpu_states: pl.DataFrame, waits: pl.DataFrame, line: pl.DataFrame) -> pl.DataFrame:
    """Return the time in `collective_wait` with its causes.

    Takes the frame `gpu_states` and what :func:`waits` returns, of some GPUs, and the :func:`line` of all
    for which they wait.

    One row per piece, in no order: `gpu`, `ts_ns`, `dur_ns` and `BLAME`. Adds up to the time in that state.
    """
    states, theirs = gpu_states.select("gpu", *_SPAN, "state"), line.select("gpu", *_SPAN, "state")
    idle = line.filter(pl.col("state") == "idle").drop("state")
    lost = states.filter(pl.col("state") == "collective_wait").drop("state")
    pieces = overlay(lost, _disjoint(waits.select("gpu", *_SPAN, "wait", "straggler")), "gpu")
    cut = overlay(pieces.rename({"gpu": "waiter", "straggler": "gpu"}), theirs, "gpu")
    at_idle = overlay(cut.filter(pl.col("state") == "idle").drop("state"), idle, "gpu")
    busy = cut.filter(pl.col("state").is_in(BUSY))
    late = _late(busy, waits, states, theirs, idle)
    other = cut.filter(pl.col("state").is_null() | (pl.col("state") == "collective_wait"))
    imbalance = late.filter(pl.col("cause").is_null())
    return pl.concat(
        rows.select(*_SPAN, *BLAME, gpu="waiter").select("gpu", *_SPAN, *BLAME)
        for rows in (
            at_idle,
            late.filter(pl.col("cause").is_not_null()),
            _named(imbalance, *IMBALANCE, idle.schema),
            _named(other, *IN_ANOTHER, idle.schema),
        )
    )


def _disjoint(waits: pl.DataFrame) -> pl.DataFrame:
    """Cut a wait where the next one on the same GPU begins, so that they form a timeline."""
    until = pl.col("ts_ns").shift(-1).over("gpu", order_by="ts_ns")
    cut = waits.with_columns(dur_ns=pl.min_horizontal("dur_ns", until - pl.col("ts_ns")))
    return cut.filter(pl.col("dur_ns") > 0)


def _late(
    busy: pl.DataFrame, waits: pl.DataFrame, mine: pl.DataFrame, theirs: pl.DataFrame, idle: pl.DataFrame
) -> pl.DataFrame:
    """Cut the time in which stragglers are at work into what began late, with its cause, and what lasts.

    What began late: the straggler idled while the waiting rank was at work, less what it was at work
    meanwhile that one idled. Of that idling, the latest counts.
    """
    worked = busy.group_by("wait").agg(_worked=pl.col("dur_ns").sum())
    before = waits.join(worked, on="wait").select(
        "wait", "straggler", "_worked", "gpu", ts_ns="since", dur_ns=pl.col("ts_ns") - pl.col("since")
    )
    own = overlay(before, mine.rename({"state": "mine"}), "gpu").drop("gpu")
    both = overlay(own.rename({"straggler": "gpu"}), theirs.rename({"state": "theirs"}), "gpu")
    at_work, works = pl.col("mine").is_in(BUSY), pl.col("theirs").is_in(BUSY)
    behind = both.filter(at_work & (pl.col("theirs") == "idle"))
    ahead = both.filter(~at_work & works).group_by("wait").agg(_ahead=pl.col("dur_ns").sum())
    owed = (
        behind.group_by("wait", "_worked")
        .agg(_behind=pl.col("dur_ns").sum())
        .join(ahead, on="wait", how="left")
    )
    owed = owed.select(
        "wait", _owed=pl.min_horizontal("_worked", pl.col("_behind") - pl.col("_ahead").fill_null(0)).clip(0)
    )
    causes = overlay(behind.select("wait", "gpu", *_SPAN), idle, "gpu").sort("wait", "ts_ns", descending=True)
    latest = _end_to_end(causes.join(owed, on="wait", how="left", maintain_order="left"))
    kept = latest.with_columns(dur_ns=pl.min_horizontal("dur_ns", pl.col("_owed") - pl.col("ts_ns")))
    line = kept.filter(pl.col("dur_ns") > 0).select("wait", *_SPAN, *BLAME)
    segments = _end_to_end(busy.sort("wait", "ts_ns").with_columns(_at=pl.col("ts_ns")))
    moved = segments.with_columns(_moved=pl.col("_at") - pl.col("ts_ns")).drop("_at", "state")
    return overlay(moved, line, "wait").with_columns(ts_ns=pl.col("ts_ns") + pl.col("_moved"))


def _end_to_end(rows: pl.DataFrame) -> pl.DataFrame:
    """Lay the rows of each wait one behind the other, from 0."""
    return rows.with_columns(ts_ns=pl.col("dur_ns").cum_sum().over("wait") - pl.col("dur_ns"))


def _named(rows: pl.DataFrame, cause: str, sub_cause: str | None, schema: pl.Schema) -> pl.DataFrame:
    nobody = dict.fromkeys(BLAME) | {"cause": cause, "sub_cause": sub_cause, "cpu_state": "unknown"}
    return rows.drop(BLAME, strict=False).with_columns(
        pl.lit(value, schema[name]).alias(name) for name, value in nobody.items()
    )
