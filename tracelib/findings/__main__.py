"""`python -m tracelib.findings`: write what is generated from the rules and types of findings into docs/."""

from __future__ import annotations

from pathlib import Path

from tracelib.findings.order import CHANGES
from tracelib.findings.rules import RULES

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- rules: written by python -m tracelib.findings -->", "<!-- rules: end -->"


def table() -> str:
    """Return the rules as a Markdown table, cheap changes first."""
    rows = sorted(RULES, key=lambda rule: CHANGES.index(rule.change))
    return "\n".join(
        [
            "| rule | a GPU waited because | from | needs | change |",
            "|---|---|---:|---|---|",
            *(
                f"| `{rule.id}` | {rule.because} | {100 * rule.threshold:g} % | {rule.needs} | {rule.change} |"
                for rule in rows
            ),
        ]
    )


def page(text: str) -> str:
    """Return docs/findings.md with its table as the rules have it; the prose around it is written by hand."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Write the generated files."""
    findings = DOCS / "findings.md"
    findings.write_text(page(findings.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
