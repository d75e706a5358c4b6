"""A second reader of `perf script` text: Python's re, line by line, sharing nothing with the product."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest

HEAD = re.compile(
    r"^\s*(?P<comm>\S.*?)\s+(?:(?P<pid>-?\d+)/)?(?P<tid>-?\d+)\s+(?:\[(?P<cpu>\d+)\]\s+)?"
    r"(?P<s>\d+)\.(?P<f>\d+):\s+(?:(?P<period>\d+)\s+)?(?P<event>\S+):(?:\s+(?P<rest>.*))?$"
)
ADDRESS = re.compile(r"^\t *[0-9a-f]+ ")
OFFSET = re.compile(r"\+0x[0-9a-f]+$")


@dataclass
class Event:
    comm: str
    pid: int | None
    tid: int
    cpu: int | None
    ns: int
    period: int | None
    event: str
    rest: str
    frames: list[tuple[str, str]] = field(default_factory=list)


def frame(line: str) -> tuple[str, str]:
    """Symbol and library: the library is what the last bracket closes, found by counting from the right."""
    text = ADDRESS.sub("", line)
    assert text != line, line
    assert text.endswith(")"), line
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[at], 0)
        if depth == 0:
            break
    return OFFSET.sub("", text[:at].rstrip()), text[at + 1 : -1]


def parse(text: str) -> list[Event]:
    events: list[Event] = []
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        if line.startswith("\t"):
            events[-1].frames.append(frame(line))
            continue
        m = HEAD.match(line)
        assert m, line
        number = {k: None if m[k] is None else int(m[k]) for k in ("pid", "tid", "cpu", "period")}
        events.append(
            Event(
                m["comm"],
                number["pid"],
                number["tid"],
                number["cpu"],
                int(m["s"]) * 10**9 + int(m["f"].ljust(9, "0")),
                number["period"],
                m["event"],
                m["rest"] or "",
            )
        )
    return events


def flat(trace) -> dict[str, list]:
    """Samples and scheduler events of a trace as plain rows, ids replaced by what they stand for."""
    threads = {row["thread"]: row for row in trace.threads.iter_rows(named=True)}
    chains: dict[int, list] = {}
    for stack, _, symbol, library in trace.stacks.iter_rows():
        chains.setdefault(stack, []).append((symbol, library))
    tid = {None: None, -1: 0} | {thread: row["tid"] for thread, row in threads.items()}
    samples = [
        (r["ts_ns"], tid[r["thread"]], r["cpu"], r["event"], r["period"], tuple(chains.get(r["stack"], ())))
        for r in trace.samples.iter_rows(named=True)
    ]
    sched = [
        (r["ts_ns"], r["cpu"], r["event"], tid[r["prev"]], r["prev_state"], tid[r["next"]])
        for r in trace.sched.iter_rows(named=True)
    ]
    return {"samples": samples, "sched": sched}


@pytest.fixture
def reference():
    return parse


@pytest.fixture
def plain():
    return flat


@pytest.fixture
def load(tmp_path: Path):
    """Read a text given as str or bytes, after asserting that it is recognised."""
    from tracelib.sources.perf import read, sniff

    def _load(text: str | bytes, *, sniffed: bool = True):
        data = text if isinstance(text, bytes) else text.encode()
        assert sniff(data[: 1 << 16], "x.txt") is sniffed
        path = tmp_path / "x.txt"
        path.write_bytes(data)
        return read(path)

    return _load


@pytest.fixture
def messages():
    return lambda trace: " | ".join(trace.health.filter(pl.col("level") != "info")["message"].to_list())
