"""What really happened, from the server's own logs; no trace is looked at."""

import json
import statistics
from pathlib import Path


def _rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def truth(folder: Path, scenario: dict) -> dict:
    """Return the scenario's promise and the logs' figures for it (times in ms, on the load's window)."""
    requests, steps = _rows(folder / "requests.jsonl"), _rows(folder / "steps.jsonl")
    start, end = int((folder / "started").read_text()), int((folder / "ended").read_text())
    ttft = sorted((r["first_token"] - r["arrived"]) / 1e6 for r in requests if "first_token" in r)
    workers = {path.stem: _rows(path) for path in sorted(folder.glob("worker*.jsonl"))}
    known = [row["gpu_ms"] for rows in workers.values() for row in rows if row["gpu_ms"] is not None]
    window = (end - start) / 1e6
    return {
        "verdict": scenario.get("verdict"),
        "leading_cause": scenario.get("leading_cause"),
        "why": scenario.get("why"),
        "window_ms": window,
        "requests": len(requests),
        "steps": len(steps),
        "cpus": len(json.loads((folder / "meta.json").read_text())["cpus"]),
        "ttft_ms": {"p50": statistics.median(ttft), "max": ttft[-1]} if ttft else None,
        "tokenize_ms": sum(r["tokenize_end"] - r["tokenize_start"] for r in requests) / 1e6,
        "enqueue_ms": sum(s["enqueue_end"] - s["enqueue_start"] for s in steps) / 1e6,
        "step_ms_p50": statistics.median([(s["output"] - s["enqueue_start"]) / 1e6 for s in steps])
        if steps
        else None,
        "dequeue_ms": {
            name: sum(r["dequeue_end"] - r["dequeue_start"] for r in rows) / 1e6
            for name, rows in workers.items()
        },
        "on_device_ms": sum(known) / len(workers) if known else None,
        "source": "the workload's own logs (CLOCK_MONOTONIC and CUDA events), not the traces",
    }
