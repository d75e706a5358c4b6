"""One part of the findings alone, for a cell in Jupyter."""

from __future__ import annotations

from typing import Any

from tracelib.report.sections.causes import causes_table, finding_article, findings_list
from tracelib.report.sections.html import Section, esc, items
from tracelib.report.sections.verdict import three_numbers, verdict
from tracelib.report.sections.words import VERDICTS

__all__ = ["shown"]


def shown(part: dict[str, Any], start_ns: int) -> Section:
    """Return a findings document as the verdict, its numbers, the causes and the findings; a finding or verdict as it stands there."""
    if "findings" in part:
        sections = [show(part) for show in (verdict, three_numbers, causes_table, findings_list)]
        return Section("".join(section.html for section in sections), sections[0].text)
    if "claim" in part:
        return Section(finding_article(part, start_ns), str(part["claim"]))
    state = VERDICTS.get(part["state"], part["state"])
    said = f"<p><strong>{esc(state)}</strong> ({esc(part['confidence'])} confidence)</p><p>{esc(part['sentence'])}</p>{items(part['why'])}"
    return Section(said, str(part["sentence"]))
