"""The ticket's comment in other systems' markup. Knows the little Markdown that :mod:`tracelib.report.ticket` writes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["as_plain", "as_wiki"]

_BOLD = re.compile(r"(?<!\\)\*\*(.+?)(?<!\\)\*\*")
_BAR = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"\|[-:|]+\|")
_ESCAPE = re.compile(r"\\(.)")
_ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))


def as_wiki(markdown: str) -> str:
    """Return the comment in Jira's wiki markup.

    A backslash takes a character's meaning there too, but two of them break the line; and Jira escapes HTML itself.
    """
    return "\n".join(_lines(markdown, _wiki_text, "h3. ", "* ", ("||", "|")))


def as_plain(markdown: str) -> str:
    """Return the comment as plain text, for Slack with its markup switched off; `&`, `<` and `>` stay escaped for it."""
    return "\n".join(_lines(markdown, _plain_text, "", "• ", (" · ", " · ")))


def _lines(
    markdown: str, text: Callable[[str], str], heading: str, item: str, bars: tuple[str, str]
) -> Iterator[str]:
    lines = markdown.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if _RULE.fullmatch(line):
            continue
        if line.startswith("|"):
            bar = bars[0] if _RULE.fullmatch(following) else bars[1]
            cells = [text(cell.strip()) for cell in _BAR.split(line)[1:-1]]
            yield f"{bar}{bar.join(cells)}{bar}".strip(" ·")
        elif line.startswith("### "):
            yield heading + text(line.removeprefix("### "))
        elif line.startswith("- "):
            yield item + text(line.removeprefix("- "))
        else:
            yield text(line)


def _wiki_text(text: str) -> str:
    bold = _BOLD.sub(r"*\1*", text)
    return _unescaped_entities(bold.replace("\\\\", "&#92;"))


def _plain_text(text: str) -> str:
    return _ESCAPE.sub(r"\1", _BOLD.sub(r"\1", text))


def _unescaped_entities(text: str) -> str:
    for entity, character in _ENTITIES:
        text = text.replace(entity, character)
    return text
