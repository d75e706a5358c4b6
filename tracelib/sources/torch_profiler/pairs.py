"""Begin and end events to intervals, as other writers of Chrome traces have them.

`B`/`E` nest on their thread; `b`/`e` nest among those of one id and category; `S`/`F` pair by name, id and category
(the "Trace Event Format" document of Google's catapult project). An end closes the innermost open begin of its own
name, or the innermost one if it has no name or a name that nothing open has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelib.sources.torch_profiler.events import SPANS

if TYPE_CHECKING:
    from tracelib.sources.torch_profiler.events import Batch

__all__ = ["paired", "with_pairs"]


def with_pairs(batch: Batch) -> pl.DataFrame:
    """Return the intervals of `batch` and those that its marks begin and end; what is odd goes to its remarks."""
    extra, odd = paired(batch.marks)
    batch.remarks.update(odd)
    return pl.concat([batch.spans, extra]) if extra.height else batch.spans


def paired(marks: pl.DataFrame) -> tuple[pl.DataFrame, Counter[str]]:
    """Return the intervals that `marks` (:data:`events.MARKS`) begin and end, as :data:`events.SPANS`, and what is odd.

    A begin that is never ended is a row of duration 0 (how long it took is not recorded), and is counted.
    """
    remarks: Counter[str] = Counter()
    rows: list[list[Any]] = []
    open_rows: defaultdict[Any, list[list[Any]]] = defaultdict(list)
    for ph, category, name, pid, tid, ts, key in marks.sort("ts", maintain_order=True).iter_rows():
        track = open_rows[key or (pid, tid)]
        if ph in "BbS":
            row = [category, name, pid, tid, ts, 0, None]
            rows.append(row)
            track.append(row)
        elif track:
            named = [n for n, row in enumerate(track) if row[1] == name]
            row = track.pop(named[-1] if named else -1)
            row[5] = ts - row[4]
        else:
            remarks["an end without a begin: left out"] += 1
    remarks["a begin without an end: taken as an instant"] += sum(map(len, open_rows.values()))
    return pl.DataFrame(rows, schema=SPANS, orient="row"), +remarks
