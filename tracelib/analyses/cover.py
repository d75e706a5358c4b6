"""From when to when each GPU was recorded (docs/numbers.md, "Windows").

A recorder that says so itself is believed, unless its file was cut since. Where nothing says it, calls and
frames of the launching threads prove that the recorder ran. They count from the first one's end to the last
one's begin: in a piece cut out of a recording, long frames stick out on both sides, and no frame ends before
the piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.words import duration

if TYPE_CHECKING:
    from tracelib.trace import Trace

#: So many launches without an operation, after the last one or before the first: the GPU was not recorded
#: then.
UNSEEN = 10
#: A GPU's recording that costs the window this share is named.
COSTLY = 0.1
#: An edge of the window is not worth a word if it is shorter.
SMALL_NS = 1_000_000


def gpu_covers(trace: Trace) -> pl.DataFrame:
    """Return one row per GPU: gpu, first_op, last_op, first, last (ns; the recording's)."""
    end = pl.col("ts_ns") + pl.col("dur_ns")
    ops = trace.gpu_ops.group_by("gpu", "source", "pid").agg(
        first_op=pl.col("ts_ns").min(), last_op=end.max()
    )
    recorded = pl.DataFrame(
        [
            (source, pid, *_process_cover(trace, source, pid))
            for source, pid in ops.select("source", "pid").unique().iter_rows()
        ],
        schema={"source": pl.Int32, "pid": pl.Int64, "begin": pl.Int64, "end": pl.Int64},
        orient="row",
    )
    return (
        ops.join(recorded, on=["source", "pid"], how="left", nulls_equal=True)
        .group_by("gpu")
        .agg(
            pl.col("first_op").min(),
            pl.col("last_op").max(),
            first=pl.min_horizontal("first_op", "begin").min(),
            last=pl.max_horizontal("last_op", "end").max(),
        )
        .sort("gpu")
    )


def common_cover(covers: pl.DataFrame, first: str = "first", last: str = "last") -> tuple[int, int]:
    """Return the time that all of them cover; it is empty if the first moment is not before the second."""
    return int(covers[first].to_numpy().max()), int(covers[last].to_numpy().min())


def short_covers(trace: Trace, covers: pl.DataFrame) -> list[str]:
    """Say which GPUs' recordings end early or begin late, and by how much that shortens the window."""
    start, stop = common_cover(covers)
    return [
        f"the GPU recording of {_whose(trace, gpu)} {how}, so the window is {duration(costs)} shorter"
        for gpu, costs, how in _costs(covers)
        if costs >= COSTLY * (stop - start + costs)
    ]


def too_short(trace: Trace, covers: pl.DataFrame) -> tuple[int, str] | None:
    """Return the GPU without whose recording the window would be more than twice as long, and say so."""
    if covers.height < 2:
        return None
    start, stop = common_cover(covers)
    gpu, costs, how = max(_costs(covers), key=lambda row: row[1], default=(0, 0, ""))
    if start >= stop or costs < SMALL_NS or costs <= stop - start:
        return None
    whose = _whose(trace, gpu)
    return gpu, f"the GPU recording of {whose} {how}: what it did is left out of every figure"


def _costs(covers: pl.DataFrame) -> list[tuple[int, int, str]]:
    """Return per GPU whose recording is shorter than the others': gpu, by how many ns, and how in words."""
    found = []
    for gpu, first, last in covers.select("gpu", "first", "last").iter_rows() if covers.height > 1 else ():
        begin, end = common_cover(covers.filter(pl.col("gpu") != gpu))
        early, late = max(0, end - last), max(0, first - begin)
        how = [
            f"{verb} {duration(ns)} {side} the others'"
            for ns, verb, side in ((early, "ends", "before"), (late, "begins", "after"))
            if ns >= SMALL_NS
        ]
        if how:
            found.append((gpu, early + late, " and ".join(how)))
    return found


def _whose(trace: Trace, gpu: int) -> str:
    row = trace.gpus.filter(pl.col("gpu") == gpu).row(0, named=True)
    return f"GPU {row['device']}" if row["rank"] is None else f"rank {row['rank']}"


def _process_cover(trace: Trace, source: int, pid: int | None) -> tuple[int | None, int | None]:
    """Return from when to when the process's recorder ran, as far as that goes beyond its GPU operations."""
    own = trace.threads.filter(pl.col("pid") == pid)["thread"]
    slices = trace.slices.filter((pl.col("source") == source) & pl.col("thread").is_in(own.implode()))
    ops = trace.gpu_ops.filter((pl.col("source") == source) & pl.col("pid").eq_missing(pid))
    calls = slices.filter(
        pl.col("category").is_in(["runtime", "driver"]) & pl.col("correlation").is_not_null()
    )
    seen = pl.col("correlation").is_in(ops["correlation"].drop_nulls().unique().implode())
    launches = calls.filter(pl.col("name").is_in(calls.filter(seen)["name"].unique().implode()))
    begin, end = _recorder_cover(trace, source, slices, launches)
    unseen = launches.filter(~seen)["ts_ns"]
    first, last = ops["ts_ns"].to_numpy().min(), (ops["ts_ns"] + ops["dur_ns"]).to_numpy().max()
    late, early = int((unseen < first).sum()) >= UNSEEN, int((unseen > last).sum()) >= UNSEEN
    return None if late else begin, None if early else end


def _recorder_cover(
    trace: Trace, source: int, slices: pl.DataFrame, launches: pl.DataFrame
) -> tuple[int | None, int | None]:
    row = trace.sources.filter(pl.col("source") == source).row(0, named=True)
    begin, end = row["recorded_from_ns"], row["recorded_to_ns"]
    own = pl.col("category") == "overhead"
    if begin is not None:
        # What the profiler does before anything else is its own start.
        first = slices.filter(~own)["ts_ns"].min()
        starting = slices.filter(own & (pl.col("ts_ns") < first))
        ready = (starting["ts_ns"] + starting["dur_ns"]).max()
        return max(begin, ready) if ready is not None else begin, end
    working = slices.filter(~own & pl.col("thread").is_in(launches["thread"].unique().implode()))
    if working.is_empty():
        return None, None
    ends = (working["ts_ns"] + working["dur_ns"]).to_numpy()
    return int(ends.min()), int(working["ts_ns"].to_numpy().max())
