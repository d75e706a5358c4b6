"""plotly figures in a page that loads nothing: each figure as data, plotly.js once, packed.

plotly's own HTML renderer asks a CDN for MathJax per figure, and the Python wheel holds only the full bundle (1.5 MB
packed). The cartesian bundle (0.5 MB packed; MIT, `assets/LICENSE.plotly`) draws every chart of the stock notebooks
but flame charts; a page that holds one gets the full bundle.
"""

from __future__ import annotations

import base64
import gzip
import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelib.report.sections.html import Markup, esc, items

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CARTESIAN", "bundle_script", "figure_html", "trace_types"]

ASSETS = Path(__file__).parent / "assets"
DEFAULT_HEIGHT = 420
#: The trace types in plotly's cartesian bundle (plotly.js, `lib/index-cartesian.js`).
CARTESIAN = {
    "bar",
    "box",
    "contour",
    "heatmap",
    "histogram",
    "histogram2d",
    "histogram2dcontour",
    "image",
    "pie",
    "scatter",
    "scatterternary",
    "violin",
}
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def trace_types(figures: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the plotly trace types in `figures`."""
    return {str(trace.get("type", "scatter")) for figure in figures for trace in figure.get("data", ())}


def figure_html(figure: Mapping[str, Any], number: int, caption: str = "", table: str = "") -> str:
    """Return one figure: room of its height, its caption, its numbers as a table, and its data for the page's script."""
    layout = figure.get("layout", {})
    meta = layout.get("meta") if isinstance(layout.get("meta"), dict) else {}
    sentence = caption or str(meta.get("sentence") or f"Chart {number}")
    height = int(layout.get("height") or DEFAULT_HEIGHT)
    return (
        f'<figure class="chart" id="chart-{number}" aria-label="{esc(sentence)}">'
        f'<div class="plot" style="height:{height}px"></div><figcaption>{esc(sentence)}</figcaption>'
        f"{_details(table or _meta_table(meta))}"
        f'<script type="application/json">{_script_json(figure)}</script></figure>'
    )


def bundle_script(figures: Iterable[Mapping[str, Any]]) -> str:
    """Return the smallest plotly.js that draws `figures`, gzip in base64, for the page's script to unpack."""
    types = trace_types(figures)
    packed = (ASSETS / "plotly-cartesian.min.js.gz").read_bytes() if types <= CARTESIAN else _full_bundle()
    return f'<script type="text/plain" id="plotly-gz">{base64.b64encode(packed).decode("ascii")}</script>'


def _full_bundle() -> bytes:
    full = resources.files("plotly") / "package_data" / "plotly.min.js"
    return gzip.compress(full.read_bytes(), mtime=0)


def _script_json(figure: Mapping[str, Any]) -> str:
    wanted = {"data": figure.get("data", []), "layout": figure.get("layout", {})}
    text = json.dumps(wanted, separators=(",", ":"), ensure_ascii=False)
    for character, escaped in _IN_SCRIPT.items():
        text = text.replace(character, escaped)
    return text


def _meta_table(meta: Mapping[str, Any]) -> str:
    """Return the table that a chart of ours carries in `layout.meta.table`: rows of text, the head first."""
    rows = meta.get("table") or []
    if len(rows) < 2:
        return ""
    head, *body = ([str(cell) for cell in row] for row in rows)
    cells = "".join("<tr>" + "".join(f"<td>{esc(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return (
        '<div class="scroll" tabindex="0"><table><thead><tr>'
        + "".join(f'<th scope="col">{esc(cell)}</th>' for cell in head)
        + f"</tr></thead><tbody>{cells}</tbody></table></div>"
    )


def _details(table: str) -> Markup | str:
    return f"<details><summary>The same as a table</summary>{table}</details>" if table else items([])
