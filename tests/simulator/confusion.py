"""Prints the tables of `docs/confusion.md` as Markdown: `python -m tests.simulator.confusion`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.cases import SHARE, cases, singles
from tests.simulator.judge import rows
from tracelib.slice_rules import CAUSES

if TYPE_CHECKING:
    from tests.simulator.judge import Row

#: A blank cell is below this share of the window.
SMALLEST = 0.005
COLUMNS = [*(cause for cause in CAUSES if cause not in ("spin", "other")), "collective", "without a CPU"]
ROWS_HEAD = (
    "| server | defect | recorded with | asked | true | blamed | not known | off | grew beside it | "
    "verdict | it says |\n"
    "|---|---|---|--:|--:|--:|--:|--:|---|---|---|"
)
MATRIX_HEAD = "| defect | " + " | ".join(COLUMNS) + " |\n" + "|---" + "|--:" * len(COLUMNS) + "|"


def main() -> None:
    """Print both tables, the worst rows first."""
    found = sorted((row for case in cases() for row in rows(case)), key=lambda row: -row.off)
    print(ROWS_HEAD, *map(table_row, found), sep="\n", end="\n\n")
    print(
        MATRIX_HEAD,
        *(matrix_row(row) for case in singles() for row in rows(case) if in_matrix(row)),
        sep="\n",
    )


def table_row(row: Row) -> str:
    """Return a row of the first table."""
    run = row.case.run
    defect = row.defect + "".join(f" (+ {other})" for other in sorted(run.kinds - {row.defect}))
    cause, share = row.mistake
    cells = (
        row.case.server,
        defect,
        row.case.recording,
        f"{row.asked:.0%}",
        f"{row.true:.2%}",
        f"{row.blamed:.2%}",
        f"{row.unknown:.2%}" if row.unknown >= SMALLEST else "",
        f"{row.off:.2%}",
        f"{cause} {share:.2%}" if share >= SMALLEST else "",
        row.verdict,
        row.said.replace("|", " "),
    )
    return f"| {' | '.join(cells)} |"


def in_matrix(row: Row) -> bool:
    """Whether the row has one in the matrix."""
    return row.asked == SHARE


def matrix_row(row: Row) -> str:
    """Return how much more is blamed on each cause than without the defect."""
    cells = [f"{row.more[name]:.1%}" if abs(row.more[name]) >= SMALLEST else "" for name in COLUMNS]
    return f"| {row.defect} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
