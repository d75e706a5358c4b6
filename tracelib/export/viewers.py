"""A run as JSON for two viewers: Chrome's ("Trace Event Format") and https://www.speedscope.app."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import polars as pl

from tracelib.analyses.results import Results
from tracelib.export.tracks import PLACE, Group, Layer, Track, counters, first_ns, nested_layers, tracks
from tracelib.findings import Document
from tracelib.words import SERVER, role_name

#: Groups that are not a process stand under numbers that no process has.
HEADINGS = 2**31

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
#: The number of each frame, by its name and its file.
Frames = dict[tuple[str, str | None], int]


# -------------------- Chrome
def write_chrome(results: Results, findings: Document, target: Path) -> None:
    """Write the run to `target`; `findings` is the document of `tracelib.findings.diagnose`.

    Times are microseconds, to the nanosecond, since `baseTimeNanoseconds`: as numbers since 1970 they would
    lose digits in any reader that holds them as floating point.

    Raises OSError if the file cannot be written.
    """
    base = first_ns(results)
    with target.open("w", encoding="utf-8") as file:
        file.write(f'{{"displayTimeUnit":"ns","baseTimeNanoseconds":{base},"traceEvents":[')
        _Writer(file, base).run(results, findings)
        file.write("\n]}\n")


class _Writer:
    def __init__(self, file: TextIO, base_ns: int) -> None:
        self._file, self._base = file, base_ns
        self._comma = "\n"
        self._pids: dict[Group, int] = {}
        self._tids: dict[tuple[int, str, int | None], int] = {}

    def run(self, results: Results, findings: Document) -> None:
        for track in tracks(results, findings):
            self._track(track)
        pid = self._pid(Group("Counters"))
        for name, readings in counters(results):
            for ts_ns, value in readings.iter_rows():
                self._event({"ph": "C", "pid": pid, "name": name, "args": {"value": value}}, ts_ns)

    def _event(self, event: dict[str, Any], ts_ns: int | None = None, dur_ns: int | None = None) -> None:
        """Write one event; times are put in as text, which keeps every digit."""
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        times = "" if ts_ns is None else f',"ts":{_us(ts_ns - self._base)}'
        times += "" if dur_ns is None else f',"dur":{_us(dur_ns)}'
        self._file.write(f"{self._comma}{text[:-1]}{times}}}")
        self._comma = ",\n"

    def _pid(self, group: Group) -> int:
        if group not in self._pids:
            headings = sum(other.pid is None for other in self._pids)
            pid = group.pid if group.pid is not None else HEADINGS + headings
            self._pids[group] = pid
            self._event({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": group.name}})
            self._event(
                {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": len(self._pids)}}
            )
        return self._pids[group]

    def _tid(self, pid: int, track: Track) -> int:
        key = (pid, track.name, track.tid)
        if key not in self._tids:
            free = HEADINGS + len(self._tids)
            self._tids[key] = free if track.tid is None or track.state_of_thread else track.tid
            self._event(
                {
                    "ph": "M",
                    "pid": pid,
                    "tid": self._tids[key],
                    "name": "thread_name",
                    "args": {"name": track.name},
                }
            )
        return self._tids[key]

    def _track(self, track: Track) -> None:
        pid = self._pid(track.group)
        tid = self._tid(pid, track)
        for row in track.slices.iter_rows(named=True):
            details = {name: value for name, value in row.items() if name not in PLACE and value is not None}
            place = {"pid": pid, "tid": tid}
            self._event(
                {"ph": "X", **place, "name": row["name"], "args": details}, row["ts_ns"], row["dur_ns"]
            )
            for arrow in _arrows(row, track):
                self._event(arrow | place, row["ts_ns"])


def _arrows(row: Mapping[str, Any], track: Track) -> Iterator[dict[str, Any]]:
    """Yield the arrows that begin (on a thread) or end (on a GPU's stream) with the slice."""
    on_gpu = track.group.pid is None
    for flow in row.get("flows") or ():
        arrow = {"ph": "f", "bp": "e"} if on_gpu else {"ph": "s"}
        yield {**arrow, "id": flow, "name": "launch", "cat": "launch"}


def _us(ns: int) -> str:
    """Return nanoseconds as microseconds, exactly.

    >>> _us(1_234_567), _us(-1)
    ('1234.567', '-0.001')
    """
    sign, size = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{size // 1000}.{size % 1000:03d}"


# -------------------- speedscope
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
