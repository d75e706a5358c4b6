"""`python -m tracelib.findings`: write what docs/ has of the rules and of the types of findings.json."""

import json
from pathlib import Path

from tracelib.findings.contract import schema
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
                f"| `{rule.id}` | {rule.because} | {100 * rule.threshold:g} % | {rule.needs} | {rule.change} "
                "|"
                for rule in rows
            ),
        ]
    )


def page(text: str) -> str:
    """Return docs/findings.md with its table as the rules have it; the prose around it is written by hand."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


def generated() -> dict[Path, str]:
    """Return the text of each file that is generated, in whole or in part."""
    findings = DOCS / "findings.md"
    return {
        findings: page(findings.read_text(encoding="utf-8")),
        DOCS / "findings.schema.json": json.dumps(schema(), indent=2) + "\n",
    }


def main() -> None:
    """Write these files."""
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
