"""Findings made by hand: two ranks, 1 ms of window, every part filled, every sum right."""

import copy
from typing import Any

import msgspec

from tracelib.findings import Document

START = 1_796_006_360_000_000_000


def _device(rank: int, causes: list[tuple[str, str | None, str, int]]) -> dict[str, Any]:
    times = {
        "compute": 500_000,
        "copy": 10_000,
        "collective": 0,
        "collective_transfer": 90_000,
        "collective_wait": 100_000,
        "idle": 300_000,
    }
    return {
        "host": "host-1",
        "rank": rank,
        "device": rank,
        "gpu_time_ns": times,
        "busy_share": 0.7,
        "useful_share": 0.6,
        "lost_ns": 400_000,
        "causes": [{"cause": c, "sub_cause": s, "cpu_state": state, "ns": ns} for c, s, state, ns in causes],
    }


_QUANTILES = {"p50": 1_000, "p95": 20_000, "max": 300_000}
_FINDINGS: dict[str, Any] = {
    "schema": "tracelib.findings/1",
    "tool": {"name": "tracelib", "version": "0.1.0"},
    "generated_utc": "2026-11-30T02:45:00Z",
    "title": "decode is slow",
    "ticket": "INC-42",
    "parameters": {"traces": ["worker_TP0.json.gz"], "redact": "strict"},
    "sources": [
        {
            "file": "worker_TP0.json.gz",
            "sha256": "0" * 64,
            "format": "torch_profiler",
            "recorder": "torch 2.11 / CUPTI 130001",
            "clock": "realtime",
            "tied_by": "declared",
            "offset_ns": 0,
            "error_ns": None,
            "residual": None,
            "first_ns": START,
            "last_ns": START + 1_000_000,
            "rows": {"slices": 1_234, "gpu_ops": 56, "samples": 0, "sched": 0},
            "lost": {"declared": 0, "detected": 2, "skipped_bytes": 0},
            "notes": ["rank by name"],
        }
    ],
    "window": {
        "start_ns": START,
        "end_ns": START + 1_000_000,
        "duration_ns": 1_000_000,
        "why": "from the first to the last GPU operation of 2 GPUs",
    },
    "verdict": {
        "state": "cpu_bound",
        "sentence": "The CPU side is the limit.",
        "confidence": "high",
        "why": ["a launch was found for every operation"],
        "record_first": [],
        "limits": ["quota", "host_work"],
        "firm": True,
        "settled_by": "",
    },
    "devices": [
        _device(
            0,
            [
                ("kernel_launch", "dispatch", "running", 150_000),
                ("kernel_launch", "api", "runnable", 50_000),
                ("tokenization", "encode", "running", 100_000),
                ("ipc", "upstream not recorded", "unknown", 40_000),
                ("imbalance", None, "unknown", 30_000),
                ("unattributed", None, "unknown", 30_000),
            ],
        ),
        _device(1, [("kernel_launch", "dispatch", "throttled", 400_000)]),
    ],
    "host_time": [
        {
            "cause": "tokenization",
            "sub_cause": "encode",
            "total_ns": 700_000,
            "union_ns": 600_000,
            "exposed_ns": 100_000,
            "count": 3,
        }
    ],
    "cpu_time": [
        {
            "role": "worker",
            "cause": "spin",
            "sub_cause": "poll",
            "cpu_ns": 400_000,
            "share": 0.5,
            "ci95": [0.4, 0.6],
        },
        {
            "role": None,
            "cause": "other",
            "sub_cause": None,
            "cpu_ns": 1_000,
            "share": 0.001,
            "ci95": [0.0, 0.01],
        },
    ],
    "launches": {
        "count": 100,
        "api_ns": _QUANTILES,
        "launch_to_start_ns": _QUANTILES,
        "return_to_start_ns": {"p50": -5, "p95": 2, "max": 9},
        "negative_returns": 60,
        "late": 44,
        "graph_coverage": 0.0,
        "unmatched_gpu_ops": 0,
        "definitions": [
            {
                "name": "launch_delay",
                "by": "HTA",
                "meaning": "call's return to start",
                "operations": 100,
                "sum_ns": 900,
                "p50_ns": 0,
                "p95_ns": 2,
                "max_ns": 9,
                "threshold_ns": 100_000,
                "above_threshold": 0,
            }
        ],
    },
    "collectives": {
        "groups": 1,
        "matched": 10,
        "unmatched": 0,
        "arrival_skew_ns": _QUANTILES,
        "transfer_ns": 180_000,
        "wait_ns": [100_000, 100_000],
        "amplification": 1.0,
        "worst_straggler_rank": 1,
    },
    "ipc": {
        "dequeue_ns": _QUANTILES,
        "dequeue_over_step": 0.1,
        "enqueue_ns": None,
        "spin_cpu_ns": 400_000,
        "polls": [{"kind": "poll", "count": 2, "p50_ns": 100, "p95_ns": 300, "max_ns": 300, "total_ns": 400}],
    },
    "scheduling": {
        "threads": [
            {
                "role": "worker",
                "running_ns": 800_000,
                "runnable_ns": 100_000,
                "throttled_ns": 100_000,
                "blocked_ns": 0,
                "unknown_ns": 0,
            },
            {
                "role": None,
                "running_ns": 1,
                "runnable_ns": 0,
                "throttled_ns": 0,
                "blocked_ns": 9,
                "unknown_ns": 0,
            },
        ],
        "demand": {"p50": 2.0, "p95": 6.0, "p99": 7.0},
        "cpus_seen": 4,
        "lost_switches": 2,
        "throttle_gaps": 3,
    },
    "quota": {
        "limited": True,
        "cpus": 2.0,
        "period_us": 100_000,
        "cpus_by_counters": [1.9, 2.3],
        "since": "between two readings",
        "nr_periods": 270,
        "nr_throttled": 226,
        "throttled_usec": 46_664_283,
        "usage_usec": 51_665_291,
        "throttled_share": 0.837,
        "cpus_used": 1.9,
    },
    "requests": {
        "count": 5,
        "whole": 5,
        "sentence": "Time to first token of 5 requests: p50 90.0 ms, max 300 ms. On average: 5 % tokenize.",
        "detail": "Not counted: 1 before or after the window.",
        "ttft_ns": {"p50": 90_000_000, "p95": 200_000_000, "max": 300_000_000},
        "parts": [
            {
                "part": "tokenize",
                "share": 0.05,
                "p50": 1_000_000,
                "p95": 2_000_000,
                "correlation_with_ttft": 0.9,
            }
        ],
        "api_server": None,
        "queue": {
            "requests": 3,
            "total_ns": 9_000_000,
            "full_ns": 5_000_000,
            "prefill_ns": 0,
            "decode_ns": 1_000_000,
            "unknown_ns": 3_000_000,
            "why": "steps with room began without it",
        },
        "grows": "the slower half took 50.0 ms longer than the faster half, 40.0 ms of it API server",
        "slowest": [
            {
                "id": "cmpl-7",
                "arrived_ns": 12_000_000,
                "ttft_ns": 300_000_000,
                "prompt_tokens": 4096,
                "parts": {"tokenize": 100_000_000, "unknown": 200_000_000},
            }
        ],
        "outside_window": 1,
        "unknown": [{"why": "the engine sent other steps first", "requests": 2, "total_ns": 3_000_000}],
        "lost_by_cause": [
            {
                "cause": "kernel_launch",
                "p50": 1_000_000,
                "p95": 2_000_000,
                "total_ns": 5_000_000,
                "correlation_with_ttft": None,
            }
        ],
    },
    "capacity": {
        "gpus": 2,
        "cpus_of_host": 32,
        "mean_input_tokens": 8192.0,
        "demand": None,
        "estimates": [
            {"estimate": "article's rule", "cores": 10.0, "source": "the article", "why_not": ""},
            {
                "estimate": "measured demand, p95",
                "cores": None,
                "source": "this run",
                "why_not": "no wake-ups",
            },
        ],
    },
    "abstained": [{"id": "gil", "reason": "no samples of the lock", "record_with": "py-spy record --gil"}],
    "findings": [
        {
            "id": "launch_bound",
            "cause": "kernel_launch",
            "claim": "The GPUs waited for the next launch.",
            "exposed_ns": 600_000,
            "exposed_share": 0.3,
            "confidence": "high",
            "why": "joined by correlation id",
            "disproof": "Graphs change nothing.",
            "advice": ["Capture CUDA graphs."],
            "verify": ["Coverage rises."],
            "change": "code",
            "gain_ns": 500_000,
            "gain_share": 0.25,
            "place": "First, because it takes a change of the server.",
            "known_share": None,
            "bound_ns": 500_000,
            "replay": None,
            "not_replayed": "the run is too large",
            "evidence": [
                {
                    "ts_ns": START + 1_000,
                    "dur_ns": 5_000,
                    "who": "worker_TP0/757",
                    "what": "GPU of rank 0 idle",
                    "value": "5.0 µs without a CPU",
                }
            ],
        }
    ],
    "health": [
        {
            "level": "warning",
            "source": "worker_TP0.json.gz",
            "message": "2 events are missing",
            "fix": "enlarge the buffer",
        },
        {"level": "info", "source": None, "message": "1 file left out", "fix": ""},
    ],
}


def plain(**replaced: Any) -> dict[str, Any]:
    """Return what findings.json holds, a copy to change."""
    return {**copy.deepcopy(_FINDINGS), **replaced}


def typed(document: dict[str, Any]) -> Document:
    """Return it as the document that it is."""
    return msgspec.convert(document, Document)


def findings(**replaced: Any) -> Document:
    """Return the document."""
    return typed(plain(**replaced))


def everywhere(text: str) -> Document:
    """Return findings in which every text that a trace or a person can choose is `text`."""
    document = plain(title=text, ticket=text, parameters={text: [text]})
    for key in ("sentence", "why", "settled_by"):
        document["verdict"][key] = [text] if key == "why" else text
    document["window"]["why"] = text
    for source in document["sources"]:
        source.update(file=text, recorder=text, format=text, clock=text, notes=[text])
    for device in document["devices"]:
        device["host"] = text
        for cause in device["causes"]:
            cause["sub_cause"] = text
    for row in (*document["host_time"], *document["cpu_time"]):
        row["sub_cause"] = text
    document["cpu_time"][0]["role"] = document["scheduling"]["threads"][0]["role"] = text
    document["requests"]["parts"][0]["part"] = text
    for row in document["abstained"]:
        row.update(id=text, reason=text, record_with=text)
    for row in document["health"]:
        row.update(source=text, message=text, fix=text)
    for finding in document["findings"]:
        finding.update(claim=text, why=text, disproof=text, place=text, advice=[text], verify=[text])
        finding["evidence"][0].update(who=text, what=text, value=text)
    return typed(document)
