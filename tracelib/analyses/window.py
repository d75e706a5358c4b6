"""What every figure is about: the events that lie on one clock, and a stretch of time.

docs/numbers.md, "Windows" and "Alignment", defines both. A recorder that says from when to when it ran is
believed, unless its file was cut since. Where nothing says it, calls and frames of the launching threads
prove that it ran. They count from the first one's end to the last one's begin: in a piece cut out of a
recording, long frames stick out on both sides, and no frame ends before the piece.
"""

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from tracelib.errors import BadParameter, MissingEvents
from tracelib.intervals import begin, clip, end, union
from tracelib.schema import FRAMES
from tracelib.sources import FORMATS
from tracelib.sources.health import no_gpu_work, with_remarks
from tracelib.trace import Trace
from tracelib.words import duration

#: So many launches without an operation, after the last one or before the first: the GPU was not recorded
#: then.
UNSEEN = 10
#: A GPU's recording that costs the window this share is named.
COSTLY = 0.1
#: Formats whose calls say when a GPU was recorded.
WITH_CALLS = {each.name for each in FORMATS if each.calls_with_gpu}
#: An edge of the window is not worth a word if it is shorter.
SMALL_NS = 1_000_000
#: What was recorded for so much of the window stands for all of it.
WHOLE = 0.95


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
    recorder = trace.sources.filter(pl.col("source") == source)["format"].first()
    if recorder not in WITH_CALLS:
        return None, None
    own = trace.threads.filter(pl.col("pid").eq_missing(pid))["thread"]
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


#: The recorder runs a moment before the load and after it. Where no GPU works at these edges for more than
#: this share of the recording, the server was idle, and the window holds them.
IDLE_EDGES = 1 / 2
RECORD_GPU = "torch.profiler with CPU and CUDA activities on every worker, or nsys profile -t cuda,nvtx"
#: Frames whose rows have a time.
TIMED = ("slices", "gpu_ops", "samples", "sched", "counters")
LENGTHEN = "record all ranks over the same time, or leave that rank's file out"
FIX = "give its clock (--ftrace-clock mono, run.toml) or its offset to wall time (--offset FILE=NS)"
#: Frames of which a message says how many rows there are.
_COUNTED = ("slices", "gpu_ops", "samples", "sched")


@dataclass(frozen=True)
class Window:
    """`[start_ns, end_ns)` on the aligned timeline, and why it is this one."""

    start_ns: int
    end_ns: int
    why: str
    #: What made it shorter: recordings that end early or begin late.
    cut: tuple[str, ...] = ()

    @property
    def duration_ns(self) -> int:
        """Length in ns."""
        return self.end_ns - self.start_ns


def recorded_ns(recordings: Iterable[pl.DataFrame], window: Window) -> int:
    """Return how much of the window lies between the first and the last event of any of `recordings`.

    Each has `ts_ns`; lengths do not count, since a long slice may stick out of what was recorded.
    """
    spans = [
        rows.select(
            pl.lit(0).alias("lane"),
            pl.col("ts_ns").min(),
            dur_ns=pl.col("ts_ns").max() - pl.col("ts_ns").min(),
        )
        for rows in recordings
        if rows.height
    ]
    if not spans:
        return 0
    whole = union(pl.concat(spans), "lane")
    return int(clip(whole, window.start_ns, window.end_ns)["dur_ns"].sum())


def window(trace: Trace, spec: tuple[float, float] | None = None, of: str | None = None) -> Window:
    """Return the window of analysis.

    Without any GPU operation: the time that the scheduler events, the samples and the slices cover together.

    By default the time that the GPU recordings of all devices cover together
    (:mod:`tracelib.analyses.window`). So a rank whose profiler started late does not make the others look as
    if they waited for it, and a server that was idle for most of the recording is seen to be. `spec` = (from,
    to) in seconds after the start of that window; `of` = glob on annotation names: from the first such
    range's begin to the last one's end.

    Raises MissingEvents if nothing was recorded at all, or the devices' recordings do not overlap;
    BadParameter if `spec` is empty or lies outside, or `of` matches no annotation.
    """
    none = trace.gpu_ops.is_empty()
    whole = _without_gpu(trace) if none else _common(trace, gpu_covers(trace))
    if of is not None:
        return _of_annotation(trace, of)
    return whole if spec is None else _part(whole, spec)


def _common(trace: Trace, covers: pl.DataFrame) -> Window:
    """Return the time that the recordings of all GPUs cover together, without idle edges that are short."""
    recorded, worked = common_cover(covers), common_cover(covers, "first_op", "last_op")
    if recorded[0] >= recorded[1]:
        raise MissingEvents(
            "GPU recordings that overlap in time", _recorded(trace), RECORD_GPU + ", all at the same time"
        )
    devices = f"{covers.height} GPUs" if covers.height > 1 else "the GPU"
    length = recorded[1] - recorded[0]
    idle = worked[1] <= worked[0] or length - (worked[1] - worked[0]) > IDLE_EDGES * length
    edges = " and ".join(
        duration(ns) + where
        for ns, where in (
            (worked[0] - recorded[0], " before the first GPU operation" if idle else " before that"),
            (recorded[1] - worked[1], " after the last one" if idle else " after it"),
        )
        if ns >= SMALL_NS
    )
    if idle:
        why = f"the time that the recorders of {devices} cover together{f', with {edges}' if edges else ''}"
    else:
        why = f"from the latest first to the earliest last GPU operation of {devices}"
        why += f"; recorded too, and left out: {edges}" if edges else ""
    short = short_covers(trace, covers)
    start, stop = recorded if idle else worked
    return Window(start, stop, "; ".join([why, *short]), tuple(short))


def _without_gpu(trace: Trace) -> Window:
    lengths = {"slices": pl.col("dur_ns"), "samples": pl.lit(0), "sched": pl.lit(0)}
    covers = [
        frame.select(first=pl.col("ts_ns").min(), last=(pl.col("ts_ns") + length).max()).row(0)
        for name, length in lengths.items()
        if (frame := getattr(trace, name)).height
    ]
    if not covers:
        raise MissingEvents("events of any kind", _recorded(trace), RECORD_GPU)
    start, stop = max(first for first, _ in covers), min(last for _, last in covers)
    if start >= stop:
        start, stop = min(first for first, _ in covers), max(last for _, last in covers)
    why = f"{no_gpu_work(trace.health['message'])}: the time that the other recordings cover"
    return Window(start, max(stop, start + 1), why)


def _part(whole: Window, spec: tuple[float, float]) -> Window:
    longest = whole.duration_ns / 1e9 + 1  # what lies outside is cut, and 1e300 s in ns is infinite
    low, high = (whole.start_ns + round(max(0.0, min(seconds, longest)) * 1e9) for seconds in spec)
    start, stop = max(low, whole.start_ns), min(high, whole.end_ns)
    if start >= stop:
        raise BadParameter("window", f"{spec[0]}:{spec[1]}", [f"0:{whole.duration_ns / 1e9:.3f}"])
    return Window(
        start, stop, f"given: {spec[0]:g} s to {spec[1]:g} s after the start of what was recorded together"
    )


def _of_annotation(trace: Trace, of: str) -> Window:
    named = trace.slices.filter(pl.col("category") == "annotation")
    names = named["name"].cast(pl.String).unique()
    wanted = [name for name in names.to_list() if fnmatch.fnmatchcase(name, of)]
    if not wanted:
        raise BadParameter("window_of", of, sorted(names.to_list())[:20])
    chosen = named.filter(pl.col("name").cast(pl.String).is_in(wanted))
    return Window(begin(chosen), end(chosen), f"given: annotations {of!r}")


def _recorded(trace: Trace) -> list[str]:
    return [
        f"{frame.height} {name}"
        for name, frame in trace.frames().items()
        if frame.height and name in _COUNTED
    ]


def on_one_clock(trace: Trace) -> Trace:
    """Return `trace` without the events of sources whose clock is not tied to the others'.

    Where no tied source holds GPU operations but an untied one does, that one is kept alone instead: the
    ledgers of GPU time are what the run was recorded for. `sources` and `threads` keep all rows; `health`
    says what was left out.
    """
    untied = trace.sources.filter(pl.col("tied_by") == "untied")["source"].to_list()
    if not untied:
        return trace
    kept = _kept(trace, untied)
    frames = {
        name: getattr(trace, name).filter(pl.col("source").is_in(kept))
        for name in TIMED
        if getattr(trace, name).height
    }
    ops = frames.get("gpu_ops", trace.gpu_ops)
    gpus = trace.gpus.filter(pl.col("gpu").is_in(ops["gpu"].unique().implode()))
    return trace.replace(**frames, gpus=gpus, health=_with_remarks(trace, kept))


def without_short(trace: Trace) -> Trace:
    """Return `trace` without GPUs whose recordings end so early, or begin so late, that little is left.

    `health` says which and why; a rank that is left out counts as not recorded.
    """
    while left_out := too_short(trace, gpu_covers(trace)):
        gpu, said = left_out
        gpus = {name: getattr(trace, name).filter(pl.col("gpu") != gpu) for name in ("gpu_ops", "gpus")}
        trace = with_remarks(trace.replace(**gpus), [said], LENGTHEN, "error")
    return trace


def with_cut(trace: Trace, over: Window) -> Trace:
    """Return `trace` with a remark in `health` on each recording that made the window shorter."""
    return with_remarks(trace, over.cut, LENGTHEN)


def _kept(trace: Trace, untied: list[int]) -> list[int]:
    """Return the sources that the figures are about."""
    tied = [source for source in trace.sources["source"].to_list() if source not in untied]
    ops = dict(trace.gpu_ops.group_by("source").len().iter_rows())
    if ops and not any(source in ops for source in tied):
        return [max(ops, key=lambda source: (ops[source], -source))]
    return tied


def _with_remarks(trace: Trace, kept: list[int]) -> pl.DataFrame:
    rows = [
        {
            "source": source,
            "level": "warning",
            "message": f"left out of every figure, because no clock ties it to the others: {held}",
            "fix": FIX,
        }
        for source in trace.sources["source"].to_list()
        if source not in kept and (held := _held(trace, source))
    ]
    return pl.concat([trace.health, pl.DataFrame(rows, schema=FRAMES["health"])]).sort(
        "source", maintain_order=True
    )


def _held(trace: Trace, source: int) -> str:
    counts = {name: int((getattr(trace, name)["source"] == source).sum()) for name in TIMED}
    return ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n)
