"""System calls: entries and exits paired on their thread into slices of category `os`.

A thread is in one call at a time, so an entry and the next event of the same thread belong together if that is the exit
of the same call. The name is the call's without `sys_` ("futex"), as nsys names its OS runtime calls.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

__all__ = ["Calls", "paired"]

#: Calls from which a thread that did not enter them returns: it is the new thread.
BIRTHS = ("clone", "clone3", "fork", "vfork")
#: Calls whose end the kernel does not tell by their name: they never return, or (the last) without their number.
ENDS = ("exit", "exit_group", "rt_sigreturn")


class Calls(NamedTuple):
    """Slices of system calls, and what could not be paired."""

    slices: pl.DataFrame  # thread Int32, ts_ns, dur_ns, name Categorical
    at_edges: int  # began before the trace or ended after it: cut at its first and last event
    without_end: int  # an entry whose exit is missing: dur_ns 0
    without_start: int  # an exit whose entry is missing: no slice


def paired(calls: pl.DataFrame, first_ns: int, last_ns: int, dead: pl.DataFrame) -> Calls:
    """Pair entries with exits.

    Parameters
    ----------
    calls
        ts_ns, thread Int32, name Categorical, ends Boolean: one row per entry or exit, in the order of the file.
    first_ns, last_ns
        Of the whole trace.
    dead
        thread, dead_ns: when a thread left its CPU for good, where the scheduler's events say so.

    """
    # nearly every text is in the order of time already, and a stable sort by one key costs a fifth
    key = ["thread"] if calls["ts_ns"].is_sorted() else ["thread", "ts_ns"]
    rows = calls.sort(key, maintain_order=True)
    if dead.is_empty():
        rows = rows.with_columns(dead_ns=pl.lit(None, pl.Int64))
    else:
        rows = rows.join(dead, on="thread", how="left", maintain_order="left")
    here = {"thread": pl.col("thread"), "name": pl.col("name")}
    first = (here["thread"] != here["thread"].shift(1)).fill_null(value=True)
    last = (here["thread"] != here["thread"].shift(-1)).fill_null(value=True)
    ends, births, finals = pl.col("ends"), here["name"].is_in(BIRTHS), here["name"].is_in(ENDS)
    closed = ~ends & ~last & ends.shift(-1) & (here["name"].shift(-1) == here["name"])
    rows = rows.with_columns(
        closed=closed.fill_null(value=False),
        next_ns=pl.col("ts_ns").shift(-1),
        open_end=~ends & last & ~finals,
        open_start=ends & first & ~births,
        unpaired_exit=ends & ~first,  # unless the row before closes with it: taken off below
        unpaired_entry=~ends & ~last & ~finals,
    )
    until = pl.min_horizontal(pl.lit(last_ns), pl.when(pl.col("dead_ns") >= pl.col("ts_ns")).then("dead_ns"))
    end = pl.when("closed").then("next_ns").when("open_end").then(until).otherwise("ts_ns")
    start = pl.when("open_start").then(first_ns).otherwise("ts_ns")
    slices = rows.filter(~ends | pl.col("open_start")).select(
        "thread", start.alias("ts_ns"), (end - start).alias("dur_ns"), "name"
    )
    pairs = pl.col("closed").sum()
    count = rows.select(
        edges=(pl.col("open_end") | pl.col("open_start")).sum(),
        without_end=pl.col("unpaired_entry").sum() - (pl.col("closed") & ~finals).sum(),
        without_start=pl.col("unpaired_exit").sum() - pairs,
    ).row(0)
    return Calls(slices, *count)
