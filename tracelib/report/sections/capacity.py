"""How many cores the server needs: every estimate beside the others, each with whose it is."""

from __future__ import annotations

from typing import Any

from tracelib.report.sections.html import Column, Section, table

__all__ = ["capacity_table"]

COLUMNS = (
    Column("Estimate"),
    Column("Cores", number=True, meaning="CPUs as the system counts them"),
    Column("Whose figure it is"),
)


def capacity_table(findings: dict[str, Any]) -> Section:
    """Return the estimates of the cores that the server needs; what cannot be told says why."""
    known = findings["capacity"]
    if known is None or not known["estimates"]:
        return Section("", "cores: not known")
    rows = [
        (
            row["estimate"],
            "not known" if row["cores"] is None else f"{row['cores']:.3g}",
            row["why_not"] if row["cores"] is None else row["source"],
        )
        for row in known["estimates"]
    ]
    body = table("How many cores: measured here, and what others say; never one of them alone", COLUMNS, rows)
    return Section(body, f"{len(rows)} estimates of the cores needed")
