"""Which rank arrived last at each collective, and how long the others waited (docs/numbers.md, "Ledger 1").

A collective's arrival on a rank is its kernel's start; the k-th collective of one group is one event on all
its ranks. Traces begin and end at different moments on different ranks, so "k-th" is counted by the sequence
number where the trace has one, else by order, shifted so that the kernels of one event overlap in time: a
barrier cannot end on one rank before the last rank has come. A pairing that breaks this rule is not made.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.analyses.window import Window
from tracelib.sources.collective_names import family_of
from tracelib.trace import Trace

COLLECTIVES = pl.Schema(
    {
        "event": pl.Int64(),
        "group": pl.Categorical(),
        "collective": pl.Categorical(),
        "gpu": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "last_start_ns": pl.Int64(),
        "straggler": pl.Int32(),
        "skew_ns": pl.Int64(),
        "wait_ns": pl.Int64(),
        "matched": pl.Boolean(),
        "order_known": pl.Boolean(),
    }
)

#: Events that must overlap for an order to be believed; the rest stay unmatched one by one.
BELIEVABLE = 0.9
#: Point-to-point transfers pair two ranks by peer, which no trace records reliably: they are not a barrier of
#: the group.
PEER_TO_PEER = ("send", "recv", "send_recv")


def whole_collectives(trace: Trace, window: Window) -> pl.DataFrame:
    """Return the collectives that overlap the window, rank by rank, with all of their waiting.

    One row per collective and GPU: `event` (Int64; the same on all ranks of one event, null = not matched),
    `group` (Categorical, null = not recorded), `collective` (Categorical), `gpu` (Int32), `ts_ns`, `dur_ns`
    (Int64, of the kernel), `last_start_ns` (Int64, the latest start over the ranks), `straggler` (Int32, the
    GPU that started last), `skew_ns` (Int64, latest - earliest start), `wait_ns` (Int64, latest start - own
    start, cut at own end), `matched` (Boolean, all ranks of the group found; null stands in the four columns
    before where they were not), `order_known` (Boolean: the skew is more than the ranks' clocks may be off
    each other, so `straggler` did come last). Sorted by `ts_ns`, `gpu`.
    """
    ops = trace.gpu_ops.filter(pl.col("collective").is_not_null()).select(
        "gpu", "name", "group", "group_size", "collective", "sequence", "elements", "ts_ns", "dur_ns"
    )
    paired = [_pair(group) for group in _groups(ops)]
    paired = [rows.with_columns(_group=pl.lit(number)) for number, rows in enumerate(paired)]
    if not paired:
        return pl.DataFrame(schema=COLLECTIVES)
    rows = pl.concat(paired)
    event = pl.when(pl.col("_k").is_not_null()).then(pl.struct("_group", "_k").rank("dense").cast(pl.Int64))
    rows = _with_arrivals(rows.with_columns(event=event)).with_columns(
        order_known=(pl.col("skew_ns") > clock_error_ns(trace)).fill_null(value=False)
    )
    end = pl.col("ts_ns") + pl.col("dur_ns")
    inside = rows.filter((pl.col("ts_ns") < window.end_ns) & (end > window.start_ns))
    return inside.select(list(COLLECTIVES)).match_to_schema(COLLECTIVES).sort("ts_ns", "gpu")


def missing_ranks(trace: Trace) -> tuple[int, list[int]]:
    """Return how many ranks of the least complete group were not recorded, and their numbers if known."""
    ops = trace.gpu_ops.filter(pl.col("collective").is_not_null() & pl.col("group_size").is_not_null())
    groups = ops.group_by("group", "group_size").agg(recorded=pl.col("gpu").n_unique())
    lacking = groups.select("group_size", lack=pl.col("group_size") - pl.col("recorded")).sort(
        "lack", "group_size"
    )
    if lacking.is_empty() or lacking["lack"][-1] <= 0:
        return 0, []
    size, lack = lacking.row(-1)
    absent = sorted(set(range(size)) - set(trace.gpus["rank"].drop_nulls()))
    return lack, absent if len(absent) == lack else []


def clock_error_ns(trace: Trace) -> int:
    """Return how far the clocks of two ranks may be off each other; 0 for one file, or if not estimated.

    Ranks tied to each other are off by that tie's error; those tied to something else by two such errors.
    """
    files = trace.gpu_ops["source"].unique()
    rows = trace.sources.filter(pl.col("source").is_in(files.implode()))
    together = rows.filter(pl.col("tied_with").is_in(rows["file"].implode()))
    spokes = together if together.height >= rows.height - 1 else rows
    errors = spokes["error_ns"].drop_nulls().sort(descending=True)
    if rows.height < 2:
        return 0
    return int(errors.head(1 if rows.height == 2 and together.height else 2).sum())


def collectives(whole_collectives: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return the collectives with `skew_ns` and `wait_ns` cut at the window, as the ledgers are.

    Takes the frame :func:`whole_collectives`, whose columns, rows and order it has.
    """

    def cut(moment: pl.Expr) -> pl.Expr:
        return moment.clip(window.start_ns, window.end_ns)

    last = pl.col("last_start_ns")
    return whole_collectives.with_columns(
        skew_ns=cut(last) - cut(last - pl.col("skew_ns")),
        wait_ns=cut(pl.col("ts_ns") + pl.col("wait_ns")) - cut(pl.col("ts_ns")),
    )


def waiting_caused(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return which GPU the others waited for, in the collectives of which the clocks tell who came last.

    Takes the frame `collectives`. One row per GPU that came last in one: `straggler` (Int32), `events`
    (UInt32: collectives in which it did), `wait_ns` (Int64: the others' waiting in them), `part` (Float64: of
    all waiting in these collectives; 0 without any). Sorted by `wait_ns`, `straggler`, the largest first.
    """
    caused = (
        collectives.filter("order_known")
        .group_by("straggler")
        .agg(pl.col("event").n_unique().alias("events"), pl.col("wait_ns").sum())
    )
    whole = pl.col("wait_ns").sum()
    part = pl.when(whole > 0).then(pl.col("wait_ns") / whole).otherwise(0.0)
    return caused.with_columns(part=part).sort("wait_ns", "straggler", descending=True)


def _groups(ops: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the operations of each group whose order can be compared between ranks.

    Those that name no group are told apart by their implementation: NCCL's in a graph are numbered apart from
    an engine's own. Ranks of one name that never meet are of several groups, as replicas of one server have
    them.
    """
    if ops.is_empty():
        return []
    families = ops["name"].unique().cast(pl.String)
    family = (
        pl.col("name").cast(pl.String).replace_strict(families, families.map_elements(family_of, pl.String))
    )
    rows = ops.with_columns(_family=pl.when(pl.col("group").is_null()).then(family))
    named = rows.partition_by("group", "group_size", "_family", maintain_order=True)
    return [part for group in named for part in _meeting(group.drop("name", "_family"))]


def _meeting(group: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the group's operations apart by ranks that meet.

    A group is taken apart if it has more ranks than its size, or if nothing names it.
    """
    gpus = group["gpu"].unique().sort().to_list()
    size = group["group_size"][0] or len(gpus)
    if len(gpus) <= 2 or (len(gpus) <= size and group["group"][0] is not None):
        return [group]
    ordered = _ordered(group)
    parts = []
    while gpus:
        first, *others = gpus
        shares = {gpu: _alignment(ordered, first, gpu)[1] for gpu in others}
        near = sorted((gpu for gpu in others if shares[gpu] >= BELIEVABLE), key=lambda gpu: -shares[gpu])
        members = [first, *near[: size - 1]]
        parts.append(group.filter(pl.col("gpu").is_in(members)))
        gpus = [gpu for gpu in gpus if gpu not in members]
    return parts


def _ordered(group: pl.DataFrame) -> pl.DataFrame:
    """Return the group's barriers with `_k`, their number on each rank."""
    barriers = group.filter(~pl.col("collective").cast(pl.String).is_in(PEER_TO_PEER)).sort("gpu", "ts_ns")
    return barriers.with_columns(_k=pl.int_range(pl.len(), dtype=pl.Int64).over("gpu"))


def _pair(group: pl.DataFrame) -> pl.DataFrame:
    """Add `_k`, the number of the event within the group; null where it cannot be told.

    A group of which a member was not recorded is not paired: the one that is missing may be the one all wait
    for.
    """
    ranks = group["gpu"].unique().sort().to_list()
    size = group["group_size"][0] or len(ranks)
    if len(ranks) < 2 or len(ranks) != size:
        return group.drop("name", strict=False).with_columns(_k=pl.lit(None, pl.Int64))
    peers = group.filter(pl.col("collective").cast(pl.String).is_in(PEER_TO_PEER))
    ordered = _ordered(group)
    if ordered["sequence"].null_count() == 0:
        numbered = ordered.with_columns(_k=pl.col("sequence"))
    else:
        numbered = pl.concat(
            ordered.filter(pl.col("gpu") == rank).with_columns(
                _k=pl.col("_k") + (_alignment(ordered, ranks[0], rank)[0] if rank != ranks[0] else 0)
            )
            for rank in ranks
        )
    return pl.concat([_only_barriers(numbered, len(ranks)), peers.with_columns(_k=pl.lit(None, pl.Int64))])


def _alignment(ordered: pl.DataFrame, reference: int, rank: int) -> tuple[int, float]:
    """Return what to add to the rank's numbers so that it counts as the reference does.

    Also the share of events that then fit.
    """
    base, other = (ordered.filter(pl.col("gpu") == r) for r in (reference, rank))
    if base.is_empty() or other.is_empty():
        return 0, 0.0
    (a, sizes_a), (b, sizes_b) = (
        (_spans(rows), rows["elements"].fill_null(0).to_numpy()) for rows in (base, other)
    )
    best, fitting, share = 0, 0, 0.0
    for shift in _candidates(a, b):
        first, last = max(0, shift), min(len(a), len(b) + shift)
        x, y = a[first:last], b[first - shift : last - shift]
        fits = (
            (x[:, 0] < y[:, 1])
            & (y[:, 0] < x[:, 1])
            & (sizes_a[first:last] == sizes_b[first - shift : last - shift])
        )
        if len(fits) and fits.mean() * fits.sum() > share * fitting:
            best, fitting, share = shift, int(fits.sum()), float(fits.mean())
    return best, share


def _spans(rows: pl.DataFrame) -> NDArray[np.int64]:
    return np.column_stack([rows["ts_ns"].to_numpy(), (rows["ts_ns"] + rows["dur_ns"]).to_numpy()])


def _candidates(a: NDArray[np.int64], b: NDArray[np.int64]) -> list[int]:
    """Return shifts worth trying: those that make some sampled event of `a` overlap one of `b`, and 0."""
    shifts = {0}
    for i in np.unique(np.linspace(0, len(a) - 1, 25).astype(int)):
        low = np.searchsorted(b[:, 1], a[i, 0], side="right")
        high = np.searchsorted(b[:, 0], a[i, 1], side="left")
        shifts |= {int(i - j) for j in range(low, min(high, low + 20))}
    return sorted(shifts, key=abs)


def _only_barriers(numbered: pl.DataFrame, ranks: int) -> pl.DataFrame:
    """Keep `_k` where all ranks have it, agree on kind and size, and none ended before the last began."""
    event = numbered.group_by("_k").agg(
        count=pl.len(),
        kinds=pl.col("collective").n_unique(),
        sizes=pl.col("elements").n_unique(),
        latest=pl.col("ts_ns").max(),
        earliest_end=(pl.col("ts_ns") + pl.col("dur_ns")).min(),
    )
    whole = event.filter(pl.col("count") == ranks)
    sound = whole.filter(
        (pl.col("kinds") == 1) & (pl.col("sizes") == 1) & (pl.col("latest") <= pl.col("earliest_end"))
    )
    believed = sound if sound.height >= BELIEVABLE * whole.height else sound.clear()
    matched = pl.col("_k").is_in(believed["_k"].implode())
    return numbered.with_columns(_k=pl.when(matched).then("_k"))


def _with_arrivals(rows: pl.DataFrame) -> pl.DataFrame:
    matched = pl.col("event").is_not_null()
    event = (
        rows.filter(matched)
        .group_by("event")
        .agg(
            last_start_ns=pl.col("ts_ns").max(),
            skew_ns=pl.col("ts_ns").max() - pl.col("ts_ns").min(),
            straggler=pl.col("gpu").sort_by("ts_ns", "gpu").last(),
        )
    )
    late = pl.col("last_start_ns") - pl.col("ts_ns")
    return rows.join(event, on="event", how="left", maintain_order="left").with_columns(
        wait_ns=pl.when(matched).then(pl.min_horizontal(late, pl.col("dur_ns"))), matched=matched
    )


def handed_over(collectives: pl.DataFrame, within_ns: int) -> pl.DataFrame:
    """Return the point-to-point transfers that end together on two GPUs: they waited for each other.

    Takes the frame :func:`collectives`; returns its rows, with an `event` of their own below 0.
    """
    end = pl.col("ts_ns") + pl.col("dur_ns")
    rows = collectives.filter(~pl.col("matched") & pl.col("collective").cast(pl.String).is_in(PEER_TO_PEER))
    near = rows.sort(end, "gpu").with_columns(_new=(end - end.shift(1) > within_ns).fill_null(value=True))
    numbered = near.with_columns(event=-pl.col("_new").cum_sum().cast(pl.Int64))
    both = (pl.len() == 2) & (pl.col("gpu").n_unique() == 2)
    return numbered.filter(both.over("event")).drop("_new")
