"""Predicted against measured: what replay says of a change, and what a recording of the changed server shows.

    python -m benchmarks.what_if           print the tables of docs/what-if.md
    python -m benchmarks.what_if --write   put them into it

Beside this project's samples it takes the captures in TRACELIB_SHARED (or ../shared), where they are.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import polars as pl

from tests.simulator import simulate
from tests.simulator.test_what_if import CHANGES
from tracelib.analyses.replay import WITHOUT, Change
from tracelib.analyses.whatif import Replay
from tracelib.options import Options
from tracelib.report.notebook_cells import opened

ROOT = Path(__file__).resolve().parents[1]
SAMPLES, PAGE = ROOT / "sample_traces", ROOT / "docs" / "what-if.md"
CAPTURES = Path(os.environ.get("TRACELIB_SHARED", ROOT.parent / "shared")) / "captures"
#: As near as a prediction should be, as a share of the measured change.
NEAR = 0.15


class Pair(NamedTuple):
    """Two recordings; `change` leads from the first to the second.

    `closed`: the clients wait for answers (None = as the log shows it). `other`: why it is not the same load.
    `why`: what else differs.
    """

    before: Path
    after: Path
    change: Change
    words: str
    closed: bool | None = None
    other: str = ""
    why: str = ""


BATCHES = (
    "Requests that come sooner meet other requests in a step. Replay keeps each step's prompts, so it misses "
    "what smaller steps and a shorter queue give to the first token."
)
SEVEN = "Seven requests under an open load: two shared a step in one run and not in the other."
SWEEP = (
    "CPUs were short for 4 % of the window at most (2 CPUs), and under an open load little of that shows in "
    "it. What differs is how long cuDNN built attention engines (35 to 62 % of lost GPU time; prompt lengths "
    "differ) and how long the engine was without a request."
)
SLOWER = "A thread short of a CPU is modelled as slower throughout; a scheduler lets short work through."
PAIRS = [
    Pair(CAPTURES / "starved", CAPTURES / "healthy", Change(cores=16), "2 to 16 cores", why=SEVEN),
    Pair(
        CAPTURES / "healthy", CAPTURES / "starved", Change(cores=2), "16 to 2 cores", why=f"{SEVEN} {SLOWER}"
    ),
    Pair(
        CAPTURES / "vllm_2cpus",
        CAPTURES / "vllm_32cpus",
        Change(cores=32),
        "2 to 32 cores",
        why=f"{BATCHES} Scheduler events cover a third of the recording.",
    ),
    Pair(
        CAPTURES / "vllm_32cpus",
        CAPTURES / "vllm_2cpus",
        Change(cores=2),
        "32 to 2 cores",
        why=f"{BATCHES} {SLOWER}",
    ),
    Pair(
        CAPTURES / "vllm_starved_stack",
        CAPTURES / "vllm_healthy_stack",
        Change(cores=32),
        "2 to 32 cores",
        why="1.2 s and 0.4 s of other prompts; recording stacks takes longer on a host that has no CPUs.",
    ),
    Pair(
        SAMPLES / "launch_eager",
        SAMPLES / "launch_graph",
        Change(graphs=True),
        "decode by graphs",
        closed=True,
    ),
    *(
        Pair(
            SAMPLES / "sweep" / f"cpus_{few}",
            SAMPLES / "sweep" / f"cpus_{many}",
            Change(cores=many),
            f"{few} to {many} cores",
            why=SWEEP,
        )
        for few, many in ((2, 3), (2, 4), (2, 6), (2, 8), (8, 2))
    ),
    Pair(CAPTURES / "nsys_starved", CAPTURES / "nsys_healthy", WITHOUT["shortage"], "no shortage"),
    Pair(
        CAPTURES / "throttled",
        CAPTURES / "healthy",
        WITHOUT["shortage"],
        "no quota",
        other="another model, shorter prompts",
    ),
    Pair(
        SAMPLES / "throttled",
        SAMPLES / "healthy",
        WITHOUT["shortage"],
        "no quota",
        other="another model, cached prompts, a closed loop",
    ),
    Pair(
        SAMPLES / "starved",
        SAMPLES / "healthy",
        WITHOUT["shortage"],
        "no shortage",
        other="two GPUs and one, another model, cached prompts",
    ),
]


@cache
def results(folder: Path):
    log = folder / "requests.jsonl"
    own = (folder / "run.toml").exists()  # names the log and its clock
    tied = (folder / "perf.txt.gz").exists()  # to the clock of the log
    more = {} if own or not (log.exists() and tied) else {"requests_clock": "monotonic"}
    more |= {"requests": str(log)} if log.exists() and (own or tied) else {}
    return opened(Options.of({"traces": [str(folder)], **more}))[0]


def figures(replay: Replay, change: Change) -> dict[str, float | None]:
    """Return what is predicted: the window over useful GPU time, and the time to first token in ms."""
    row = replay.row("", change)
    if row["why_not"]:
        return {}
    useful = row["window_ns"] - row["lost_ns"]
    ttft = {
        f"TTFT {which}, ms": ns / 1e6
        for which in ("p50", "mean")
        if (ns := row[f"ttft_{which}_ns"]) is not None
    }
    return {"window / useful": row["window_ns"] / useful, **ttft}


def compared(pair: Pair) -> dict[str, tuple[float, ...]] | str:
    """Return each figure before, predicted and measured, and by how much of the change it is off.

    A text says why the change cannot be replayed.
    """
    replay = Replay(results(pair.before), closed_loop=pair.closed)
    before, predicted = figures(replay, Change()), figures(replay, pair.change)
    after = figures(Replay(results(pair.after)), Change())
    if not predicted:
        return replay.why_not(pair.change)
    rows = {}
    for figure in (name for name in before if name in after):
        values = [found[figure] for found in (before, predicted, after)]
        rows[figure] = (*values, abs(values[1] - values[2]) / abs(values[0] - values[2]))
    return rows


def pairs() -> str:
    rows = ["| pair | change | figure | before | predicted | measured | off by | note |"]
    rows += ["|---|---|---|--:|--:|--:|--:|--:|"]
    notes: list[str] = []
    near = {"window or mean TTFT": 0, "window": 0, "mean TTFT": 0}
    same = 0
    for pair in (pair for pair in PAIRS if pair.before.is_dir() and pair.after.is_dir()):
        print(f"{pair.before.name} to {pair.after.name} ...", file=sys.stderr)
        found, name = compared(pair), f"| {pair.before.name} to {pair.after.name} | {pair.words} "
        why = f"Not the same load: {pair.other}." if pair.other else pair.why
        if isinstance(found, str):
            why, found = f"Cannot be replayed: {found}.", {"window / useful": ()}
        missed = [not values or values[-1] > NEAR for values in found.values()]
        if why and any(missed) and why not in notes:
            notes.append(why)
        for (figure, values), far in zip(found.items(), missed, strict=True):
            cells = [f"{value:.3g}" for value in values[:3]] or [""] * 3
            off = f"{values[-1]:.0%}".replace("%", " %") if values else ""
            note = f"{notes.index(why) + 1}" if far and why else ""
            rows.append(f"{name}| {figure} | {' | '.join(cells)} | {off} | {note} |")
        if all(found.values()) and not pair.other:
            same += 1
            hits = {
                figure: values[-1] <= NEAR for figure, values in found.items() if figure != "TTFT p50, ms"
            }
            near["window"] += hits["window / useful"]
            near["mean TTFT"] += hits.get("TTFT mean, ms", False)
            near["window or mean TTFT"] += any(hits.values())
    told = ", ".join(f"{number} by {which}" for which, number in near.items())
    said = f"Within {100 * NEAR:.0f} % of the measured change, of {same} pairs of one load: {told}."
    return "\n".join([*rows, "", *(f"{n}. {note}" for n, note in enumerate(notes, 1)), "", said])


def unchanged() -> str:
    folders = sorted({path.parent for path in SAMPLES.rglob("truth.json")})
    folders += sorted(path for path in CAPTURES.iterdir() if path.is_dir()) if CAPTURES.is_dir() else []
    rows = []
    for folder in folders:
        print(f"{folder.name} ...", file=sys.stderr)
        run = results(folder)
        window = run.window.duration_ns
        off = [
            abs(Replay(run, closed_loop=closed).row("", Change())["window_ns"] - window) / window
            for closed in (False, True)
        ]
        rows.append((folder.name, window, max(off)))
    frame = pl.DataFrame(rows, schema=["run", "window", "off"], orient="row").sort("off", descending=True)
    worst = ", ".join(f"{name} {off:.3%}" for name, _, off in frame.head(3).rows())
    return f"Of {frame.height} runs, the worst: {worst.replace('%', ' %')} of the window."


def simulated() -> str:
    rows = [
        "| server | defect taken away | true gain, ms | predicted, ms | off by |",
        "|---|---|--:|--:|--:|",
    ]
    cases = [("tensor", defect) for defect in CHANGES]
    cases += [(shape, "tokenization") for shape in ("polling", "sglang", "pipeline")]
    for shape, defect in cases:
        run = simulate({defect: 0.2}, shape=shape)
        true = (_length(run) - _length(run.baseline)) / 1e6
        found = Replay(run.results(), closed_loop=True)
        gained = found.row("", CHANGES[defect])["gained_ns"] / 1e6
        off = f"{abs(gained - true) / true:.1%}".replace("%", " %")
        rows.append(f"| {shape} | {defect} | {true:.2f} | {gained:.2f} | {off} |")
    return "\n".join(rows)


def _length(run) -> int:
    spans = [(gpu.ops[0].begin, gpu.ops[-1].end) for gpu in run.gpus]
    return min(end for _, end in spans) - max(begin for begin, _ in spans)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    tables = {"simulated": simulated, "unchanged": unchanged, "pairs": pairs}
    parser.add_argument("--write", action="store_true", help="put the tables into docs/what-if.md")
    parser.add_argument("names", nargs="*", metavar="TABLE", help=f"of {', '.join(tables)} (default: all)")
    flags = parser.parse_args()
    write, page = flags.write, PAGE.read_text(encoding="utf-8") if flags.write else ""
    for name in flags.names or tables:
        table = tables[name]()
        print(f"\n{name}\n\n{table}")
        if write:
            begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
            head, rest = page.split(begin)
            page = f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    if write:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
