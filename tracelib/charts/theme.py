"""How every chart looks: colours, second cues, number formats, and what makes a recorded name harmless.

Colours are Okabe and Ito's set for colour-blind readers ("Color Universal Design", 2008) with three tints of it; each
also has a hatch, so that no meaning hangs on colour alone. Backgrounds stay transparent and text is a grey that reads
on white and on black alike; :data:`CSS` lets a page set both.
"""

from __future__ import annotations

import html
import math
import unicodedata
from typing import TYPE_CHECKING, Any, NamedTuple

import plotly.graph_objects as go

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CAUSES",
    "CPU_STATES",
    "CSS",
    "GPU_STATES",
    "GRID",
    "INK",
    "PALETTES",
    "ROLES",
    "TEMPLATE",
    "Look",
    "count",
    "duration",
    "finished",
    "look",
    "plain",
    "safe",
    "share",
]


class Look(NamedTuple):
    """How one state or cause is drawn: its words, its colour, its hatch ("" = solid).

    What matters least is pale, and pale on white glares on black: `night` is its colour there, `sheer` a translucent one
    that does on both, for pictures that cannot tell where they stand.
    """

    label: str
    colour: str
    pattern: str
    night: str = ""
    sheer: str = ""

    @property
    def paint(self) -> str:
        """Return the colour that does on light and dark grounds."""
        return self.sheer or self.colour


PALE = ("#D4D4D4", "", "#4A4A4A", "rgba(128,128,128,0.34)")
#: Blues are the GPU at work; the pale hatched one is a GPU that spins for a late peer; idle is nearly not drawn.
GPU_STATES = {
    "compute": Look("GPU computes", "#0072B2", ""),
    "copy": Look("GPU copies", "#009E73", "x"),
    "collective": Look("collective, waiting or not (one rank only)", "#56B4E9", "."),
    "collective_transfer": Look("collective transfers", "#56B4E9", ""),
    "collective_wait": Look("spins for a late rank", "#A9CBE0", "/", "#5E7C91"),
    "idle": Look("GPU idle", *PALE),
}
#: Vermilion means: wanted a CPU and had none.
CPU_STATES = {
    "running": Look("runs on a CPU", "#33A382", ""),
    "runnable": Look("wants a CPU, has none", "#D55E00", "\\"),
    "throttled": Look("throttled by a CPU quota", "#8F3B00", "x"),
    "blocked": Look("asleep", *PALE),
    "unknown": Look("CPU state not recorded", "#EDEDED", ".", "#2B2B2B", "rgba(128,128,128,0.14)"),
}
CAUSES = {
    "tokenization": Look("tokenization", "#E69F00", ""),
    "kernel_launch": Look("kernel launch", "#7B5EC6", "/"),
    "ipc": Look("IPC", "#CC79A7", ""),
    "ipc_wait": Look("waits for others", "#EBCFDE", "", "#58424E", "rgba(204,121,167,0.36)"),
    "scheduling": Look("engine scheduling", "#E5D930", "-"),
    "sync": Look("host waits for the device", "#117733", "\\"),
    "gc": Look("garbage collection", "#661100", "x"),
    "gil": Look("interpreter lock", "#AA4466", "x"),
    "imbalance": Look("imbalance between ranks", "#88CCEE", "|"),
    "profiler": Look("the profiler itself", "#8C8C8C", "+"),
    "spin": Look("busy polling", "#999933", "."),
    "other": Look("other work", "#A6A6A6", ""),
    "no_work": Look("no work to do", *PALE),
    "unattributed": Look("unattributed", "#6E6E6E", "."),
}
ROLES = {
    "api_server": Look("API server", "#E69F00", ""),
    "engine": Look("engine", "#F0E442", ""),
    "worker": Look("worker", "#0072B2", ""),
    "recorder": Look("recorder", "#8C8C8C", "+"),
    "system": Look("system", "#B8B8B8", ""),
}
PALETTES = {"gpu_state": GPU_STATES, "cpu_state": CPU_STATES, "cause": CAUSES, "role": ROLES}

INK = "#767676"
GRID = "rgba(128,128,128,0.25)"
CLEAR = "rgba(0,0,0,0)"
LABEL_CHARACTERS = 60
CELL_CHARACTERS = 240

#: Rules for a page that holds charts: they override the neutral defaults by the page's own variables.
CSS = """\
.js-plotly-plot .main-svg text:not(.bartext), .js-plotly-plot .main-svg text.bartext-outside { fill: var(--tl-ink, #767676) !important; }
.js-plotly-plot .main-svg .gridlayer path, .js-plotly-plot .main-svg .zerolinelayer path {
  stroke: var(--tl-grid, rgba(128, 128, 128, .25)) !important; }
.js-plotly-plot .hoverlayer .hovertext path { fill: var(--tl-paper, #fff) !important; stroke: var(--tl-ink, #767676) !important; }
.js-plotly-plot .hoverlayer text { fill: var(--tl-ink, #333) !important; }
"""

TEMPLATE = go.layout.Template(
    layout={
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
        "colorway": ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C8C8C"],
        "margin": {"l": 8, "r": 16, "t": 16, "b": 8},
        "xaxis": {"automargin": True, "gridcolor": GRID, "zerolinecolor": GRID, "title": {"standoff": 8}},
        "yaxis": {"automargin": True, "gridcolor": GRID, "zerolinecolor": GRID, "title": {"standoff": 8}},
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "hoverlabel": {"align": "left", "namelength": -1},
        "bargap": 0.25,
        "separators": ". ",
        "modebar": {"bgcolor": CLEAR, "color": INK},
    }
)


def look(palette: str, key: str | None) -> Look:
    """Return how `key` is drawn in `palette`; a key that the palette does not know is grey and named as it is."""
    known = PALETTES[palette]
    return known.get(key or "", Look(plain(key or "unknown").replace("_", " "), "#8C8C8C", "+"))


def marker(appearance: Look) -> dict[str, Any]:
    """Return plotly's marker for a bar of this look."""
    bar: dict[str, Any] = {"color": appearance.paint, "line": {"width": 0}}
    if not appearance.pattern:
        return bar
    ink = {"bgcolor": appearance.paint, "fgcolor": INK if appearance.sheer else "rgba(255,255,255,0.75)"}
    return bar | {
        "pattern": {"shape": appearance.pattern, "size": 6, "solidity": 0.25, "fillmode": "replace", **ink}
    }


def _digits(value: float) -> str:
    size = abs(value)
    return f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:.0f}"


def duration(ns: float | None) -> str:
    """Return a length in words that need no locale: three digits and a unit.

    >>> duration(950), duration(1_500), duration(2_340_000), duration(61_000_000_000), duration(None)
    ('950 ns', '1.50 µs', '2.34 ms', '61.0 s', 'unknown')
    """
    if ns is None or math.isnan(ns):
        return "unknown"
    size = abs(ns)
    if size < 999.5:
        return f"{ns:.0f} ns"
    for limit, unit in ((1e6, "µs"), (1e9, "ms"), (120e9, "s")):
        if size < limit * (0.9995 if unit != "s" else 1):
            return f"{_digits(ns / {'µs': 1e3, 'ms': 1e6, 's': 1e9}[unit])} {unit}"
    return f"{_digits(ns / 60e9)} min"


def share(part: float | None) -> str:
    """Return a share (0..1) in per cent; what is not quite nothing or not quite all is not rounded to it.

    >>> share(0.423), share(0.0421), share(0.0001), share(0), share(1), share(0.9999), share(None)
    ('42 %', '4.2 %', '<0.1 %', '0 %', '100 %', '>99.9 %', 'unknown')
    """
    if part is None or math.isnan(part):
        return "unknown"
    if part <= 0 or part == 1:
        return f"{part * 100:.0f} %"
    if part < 0.0005:
        return "<0.1 %"
    if 0.9995 < part < 1:
        return ">99.9 %"
    return f"{part * 100:.1f} %" if part < 0.0995 or 0.995 < part < 1 else f"{part * 100:.0f} %"


def count(number: int, noun: str, nouns: str = "") -> str:
    """Return `number` with its noun in the right number: "1 launch", "12 launches"."""
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"


def plain(name: object, limit: int = LABEL_CHARACTERS) -> str:
    """Return a recorded name as one line of visible characters, cut to `limit`.

    Control, format and bidirectional characters are dropped: a thread may call itself what it likes.
    """
    text = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in str(name)[: 4 * limit])
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def safe(name: object, limit: int = LABEL_CHARACTERS) -> str:
    """Return :func:`plain` `name` for a plotly label: plotly renders tags, links and, with MathJax at hand, $TeX$."""
    return html.escape(plain(name, limit)).replace("$", "&#36;").replace("%{", "&#37;{")


def finished(figure: go.Figure, sentence: str, table: Sequence[Sequence[object]], height: int) -> go.Figure:
    """Return `figure` with the house's template, its caption and its table.

    ``layout.meta.sentence`` and ``layout.meta.table`` (header first, at most 30 rows of text) are plain text for readers
    without JavaScript: who prints them into HTML escapes them.
    """
    cells = [[plain(cell, CELL_CHARACTERS) for cell in row] for row in table]
    figure.update_layout(
        template=TEMPLATE, height=height, autosize=True, meta={"sentence": sentence, "table": cells[:31]}
    )
    return figure
