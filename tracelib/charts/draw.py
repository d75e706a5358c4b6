"""A chart in a notebook: the figure with the sentence that says what it shows, or why there is none."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.results import Results
from tracelib.charts.phrases import WORDS
from tracelib.words import plain

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Marks the output that repeats a figure's caption: the report's page has it as the figure's own.
CAPTION = "tracelib_caption"
#: Why a chart of several runs is not drawn.
OF_RUNS: dict[str, str] = WORDS["of_runs"]
#: Charts that need a GPU, and nothing else that `Results.missing` explains.
_OF_GPUS = ("causes", "kernels", "staircase", "states", "worst")
_NO_GPU = "no GPU operation was read"


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure of :mod:`tracelib.charts`, whose sentence stands in ``layout.meta``."""

    figure: go.Figure

    @property
    def sentence(self) -> str:
        """Return what the chart shows, in one sentence."""
        return str(self.figure.layout.meta["sentence"])

    def __repr__(self) -> str:
        return self.sentence

    def _ipython_display_(self) -> None:
        from IPython.display import display  # noqa: PLC0415 (inside a notebook only)

        display(self.figure)  # type: ignore[no-untyped-call]
        caption = {"text/html": f"<p><i>{html.escape(self.sentence)}</i></p>", "text/plain": self.sentence}
        display(caption, raw=True, metadata={CAPTION: True})  # type: ignore[no-untyped-call]


@dataclass(frozen=True, repr=False)
class NoChart:
    """A line of text in the place of a chart that cannot be drawn."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<p class="empty">{html.escape(self.text)}</p>'


def draw(
    chart: Callable[..., go.Figure | None], results: Results | pl.DataFrame, *of: object
) -> CaptionedFigure | NoChart:
    """Return the chart with its sentence, or a line that says why there is none.

    `results`: what the chart takes, most often the results of a run. `of`: its other arguments (a cause,
    a role).
    """
    figure = chart(results, *of)
    if figure is not None:
        return CaptionedFigure(figure)
    name = chart.__name__.removesuffix("_chart")
    what = " of ".join(plain(word, 60).replace("_", " ") for word in (name, *of))
    return NoChart(f"No chart of {what}: {_reason(name, results)}.")


def _reason(name: str, results: Results | pl.DataFrame) -> str:
    if isinstance(results, pl.DataFrame):
        return OF_RUNS.get(name, "none of the runs holds what it takes")
    if name in _OF_GPUS and results.gpu_states.is_empty():
        return f"{_NO_GPU} (torch.profiler on every worker, or nsys profile -t cuda,nvtx)"
    return results.missing.get(WORDS["frames"].get(name, name), "nothing of this kind in the window")
