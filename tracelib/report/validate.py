"""Is a findings dict what the output contract says? The shape by JSON Schema, the sums by arithmetic.

The schema travels with the package (`report/schema/findings.schema.json`) for whoever reads `findings.json`.
:func:`validate` needs no schema library, so that every report is checked where it is made: what it checks are the
ledgers' invariants, which a schema cannot say. The shape is proven in the tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["schema", "validate"]

#: `collective` stands in for transfer and wait where one rank alone was recorded and they cannot be told apart.
_GPU_STATES = ("compute", "copy", "collective", "collective_transfer", "collective_wait", "idle")


def schema() -> dict[str, Any]:
    """Return the JSON Schema of `findings.json`."""
    text = (Path(__file__).parent / "schema" / "findings.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def validate(findings: dict[str, Any]) -> list[str]:
    """Return what is wrong with `findings`, one sentence each; an empty list if it keeps the contract.

    Checked: every required part is there and nothing else; the window's ends and length agree; per device the GPU
    states add up to the window, idle and collective wait to `lost_ns`, and the causes to `lost_ns`, to the
    nanosecond; files are named by base name.
    """
    return [
        *_parts(findings),
        *_window(findings.get("window") or {}),
        *(
            problem
            for index, device in enumerate(findings.get("devices") or ())
            for problem in _device(f"devices[{index}]", device, findings.get("window") or {})
        ),
        *_sources(findings.get("sources") or ()),
    ]


def _parts(findings: dict[str, Any]) -> list[str]:
    required = set(schema()["required"])
    return [
        *(f"{name} is missing" for name in sorted(required - set(findings))),
        *(f"{name} is not part of the contract" for name in sorted(set(findings) - required)),
    ]


def _window(window: dict[str, Any]) -> list[str]:
    length = window.get("end_ns", 0) - window.get("start_ns", 0)
    declared = window.get("duration_ns", 0)
    return [] if length == declared else [f"window: end - start is {length} ns, duration_ns says {declared}"]


def _device(where: str, device: dict[str, Any], window: dict[str, Any]) -> list[str]:
    states = device["gpu_time_ns"]
    lost, causes = device["lost_ns"], device["causes"]
    total = sum(states.get(state) or 0 for state in _GPU_STATES)
    problems = []
    if total != window.get("duration_ns"):
        problems.append(f"{where}: states add up to {total} ns, the window is {window.get('duration_ns')}")
    idle_and_wait = (states.get("idle") or 0) + (states.get("collective_wait") or 0)
    if lost is not None and lost != idle_and_wait:
        problems.append(f"{where}: lost_ns is {lost}, idle and collective wait make {idle_and_wait}")
    shared_out = sum(row["ns"] for row in causes or ())
    if causes is not None and shared_out != lost:
        problems.append(f"{where}: causes add up to {shared_out} ns, lost_ns is {lost}")
    return problems


def _sources(sources: Any) -> list[str]:
    return [
        f"sources[{index}]: {row['file']!r} is a path, not a file's name"
        for index, row in enumerate(sources)
        if "/" in row["file"] or "\\" in row["file"]
    ]
