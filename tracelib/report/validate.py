"""Is a findings document what the output contract says, and do its sums add up?"""

from __future__ import annotations

from typing import Any

import msgspec

from tracelib.findings.document import Document, schema
from tracelib.findings.document import validate as contradictions

__all__ = ["schema", "validate"]


def validate(findings: Document | dict[str, Any]) -> list[str]:
    """Return what is wrong with `findings`, one sentence each; an empty list if it keeps the contract."""
    try:
        document = findings if isinstance(findings, Document) else msgspec.convert(findings, Document)
    except msgspec.ValidationError as error:
        return [str(error)]
    return contradictions(document)
