"""A run for https://www.speedscope.app: CPU samples of the server's roles, and what each thread did."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from tracelib.analyses.results import Results
from tracelib.export.tracks import Layer, nested_layers, tracks
from tracelib.findings import Document
from tracelib.words import SERVER, role_name

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
#: The number of each frame, by its name and its file.
Frames = dict[tuple[str, str | None], int]


def write_speedscope(results: Results, findings: Document, target: Path) -> None:
    """Write the run to `target`, in speedscope's own file format; `findings` is the document of `diagnose`.

    One sampled profile per role, its samples weighed by their period in the order of time; one evented
    profile per track of a thread or a GPU. Times are ns since the window's start, because a viewer's numbers
    hold no ns since 1970.

    Raises OSError if the file cannot be written.
    """
    frames: Frames = {}
    profiles = [*_sampled(results, frames), *_evented(results, findings, frames)]
    shared = [{"name": name} | ({"file": file} if file else {}) for name, file in frames]
    document = {
        "$schema": SCHEMA,
        "exporter": "tracelib",
        "name": findings.title,
        "shared": {"frames": shared},
        "profiles": profiles,
    }
    target.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def _frame(frames: Frames, name: str, file: str | None = None) -> int:
    return frames.setdefault((name, file), len(frames))


def _sampled(results: Results, frames: Frames) -> Iterator[dict[str, Any]]:
    chains = _chains(results.trace.stacks, frames)
    roles = results.trace.threads.select("thread", "role")
    samples = results.trace.samples.join(roles, on="thread").sort("ts_ns")
    for role in SERVER:
        own = samples.filter((pl.col("role") == role) & pl.col("stack").is_not_null())
        weights = own["period"].fill_null(1).to_list()
        if own.is_empty():
            continue
        clock = own["event"].cast(pl.String).str.contains("^(?:cpu|task)-clock")
        in_ns = bool(clock.all()) and own["period"].null_count() == 0
        yield {
            "type": "sampled",
            "name": f"CPU samples: {role_name(role)}",
            "unit": "nanoseconds" if in_ns else "none",
            "startValue": 0,
            "endValue": sum(weights),
            "samples": [chains[stack] for stack in own["stack"]],
            "weights": weights,
        }


def _chains(stacks: pl.DataFrame, frames: Frames) -> dict[int, list[int]]:
    chains: dict[int, list[int]] = {}
    rows = stacks.sort("stack", "depth", descending=[False, True])
    for stack, symbol, library in rows.select(
        "stack", pl.col("symbol", "library").cast(pl.String)
    ).iter_rows():
        chains.setdefault(stack, []).append(_frame(frames, symbol or "[unknown]", library))
    return chains


def _evented(results: Results, findings: Document, frames: Frames) -> Iterator[dict[str, Any]]:
    for track in tracks(results, findings):
        name = f"{track.group.name}: {track.name}"
        for number, layer in enumerate(nested_layers(track.slices)):
            events = _events(track.slices, layer, results.window.start_ns, frames)
            yield {
                "type": "evented",
                "name": name + (" (crossing)" if number else ""),
                "unit": "nanoseconds",
                "startValue": events[0]["at"],
                "endValue": events[-1]["at"],
                "events": events,
            }


def _events(slices: pl.DataFrame, layer: Layer, start_ns: int, frames: Frames) -> list[dict[str, Any]]:
    begins, lengths = slices["ts_ns"].to_list(), slices["dur_ns"].to_list()
    numbers = [_frame(frames, name or "unnamed") for name in slices["name"].to_list()]
    return [
        {
            "type": "C" if ends else "O",
            "frame": numbers[row],
            "at": begins[row] + (lengths[row] if ends else 0) - start_ns,
        }
        for row, ends in zip(*(part.tolist() for part in layer), strict=True)
    ]
