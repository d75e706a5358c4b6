"""How long the interval algebra takes: `python benchmarks/intervals.py [millions ...]` (default 1 2 4 8).

Nested slices on 8 threads (random walks of opens and closes, depth up to 60, with ties), and a fifth as many
gaps laid over what was innermost. Prints each function's CPU seconds per million slices: the same number in
every row means that it grows linearly. Shuffled: rows in any order; crossing: every thousandth slice ends
after its parent, as in damaged files.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelib import intervals

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS, DEEPEST = 8, 60


def slices(rows: int, seed: int = 1) -> pl.DataFrame:
    """Return about `rows` properly nested slices in the order of a trace's frame."""
    rng = np.random.default_rng(seed)
    parts = []
    for thread in range(THREADS):
        walk = np.cumsum(np.where(rng.random(2 * rows // THREADS) < 0.5, 1, -1)) % (2 * DEEPEST)
        depth = np.where(walk > DEEPEST, 2 * DEEPEST - walk, walk)
        depth = np.concatenate([[0], depth, np.arange(depth[-1] - 1, -1, -1)])
        at = np.cumsum(rng.integers(0, 400, len(depth) - 1))
        order = np.argsort(np.maximum(depth[1:], depth[:-1]), kind="stable")
        begin, end = order[::2], order[1::2]  # on one level, opens and closes take turns
        parts.append(
            pl.DataFrame(
                {
                    "thread": np.full(len(end), thread, np.int32),
                    "ts_ns": at[begin],
                    "dur_ns": at[end] - at[begin],
                }
            )
        )
    return pl.concat(parts).sort("thread", "ts_ns", "dur_ns", descending=[False, False, True])


def gaps(until: int, rows: int, seed: int = 2) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "thread": rng.integers(0, THREADS, rows).astype(np.int32),
            "ts_ns": np.sort(rng.integers(0, until, rows)),
            "dur_ns": rng.integers(1, 400, rows),
        }
    )


def works(some: pl.DataFrame) -> dict[str, Callable[[], object]]:
    """Return what is measured on the slices `some`."""
    mixed = some.sample(fraction=1, shuffle=True, seed=3)
    every = pl.int_range(pl.len()) % 1000 == 0
    bad = some.with_columns(dur_ns=pl.when(every).then(pl.col("dur_ns") * 3 + 500).otherwise("dur_ns"))
    line = intervals.innermost(some, "thread")
    odd = pl.col("row") % 2 == 1
    until = intervals.end(some)
    between = gaps(until, some.height // 5)
    return {
        "union": lambda: intervals.union(some, "thread"),
        "union, shuffled": lambda: intervals.union(mixed, "thread"),
        "innermost": lambda: intervals.innermost(some, "thread"),
        "innermost, shuffled": lambda: intervals.innermost(mixed, "thread"),
        "innermost, crossing": lambda: intervals.innermost(bad, "thread"),
        "overlay of gaps": lambda: intervals.overlay(between, line, "thread"),
        "fill": lambda: intervals.fill(line, "thread", range(THREADS), 0, until),
        "beneath": lambda: intervals.beneath(line.filter(~odd), line.filter(odd), "thread"),
        "merge_equal": lambda: intervals.merge_equal(line, ["thread", "row"]),
    }


def spent(function: Callable[[], object]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def main() -> None:
    """Print one row per size."""
    for n, millions in enumerate([float(arg) for arg in sys.argv[1:]] or [1, 2, 4, 8]):
        some = slices(round(millions * 1e6))
        todo = works(some)
        if n == 0:
            print("| M slices | " + " | ".join(todo) + " |\n|---:|" + "---:|" * len(todo))
        cells = (f"{spent(work) / (some.height / 1e6):.2f}" for work in todo.values())
        print(f"| {some.height / 1e6:.2f} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
