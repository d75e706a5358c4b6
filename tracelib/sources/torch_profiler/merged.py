"""Files into which traces of several ranks were merged: what proves it, and what in them still tells the ranks apart.

Kineto writes a file per process. SGLang's `profile_merger.py` puts the rank before each process id ("[TP01] 4711"), others
add an offset per rank to the ids (TraceLens' `TraceFuse`). Both leave the number of the device as it was, often 0 in each.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What SGLang puts before a process id: "[TP01] ", "[TP01-DP00-PP00-EP01] ".
_PREFIX = re.compile(r"\[(?:(?:TP|DP|PP|EP)\d{1,6}-?)+\] ?")
_RANK = re.compile(r"\[TP(\d{1,6})")
INSTEAD = "give the ranks' own files instead, or leave this file out if they are given too"
SEVERAL = (
    f"several traces were merged into this file: each process number has GPUs of its own here; {INSTEAD}"
)
#: What says of which rank a merged file is.
RANKED, UNRANKED = (
    "the prefixes of its process ids",
    "nothing, because traces of several processes were merged into it",
)
SHARED = (
    "{} correlation ids belong to calls of several processes, as in a file merged from several: which of them launched "
    f"the GPU work with these ids is not known; {INSTEAD}"
)
REPEATED = (
    "{} runtime calls have the correlation id of another call of their process, as in a file into which traces with equal "
    f"process ids were written: their processes and GPUs cannot be told apart; {INSTEAD}"
)


def unprefixed(ident: object) -> object:
    """Return a process id as its own recorder wrote it.

    >>> unprefixed("[TP00] Traces"), unprefixed("[TP01-DP00] -1"), unprefixed("[x] y"), unprefixed(7)
    ('Traces', '-1', '[x] y', 7)
    """
    return _PREFIX.sub("", ident, count=1) if isinstance(ident, str) and ident.startswith("[") else ident


def labels(texts: dict[int, str]) -> dict[int, str]:
    """Return what SGLang put before those ids that have it; `texts` are those that ids stand for."""
    found = {number: _PREFIX.match(text) for number, text in texts.items() if text.startswith("[")}
    return {number: match[0].strip() for number, match in found.items() if match}


def ranks(labelled: dict[int, str]) -> dict[int, int]:
    """Return the rank of each process id with one of the :func:`labels`, unless two labels claim the same.

    >>> ranks({-5: "[TP00]", -6: "[TP01]"}), ranks({-5: "[TP00-PP00]", -6: "[TP00-PP01]"})
    ({-5: 0, -6: 1}, {})
    """
    rank = {label: int(found[1]) for label in set(labelled.values()) if (found := _RANK.match(label))}
    claimed = list(rank.values())
    return {
        n: rank[label] for n, label in labelled.items() if label in rank and claimed.count(rank[label]) == 1
    }


def shared(called: pl.DataFrame) -> pl.Series:
    """Return the correlation ids of :func:`frames.calls` that several processes have: each process counts its own."""
    if called["caller"].n_unique() < 2:
        return called["correlation"].clear()
    processes = called.group_by("correlation").agg(pl.col("caller").n_unique())
    return processes.filter(pl.col("caller") > 1)["correlation"]


def repeated(called: pl.DataFrame) -> int:
    """Return how many runtime calls of :func:`frames.calls` repeat an id of their process, which no recorder does."""
    runtime = called.filter("runtime").select("correlation", "caller")
    if runtime["correlation"].n_unique() == runtime.height:
        return 0
    return runtime.height - runtime.n_unique()


def notes(several: bool, ids_shared: int, again: int) -> Iterator[str]:  # noqa: FBT001
    """Say what was found: `several` processes, ids that they share, calls that repeat one."""
    if several:
        yield SEVERAL
    if ids_shared:
        yield SHARED.format(ids_shared)
    if again:
        yield REPEATED.format(again)
