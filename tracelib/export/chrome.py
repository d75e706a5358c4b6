"""A run in the JSON of Chrome's trace viewer ("Trace Event Format"), which many tools read."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from tracelib.analyses.results import Results
from tracelib.export.tracks import PLACE, Group, Track, counters, first_ns, tracks
from tracelib.findings import Document

#: Groups that are not a process stand under numbers that no process has.
HEADINGS = 2**31


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
