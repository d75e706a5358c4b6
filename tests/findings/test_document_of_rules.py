"""docs/findings.md against the rules themselves."""

import importlib
import re
from pathlib import Path

import pytest

from tracelib.findings.rules import RULES

TEXT = (Path(__file__).parents[2] / "docs" / "findings.md").read_text(encoding="utf-8")
ROWS = {
    row[1]: row
    for row in (re.split(r"\s*\|\s*", line) for line in TEXT.splitlines())
    if len(row) > 6 and row[1].startswith("`")
}
NAMES = [rule.__name__ for rule in RULES]  # type: ignore[attr-defined]


def test_each_rule_has_its_row_and_no_other():
    assert sorted(ROWS) == sorted(f"`{name}`" for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_threshold_and_change_are_the_rules_own(name):
    module = importlib.import_module(f"tracelib.findings.rules.{name}")
    threshold = next(
        getattr(module, word) for word in ("WORTH_SAYING", "LEAST", "USEFUL_ENOUGH") if hasattr(module, word)
    )
    _, _, _, share, _, change, _ = ROWS[f"`{name}`"]
    assert share == f"{100 * threshold:g} %"
    assert f'change="{change}"' in Path(module.__file__ or "").read_text(encoding="utf-8")
