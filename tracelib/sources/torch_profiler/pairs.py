"""Begin and end events to intervals, as other writers of Chrome traces have them.

`B`/`E` nest on their thread; `b`/`e` nest among those of one id, scope and category; `S`/`F` pair by name as well (the "Trace Event Format" document of Google's catapult project). An end closes the innermost open begin of its own
name, or the innermost one if it has no name or a name that nothing open has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelib.sources.torch_profiler.events import SPANS

if TYPE_CHECKING:
    from tracelib.sources.torch_profiler.events import Batch
    from tracelib.sources.torch_profiler.plain import Event

#: Where a row of :data:`events.SPANS` holds these.
NAME, TIME, DURATION = (SPANS.names().index(name) for name in ("name", "ts", "dur"))


def pairing(event: Event, ph: str, category: str | None) -> str:
    """Return what the begins and ends of one asynchronous interval have in common.

    An `id` and an `id2.global` are valid in the whole file, an `id2.local` in its process; a `scope` tells equal ids apart.
    """
    local = event.id2.get("local") if isinstance(event.id2, dict) else event.id2
    if event.id is not None:
        ident = f"{event.id}"
    elif local is not None:
        ident = f"{local}\0{event.pid}"
    else:
        ident = f"{event.id2.get('global')}" if isinstance(event.id2, dict) else ""
    return f"{category}\0{event.scope}\0{ident}" + (f"\0{event.name}" if ph in "SF" else "")


def with_pairs(batch: Batch) -> pl.DataFrame:
    """Return the intervals of `batch` and those that its marks begin and end; what is odd goes to its remarks."""
    extra, odd = paired(batch.marks)
    batch.remarks.update(odd)
    return pl.concat([batch.spans, extra]) if extra.height else batch.spans


class _Track:
    """The begins of one thread or id, in their order, that may still be open: their durations are None."""

    def __init__(self) -> None:
        self.begun: list[list[Any]] = []
        self.named: defaultdict[Any, list[list[Any]]] = defaultdict(list)

    def begin(self, row: list[Any]) -> None:
        self.begun.append(row)
        self.named[row[NAME]].append(row)

    def ended(self, name: str | None) -> list[Any] | None:
        """Return the innermost open begin called `name`, else the innermost one, and hold it no longer; None if none is open."""
        if self.named.get(name):
            return self.named[name].pop()
        while self.begun:
            row = self.begun.pop()
            if row[DURATION] is None:
                return self.named[row[NAME]].pop()
        return None


def paired(marks: pl.DataFrame) -> tuple[pl.DataFrame, Counter[str]]:
    """Return the intervals that `marks` (:data:`events.MARKS`) begin and end, as :data:`events.SPANS`, and what is odd.

    A begin that is never ended is a row of duration 0 (how long it took is not recorded), and is counted.
    """
    remarks: Counter[str] = Counter()
    rows: list[list[Any]] = []
    tracks: defaultdict[Any, _Track] = defaultdict(_Track)
    for ph, category, name, pid, tid, ts, key in marks.sort("ts", maintain_order=True).iter_rows():
        track = tracks[key or (pid, tid)]
        if ph in "BbS":
            rows.append([category, name, pid, tid, ts, None, None])
            track.begin(rows[-1])
        elif row := track.ended(name):
            row[DURATION] = ts - row[TIME]
        else:
            remarks["an end without a begin: left out"] += 1
    made = pl.DataFrame(rows, schema=SPANS, orient="row")
    remarks["a begin without an end: taken as an instant"] += made["dur"].null_count()
    return made.with_columns(pl.col("dur").fill_null(0)), +remarks
