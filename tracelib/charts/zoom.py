"""What a script needs to look into the overview: its lanes in small bins, in places event by event.

The picture itself is :mod:`tracelib.charts.overview`, which stands without a script.
"""

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.analyses.results import Results
from tracelib.charts import overview
from tracelib.charts.lanes import LEAST_HEIGHT, Lane, lanes
from tracelib.charts.theme import HATCHES, label, look
from tracelib.intervals.cover import bin_borders, state_shares, widened
from tracelib.words import plain

BINS = 3000
#: A share is written as one character: this one and those behind it are 0 to 100 % in steps of a half.
ZERO, STEPS = 0x100, 200
#: Stretches that are told event by event, and the most events of a lane in one of them.
STRETCHES, PIECES = 40, 600
#: In what times of events are told: ns in a hundred, so that a page stays small.
UNIT_NS = 100
#: What lasts longer than this part of the window is seen well enough in bins.
LONG = 0.02


def zoomable(results: Results, stretches: Iterable[tuple[int, int]]) -> str:
    """Return the lanes of the overview for the page's script: JSON, packed with gzip, in base64.

    `stretches`: (start, end) in ns of what a reader may want to see event by event, the most important first;
    they are widened by a margin. "" where the picture has no lanes.
    """
    rows = lanes(results)
    if not rows:
        return ""
    window = results.window
    borders = bin_borders(window.start_ns, window.end_ns, BINS)
    told = {
        **overview.geometry(results, rows),
        "length": window.duration_ns,
        "borders": len(borders) - 1,
        "least": LEAST_HEIGHT,
        "unit": UNIT_NS,
        "hatches": HATCHES,
        "lanes": [_lane(lane, borders) for lane in rows],
        "near": _near(rows, _widened(stretches, window.start_ns, window.end_ns), window.start_ns),
    }
    text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def _widened(stretches: Iterable[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """Return the first stretches that are short, each with its margin and inside the window, each once."""
    short = [
        widened(start, end)
        for start, end in stretches
        if end - start <= LONG * (last - first) and start < last and end > first
    ]
    inside = dict.fromkeys((max(start, first), min(end, last)) for start, end in short)
    return list(inside)[:STRETCHES]


def _lane(lane: Lane, borders: NDArray[np.int64]) -> dict[str, Any]:
    looks = [look(lane.palette, state) for state in lane.states()]
    return {
        "name": plain(f"{lane.group} {lane.label}", 60),
        "states": [plain(label(lane.palette, state), 60) for state in lane.states()],
        "css": [overview.css_name(lane.palette, state) for state in lane.states()],
        "hatch": [each.pattern for each in looks],
        "shares": [_written(row) for row in state_shares(lane.pieces, lane.states(), borders)],
    }


def _written(shares: NDArray[np.float64]) -> str:
    """Return shares (0..1) a character each; what is there at all is not written as nothing."""
    steps = np.ceil(np.clip(shares, 0, 1) * STEPS - 1e-9).astype(int)
    return "".join(map(chr, (ZERO + steps).tolist()))


def _near(rows: Sequence[Lane], stretches: Sequence[tuple[int, int]], base: int) -> list[dict[str, Any]]:
    """Return each stretch, in ns after `base`, with the events of each lane that lie in it.

    An event is three numbers: the time since the last one's end (at first: since the stretch's start) and its
    length, both in `unit` ns, and its state's place. A lane with more of them than can be told apart is null.
    """
    events = [_numbers(lane) for lane in rows]
    return [
        {"from": start - base, "to": end - base, "lanes": [_inside(lane, start, end) for lane in events]}
        for start, end in stretches
    ]


def _numbers(lane: Lane) -> NDArray[np.int64]:
    """Return start, end and state (its place among the lane's) of each piece, in order."""
    places = {state: place for place, state in enumerate(lane.states())}
    return (
        lane.pieces.sort("ts_ns")
        .select(
            "ts_ns",
            end=pl.col("ts_ns") + pl.col("dur_ns"),
            state=pl.col("state").replace_strict(places, return_dtype=pl.Int64),
        )
        .to_numpy()
    )


def _inside(events: NDArray[np.int64], start: int, end: int) -> list[int] | None:
    # Pieces of a lane do not overlap: their ends are in order too.
    first, last = np.searchsorted(events[:, 1], start, "right"), np.searchsorted(events[:, 0], end, "left")
    if last - first > PIECES:
        return None
    own = events[first:last]
    ends = (np.clip(own[:, :2], start, end) - start) // UNIT_NS
    steps = np.diff(ends.ravel(), prepend=0).reshape(-1, 2)
    numbers: list[int] = np.column_stack([steps, own[:, 2]]).ravel().tolist()
    return numbers
