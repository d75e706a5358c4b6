"""What `perf script --header` says of the recording: host, CPUs, clock, and how each event was sampled.

The keys are those of tools/perf/util/header.c.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tracelib.clocks import clock_named, clock_numbered
from tracelib.sources.perf.heads import MODIFIERS, PROBE, TRACEPOINT

#: Of these a header has some; other comments are not perf's.
KEYS = {"hostname", "perf version", "captured on", "cmdline", "clockid", "header version"}
#: perf's tools that record tracepoints without naming them (`perf sched record`).
TRACING = ("sched", "lock", "kmem", "kvm", "trace", "timechart", "kwork")
EVENTS = re.compile(r"(?:^|\s)(?:-\w*?e[= ]?|--event[= ])(\S+)")
#: As `-e` spells a tracepoint: `sched:*` stands for several, a modifier may follow.
NAMED = r"^[A-Za-z_*?][\w.*?-]*:[A-Za-z_*?][\w*?]*(?::\w+)?$"
REFERENCE = re.compile(r"= (-?\d+)\.(\d+) \(TOD\) = (-?\d+)\.(\d+) \(")
SYSTEM_WIDE = re.compile(r"\s(?:-\w*a\w*|--all-cpus|-C|--cpu)(?:\s|=|\d|$)")


@dataclass(frozen=True)
class Header:
    """`clock` as in `schema.SOURCES`; `wall_offset_ns` None where the file does not tie it to wall time."""

    present: bool = False
    host: str | None = None
    cpus: int | None = None
    recorder: str | None = None
    architecture: str | None = None
    clock: str = "unknown"
    wall_offset_ns: int | None = None
    subsampled: tuple[str, ...] = ()  # tracepoints that were recorded in part
    system_wide: bool | None = None  # None: not known


def of_lines(lines: Iterable[str]) -> Header:
    """Return what the comment lines of a text say; every absent line leaves its field at "not recorded"."""
    values: dict[str, str] = {}
    subsampled: list[str] = []
    for line in lines:
        key, _, value = line.lstrip("# ").partition(":")
        if key.strip() == "event":
            subsampled += _subsampled(value)
        else:
            values.setdefault(key.strip(), value.strip())
    if not values.keys() & KEYS:
        return Header()
    cpus = values.get("nrcpus online", "")
    clock = _clock(values.get("clockid"))
    return Header(
        present=True,
        host=values.get("hostname"),
        cpus=int(cpus) if re.fullmatch(r"[0-9]{1,6}", cpus) else None,
        recorder=f"perf {values['perf version']}" if "perf version" in values else None,
        architecture=values.get("arch"),
        clock=clock,
        wall_offset_ns=wall_offset(clock, *_reference(values.get("reference time", ""))),
        subsampled=tuple(subsampled),
        system_wide=bool(SYSTEM_WIDE.search(values["cmdline"])) if "cmdline" in values else None,
    )


def _clock(clockid: str | None) -> str:
    """Return the clock's name; a recording without -k uses the scheduler's clock of that host, "local"."""
    return "local" if clockid is None else clock_named(clockid.partition(" ")[0])


def clock_of(clockid: int | None, command: list[str]) -> str:
    """Return a recording's clock by its number (clock_gettime(2)), else by `perf record`'s command line."""
    return _clock_of_command(command) if clockid is None else clock_numbered(clockid)


def wall_offset(clock: str, clock_ns: int | None, wall_ns: int | None) -> int | None:
    """Return wall time minus the clock by the pair that perf took at its start, None without it."""
    if clock == "realtime":
        return 0
    if clock_ns is None or wall_ns is None or abs(wall_ns - clock_ns) >= 2**62:
        return None
    return wall_ns - clock_ns


def tracepoints_of(command: list[str]) -> list[str]:
    """Return the tracepoints that a `perf record` command line names, and perf's tools with their own."""
    own = [word for word in command[1:2] if word in TRACING and "record" in command[2:4]]
    spoken = " ".join(command[: command.index("--")] if "--" in command else command)
    events = [name for group in EVENTS.findall(spoken) for name in re.split(r"[,{}]+", group)]
    named = [name for name in events if re.match(NAMED, name)]
    return own + [name for name in named if re.match(PROBE, name) or not re.match(MODIFIERS, name)]


def _clock_of_command(command: list[str]) -> str:
    spoken = re.search(r"(?:^|\s)(?:-k[= ]?|--clockid[= ])(\S+)", " ".join(command))
    return _clock(spoken[1] if spoken else None)


def _reference(text: str) -> tuple[int, int] | tuple[None, None]:
    """Return the clock and the wall time, in exact ns, that perf read together at its start."""
    pair = REFERENCE.search(text)
    if pair is None:
        return None, None
    wall_s, wall_fraction, clock_s, clock_fraction = pair.groups()
    return _nanoseconds(clock_s, clock_fraction), _nanoseconds(wall_s, wall_fraction)


def _nanoseconds(seconds: str, fraction: str) -> int:
    return int(seconds) * 10**9 + int(fraction[:9].ljust(9, "0"))


def _subsampled(event: str) -> list[str]:
    """Return the event's name if it is a tracepoint recorded by frequency or with a period above 1."""
    name = re.search(r"name = (\S+?),?\s", event)
    if name is None or not re.match(TRACEPOINT, name[1]) or re.match(MODIFIERS, name[1]):
        return []
    if (kind := re.search(r"\btype = (\d+)", event)) and kind[1] != "2":
        return []
    period = re.search(r"\{ sample_period, sample_freq \} = (\d+)", event)
    sparse = re.search(r"[ ,]freq = 1\b", event) or (period and int(period[1]) > 1)
    return [name[1]] if sparse else []
