"""`jupyter nbconvert --to tracereport`: an executed notebook as one offline page for a ticket.

nbconvert's stock HTML shows no plotly chart without a CDN and calls out at load. This exporter turns figures
into data in the page, embeds plotly.js once and packed, hides the code behind a disclosure, and forbids every
request by a Content-Security-Policy. The Python wheel of plotly holds only the full plotly.js (1.5 MB
packed); the cartesian bundle (0.5 MB packed; MIT, `assets/LICENSE.plotly`) draws every chart of the stock
notebooks but flame charts.
"""

import base64
import copy
import gzip
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources as package_resources
from pathlib import Path
from typing import Any

from markupsafe import Markup
from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from traitlets import Bool, default
from traitlets.config import Config

from tracelib.charts.phrases import CAPTION, PLOTLY
from tracelib.charts.theme import CAUSES
from tracelib.charts.theme import CSS as CHART_CSS
from tracelib.report.run import markdown_cell
from tracelib.report.sections.render import ABOUT, render

BUNDLE = "<!--plotly-->"
#: What the overview has that a script can draw.
OVERVIEW = 'class="lanes"'
#: Cells that prepare: their code is shown at the end, so that the page opens with the verdict.
PREPARATION = {"parameters", "injected-parameters", "setup"}
LAST = "footer"
#: A heading's cell with this tag: what follows, to the next heading, is folded behind it.
FOLDED = "folded"
PREPARED = "Parameters and preparation"
_DISCLOSED = {
    "parameters": "The notebook's parameters",
    "injected-parameters": "Parameters of this run",
    "setup": "Preparation",
}
_HEADING = re.compile(r"<h([2-4])(?: [^>]*)?>(.*?)</h\1>", re.DOTALL)
_TITLE = re.compile(r"<h1[^>]*>(.*?)</h1>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_ASSETS = Path(__file__).parent / "assets"
_CHART_HEIGHT = 420
#: The trace types in plotly's cartesian bundle (plotly.js, `lib/index-cartesian.js`).
CARTESIAN = set((_ASSETS / "cartesian.txt").read_text(encoding="utf-8").split())
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


class TraceReport(HTMLExporter):
    """The exporter; JupyterLab lists it under "Save and Export Notebook As"."""

    export_from_notebook = "Trace report (one offline page)"
    exclude_anchor_links = Bool(True, help="Headings get links of our own.").tag(config=True)  # noqa: FBT003

    @default("optimistic_validation")
    def _optimistic_validation_default(self) -> bool:
        return True  # once, after all preprocessors

    @default("template_name")
    def _template_name_default(self) -> str:
        return "tracereport"

    @default("extra_template_basedirs")
    def _extra_template_basedirs_default(self) -> list[str]:
        # nbconvert would look into the working directory too: a folder of traces must not replace templates.
        return [str(Path(__file__).parent / "templates")]

    @property
    def default_config(self) -> Config:
        """Return nbconvert's settings, but for widgets: the page shows what stands for them."""
        config: Config = super().default_config
        config["NbConvertBase"]["display_data_priority"].remove("application/vnd.jupyter.widget-view+json")
        return config

    def default_filters(self) -> Any:
        """Yield the filters, Markdown headings with a link of their own."""
        yield from super().default_filters()  # type: ignore[no-untyped-call]
        yield ("linked_headings", linked_headings)

    def from_notebook_node(  # type: ignore[override]  # (as nbconvert's own HTML exporter does)
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        """Return the page and nbconvert's resources."""
        page = with_code_per_section(arranged(copy.deepcopy(nb)))
        parts = with_parts(page)
        figures = with_figures(page)
        resources = dict(resources or {})
        resources["tracereport"] = {
            "title": title(page),
            "parts": [part for part in parts if part["name"] != PREPARED],
            "scripts": scripts(page, figures),
            "chart_css": CHART_CSS + cause_colours(),
        }
        # Not by way of HTMLExporter, which parses the whole page once more for tags that our template lacks.
        text, resources = super(HTMLExporter, self).from_notebook_node(page, resources, **kw)
        # After the rest is done: what nbconvert does to the page costs time by its length.
        return text.replace(BUNDLE, bundle_script(figures) if figures else "", 1), resources


def arranged(nb: NotebookNode) -> NotebookNode:
    """Return `nb` with the cells that only prepare moved to the end, before the footer."""
    first: list[NotebookNode] = []
    preparing: list[NotebookNode] = []
    last: list[NotebookNode] = []
    for cell in nb.cells:
        tags = set(cell.metadata.get("tags", ()))
        (last if LAST in tags else preparing if tags & PREPARATION else first).append(cell)
    heading = [markdown_cell(f"## {PREPARED}", FOLDED)] if preparing else []
    nb.cells = [*first, *heading, *preparing, *last]
    return nb


def with_code_per_section(nb: NotebookNode) -> NotebookNode:
    """Give each code cell what is disclosed under it: a section's code stands once, under its last cell.

    Where a section shows how its figures are computed (:func:`tracelib.report.sections.computed`), the
    notebook's own calls would say less.
    """
    waiting: list[str] = []
    told = False
    for cell, following in zip(nb.cells, [*nb.cells[1:], None], strict=True):
        if cell.cell_type != "code":
            continue
        tags = set(cell.metadata.get("tags", ()))
        special = next((name for tag, name in _DISCLOSED.items() if tag in tags), None)
        if LAST in tags:
            continue
        waiting.append(cell.source.strip())
        told = told or any(_about(output).get("computed") for output in cell.outputs)
        if (
            special
            or following is None
            or following.cell_type != "code"
            or LAST in following.metadata.get("tags", ())
        ):
            code = "" if told else "\n\n".join(text for text in waiting if text)
            cell.metadata["disclosed"] = (
                {"name": special or "How this was computed", "code": code} if code else {}
            )
            waiting, told = [], False
    return nb


def _about(output: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a section says of itself beside its HTML (`Section`)."""
    about = output.get("metadata", {}).get(ABOUT, {})
    return about if isinstance(about, Mapping) else {}


def with_parts(nb: NotebookNode) -> list[dict[str, Any]]:
    """Make a part of the page of each cell that begins with a heading of the second level; return the parts.

    A part: `id`, `name`, `short` (as the contents have room for it), `folded` (bool), `open` (bool: folded,
    but unfolded from the start), `count` (how many of what it is about; None = not counted) and `said` (a
    line that stands for it while it is folded). What a part's opening must close before it stands in the
    cell's metadata as `closes`.
    """
    for cell in nb.cells:
        for name in ("part", "closes"):
            cell.metadata.pop(name, None)
    parts: list[dict[str, Any]] = []
    heads = [n for n, cell in enumerate(nb.cells) if _is_head(cell)]
    last = next((n for n, cell in enumerate(nb.cells) if LAST in _tags(cell)), len(nb.cells))
    for first, end in zip(heads, [*heads[1:], max(last, heads[-1] + 1)] if heads else [], strict=True):
        head, body = nb.cells[first], nb.cells[first + 1 : end]
        name, _, rest = head.source.removeprefix("## ").partition("\n")
        part = {
            "id": anchor(name),
            "name": name.strip(),
            "short": _short(name),
            "folded": FOLDED in _tags(head),
            **_summary(body),
        }
        head.metadata["part"], head.source = part, rest.strip()
        if parts:
            head.metadata["closes"] = _element(parts[-1])
        parts.append(part)
    if parts:
        # After the last part comes the footer, which belongs to no part.
        footer = nb.cells[last] if last < len(nb.cells) else markdown_cell("", LAST)
        footer.metadata["closes"] = _element(parts[-1])
        if last == len(nb.cells):
            nb.cells.append(footer)
    return parts


def _element(part: Mapping[str, Any]) -> str:
    return "details" if part["folded"] else "section"


def _tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def _is_head(cell: NotebookNode) -> bool:
    return cell.cell_type == "markdown" and bool(cell.source.startswith("## "))


def _summary(cells: Iterable[NotebookNode]) -> dict[str, Any]:
    """Return `count` and `said` of a part: the first that one of its outputs tells.

    What is neither said nor a chart's caption is what the first output is as plain text.
    """
    shown = [cell for cell in cells if not _tags(cell) & PREPARATION]
    outputs = [output for cell in shown for output in cell.get("outputs", ())]
    about = [_about(output) for output in outputs]
    data = [output.get("data", {}) for output in outputs]
    captions = [_caption(each.get(PLOTLY, {})) for each in data]
    said = [
        *(each.get("said") for each in about),
        *captions,
        *(each.get("text/plain") for each in data if each.get("text/html")),
    ]
    counts = (each["count"] for each in about if each.get("count") is not None)
    unfolded = any(each.get("unfolded") for each in about)
    return {"count": next(counts, None), "open": unfolded, "said": str(next(filter(None, said), ""))}


def _caption(figure: Mapping[str, Any]) -> str:
    meta = figure.get("layout", {}).get("meta")
    return str(meta.get("sentence", "")) if isinstance(meta, Mapping) else ""


def scripts(nb: NotebookNode, figures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the scripts that the page needs: none that draws what it does not have."""
    shown = (output.get("data", {}) for cell in nb.cells for output in cell.get("outputs", ()))
    overview = any(OVERVIEW in str(data.get("text/html", "")) for data in shown)
    return ["page.js", "tables.js", *["overview.js"] * overview, *["charts.js"] * bool(figures)]


def cause_colours() -> str:
    """Return the rules by which tables mark causes in the charts' colours."""
    return "".join(f".c-{cause} {{ --cause: {look.colour}; }}\n" for cause, look in CAUSES.items())


def with_figures(nb: NotebookNode) -> list[dict[str, Any]]:
    """Turn each plotly output of `nb` into HTML, in place; return the figures."""
    figures: list[dict[str, Any]] = []
    for cell in nb.cells:
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if not output.get("metadata", {}).get(CAPTION)]
        for output in cell.get("outputs", ()):
            figure = output.get("data", {}).get(PLOTLY)
            if figure is None:
                continue
            figures.append(figure)
            output["data"] = {"text/html": figure_html(figure, len(figures))}
            output["metadata"] = {}
    return figures


def figure_html(figure: Mapping[str, Any], number: int) -> str:
    """Return one figure; its caption and its table are what a chart of ours carries in `layout.meta`."""
    layout = figure.get("layout", {})
    meta = layout.get("meta")
    return render(
        "chart",
        number=number,
        height=int(layout.get("height") or _CHART_HEIGHT),
        meta={"sentence": "", "table": None, "rows": None} | (meta if isinstance(meta, dict) else {}),
        data=_script_json({"data": figure.get("data", []), "layout": layout}),
    )


def _script_json(data: object) -> Markup:
    """Return `data` as JSON that no script element ends in."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    for character, escape in _IN_SCRIPT.items():
        text = text.replace(character, escape)
    return Markup(text)  # noqa: S704 (no character of it is markup)


def bundle_script(figures: Iterable[Mapping[str, Any]]) -> str:
    """Return the smallest plotly.js that draws `figures`, gzip in base64, for the page's script to unpack."""
    types = {str(trace.get("type", "scatter")) for figure in figures for trace in figure.get("data", ())}
    packed = (_ASSETS / "plotly-cartesian.min.js.gz").read_bytes() if types <= CARTESIAN else _full_bundle()
    return f'<script type="text/plain" id="plotly-gz">{base64.b64encode(packed).decode("ascii")}</script>'


def _full_bundle() -> bytes:
    full = package_resources.files("plotly") / "package_data" / "plotly.min.js"
    return gzip.compress(full.read_bytes(), mtime=0)


def title(nb: NotebookNode) -> str:
    """Return the text of the first `<h1>` among the outputs; "" if there is none."""
    for cell in nb.cells:
        for output in cell.get("outputs", ()):
            heading = _TITLE.search(str(output.get("data", {}).get("text/html", "")))
            if heading:
                return html.unescape(_TAG.sub("", heading.group(1))).strip()
    return ""


def _short(name: str) -> str:
    """Return `name` as the contents have room for it: "What happened, on one axis" is "What happened"."""
    return name.partition(",")[0].strip()


def anchor(name: str) -> str:
    """Return the id of the heading called `name`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def linked_headings(page: str) -> str:
    """Return rendered Markdown whose headings carry a readable id and a link to themselves."""

    def linked(heading: re.Match[str]) -> str:
        level, inner = heading.groups()
        name = html.unescape(_TAG.sub("", inner))
        link = (
            f'<a class="anchor-link" href="#{anchor(name)}" aria-label="link to: {html.escape(name)}">#</a>'
        )
        return f'<h{level} id="{anchor(name)}">{inner} {link}</h{level}>'

    return _HEADING.sub(linked, page)
