"""A trace of any size to Parquet, in bounded memory.

The rows go to disk as they are decoded, in the order of the file. When all have been seen, and with them the time base,
the threads and who called which GPU op, a second pass makes the frames part by part; a third collects the rows of one
stretch of (thread, time), sorts them and writes the stretch. What stays in memory: one part, the launch calls (25 bytes
each), begin and end marks, counters, labels.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import SORT, empty
from tracelib.sources.files import hashed
from tracelib.sources.torch_profiler.assembly import Assembly
from tracelib.sources.torch_profiler.events import NO_GPU, NO_SPANS
from tracelib.sources.torch_profiler.pairs import with_pairs
from tracelib.sources.torch_profiler.reader import content
from tracelib.trace import Trace, ordered, write_parquet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracelib.sources.torch_profiler.events import Batch

#: Rows of a part: half a million slices take about 25 MB.
ROWS = 1 << 19
#: Rows of a stretch; those of GPU ops are wider.
STRETCH = {"slices": 1 << 20, "gpu_ops": 1 << 18}
#: A boundary between stretches is looked for among every so many rows.
SAMPLED = 1000
#: Where rows of no thread stand: first, as nulls do.
NOWHERE = -1


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


def _made(
    folder: Path, make: Callable[[pl.DataFrame], pl.DataFrame], parts: Parts, none: pl.DataFrame
) -> Parts:
    made = Parts(folder, none)
    for part in parts:
        made.add(make(part))
    made.flush()
    return made


def _bounds(parts: Parts, keys: list[str], rows: int) -> list[tuple[int, int]]:
    """Return where stretches of about so many `rows` begin in the order of `keys`."""
    sample = (
        pl.concat(part.select(keys).gather_every(SAMPLED) for part in parts).fill_null(NOWHERE).sort(keys)
    )
    return sample.gather_every(rows // SAMPLED)[1:].unique(maintain_order=True).rows()


def _from(keys: list[str], bound: tuple[int, int]) -> pl.Expr:
    """Return whether a row stands at or behind `bound`."""
    first = pl.col(keys[0]).fill_null(NOWHERE)
    return (first > bound[0]) | ((first == bound[0]) & (pl.col(keys[1]) >= bound[1]))


def _sorted(name: str, parts: Parts, folder: Path) -> Iterator[pl.DataFrame]:
    """Write the rows of the frame called `name` in its order, stretch by stretch; yield each."""
    keys = SORT[name][:2]
    begins = [_from(keys, bound) for bound in _bounds(parts, keys, STRETCH[name])]
    for number, (begin, end) in enumerate(
        itertools.pairwise([pl.lit(value=True), *begins, pl.lit(value=False)])
    ):
        rows = ordered(name, parts.scan().filter(begin & ~end).collect(engine="streaming"))
        write_parquet(rows, folder / f"{name}-{number}.parquet")
        yield rows


def stream(path: Path, folder: Path) -> None:
    """Write the trace in the file at `path` to `folder`, for :meth:`tracelib.Trace.from_parquet`.

    Raises
    ------
    BadTrace
        As `read` does.

    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        spans, gpu = Parts(place / "spans", NO_SPANS), Parts(place / "gpu", NO_GPU)

        def take(batch: Batch) -> None:
            for parts, key in ((spans, "spans"), (gpu, "gpu")):
                parts.add(getattr(batch, key))
                setattr(batch, key, parts.none)

        with hashed(path):
            found = content(path, take)
        spans.add(with_pairs(found.batch))
        spans.flush()
        gpu.flush()
        whole = Assembly(path, found, spans, gpu)
        slices = _made(place / "slices", whole.slices, spans, empty("slices"))
        gpu_ops = _made(place / "gpu_ops", whole.gpu_ops, gpu, empty("gpu_ops"))
        for rows in _sorted("slices", slices, folder):
            whole.look(rows, empty("gpu_ops"))
        for rows in _sorted("gpu_ops", gpu_ops, folder):
            whole.look(empty("slices"), rows)
        rest = Trace.of(whole.others()).frames()
        for frame, rows in rest.items():
            if frame not in ("slices", "gpu_ops"):
                write_parquet(rows, folder / f"{frame}-0.parquet")
