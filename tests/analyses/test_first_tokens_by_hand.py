"""Where a real server's 300 ms went between 2 and 32 CPUs, by a second script from the raw files.

It shares nothing with the product: gzip, json and regular expressions over the client's log, the text of one
rank's trace and perf's text. Prompts are laid end to end in the order of their first tokens and cut where the
steps' prompt tokens end, which places each of them; docs/numbers.md, "Ledger 4", says what the parts are.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_right
from itertools import accumulate, pairwise
from statistics import mean, median

import polars as pl
import pytest

from tracelib.analyses.comparison import changes, comparison
from tracelib.analyses.requests import PARTS
from tracelib.charts.comparison import what_changed
from tracelib.options import Options
from tracelib.report import opened

pytestmark = [pytest.mark.corpus, pytest.mark.slow]
RUNS = ("vllm_2cpus", "vllm_32cpus")
STEP = re.compile(
    r'"cat": "((?:gpu_)?user_annotation)", "name": "execute_context_(\d+)\((\d+)\)_generation_\d+\((\d+)\)"'
    r'[^}]*?"ts": ([\d.]+), "dur": ([\d.]+)'
)
SWITCH = re.compile(
    r" (\d+\.\d+): +sched:sched_switch: .*prev_pid=(\d+) .*prev_state=(\S+) ==> .*next_pid=(\d+)"
)
WAKE = re.compile(r" (\d+\.\d+): +sched:sched_wakeup: .* pid=(\d+) ")


def steps_of(folder):
    """Return (begin, end on the GPU, prompt tokens, all tokens) of rank 0's steps, in ms since 1970."""
    text = gzip.decompress((folder / "rank0.pt.trace.json.gz").read_bytes()).decode()
    base = int(re.search(r'"baseTimeNanoseconds": (\d+)', text)[1]) / 1e6
    host, device = [], []
    for kind, _, prefill, decode, at, lasts in STEP.findall(text):
        begin = base + float(at) / 1e3
        row = (begin, begin + float(lasts) / 1e3, int(prefill), int(prefill) + int(decode))
        (device if kind.startswith("gpu") else host).append(row)
    assert [row[2:] for row in sorted(host)] == [row[2:] for row in sorted(device)]
    return [(h[0], d[1], *h[2:]) for h, d in zip(sorted(host), sorted(device), strict=True)]


def placed(steps, requests):
    """Return (request, its first step, its last step): prompts end to end against the steps' prompt tokens.

    At the end of a step that had room no prompt is unfinished, so there the line is cut between two prompts.
    Which one follows is told by what fits: first tokens come soonest after their steps, and none before.
    """
    ends = list(accumulate(step[2] for step in steps))
    most = 0.99 * max(step[3] for step in steps)
    cut = next(n for n, step in enumerate(steps) if step[2] and step[3] < most)
    order, fits = answered(requests), []
    for first in range(len(order)):
        line = accumulate((row["prompt_tokens"] for row in order[first:]), initial=ends[cut])
        held = [
            (row, bisect_right(ends, begin), bisect_right(ends, end - 1))
            for row, (begin, end) in zip(order[first:], pairwise(line), strict=True)
            if end <= ends[-1]
        ]
        late = [row["first_token"] / 1e6 - steps[last][1] for row, _, last in held]
        if len(held) > 20:
            fits.append((sum(ms < -2 for ms in late), mean(late), held))
    wrong, _, held = min(fits, key=lambda fit: fit[:2])
    assert wrong <= 1
    return held


def answered(requests):
    """Return them in the order of their first tokens; those of one step, a few ms, in that of arrival."""
    order = sorted(requests, key=lambda row: row["first_token"])
    gaps = [0, *(int(b["first_token"] - a["first_token"] > 5e6) for a, b in pairwise(order))]
    keyed = zip(accumulate(gaps), order, strict=True)
    return [row for _, row in sorted(keyed, key=lambda pair: (pair[0], pair[1]["arrived"]))]


def split(steps, request, first, last):
    """Return the request's API server, queue, in steps, and back, in ms."""
    arrived, token = request["arrived"] / 1e6, request["first_token"] / 1e6
    begin, done = steps[first][0], min(steps[last][1], token)
    most = 0.99 * max(step[3] for step in steps)
    roomy = [step[0] for step in steps[:first] if step[3] < most and step[0] > arrived and step[1] > arrived]
    at = max([arrived, *roomy])
    queue = 0.0
    for step in steps[:first]:
        until = min(step[1], begin)
        queue += max(0.0, until - max(step[0], at))
        at = max(at, until)
    return {"api": begin - arrived - queue, "queue": queue, "steps": done - begin, "back": token - done}


def lacked_cpu(folder):
    """Return which share of the time in which it wanted one the API server's main thread had no CPU."""
    tid = re.search(r"vm_(\d+)\.async_llm", str(next(folder.glob("vm_*"))))[1]
    ready = running = None
    wanted = {"ready": 0.0, "running": 0.0}
    for line in gzip.decompress((folder / "perf.txt.gz").read_bytes()).decode(errors="replace").split("\n"):
        if woken := WAKE.search(line):
            if woken[2] == tid and running is None and ready is None:
                ready = float(woken[1])
        elif switch := SWITCH.search(line):
            at, out, state, into = float(switch[1]), switch[2], switch[3], switch[4]
            if out == tid and running is not None:
                wanted["running"] += at - running
                running, ready = None, at if state.startswith("R") else None
            if into == tid:
                wanted["ready"] += at - ready if ready is not None else 0.0
                running, ready = at, None
    return wanted["ready"] / (wanted["ready"] + wanted["running"])


@pytest.fixture(scope="module")
def by_hand(captures):
    found = {}
    for name in RUNS:
        folder = captures / name
        rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
        steps = steps_of(folder)
        held = placed(steps, [row for row in rows if row.get("first_token")])
        found[name] = {row["id"]: split(steps, row, first, last) for row, first, last in held}
    return found


@pytest.fixture(scope="module")
def by_product(captures):
    found = {}
    for name in RUNS:
        run = {"traces": [str(captures / name)], "requests": str(captures / name / "requests.jsonl")}
        found[name], _ = opened(Options.of(run))
    return found


def test_most_of_the_median_time_to_first_token_has_a_name(by_product):
    """Of all requests, and of the tenth of them around the median."""
    for results in by_product.values():
        rows = results.requests.sort("ttft_ns").with_row_index("place")
        near = rows.filter((pl.col("place") / rows.height - 0.5).abs() <= 0.05)
        for some in (rows, near):
            named = some.select(pl.sum_horizontal(PARTS[:-1])).to_series().sum()
            assert named / some["ttft_ns"].sum() >= 0.85
        assert near["ttft_ns"].median() == pytest.approx(median(rows["ttft_ns"]), rel=0.15)


def test_both_put_the_difference_to_the_same_parts(by_hand, by_product):
    columns = {
        "api": ["api_server_ns"],
        "queue": ["queue_ns"],
        "steps": ["broadcast_ns", *(part for part in PARTS if part.startswith("gpu_"))],
        "back": ["back_ns"],
    }
    ours, theirs = {}, {}
    for name, results in by_product.items():
        both = [row for row in results.requests.iter_rows(named=True) if row["id"] in by_hand[name]]
        assert len(both) >= 0.9 * results.requests.height
        for part, held in columns.items():
            ours[name, part] = mean(sum(row[c] or 0 for c in held) / 1e6 for row in both)
            theirs[name, part] = mean(by_hand[name][row["id"]][part] for row in both)
    for part in columns:
        ours_moved, moved = (side[RUNS[1], part] - side[RUNS[0], part] for side in (ours, theirs))
        assert ours_moved == pytest.approx(moved, abs=6), part
    assert min(columns, key=lambda part: theirs[RUNS[1], part] - theirs[RUNS[0], part]) == "api"


def test_the_sentence_names_the_api_server_first_and_perf_says_why(by_product, captures):
    (said,) = what_changed(changes(comparison(by_product)))
    assert re.search(r"on average -1\d\d ms: API server -\d\d\.\d ms, queue before the engine", said)
    assert lacked_cpu(captures / RUNS[0]) > 0.4
    assert lacked_cpu(captures / RUNS[1]) < 0.02
