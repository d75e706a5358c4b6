"""How every chart looks: colours, second cues, and what makes a recorded name harmless to plotly.

Every colour (looks.toml) also has a hatch, so that no meaning hangs on colour alone. Backgrounds stay
transparent and text is a grey that reads on white and on black alike; :data:`CSS` lets a page set both.
"""

import functools
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from tracelib import words
from tracelib.data import data
from tracelib.words import plain


class Look(NamedTuple):
    """How one state or cause is drawn: its colour and its hatch ("" = solid).

    What matters least is pale, and pale on white glares on black: `night` is its colour there, `sheer` a
    translucent one that works on both, for pictures that cannot know their background.
    """

    colour: str
    pattern: str = ""
    night: str = ""
    sheer: str = ""

    @property
    def paint(self) -> str:
        """Return the colour for any background."""
        return self.sheer or self.colour


_LOOKS = data(__file__, "looks.toml")
GPU_STATES, CPU_STATES, CAUSES, REQUEST_PARTS = (
    {key: Look(*look) for key, look in _LOOKS[palette].items()}
    for palette in ("gpu_state", "cpu_state", "cause", "request_part")
)
PALETTES = {"gpu_state": GPU_STATES, "cpu_state": CPU_STATES, "cause": CAUSES}
PALE = GPU_STATES["idle"]
SYMBOLS: list[str] = _LOOKS["symbols"]
HATCHES: dict[str, str] = _LOOKS["hatches"]

INK = "#767676"
GRID = "rgba(128,128,128,0.25)"
CLEAR = "rgba(0,0,0,0)"
LABEL_CHARACTERS = 60
CELL_CHARACTERS = 240
#: Of a chart's table, which the page folds at ten.
TABLE_ROWS = 100
SINCE_START = "ms since the window's start"

#: Rules for a page that holds charts: they override the neutral defaults by the page's own variables.
CSS = Path(__file__).with_name("charts.css").read_text(encoding="utf-8")

_LAYOUT = json.loads(Path(__file__).with_name("template.json").read_text(encoding="utf-8"))
COLOURS: list[str] = _LAYOUT["colorway"]


@functools.cache
def _template() -> go.layout.Template:
    return go.layout.Template(layout=_LAYOUT)  # which loads most of plotly


def look(palette: str, key: str | None) -> Look:
    """Return how `key` is drawn in `palette`; a cause that a user's rules added is grey and crossed."""
    return PALETTES[palette].get(key or "", Look("#8C8C8C", "+"))


def label(palette: str, key: str) -> str:
    """Return what `key` of `palette` is called."""
    if palette == "cause":
        return words.cause_name(key)
    return (words.GPU_STATES if palette == "gpu_state" else words.CPU_STATES)[key].name


def hatch(
    pattern: str, ground: str, ink: str = "rgba(255,255,255,0.75)", size: int = 6, **more: object
) -> dict[str, object] | None:
    """Return plotly's pattern, in `ink` on `ground`; None where the look is solid."""
    return {"shape": pattern, "bgcolor": ground, "fgcolor": ink, "size": size, **more} if pattern else None


def marker(look: Look) -> dict[str, Any]:
    """Return plotly's marker for a bar of this look."""
    ink = INK if look.sheer else "rgba(255,255,255,0.75)"
    pattern = hatch(look.pattern, look.paint, ink, solidity=0.25, fillmode="replace")
    return {"color": look.paint, "line": {"width": 0}} | ({"pattern": pattern} if pattern else {})


def stairs(
    borders: ArrayLike, heights: Sequence[float] | np.ndarray[Any, Any], **traits: object
) -> go.Scatter:
    """Return a line that keeps each of `heights` from its border to the next."""
    return go.Scatter(x=borders, y=np.append(heights, heights[-1]), mode="lines", **traits)


def safe(name: object, limit: int = LABEL_CHARACTERS) -> str:
    """Return a recorded name for a plotly label: plotly renders tags, links and, where it can, $TeX$."""
    return html.escape(plain(name, limit)).replace("$", "&#36;").replace("%{", "&#37;{")


def rows_under_headings(headings: Sequence[str], labels: Sequence[str]) -> tuple[list[int], dict[str, Any]]:
    """Return the place of each row of horizontal bars, and the axis that names rows and their headings.

    Rows of one heading stand together; the first row is on top. (Plotly's own two-level axis keeps no order
    of rows within a group.)
    """
    places: list[int] = []
    ticks: dict[int, str] = {}
    place = 0
    for i, (heading, row) in enumerate(zip(headings, labels, strict=True)):
        if i == 0 or headings[i - 1] != heading:
            ticks[place] = f"<b>{safe(heading)}</b>"
            place += 1
        places.append(place)
        ticks[place] = safe(row)
        place += 1
    axis = {
        "tickvals": list(ticks),
        "ticktext": list(ticks.values()),
        "range": [place - 0.4, -0.6],
        "showgrid": False,
        "zeroline": False,
    }
    return places, axis


def finished(figure: go.Figure, sentence: str, table: Sequence[Sequence[object]], height: int) -> go.Figure:
    """Return `figure` with the house's template, its caption and its table.

    ``layout.meta.sentence`` and ``layout.meta.table`` (the header, then at most :data:`TABLE_ROWS` of its
    ``layout.meta.rows`` rows of text) are plain text for readers without JavaScript: who prints them into
    HTML escapes them.
    """
    cells = [[plain(cell, CELL_CHARACTERS) for cell in row] for row in table[: TABLE_ROWS + 1]]
    figure.update_layout(
        template=_template(),
        height=height,
        autosize=True,
        meta={"sentence": sentence, "table": cells, "rows": len(table) - 1},
    )
    return figure
