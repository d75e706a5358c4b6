"""Events of a trace to the frames of :mod:`tracelib.schema`."""

import re
from collections.abc import Iterable

import polars as pl

from tracelib.schema import COUNTERS, GPU_OP_KIND, GPU_OPS, GPUS, SLICE_CATEGORY, SLICES, THREADS
from tracelib.sources.collective_names import named
from tracelib.sources.torch_profiler.events import NO_GPU, NOWHERE, Batch

_THREAD_LABEL = re.compile(r"thread \d+ \((.*)\)")
#: Calls that start all kernels of a graph at once: cudaGraphLaunch, cuGraphLaunch_ptsz, hipGraphLaunch.
GRAPH_LAUNCH = r"GraphLaunch"
#: XLA's names of a GPU's process and of the threads that are its streams; all other threads of that process
#: are derived from them (JAX's profiler: xla/backends/profiler/gpu/cupti_collector.cc, `GetDeviceXLineName`).
XLA_GPU, XLA_STREAM = re.compile(r"/device:GPU:(\d+)(?: \(.*\))?$"), re.compile(r"Stream #(\d+)(?:\(.*\))?")
#: The types of its events on a stream that are no kernels; those about memory take no time of the GPU.
XLA_COPY, XLA_FILL, XLA_MEMORY = "^Memcpy[A-Z]", "^Memset$", "^Memory(Alloc|Free|Residency)$"


def _label(text: str | None) -> str | None:
    """Return a thread's own name: Kineto writes "thread 2389 (tokenizer)", and "thread 7 ()" for none.

    >>> _label("thread 2389 (tokenizer)"), _label("main"), _label("thread 7 ()")
    ('tokenizer', 'main', None)
    """
    label = _THREAD_LABEL.fullmatch(text or "")
    return (label[1] if label else (text or "")).strip() or None


def calls(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the runtime and driver calls: correlation, caller, caller_tid, by_graph, runtime (bool)."""
    graph = pl.col("name").cast(pl.String).str.contains(GRAPH_LAUNCH)
    called = pl.col("category").is_in(["runtime", "driver"]) & pl.col("correlation").is_not_null()
    return spans.filter(called).select(
        "correlation", caller="pid", caller_tid="tid", by_graph=graph, runtime=pl.col("category") == "runtime"
    )


def launches(called: pl.DataFrame, several: pl.Series) -> pl.DataFrame:
    """Return the first of the :func:`calls` of each id, without the caller of ids that `several` have."""
    first = called.filter(pl.col("correlation").is_first_distinct()).drop("runtime")
    if several.is_empty():
        return first
    sole = ~pl.col("correlation").is_in(several.implode())
    return first.with_columns(pl.when(sole).then(pl.col("caller", "caller_tid")))


def hosts(placed: pl.DataFrame) -> pl.DataFrame:
    """Return the distinct pid and tid of what :func:`on_threads` returned that lie on a thread."""
    hosted = placed.filter("hosted").select("pid", "tid")
    return hosted.filter(_turns(hosted)).unique()


def _turns(placed: pl.DataFrame) -> pl.Series:
    """Return whether each row has another pid or tid than the row before: only those need a look-up."""
    same = [pl.col(name).eq_missing(pl.col(name).shift()) for name in ("pid", "tid")]
    return placed.select((pl.int_range(pl.len()) == 0) | ~pl.all_horizontal(same)).to_series()


def threads(active: pl.DataFrame, batch: Batch, host: str | None) -> pl.DataFrame:
    """Return :data:`tracelib.schema.THREADS` of the `active` ones (pid, tid), named as in `batch`."""
    rows = []
    for number, (pid, tid) in enumerate(active.unique().sort("pid", "tid", nulls_last=True).iter_rows()):
        name = _label(batch.labels.get((pid, tid, "thread_name"))) or batch.texts.get(tid)
        process = batch.labels.get((pid, None, "process_name")) or batch.texts.get(pid)
        rows.append((number, host, pid, tid, name, process, None, None))
    return pl.DataFrame(rows, schema=THREADS, orient="row")


def on_threads(spans: pl.DataFrame, called: pl.DataFrame, callers: pl.DataFrame) -> pl.DataFrame:
    """Return pid and tid of the host thread of each of `spans`, and if it has one (hosted, bool).

    Kineto draws a `cuda_sync` on the stream it waits for; the thread that waits is the one whose call has the
    same correlation, else its own if that is one of the `callers` (pid, tid): a device and a process may have
    one number. Overhead of the profiler (pid -1) and annotations projected to a GPU lie on no thread.
    """
    nowhere = pl.col("category").eq("gpu_annotation") | pl.col("pid").eq(NOWHERE)
    processes = callers["pid"].unique()
    if processes.len() > 1:  # merged: the -1 may have been moved like the ids of processes
        nowhere |= pl.col("category").eq("overhead") & ~pl.col("pid").is_in(processes.implode())
    placed = spans.select("pid", "tid", hosted=~nowhere.fill_null(value=False))
    syncs = (spans["category"] == "sync").arg_true()
    if syncs.is_empty():
        return placed
    waits = spans.select("pid", "tid", "correlation")[syncs]
    own = callers.with_columns(own_pid="pid", own_tid="tid")
    moved = (
        waits.join(called, on="correlation", how="left", maintain_order="left")
        .join(own, on=["pid", "tid"], how="left", maintain_order="left")
        .select(
            pid=pl.coalesce("caller", "own_pid"),
            tid=pl.when(pl.col("caller").is_not_null()).then("caller_tid").otherwise("own_tid"),
        )
        .with_columns(hosted=pl.col("pid").is_not_null())
    )
    return placed.select(placed[name].scatter(syncs, moved[name]) for name in placed.columns)


def slices(spans: pl.DataFrame, placed: pl.DataFrame, threads: pl.DataFrame, base: int) -> pl.DataFrame:
    """Return :data:`tracelib.schema.SLICES` of `spans`, `placed` (:func:`on_threads`) on `threads`."""
    turns, keys = _turns(placed), ["pid", "tid"]
    numbers = threads.select("thread", *keys)
    turned = placed.filter(turns).select(keys)
    turned = turned.join(numbers, on=keys, how="left", nulls_equal=True, maintain_order="left")
    each = turned["thread"].gather(turns.cum_sum() - 1)
    thread = pl.select(pl.when(placed["hosted"]).then(each)).to_series()
    return spans.select(
        pl.lit(0, pl.Int32).alias("source"),
        thread.alias("thread"),
        pl.col("ts").add(base).alias("ts_ns"),
        pl.col("dur").alias("dur_ns"),
        pl.col("name").fill_null(""),
        "category",
        "correlation",
    ).match_to_schema(SLICES)


def xla_gpus(batch: Batch) -> dict[int, int]:
    """Return the numbers of the GPUs whose work XLA's profiler recorded, by their processes' ids."""
    labels = {pid: label for (pid, _, kind), label in batch.labels.items() if kind == "process_name"}
    found = {pid: XLA_GPU.search(label) for pid, label in labels.items() if pid is not None}
    streams = {pid for pid, _ in _xla_streams(batch)}
    return {pid: int(number[1]) for pid, number in found.items() if number and pid in streams}


def _xla_streams(batch: Batch) -> dict[tuple[int, int], int]:
    found = {place: XLA_STREAM.fullmatch(label) for place, label in batch.labels.items()}
    return {
        (pid, tid): int(stream[1])
        for (pid, tid, kind), stream in found.items()
        if stream and kind == "thread_name" and pid is not None and tid is not None
    }


def without_xla(spans: pl.DataFrame, batch: Batch) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `spans` with what XLA draws on GPUs as such, and their work (:data:`events.GPU`) apart."""
    gpus = xla_gpus(batch)
    if not gpus:
        return spans, NO_GPU
    streams = [(*place, stream) for place, stream in _xla_streams(batch).items()]
    lines = pl.DataFrame(streams, schema={"pid": pl.Int64, "tid": pl.Int64, "stream": pl.Int64}, orient="row")
    on_gpu = pl.col("pid").is_in(list(gpus))
    placed = spans.join(lines, on=["pid", "tid"], how="left", maintain_order="left")
    name = pl.col("name").cast(pl.String)
    is_work = on_gpu & pl.col("stream").is_not_null() & ~name.str.contains(XLA_MEMORY).fill_null(value=False)
    copied = pl.when(name.str.contains(XLA_COPY)).then(pl.lit("memcpy"))
    kind = copied.when(name.str.contains(XLA_FILL)).then(pl.lit("memset")).otherwise(pl.lit("kernel"))
    work = placed.filter(is_work).select(
        kind.cast(GPU_OP_KIND).alias("kind"),
        *("name", "pid"),
        pl.col("pid").replace_strict(gpus, return_dtype=pl.Int64).alias("device"),
        *("stream", "ts", "dur"),
    )
    drawn = pl.when(on_gpu).then(pl.lit("gpu_annotation", SLICE_CATEGORY)).otherwise("category")
    rest = placed.filter(~is_work).with_columns(drawn.alias("category")).drop("stream")
    return rest, pl.concat([NO_GPU, work], how="diagonal")


def devices(
    parts: Iterable[pl.DataFrame], rank: int | None, ranks: dict[int, int] | None = None
) -> pl.DataFrame:
    """Return one row per GPU that did some work in `parts` (:data:`events.GPU`), in order: device, rank.

    With `ranks` of process ids (pid) the file was merged from several, and each pid has devices of its own.
    """
    keys = ["device"] if ranks is None else ["pid", "device"]
    used = pl.concat(part.select(keys).unique() for part in parts).unique()
    numbers = [rank] * used.height if ranks is None else [ranks.get(pid) for pid in used["pid"]]
    return used.with_columns(rank=pl.Series(numbers, dtype=pl.Int64)).sort("rank", *keys, nulls_last=True)


def gpus(devices: pl.DataFrame, host: str | None, names: dict[int, str]) -> pl.DataFrame:
    """Return one row per GPU of :func:`devices` (:data:`tracelib.schema.GPUS`)."""
    rows = [
        (n, host, d if d is None or abs(d) < 2**31 else None, rank, names.get(d))
        for n, (d, rank) in enumerate(devices.select("device", "rank").iter_rows())
    ]
    return pl.DataFrame(rows, schema=GPUS, orient="row")


def gpu_ops(
    gpu: pl.DataFrame, devices: pl.DataFrame, called: pl.DataFrame, base: int, group_size: int | None
) -> pl.DataFrame:
    """Return :data:`tracelib.schema.GPU_OPS` of `gpu` (:data:`events.GPU`), with the process of each.

    `group_size` is that of the process's only group, if it has only one. A file has the events of one process
    as a rule: where no call is recorded for a GPU op and just one process made calls, it is that one.
    """
    numbers = devices.drop("rank").with_columns(gpu=pl.int_range(devices.height, dtype=pl.Int32))
    keys = devices.drop("rank").columns
    callers = called["caller"].unique()  # null is one that is not known
    only = pl.lit(callers[0] if callers.len() == 1 else None, pl.Int64)
    with_calls = gpu.join(numbers, on=keys, how="left", nulls_equal=True, maintain_order="left").join(
        called, on="correlation", how="left", maintain_order="left"
    )
    graph = pl.when(pl.col("graph") > 0).then("graph").when("by_graph").then(0)
    return with_calls.select(
        pl.lit(0, pl.Int32).alias("source"),
        "gpu",
        "stream",
        pl.col("ts").add(base).alias("ts_ns"),
        pl.col("dur").alias("dur_ns"),
        pl.col("name").fill_null(""),
        "kind",
        "correlation",
        pl.coalesce("caller", only).alias("pid"),
        graph.alias("graph"),
        "bytes",
        *named(with_calls, group_size),
    ).match_to_schema(GPU_OPS)


def counters(batch: Batch, base: int) -> pl.DataFrame:
    """Return :data:`tracelib.schema.COUNTERS`; the track is what the file calls the counter's process."""
    tracks = {
        pid: batch.texts.get(pid) or batch.labels.get((pid, None, "process_labels")) or f"process {pid}"
        for pid in batch.counters["pid"].unique().drop_nulls()
    }
    track = pl.col("pid").replace_strict(tracks, default=None, return_dtype=pl.String)
    return batch.counters.select(
        pl.lit(0, pl.Int32).alias("source"),
        pl.col("ts").add(base).alias("ts_ns"),
        pl.col("name").cast(pl.Categorical()),
        track.cast(pl.Categorical()).alias("track"),
        "value",
    ).match_to_schema(COUNTERS)
