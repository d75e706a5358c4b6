"""The picture without a browser: an SVG of our own for the page and the ticket, and its PNG.

The SVG's colours are CSS variables (``--tl-compute``, …) with defaults for light and, by
``prefers-color-scheme``, for dark. The PNG is drawn by resvg from the light SVG, with a font that the package
brings along: a bare server has none. :func:`zoomable` has what the page's script needs to look into it: the
lanes in small bins, and in places event by event.
"""

import base64
import gzip
import html
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.analyses.results import Results
from tracelib.charts.lanes import LEAST_HEIGHT, Lane, lanes, legend
from tracelib.charts.theme import HATCHES, label, look
from tracelib.charts.timeline import timeline_sentence
from tracelib.errors import MissingEvents, with_extra
from tracelib.intervals.cover import bin_borders, state_shares, widened
from tracelib.words import plain

WIDTH, LEFT, RIGHT, TOP = 1000, 150, 210, 52
LANE, STRIP, AIR = 20, 16, 8
LIMIT_BYTES = 90_000
PX = WIDTH - LEFT - RIGHT
ZOOM_BINS = 3000
#: A share is written as one character: this one and those behind it are 0 to 100 % in steps of a half.
ZERO, STEPS = 0x100, 200
#: Stretches that are told event by event, and the most events of a lane in one of them.
STRETCHES, PIECES = 40, 600
#: In what times of events are told: ns in a hundred, so that a page stays small.
UNIT_NS = 100
#: What lasts longer than this part of the window is seen well enough in bins.
LONG = 0.02

LIGHT = {"ink": "#333333", "hatch": "#FFFFFF"}
DARK = {"ink": "#D8D8D8", "hatch": "#111111"}


def overview_svg(results: Results, *, dark: bool | None = None) -> str:
    """Return the picture as one SVG element, under 100 kB, with title and description for screen readers.

    `dark`: False or True fixes the colours; None (default) follows the reader's ``prefers-color-scheme``.

    Where nothing was recorded that has a place in time, it is the sentence alone.
    """
    rows = lanes(results)
    bins = PX // 2
    while len((svg := _svg(results, rows, bins, dark=dark)).encode()) > LIMIT_BYTES and bins > 40:
        bins //= 2
    return svg


def overview_png(results: Results) -> bytes:
    """Return the picture as PNG (light), under 300 kB.

    Raises MissingEvents if resvg_py is not installed.
    """
    try:
        import resvg_py  # noqa: PLC0415  (an extra: only pictures need it)
    except ImportError as error:
        raise MissingEvents(
            "the package resvg_py to draw a PNG", ["overview as SVG"], with_extra("image")
        ) from error
    svg = overview_svg(results, dark=False)
    with resources.as_file(resources.files("tracelib.charts") / "fonts") as fonts:
        png: bytes = resvg_py.svg_to_bytes(
            svg_string=svg,
            background="#ffffff",
            zoom=1.6,
            font_dirs=[str(fonts)],
            font_family="DejaVu Sans",
            sans_serif_family="DejaVu Sans",
            skip_system_fonts=not _needs_more_glyphs(svg),
        )
    return bytes(png)


def _needs_more_glyphs(svg: str) -> bool:
    """Names in other scripts need the system's fonts; our own words do not."""
    return any(ord(c) > 0x17F and c not in "\u2013\u2014\u2026\u2192\u2264\u2265" for c in svg)


def _svg(results: Results, rows: tuple[Lane, ...], bins: int, *, dark: bool | None) -> str:
    sentence = timeline_sentence(results)
    caption = _caption(results)
    text = [f'<text x="8" y="{18 + 16 * i}">{_text(line, 200)}</text>\n' for i, line in enumerate(caption)]
    title = f'<title id="tl-ov-t">{_text(sentence, 600)}</title>\n'
    style = f"<style>{_style(rows, dark=dark)}</style>\n"
    if not rows:
        start = _start(16 + 16 * len(caption), "tl-ov-t")
        return "".join([start, title, style, *text, "</svg>\n"])
    tops = _tops(rows, len(caption))
    foot = tops[-1] + LANE
    key, height = _legend(rows, foot + 42)
    names = ", ".join(dict.fromkeys(f"{lane.group} {lane.label}: {lane.headline}" for lane in rows))
    borders = bin_borders(results.window.start_ns, results.window.end_ns, bins)
    drawn = [
        _lane(lane, before, top, borders)
        for lane, before, top in zip(rows, (None, *rows), tops, strict=False)
    ]
    return "".join(
        [
            _start(height, "tl-ov-t tl-ov-d"),
            title,
            f'<desc id="tl-ov-d">Lanes over time. {_text(names, 2000)}</desc>\n',
            style,
            f"<defs>{''.join(map(_hatch, HATCHES))}</defs>\n",
            *text,
            *_axis(results.window.duration_ns, tops[0], foot),
            *itertools.chain.from_iterable(drawn),
            key,
            "</svg>\n",
        ]
    )


def _start(height: int, described_by: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tl-ov" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="{described_by}" width="100%">\n'
    )


def geometry(results: Results, rows: tuple[Lane, ...]) -> dict[str, Any]:
    """Return where the picture has its lanes, in its own units: what draws over it must know."""
    tops = _tops(rows, len(_caption(results)))
    return {
        "width": WIDTH,
        "height": _legend(rows, tops[-1] + LANE + 42)[1],
        "left": LEFT,
        "right": LEFT + PX,
        "strip": STRIP,
        "tops": tops,
        "foot": tops[-1] + LANE,
    }


def _caption(results: Results) -> list[str]:
    return list(_wrapped(timeline_sentence(results), 150))


def _tops(rows: tuple[Lane, ...], lines: int) -> list[int]:
    """Return the upper edge of each lane's strip, under so many lines of caption."""
    tops, top = [], 24 + 16 * lines
    for before, lane in zip((None, *rows), rows, strict=False):
        top += 0 if before is None else LANE if before.group == lane.group else LANE + AIR
        tops.append(top)
    return tops


def _text(words: str, limit: int) -> str:
    return html.escape(plain(words, limit))


def _wrapped(sentence: str, width: int) -> Iterator[str]:
    line = ""
    for word in sentence.split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}".lstrip()
    yield line


def css_name(palette: str, state: str) -> str:
    """Return the class of what the picture draws in this state, without its `tl-`."""
    return f"{palette[:3]}-{''.join(c if c.isascii() and c.isalnum() else '-' for c in state)[:40]}"


def _style(rows: tuple[Lane, ...], *, dark: bool | None) -> str:
    """Return the rules; with `dark` given they hold plain colours, because resvg does not know variables."""
    looks = {css_name(palette, state): look(palette, state) for palette, state in legend(rows)}
    day = {name: appearance.colour for name, appearance in looks.items()}
    changed = {name: appearance.night for name, appearance in looks.items() if appearance.night}
    if dark is not None:
        return _rules(DARK, day | changed) if dark else _rules(LIGHT, day)
    at_night = _rules(_variables(DARK), _variables(changed))
    return f"{_rules(_variables(LIGHT), _variables(day))}@media (prefers-color-scheme:dark){{{at_night}}}"


def _variables(colours: dict[str, str]) -> dict[str, str]:
    return {name: f"var(--tl-{name},{colour})" for name, colour in colours.items()}


def _rules(colour: dict[str, str], fills: dict[str, str]) -> str:
    return (
        f'.tl-ov text{{font:12px "DejaVu Sans",system-ui,sans-serif;fill:{colour["ink"]}}}'
        ".tl-ov .tl-b{font-weight:bold}.tl-ov .tl-s{font-size:11px}"
        ".tl-ov .tl-bg{fill:#808080;fill-opacity:.12}"
        f".tl-ov .tl-ax{{stroke:{colour['ink']};stroke-opacity:.35}}"
        f".tl-ov .tl-h{{stroke:{colour['hatch']};fill:none;stroke-width:1.2}}"
        + "".join(f".tl-ov .tl-{name}{{fill:{fill}}}" for name, fill in fills.items())
    )


def _hatch_id(pattern: str) -> str:
    return f"tl-ov-h{list(HATCHES).index(pattern)}"


def _hatch(pattern: str) -> str:
    return (
        f'<pattern id="{_hatch_id(pattern)}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path class="tl-h" d="{HATCHES[pattern]}"/></pattern>'
    )


def _lane(lane: Lane, before: Lane | None, top: int, borders: NDArray[np.int64]) -> Iterator[str]:
    """Draw a lane: names, ground, and states as stairs, the uppermost first so that lower ones cover it."""
    if before is None or before.group != lane.group:
        yield f'<text class="tl-b" x="8" y="{top + 12}">{_text(lane.group, 10)}</text>'
    yield f'<text x="{LEFT - 8}" y="{top + 12}" text-anchor="end">{_text(lane.label, 14)}</text>'
    yield f'<text class="tl-s tl-now" x="{LEFT + PX + 8}" y="{top + 12}">{_text(lane.headline, 34)}</text>'
    yield f'<rect class="tl-bg" x="{LEFT}" y="{top}" width="{PX}" height="{STRIP}"/>\n'
    states = lane.states()
    stack = np.round(np.cumsum(lane.heights(borders), axis=0) * STRIP, 1)
    yield f'<g transform="translate({LEFT} {top + STRIP})">\n'
    for row in range(len(states) - 1, -1, -1):
        pattern = look(lane.palette, states[row]).pattern
        css, shape = css_name(lane.palette, states[row]), f"tl-ov-{top}-{row}"
        hatch = f'<use href="#{shape}" fill="url(#{_hatch_id(pattern)})"/>' if pattern else ""
        yield f'<g class="tl-{css}"><path id="{shape}" d="{_outline(stack[row])}"/></g>{hatch}\n'
    yield "</g>\n"


def _outline(heights: NDArray[np.float64]) -> str:
    """Return stairs of these heights as a closed path that stands on y = 0; equal steps are one."""
    change = np.flatnonzero(np.concatenate([[True], np.diff(heights) != 0]))
    at = np.round(np.concatenate([change, [len(heights)]]) * (PX / len(heights)), 1)
    steps = "".join(f"V{-heights[i]:g}h{w:g}" for i, w in zip(change, np.diff(at), strict=True))
    return f"M0 0{steps.replace('V-0h', 'V0h')}V0Z"


def _axis(length_ns: int, top: int, foot: int) -> Iterator[str]:
    step = 10 ** np.floor(np.log10(length_ns / 4))
    step = float(next(step * m for m in (5, 2, 1) if length_ns / (step * m) >= 4 or m == 1))
    for i in range(int(length_ns // step) + 1):
        x = round(LEFT + PX * i * step / length_ns, 1)
        yield f'<path class="tl-ax" d="M{x:g} {top - 3}V{foot + 4}"/>'
        ns = i * step
        tick = "0" if ns == 0 else f"{ns / 1e6:g} ms" if ns < 1e9 else f"{ns / 1e9:g} s"
        yield f'<text class="tl-s" x="{x:g}" y="{foot + 17}" text-anchor="middle">{tick}</text>\n'


def _legend(rows: tuple[Lane, ...], y: int) -> tuple[str, int]:
    """Return the key, one line a palette (more if long), and the picture's height."""
    parts: list[str] = []
    for palette, title in (("gpu_state", "GPU"), ("cpu_state", "thread"), ("cause", "causes")):
        own = [state for of, state in legend(rows) if of == palette]
        if not own:
            continue
        parts.append(f'<text class="tl-b" x="8" y="{y + 10}">{title}</text>')
        x = 70
        for state in own:
            width = 30 + round(6.8 * len(label(palette, state)))
            if x + width > WIDTH:
                x, y = 70, y + 18
            parts.append(_legend_entry(palette, state, x, y))
            x += width
        y += 20
    return "".join(parts), y + 4


def _legend_entry(palette: str, state: str, x: int, y: int) -> str:
    box = f'x="{x}" y="{y}" width="14" height="12"'
    pattern = look(palette, state).pattern
    hatch = f'<rect {box} fill="url(#{_hatch_id(pattern)})"/>' if pattern else ""
    name = f'<text class="tl-s" x="{x + 19}" y="{y + 10}">{_text(label(palette, state), 50)}</text>'
    return f'<rect class="tl-{css_name(palette, state)}" {box}/>{hatch}{name}\n'


# -------------------- for the page's script
def zoomable(results: Results, stretches: Iterable[tuple[int, int]]) -> str:
    """Return the lanes of the overview for the page's script: JSON, packed with gzip, in base64.

    `stretches`: (start, end) in ns of what a reader may want to see event by event, the most important first;
    they are widened by a margin. "" where the picture has no lanes.
    """
    rows = lanes(results)
    if not rows:
        return ""
    window = results.window
    borders = bin_borders(window.start_ns, window.end_ns, ZOOM_BINS)
    told = {
        **geometry(results, rows),
        "length": window.duration_ns,
        "borders": len(borders) - 1,
        "least": LEAST_HEIGHT,
        "unit": UNIT_NS,
        "hatches": HATCHES,
        "lanes": [_told_lane(lane, borders) for lane in rows],
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


def _told_lane(lane: Lane, borders: NDArray[np.int64]) -> dict[str, Any]:
    looks = [look(lane.palette, state) for state in lane.states()]
    return {
        "name": plain(f"{lane.group} {lane.label}", 60),
        "states": [plain(label(lane.palette, state), 60) for state in lane.states()],
        "css": [css_name(lane.palette, state) for state in lane.states()],
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
