"""From a file to a trace: `read` in memory, `stream` part by part through the disk, in bounded memory.

While a file is streamed, its rows go to disk as they are decoded, in the order of the file. When all have
been seen, and with them the time base, the threads and who called which GPU op, a second pass makes the
frames part by part; a third collects the rows of one stretch of (thread, time), sorts them and writes the
stretch. What stays in memory: one part, the launch calls (25 bytes each), begin and end marks, counters,
labels.
"""

import itertools
import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracelib.errors import BadTrace
from tracelib.schema import SORT, empty
from tracelib.sources.files import Stream, hashed, keep_freed_memory, open_stream
from tracelib.sources.torch_profiler import frames, plain
from tracelib.sources.torch_profiler.assembly import Assembly
from tracelib.sources.torch_profiler.chunks import PAD, Chunk, Cutter
from tracelib.sources.torch_profiler.document import Document, document
from tracelib.sources.torch_profiler.events import NO_GPU, NO_SPANS, Batch, joined, with_pairs
from tracelib.sources.torch_profiler.fast import fast_batch
from tracelib.sources.torch_profiler.native import Refused
from tracelib.sources.torch_profiler.salvage import decoded, salvage
from tracelib.trace import Trace, ordered, write_parquet

#: More text than this after the list of events is not kept: events in it are counted.
LONGEST_TAIL = 16 << 20
BEHIND = "lost: behind the end of the list"
#: Only events have this key; in a text inside of a string its quotes are escaped.
PHASE = re.compile(rb'(?<!\\)"ph"\s*:')
#: An event where the list has ended.
EVENT_BEHIND = re.compile(rb"\s*,\s*\{")
#: So many stray brackets are passed over in a piece: each means to look at the rest once more.
MOST_BRACKETS = 16
THREADS = 2
#: Rows of a part: half a million slices take about 25 MB.
ROWS = 1 << 19
#: Rows of a stretch; those of GPU ops are wider.
STRETCH = {"slices": 1 << 20, "gpu_ops": 1 << 18}
#: A boundary between stretches is looked for among every so many rows.
SAMPLED = 1000
#: Where rows of no thread stand: first, as nulls do.
NOWHERE = -1


@dataclass
class Contents:
    """All that is in a trace file; `damage` says why it ended early, if it did."""

    batch: Batch
    document: Document
    damage: str | None
    lost_bytes: int


def plain_batch(chunk: Chunk) -> tuple[Batch, bytes | None]:
    """Return the events of `chunk`, and the text after the list's end if it ends in there."""
    text = chunk.text
    body = text.rstrip().removesuffix(b",") if chunk.last else text
    valid = decoded(body)
    if valid and (valid[1] is not None or not chunk.last):
        behind = None if valid[1] is None else valid[1] + text[len(body) :]
        return plain.batch(valid[0]), behind
    salvaged = salvage(text, last=chunk.last)
    batch = plain.batch(salvaged.events)
    batch.remarks.update(salvaged.remarks)
    batch.skipped_bytes = salvaged.skipped_bytes
    return batch, salvaged.tail


def decoded_batch(chunk: Chunk) -> tuple[Batch, bytes | None]:
    """Return the same as `plain_batch`, by the fast decoder if that one takes the chunk."""
    try:
        return fast_batch(chunk)
    except Refused:
        return plain_batch(chunk)


def _decoded(cutter: Cutter) -> Iterator[tuple[Chunk, Batch, bytes | None]]:
    """Decode chunks on two threads while this one reads on; NumPy and Polars release Python's lock."""
    waiting: deque[tuple[Chunk, Future[tuple[Batch, bytes | None]]]] = deque()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="decode") as pool:
        for chunk in cutter:
            waiting.append((chunk, pool.submit(decoded_batch, chunk)))
            if len(waiting) > THREADS:
                first, future = waiting.popleft()
                yield first, *future.result()
        for first, future in waiting:
            yield first, *future.result()


def _behind_brackets(chunk: Chunk, batch: Batch, behind: bytes | None) -> tuple[list[Batch], bytes | None]:
    """Return also the events behind stray brackets, which close the list although an event follows."""
    batches = [batch]
    while behind is not None and len(batches) <= MOST_BRACKETS and (event := EVENT_BEHIND.match(behind)):
        text = behind[event.end() - 1 :]
        batch, behind = plain_batch(Chunk(bytearray(text) + bytes(PAD), len(text), chunk.last))
        batch.remarks["behind a stray bracket in the list"] += batch.tally.total()
        batches.append(batch)
    return batches, behind


def _batches(cutter: Cutter, take: Callable[[Batch], None]) -> tuple[list[Batch], bytes | None]:
    batches: list[Batch] = []
    tail: bytes | None = None
    for chunk, batch, behind in _decoded(cutter):
        if tail is None:
            several, tail = _behind_brackets(chunk, batch, behind)
            for each in several:
                take(each)
            batches += several
        elif len(tail) < LONGEST_TAIL:  # the list has ended: this text belongs to the document
            tail += b"," + chunk.text
        else:
            lost = joined([])
            lost.remarks[BEHIND], lost.skipped_bytes = batch.tally.total(), chunk.stop
            batches.append(lost)
    return batches, tail


def _open(path: Path) -> Stream:
    try:
        return open_stream(path)
    except OSError as error:
        raise BadTrace(path, "torch_profiler", "", str(error.strerror or error)) from error


def content(path: Path, take: Callable[[Batch], None] = lambda _: None) -> Contents:
    """Return all that the file at `path` holds; `take` gets each batch, and may move its rows elsewhere.

    Raises BadTrace if it cannot be opened, or has no list of events.
    """
    keep_freed_memory()
    with _open(path) as stream:
        cutter = Cutter(stream)
        batches, tail = _batches(cutter, take)
        if cutter.head is None:
            raise BadTrace(
                path,
                "torch_profiler",
                "byte 0",
                stream.damage or "it has no list of traceEvents",
                advice="Export it with torch.profiler's export_chrome_trace.",
            )
        whole = joined(batches)
        whole.skipped_bytes += cutter.skipped_bytes
        fields = document(cutter.head, tail)
        behind = len(PHASE.findall(tail or b""))
        if behind and (others := fields.other_lists()):
            fields.notes += others
        elif behind:  # a stray bracket closed the list, or two files were joined
            whole.remarks[BEHIND] += behind
            whole.skipped_bytes += len(tail or b"")
        return Contents(whole, fields, stream.damage, stream.lost_bytes)


def read(path: Path) -> Trace:
    """Return the trace in the file at `path`: all frames but samples, stacks and sched.

    Times are ns since the epoch where the file has a time base or counts from the epoch (clock "realtime"),
    else of the file's own clock ("unknown").

    Raises BadTrace if the file has no list of events, or not one event in it can be read.
    """
    contents = content(path)
    with hashed(path):  # what follows leaves a core idle
        host, xla = frames.without_xla(with_pairs(contents.batch), contents.batch)
        spans, gpu = [host], [pl.concat([contents.batch.gpu, xla])]
        del host, xla
        whole = Assembly(path, contents, spans, gpu)
        # Each copy of the rows goes as soon as the next is made.
        contents.batch.spans, contents.batch.gpu = NO_SPANS, NO_GPU
        slices, gpu_ops = whole.slices(spans.pop()), whole.gpu_ops(gpu.pop())
        whole.look(slices, gpu_ops)
        return Trace.of({"slices": slices, "gpu_ops": gpu_ops, **whole.others()})


class Parts:
    """Rows of one schema on disk, in the order in which they came; iterating gives them back part by part."""

    def __init__(self, folder: Path, none: pl.DataFrame) -> None:
        self.folder, self.none = folder, none
        self.files: list[Path] = []
        self.waiting: list[pl.DataFrame] = []
        folder.mkdir()

    def add(self, rows: pl.DataFrame) -> None:
        if rows.height:
            self.waiting.append(rows)
        if sum(rows.height for rows in self.waiting) >= ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what waits; the first part is there even without a row."""
        if self.waiting or not self.files:
            self.files.append(self.folder / f"{len(self.files)}.parquet")
            rows = pl.concat([self.none, *self.waiting])
            rows.write_parquet(self.files[-1], compression="lz4")
            self.waiting = []

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return (pl.read_parquet(file).match_to_schema(self.none.schema) for file in self.files)

    def scan(self) -> pl.LazyFrame:
        return pl.scan_parquet(self.files)


def _mapped(
    folder: Path, function: Callable[[pl.DataFrame], pl.DataFrame], parts: Parts, none: pl.DataFrame
) -> Parts:
    """Return `function` of each of the `parts`, in parts like `none` in `folder`."""
    results = Parts(folder, none)
    for part in parts:
        results.add(function(part))
    results.flush()
    return results


def _xla_apart(folder: Path, spans: Parts, gpu: Parts, batch: Batch) -> Parts:
    """Return `spans` without XLA's work of GPUs, which goes to `gpu`."""

    def host(part: pl.DataFrame) -> pl.DataFrame:
        rest, work = frames.without_xla(part, batch)
        gpu.add(work)
        return rest

    return _mapped(folder, host, spans, NO_SPANS)


def _bounds(parts: Parts, keys: list[str], rows: int) -> list[tuple[int, int]]:
    """Return where stretches of about so many `rows` begin in the order of `keys`."""
    sample = pl.concat(part.select(keys).gather_every(SAMPLED) for part in parts)
    ordered_keys = sample.fill_null(NOWHERE).sort(keys)
    return ordered_keys.gather_every(rows // SAMPLED)[1:].unique(maintain_order=True).rows()


def _from(keys: list[str], bound: tuple[int, int]) -> pl.Expr:
    """Return whether a row stands at or behind `bound`."""
    first = pl.col(keys[0]).fill_null(NOWHERE)
    return (first > bound[0]) | ((first == bound[0]) & (pl.col(keys[1]) >= bound[1]))


def _sorted(name: str, parts: Parts, folder: Path) -> Iterator[pl.DataFrame]:
    """Write the rows of the frame called `name` in its order, stretch by stretch; yield each."""
    keys = SORT[name][:2]
    begins = [_from(keys, bound) for bound in _bounds(parts, keys, STRETCH[name])]
    edges = [pl.lit(value=True), *begins, pl.lit(value=False)]
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        rows = ordered(name, parts.scan().filter(begin & ~end).collect(engine="streaming"))
        write_parquet(rows, folder / f"{name}-{number}.parquet")
        yield rows


def stream(path: Path, folder: Path) -> None:
    """Write the trace in the file at `path` to `folder`, for :meth:`tracelib.Trace.from_parquet`.

    Raises BadTrace as `read` does.
    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        spans, gpu = Parts(place / "spans", NO_SPANS), Parts(place / "gpu", NO_GPU)

        def take(batch: Batch) -> None:
            for parts, key in ((spans, "spans"), (gpu, "gpu")):
                parts.add(getattr(batch, key))
                setattr(batch, key, parts.none)

        with hashed(path):
            contents = content(path, take)
        spans.add(with_pairs(contents.batch))
        spans.flush()
        if frames.xla_gpus(contents.batch):
            spans = _xla_apart(place / "host", spans, gpu, contents.batch)
        gpu.flush()
        whole = Assembly(path, contents, spans, gpu)
        slices = _mapped(place / "slices", whole.slices, spans, empty("slices"))
        gpu_ops = _mapped(place / "gpu_ops", whole.gpu_ops, gpu, empty("gpu_ops"))
        for rows in _sorted("slices", slices, folder):
            whole.look(rows, empty("gpu_ops"))
        for rows in _sorted("gpu_ops", gpu_ops, folder):
            whole.look(empty("slices"), rows)
        for kind, rows in Trace.of(whole.others()).frames().items():
            if kind not in ("slices", "gpu_ops"):
                write_parquet(rows, folder / f"{kind}-0.parquet")
