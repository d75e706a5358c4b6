"""Few kinds of slices among many: which distinct (name, category) there are, and of which kind each slice is.

Names and categories are stored as small numbers: a table with a place for every pair of them is quicker than a join of
tens of millions of rows, and what is looked up at a time stays in the processor's cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["kind_numbers", "kinds", "of_kinds"]

AT_ONCE = 2**16


def kinds(slices: pl.DataFrame) -> pl.DataFrame:
    """Return the kinds of `slices`: one row per distinct `name` (cat), `category` (enum), sorted by category, then name."""
    names = _width(slices)
    example = np.full(names * _heights(slices), -1, np.int64)
    for at, places in _places(slices, names):
        example[places] = np.arange(at, at + len(places))
    found = example[example >= 0]
    return slices.select(pl.col("name", "category").gather(found)).sort("category", "name")


def kind_numbers(slices: pl.DataFrame, of: pl.DataFrame) -> NDArray[np.uint32]:
    """Return for each slice the row of `of`, a frame of all their kinds, that is of its kind."""
    names = max(_width(slices), _width(of))
    table = np.zeros(names * _heights(slices), np.uint32)
    for at, places in _places(of, names):
        table[places] = np.arange(at, at + len(places))
    numbers = np.empty(slices.height, np.uint32)
    for at, places in _places(slices, names):
        numbers[at : at + len(places)] = table[places]
    return numbers


def of_kinds(slices: pl.DataFrame, some: pl.DataFrame) -> pl.DataFrame:
    """Return the slices whose `name` and `category` are those of a row of `some`."""
    names = max(_width(slices), _width(some))
    table = np.zeros(names * _heights(slices), bool)
    for _, places in _places(some, names):
        table[places] = True
    wanted = [np.flatnonzero(table[places]) + at for at, places in _places(slices, names)]
    return slices.select(pl.all().gather(np.concatenate([np.empty(0, np.intp), *wanted])))


def _places(slices: pl.DataFrame, names: int) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield where some slices begin, and the place of each of their kinds in a table; no name and no category come last."""
    for at in range(0, slices.height, AT_ONCE):
        few = slices.slice(at, AT_ONCE)
        name = few["name"].to_physical().fill_null(names - 1).to_numpy()
        category = few["category"].to_physical().fill_null(_heights(slices) - 1).to_numpy()
        yield at, category.astype(np.intp) * names + name


def _width(slices: pl.DataFrame) -> int:
    """Return more than the number of names' codes."""
    highest = slices["name"].to_physical().max()
    return 1 if highest is None else int(highest) + 2  # type: ignore[arg-type]


def _heights(slices: pl.DataFrame) -> int:
    """Return more than the number of categories."""
    return len(slices.schema["category"].categories) + 1  # type: ignore[attr-defined]
