"""HTML from the templates in `report/templates/sections`: every text in it is made visible and escaped.

A template gets findings as `findings.json` holds them, and the words and figures of :mod:`tracelib.words`.
What an expression yields goes through :func:`tracelib.words.plain`, then through Jinja's escaping; only what
is `Markup` (what a template made itself) passes both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tracelib import words
from tracelib.findings.order import gain_words, replay_words

#: The key of an output's metadata under which a section says what stands for it elsewhere on the page.
ABOUT = "tracelib"
_FOLDER = Path(__file__).parents[1] / "templates"
_FIGURES = (words.duration, words.moment, words.share)
_WORDS = (
    words.badge,
    words.cause_label,
    words.cause_name,
    words.count,
    words.counted,
    words.plain,
    words.role_name,
    words.sentence,
    words.queue_reason_name,
    words.request_part_name,
    words.slow_end_name,
    words.sub_cause_name,
    words.limit_name,
    words.verdict_name,
)


@dataclass(frozen=True)
class Section:
    """A piece of the report: HTML for the page and for Jupyter, and the same in a line of plain text.

    `count`: of how many things it tells, for the list of contents; `said`: a sentence that stands for it
    while it is folded; `computed`: it shows how the figures above it are computed; `unfolded`: the part that
    it stands in is open from the start.
    """

    html: str
    text: str
    count: int | None = None
    said: str = ""
    computed: bool = False
    unfolded: bool = False

    def _repr_html_(self) -> str:
        return self.html

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, str], dict[str, Any]]:
        about: dict[str, Any] = {} if self.count is None else {"count": self.count}
        about |= {"said": self.said} if self.said else {}
        about |= {name: True for name in ("computed", "unfolded") if getattr(self, name)}
        return {"text/html": self.html, "text/plain": self.text}, {ABOUT: about} if about else {}

    def __repr__(self) -> str:
        return self.text


def render(template: str, **values: object) -> Markup:
    """Return the HTML of the template called `template`, filled in with `values`."""
    return Markup(_TEMPLATES.get_template(f"{template}.html.j2").render(values))  # noqa: S704 (autoescaped)


def figure(value: object) -> str:
    """Return a value of unknown kind as a table shows it: no number has more digits than it means."""
    if value is None:
        return words.NOT_KNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else words.count(round(value))
    return words.count(value) if isinstance(value, int) else str(value)


def _unbroken(figure: Callable[..., str]) -> Callable[..., str]:
    """Return `figure` with a space before the unit at which no line breaks."""

    def unbroken(*arguments: object) -> str:
        return figure(*arguments).replace(" ", "\N{NO-BREAK SPACE}")

    return unbroken


def _lines(text: str) -> Markup:
    """Return a text of several lines, each made visible and escaped as any other text is."""
    return Markup("\n").join(map(words.plain, text.splitlines()))


def _with_unbroken_shares(said: Callable[..., str]) -> Callable[..., str]:
    """Return `said` with no line break between a number and its per cent sign."""
    return lambda *arguments: said(*arguments).replace(" %", "\N{NO-BREAK SPACE}%")


def _visible(value: object) -> object:
    """Return what an expression in a template shows, before it is escaped."""
    if value is None:
        return ""
    return value if hasattr(value, "__html__") else words.plain(value)


def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader([_FOLDER / "sections", _FOLDER / "tracereport"]),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update({function.__name__: function for function in (*_WORDS, figure)})
    made.filters.update({function.__name__: _unbroken(function) for function in _FIGURES})
    made.filters["unbroken"] = lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%")
    for said in (gain_words, replay_words):
        made.filters[said.__name__] = _with_unbroken_shares(said)
    made.filters["address"] = quote
    made.filters["lines"] = _lines
    made.globals["words"] = words
    return made


_TEMPLATES = _templates()
