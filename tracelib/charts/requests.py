"""Ledger 4 as a picture: where each request's time to first token went."""

import html
from collections.abc import Mapping

import plotly.graph_objects as go
import polars as pl

from tracelib.analyses.results import Results
from tracelib.charts.phrases import p50_p95_max
from tracelib.charts.theme import HATCHES, INK, REQUEST_PARTS, finished, marker, safe
from tracelib.words import FEWEST_FOR_P95, counted, duration, request_part_name, share

#: A picture of one request, in px.
WIDTH, HEIGHT = 480, 16
#: At most so many bars are drawn: the requests with the longest time to first token.
REQUESTS = 120


def requests_chart(results: Results) -> go.Figure | None:
    """Return one stacked bar per request in order of arrival, its parts adding up to its time to first token.

    None if no request's first token is known.
    """
    answered = results.requests.filter(pl.col("ttft_ns").is_not_null())
    if answered.is_empty():
        return None
    slowest = answered.sort("ttft_ns", descending=True).head(REQUESTS).sort("arrived_ns")
    figure = go.Figure()
    for part, appearance in REQUEST_PARTS.items():
        ns = slowest[f"{part}_ns"]
        if ns.sum():
            figure.add_bar(
                x=list(range(1, len(slowest) + 1)),
                y=(ns / 1e6).to_list(),
                name=request_part_name(part),
                marker=marker(appearance),
                text=[safe(name, 24) for name in slowest["id"]],
                textposition="none",
                customdata=[
                    f"arrived at {duration(ns)}" for ns in slowest["arrived_ns"] - results.window.start_ns
                ],
                hovertemplate="%{text}, %{customdata}: %{y:.1f} ms<extra>%{fullData.name}</extra>",
            )
    figure.update_layout(barmode="stack", bargap=0.08, margin={"t": 50})
    title = "requests in order of arrival"
    if len(slowest) < len(answered):
        title = f"the {len(slowest)} slowest of {len(answered)} requests, in order of arrival"
    figure.update_xaxes(title_text=title, showgrid=False)
    figure.update_yaxes(title_text="ms to the first token", rangemode="tozero")
    return finished(figure, _sentence(results.first_tokens["ttft_ns"], answered), _table(answered), 360)


def _sentence(ttft: pl.Series, answered: pl.DataFrame) -> str:
    half, most, _ = p50_p95_max(ttft)
    within = "95 %" if len(ttft) >= FEWEST_FOR_P95 else "all"
    drawn = f"of the {len(answered):,} that also arrived in the window " if len(answered) < len(ttft) else ""
    total = int(answered["ttft_ns"].sum())
    sums = {part: int(answered[f"{part}_ns"].sum()) for part in REQUEST_PARTS}
    not_known = sums.pop("unknown")
    largest = max(sums, key=lambda part: sums[part])
    return (
        f"Half of {counted(len(ttft), 'request')} had their first token within {half}, {within} within "
        f"{most}; {drawn}the largest known part is {request_part_name(largest)}, "
        f"{share(sums[largest] / total)} of the time to first token."
        f"{_doubt(answered, not_known / total)}"
    )


def _doubt(answered: pl.DataFrame, part: float) -> str:
    if not part:
        return ""
    reasons = answered.group_by("unknown_why").agg(pl.col("unknown_ns").sum()).drop_nulls()
    why = reasons.sort("unknown_ns", "unknown_why")["unknown_why"][-1]
    return f" {share(part)} of it is not known, mostly because {why}."


def _table(answered: pl.DataFrame) -> list[list[str]]:
    total = int(answered["ttft_ns"].sum())
    names = {f"{part}_ns": request_part_name(part) for part in REQUEST_PARTS} | {
        "ttft_ns": "time to first token"
    }
    body = [
        [name, *p50_p95_max(known), share(int(known.sum()) / total if known.len() else None)]
        for column, name in names.items()
        for known in (answered[column].drop_nulls(),)
    ]
    return [["part", "p50", "p95", "max", "share of the time to first token"], *body]


def request_svg(parts: Mapping[str, int], scale_ns: int) -> str:
    """Return one request's parts, one after the other on a time line of `scale_ns`, as an SVG element.

    `parts`: ns of each part, in their order. The hatches are those of :func:`request_hatches`.
    """
    at, drawn = 0, []
    for part, ns in parts.items():
        x, width = WIDTH * at / scale_ns, WIDTH * ns / scale_ns
        name = html.escape(f"{request_part_name(part)}: {duration(ns)}")
        drawn.append(f"<g><title>{name}</title>{_swatch(part, x, width)}</g>")
        at += ns
    said = html.escape(", ".join(f"{request_part_name(part)} {duration(ns)}" for part, ns in parts.items()))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}" class="request">'
        f"{''.join(drawn)}</svg>"
    )


def request_key(part: str) -> str:
    """Return how a part is drawn, as a small SVG element for a legend."""
    return f'<svg viewBox="0 0 18 {HEIGHT}" class="key" aria-hidden="true">{_swatch(part, 0, 18)}</svg>'


def request_hatches() -> str:
    """Return an SVG element that shows nothing and defines the hatches: once on a page."""
    patterns = "".join(
        f'<pattern id="tl-rq-{number}-{kind}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path d="{path}" fill="none" stroke="{ink}" stroke-width="1.4"/></pattern>'
        for number, path in enumerate(HATCHES.values())
        for kind, ink in (("full", "#FFFFFF"), ("pale", INK))
    )
    return f'<svg width="0" height="0" aria-hidden="true" class="defs"><defs>{patterns}</defs></svg>'


def _swatch(part: str, x: float, width: float) -> str:
    appearance = REQUEST_PARTS[part]
    box = f'x="{x:.1f}" y="0" width="{width:.1f}" height="{HEIGHT}"'
    ground = f'<rect {box} fill="{appearance.paint}"/>'
    if not appearance.pattern:
        return ground
    number = list(HATCHES).index(appearance.pattern)
    return f'{ground}<rect {box} fill="url(#tl-rq-{number}-{"pale" if appearance.sheer else "full"})"/>'
