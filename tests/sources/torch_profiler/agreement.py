"""Runs both decoders on the same text and compares all that they return."""

import io

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tracelib.sources.torch_profiler import native
from tracelib.sources.torch_profiler.chunks import Cutter
from tracelib.sources.torch_profiler.events import joined
from tracelib.sources.torch_profiler.fast import fast_batch
from tracelib.sources.torch_profiler.native import Refused
from tracelib.sources.torch_profiler.reader import plain_batch


def chunks(stream, size=4 << 20):
    return list(Cutter(stream, size))


def chunks_of(text: bytes, size=4 << 20):
    return chunks(io.BytesIO(text), size)


def sorted_rows(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String)).sort(pl.all())


def assert_same(one, other):
    for name in ("spans", "gpu", "marks", "counters"):
        assert_frame_equal(sorted_rows(getattr(one, name)), sorted_rows(getattr(other, name)))
    for name in ("labels", "texts", "tally", "remarks", "skipped_bytes"):
        assert getattr(one, name) == getattr(other, name), name
    assert sorted(one.recorded) == sorted(other.recorded)


def _meaning(tail: bytes | None) -> str:
    """Return the text behind the list as it is read: repairs join their pieces anew, and mend its UTF-8."""
    return "".join((tail or b"").decode("utf-8", "replace").split())


def compared(pieces) -> int:
    """Return how many of the chunks the fast decoder took; those must give what the plain one gives."""
    if not native.available():
        pytest.skip("there is no compiled pass")
    taken = 0
    for chunk in pieces:
        plain, plain_tail = plain_batch(chunk)
        try:
            fast, fast_tail = fast_batch(chunk)
        except Refused:
            pass
        else:
            taken += 1
            assert_same(fast, plain)
            assert (fast_tail is None) == (plain_tail is None)
            assert _meaning(fast_tail) == _meaning(plain_tail)
        if plain_tail is not None:
            break
    return taken


def plain_whole(pieces):
    """Return all events by the plain decoder alone."""
    batches = []
    for chunk in pieces:
        batch, tail = plain_batch(chunk)
        batches.append(batch)
        if tail is not None:
            break
    return joined(batches)
