"""Viewers draw slices as nested boxes: slices that cross each other go to layers in which none does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

__all__ = ["Strokes", "strokes"]

#: One layer as the strokes that draw it, in order: the row of the slice, whether it ends there (else it begins).
Strokes = tuple["NDArray[np.int64]", "NDArray[np.bool_]"]


def strokes(slices: pl.DataFrame) -> list[Strokes]:
    """Return the layers of `slices`, which are sorted by `ts_ns`, longest first.

    In each layer every slice lies wholly inside the one that is open when it begins, or begins after its end; so the
    strokes' times never go back. A slice that would cross an open one's end goes to the next layer: one layer where the
    recording is sound.
    """
    begins = slices["ts_ns"].to_numpy()
    ends = (slices["ts_ns"] + slices["dur_ns"]).to_numpy()
    if (ends[:-1] <= begins[1:]).all():  # one after the other
        rows = np.arange(len(begins))
        return [(rows.repeat(2), np.tile([False, True], len(rows)))] if len(rows) else []
    layers: list[Strokes] = []
    waiting = np.arange(len(begins))
    while len(waiting):
        rows, closing, waiting = _layer(waiting, begins, ends)
        layers.append((rows, closing))
    return layers


def _layer(
    candidates: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
    """Return one layer's rows and whether each closes, and the candidates that did not fit it."""
    rows: list[int] = []
    closing: list[bool] = []
    crossing: list[int] = []
    open_rows: list[int] = []
    stops = ends.tolist()
    for row, begin in zip(candidates.tolist(), begins[candidates].tolist(), strict=True):
        while open_rows and stops[open_rows[-1]] <= begin:
            rows.append(open_rows.pop())
            closing.append(True)
        if open_rows and stops[row] > stops[open_rows[-1]]:
            crossing.append(row)
            continue
        rows.append(row)
        closing.append(False)
        open_rows.append(row)
    rows += open_rows[::-1]
    closing += [True] * len(open_rows)
    return np.array(rows, np.int64), np.array(closing, np.bool_), np.array(crossing, np.int64)
