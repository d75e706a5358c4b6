"""Ledger 1: what each GPU did at each moment of the window (docs/numbers.md, "Ledger 1").

Beside it the staircase that GPU utilisation shows when its host is the limit: bursts and starvation in turn.
"""

import polars as pl

from tracelib.analyses.window import Window
from tracelib.intervals import layered, merge_equal, overlay
from tracelib.trace import Trace

#: A state earlier in this list hides the later ones. `collective`: a collective whose ranks could not be
#: matched, so waiting cannot be told from transfer.
GPU_STATE = pl.Enum(["compute", "copy", "collective_transfer", "collective", "collective_wait", "idle"])
USEFUL = ("compute", "copy", "collective_transfer")
LOST = ("collective_wait", "idle")

GPU_STATES = pl.Schema({"gpu": pl.Int32(), "ts_ns": pl.Int64(), "dur_ns": pl.Int64(), "state": GPU_STATE})
GPU_TIME = pl.Schema({"gpu": pl.Int32(), "state": GPU_STATE, "ns": pl.Int64()})
UTILISATION_STEPS = pl.Schema(
    {"gpu": pl.Int32(), "ts_ns": pl.Int64(), "dur_ns": pl.Int64(), "level": pl.Enum(["burst", "starved"])}
)

BINS = 100
#: No bin is shorter than this: gaps between single kernels are not a staircase.
SHORTEST_NS = 10_000_000
#: Share of useful time in a burst's bin, and of time that is not lost in a starved one's; what lies between
#: is neither, and joins the stretch before it.
BURST, STARVED = 0.6, 0.2


def gpu_states(trace: Trace, window: Window, whole_collectives: pl.DataFrame) -> pl.DataFrame:
    """Return each GPU's state over time; a state earlier in :data:`GPU_STATE` hides the later ones.

    Takes the frame :func:`tracelib.analyses.collectives.whole_collectives` of the same window.

    One row per stretch: `gpu` (Int32), `ts_ns`, `dur_ns` (Int64), `state` (Enum). Per GPU the rows cover the
    window without gap or overlap. Sorted by `gpu`, `ts_ns`.
    """
    gpus = trace.gpu_ops["gpu"].unique().sort().to_list()
    if not gpus:
        return pl.DataFrame(schema=GPU_STATES)
    ops = trace.gpu_ops.select("gpu", "ts_ns", "dur_ns", "kind", "collective")
    single = ops.filter(pl.col("collective").is_null())
    matched = whole_collectives.filter("matched")
    arrived = pl.col("ts_ns") + pl.col("wait_ns")
    layers = [
        ("compute", single.filter(pl.col("kind").is_in(["kernel", "graph"]))),
        ("copy", single.filter(pl.col("kind").is_in(["memcpy", "memset"]))),
        (
            "collective_transfer",
            matched.select("gpu", ts_ns=arrived, dur_ns=pl.col("dur_ns") - pl.col("wait_ns")),
        ),
        ("collective", whole_collectives.filter(~pl.col("matched"))),
        ("collective_wait", matched.select("gpu", "ts_ns", dur_ns="wait_ns")),
    ]
    timeline = layered(layers, "gpu", gpus, window.start_ns, window.end_ns, rest="idle")
    return timeline.select("gpu", "ts_ns", "dur_ns", pl.col("state").cast(GPU_STATE))


def gpu_time(gpu_states: pl.DataFrame) -> pl.DataFrame:
    """Return the ledger of `gpu_states`.

    One row per GPU and state, states that did not occur included: `gpu` (Int32), `state` (Enum), `ns`
    (Int64). Per GPU, `ns` adds up to the window exactly. Sorted by `gpu`, `state`.
    """
    every_state = pl.DataFrame({"state": GPU_STATE.categories}, schema={"state": GPU_STATE})
    rows = gpu_states.select("gpu").unique().join(every_state, how="cross")
    spent = gpu_states.group_by("gpu", "state").agg(ns=pl.col("dur_ns").sum())
    ledger = rows.join(spent, on=["gpu", "state"], how="left").with_columns(pl.col("ns").fill_null(0))
    return ledger.sort("gpu", "state")


def utilisation_steps(gpu_states: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return the stretches in which each GPU was well used or starved, from its useful share in equal bins.

    Takes the frame `gpu_states`; there are at most 100 bins, none shorter than 10 ms. The staircase (bursts
    and starvation in turn with too few cores) was described by the article that this tool started from; the
    levels are this project's own: a burst is useful for at least 0.6 of a bin, and of a starved one at least
    0.8 is lost.

    One row per stretch: `gpu` (Int32), `ts_ns`, `dur_ns` (Int64), `level` (Enum: burst, starved). Sorted by
    `gpu`, `ts_ns`.
    """
    bins = max(1, min(BINS, window.duration_ns // SHORTEST_NS))
    edges = [window.start_ns + window.duration_ns * n // bins for n in range(bins + 1)]
    grid = pl.DataFrame({"ts_ns": edges[:-1], "end": edges[1:]}).select(
        "ts_ns", dur_ns=pl.col("end") - pl.col("ts_ns"), _bin=pl.int_range(pl.len(), dtype=pl.Int32)
    )
    gpus = gpu_states.select("gpu").unique()
    whole = gpus.join(grid.filter(pl.col("dur_ns") > 0), how="cross").sort("gpu", "ts_ns")
    cut = overlay(whole, gpu_states.select("gpu", "ts_ns", "dur_ns", "state"), "gpu")
    useful, lost = (pl.col("dur_ns").filter(pl.col("state").is_in(of)).sum() for of in (USEFUL, LOST))
    total = pl.col("dur_ns").sum()
    shares = cut.group_by("gpu", "_bin").agg(useful=useful / total, lost=lost / total)
    level = (
        pl.when(pl.col("useful") >= BURST)
        .then(pl.lit("burst"))
        .when(pl.col("lost") >= 1 - STARVED)
        .then(pl.lit("starved"))
    )
    levelled = (
        whole.join(shares, on=["gpu", "_bin"])
        .sort("gpu", "ts_ns")
        .with_columns(level=level.forward_fill().over("gpu", order_by="ts_ns"))
        .drop_nulls("level")
    )
    steps = merge_equal(levelled, ["gpu", "level"])
    return (
        steps.with_columns(pl.col("level").cast(UTILISATION_STEPS["level"]))
        .select(list(UTILISATION_STEPS))
        .match_to_schema(UTILISATION_STEPS)
    )
