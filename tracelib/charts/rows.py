"""Rows of horizontal bars under headings: plotly's own two-level axis keeps no order of rows within a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelib.charts.theme import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["grouped"]


def grouped(groups: Sequence[str], labels: Sequence[str]) -> tuple[list[int], dict[str, Any]]:
    """Return the place of each row, and the axis that names rows and, in bold above the first of each, their groups.

    Rows of one group stand together in `groups`; the first row is on top.
    """
    places: list[int] = []
    ticks: dict[int, str] = {}
    place = 0
    for i, (group, label) in enumerate(zip(groups, labels, strict=True)):
        if i == 0 or groups[i - 1] != group:
            ticks[place] = f"<b>{safe(group)}</b>"
            place += 1
        places.append(place)
        ticks[place] = safe(label)
        place += 1
    axis = {
        "tickvals": list(ticks),
        "ticktext": list(ticks.values()),
        "range": [place - 0.4, -0.6],
        "showgrid": False,
        "zeroline": False,
    }
    return places, axis
