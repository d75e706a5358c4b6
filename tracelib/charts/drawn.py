"""How a chart shows itself in a notebook: the figure, and under it the sentence that says what it shows."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["CAPTION", "Drawn", "Notice"]

#: Marks the output that repeats a figure's caption: the report's page has it as the figure's own.
CAPTION = "tracelib_caption"


@dataclass(frozen=True)
class Drawn:
    """A figure of :mod:`tracelib.charts`, whose sentence stands in ``layout.meta``."""

    figure: go.Figure

    @property
    def sentence(self) -> str:
        """Return what the chart shows, in one sentence."""
        return str(self.figure.layout.meta["sentence"])

    def __repr__(self) -> str:
        """Return the sentence, for consoles."""
        return self.sentence

    def _ipython_display_(self) -> None:
        from IPython.display import display  # noqa: PLC0415 (inside a notebook only)

        display(self.figure)  # type: ignore[no-untyped-call]
        caption = {"text/html": f"<p><i>{html.escape(self.sentence)}</i></p>", "text/plain": self.sentence}
        display(caption, raw=True, metadata={CAPTION: True})  # type: ignore[no-untyped-call]


class Notice:
    """A line of text in the place of a chart that cannot be drawn."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<p class="empty">{html.escape(self.text)}</p>'
