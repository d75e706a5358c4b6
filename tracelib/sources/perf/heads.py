"""What the text of `perf script` says at the head of the file and of each event.

The head of an event says who and where (before the time) and what (behind it). From
tools/perf/builtin-script.c (`perf_sample__fprintf_start`, `process_event`) and
tools/perf/util/evsel_fprintf.c::

    comm  pid/tid  [cpu] misc  seconds.fraction:  period  event: what the event says
    <tab>             ip symbol+0xoffset (library)

Every part of the first line is optional (`-F`). A thread's name has at most 15 bytes and may hold anything:
blanks, brackets, colons, digits. So the head is anchored on the right-most `tid [cpu] seconds.fraction:` that
leaves a name of at most 16 characters before it. The expressions are in the syntax that Polars and Python
share.

The file's (`--header`) says what was recorded: host, CPUs, clock, and how each event was sampled. Its keys
are those of tools/perf/util/header.c.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from tracelib.clocks import clock_named, clock_numbered
from tracelib.schema import SCHED_EVENT

#: perf prints one negative id, -1, where a thread had left already; ftrace writes "name-1234".
_ID = r"(?:-1|\d+)"
_THREAD = rf"{_ID}(?:/{_ID})?"
_CPU = r"\[-?\d+\]"

#: Right end of what stands before the first ": " of a head in the usual layout.
HEAD_TAIL = rf"(?:^|\s){_THREAD}\s+(?:{_CPU}\s+)?\d+\.\d{{6,9}}$"
#: What follows the first ": " still looks like a head: the name itself holds ": ", take the careful way.
NAME_HOLDS_HEAD = rf"^.{{0,15}}\s{_THREAD}\s+(?:{_CPU}\s+)?\d+\.\d{{1,9}}:"
#: A whole head: all before the seconds' point, the fraction, all behind the colon.
HEAD = (
    rf"^(?P<base>\s*(?:\S.{{0,15}}\s+)?{_THREAD}\s+(?:{_CPU}\s+)?(?:\S+\s+){{0,2}}?\d+)"
    r"\.(?P<fraction>\d{1,9}):(?:\s(?P<says>.*))?$"
)
#: A head without a thread, or with an overlong name.
LOOSE_HEAD = r"^(?P<base>(?:.*?\s)?\d+)\.(?P<fraction>\d{1,9}):(?:\s(?P<says>.*))?$"
#: The same without a time: good only to say so.
NO_TIME_HEAD = rf"^\s*(?:\S.{{0,15}}\s+)?{_THREAD}\s+(?:{_CPU}\s+)?(?:\d+\s+)?[\w/=,.-]+(?::[\w-]+)*:(?:\s|$)"
#: Such a head that no other program's line looks like: with a CPU, or of a tracepoint.
NO_TIME_EVENT = (
    rf"^\s*(?:\S.{{0,15}}\s+)?{_THREAD}\s+"
    rf"(?:{_CPU}\s+(?:\d+\s+)?[\w/=,.-]+(?::[\w-]+)*|(?:\d+\s+)?[a-z]\w+:[a-z]\w+):(?:\s|$)"
)

#: A head without a thread (`-F -tid`) of an event that only perf calls so: ftrace's lines look alike
#: otherwise.
NO_THREAD_HEAD = (
    r"^\s*(?:\S.{0,15}?\s+)?(?:\[\d+\]\s+)?\d+\.\d{6,9}:\s+(?:\d+\s+)?(?:cpu_\w+/)?"
    r"(?:cpu-clock|task-clock|(?:cpu-|ref-|bus-)?cycles|instructions|branch-misses|branches"
    r"|cache-misses|cache-references|(?:page|minor|major)-faults|context-switches|cpu-migrations)\b"
)

#: A head of ftrace or trace-cmd, whose names may end in a blank and a number; perf's own of a thread that had
#: left looks like one.
FTRACE_HEADER = r"(?m)^# tracer: \S+\s*$"
FTRACE_HEAD = (
    r"^.*?-\d+(?:\s+\(\s*[\d-]+\))?\s+"
    r"(?:\[\d{1,6}\](?:\s+[^\s\d\[\](]\S{3,5})?|\d{1,6}[^\s\d\[\](]\S{3,5})\s*"
    r"\d{1,19}(?:\.\d{1,9})?(?:us[ +!#*@$]?)?\s*:\s+\S"
)
DEPARTED = r"^\s*(?::-1\s+(?:-1/)?-1|-1/-1)\s"

#: Before the name, of a guest (`-F +machine_pid,+vcpu`).
VIRTUAL = r"^\s*(?:VM:\s*\d+\s+(?:VCPU:\d+\s+)?|VCPU:\d+\s+)"
#: After the cpu: `-F +misc` (letters), `-F +tod` (date and time of day).
_EXTRAS = r"(?:\s+[KUHGgMESp]{1,6})?(?:\s+\d{4}-\d\d-\d\d\s+[\d:.]+)?"
#: `-F …` layouts of what stands before the time, tried in turn.
PREFIX = (
    rf"^\s*(?P<comm>\S.{{0,15}}|\S)\s+(?P<thread>{_THREAD})(?:\s+\[(?P<cpu>-?\d+)\])?{_EXTRAS}$",
    rf"^\s*(?P<comm>\S.*?)\s+(?P<thread>{_THREAD})(?:\s+\[(?P<cpu>-?\d+)\])?{_EXTRAS}$",
    rf"^\s*(?P<comm>)(?P<thread>{_THREAD})(?:\s+\[(?P<cpu>-?\d+)\])?{_EXTRAS}$",
    rf"^\s*(?P<comm>)(?P<thread>)\[(?P<cpu>-?\d+)\]{_EXTRAS}$",
    r"^\s*(?P<comm>\S.{0,15}?)?(?P<thread>)\s*(?:\[(?P<cpu>-?\d+)\])?$",
)
#: `-L` (latency format): name cut to 8 bytes, thread of at least 5 columns (7 in newer versions), cpu of 3
#: without brackets. Threads whose names end in numbers look so in other layouts: it is one only where most
#: heads fit.
_5_WIDE = r"(?: {4}\d| {3}\d\d| {2}\d{3}| \d{4}|\d{5,}| {3}-1)"
LATENCY_PREFIX = (
    rf"^(?:(?P<comm>.{{2,8}}) )?(?P<thread> *{_5_WIDE}(?:/{_ID})?) +"
    rf"(?P<cpu> -1| {{2}}\d| \d\d|\d{{3,5}}){_EXTRAS}$"
)

#: Behind the time: period, event, the rest. Branch traces may name a kind of branch in place of an event.
EVENT = (
    r"^\s*(?:(?P<period>\d+)\s+)?(?:(?P<event>\S+?):(?:\s+|$)"
    r"|(?P<branch>PERF_RECORD_\w+"
    r"|(?:call|return|jmp|jcc|int|iret|syscall|sysret|async|hw|tx|tr|vmentry|vmexit)\b)\s*)?(?P<rest>.*)$"
)
#: `system:name`, as opposed to `cycles:u`, whose part behind the colon holds only modifiers.
TRACEPOINT = r"^[A-Za-z_][\w.-]*:[A-Za-z_]\w*$"
MODIFIERS = r"^[\w/=,.-]*:[ukhIGHpPSDeWbRX]+$"
#: A probe may have such a name, too: its group, or the address with which its text begins, tells.
PROBE = r"^(?:probe|sdt)(?:_\w+)?:"
PROBED = r"^\([0-9a-f]+(?: <- [0-9a-f]+)?\)(?:\s|$)"

#: What an event is to the reader. `record`: PERF_RECORD_…, no event of its own, but for `switched`:
#: PERF_RECORD_SWITCH….
KIND = pl.Enum(["sample", *SCHED_EVENT.categories, "tracepoint", "record", "switched"])
#: A line that `-F +metric` adds to an event: no event of its own.
METRIC = "metric"
LONGEST_CLOCK = 2**63 // 10**9
SCHEDULER = {f"{system}sched_{event}": event for system in ("sched:", "") for event in SCHED_EVENT.categories}


def prefixes(base: pl.Series) -> pl.DataFrame:
    """Return one row per `base`, the text before a time's point.

    Columns: `comm` (String, null = not printed), `pid` and `tid` (Int64, null = not printed; a single number
    is the tid), `cpu` (Int32, null = not printed, or "-1"), `seconds` (Int64, null = no time that fits 64
    bits of nanoseconds).
    """
    text = pl.col("base")
    cut = pl.DataFrame({"base": base}).select(
        text.str.extract(r"(\d+)$").cast(pl.Int64, strict=False).alias("seconds"),
        text.str.replace(r"\d+$", "").str.strip_chars_end(" \t").str.replace(VIRTUAL, "").alias("prefix"),
    )
    shown = cut["prefix"].drop_nulls()
    shown = shown.filter(shown != "")
    latency = shown.str.contains(LATENCY_PREFIX).sum() * 2 > len(shown)
    parts = [
        pl.col("prefix").str.extract_groups(pattern).struct.rename_fields(["comm", "thread", "cpu"])
        for pattern in ((LATENCY_PREFIX, *PREFIX) if latency else PREFIX)
    ]
    chosen = pl.coalesce(pl.when(part.struct.field("thread").is_not_null()).then(part) for part in parts)
    ids = pl.col("thread").str.strip_chars().str.splitn("/", 2).struct.rename_fields(["first", "second"])
    read = cut.with_columns(chosen.struct.unnest()).with_columns(ids.struct.unnest())
    pid = pl.when(pl.col("second").is_not_null()).then("first")
    cpu = pl.when(~pl.col("cpu").str.starts_with("-")).then(pl.col("cpu").str.strip_chars())
    return read.select(
        pl.col("comm").str.strip_chars().replace("", None),
        pid.cast(pl.Int64, strict=False).alias("pid"),
        pl.coalesce("second", "first").cast(pl.Int64, strict=False).alias("tid"),
        cpu.cast(pl.Int32, strict=False).alias("cpu"),
        pl.when(pl.col("seconds") < LONGEST_CLOCK).then("seconds"),
    )


def events(says: pl.Series) -> pl.DataFrame:
    """Return one row per `says`, the text behind a time: `period` (Int64), `event`, `rest`, `kind`."""
    parts = pl.DataFrame({"says": says}).select(pl.col("says").str.extract_groups(EVENT).struct.unnest())
    name = pl.coalesce("event", "branch")
    probe = name.str.contains(PROBE) | pl.col("rest").str.contains(PROBED)
    tracepoint = name.str.contains(TRACEPOINT) & (~name.str.contains(MODIFIERS) | probe)
    kind = (
        pl.when(name.str.starts_with("PERF_RECORD_SWITCH"))
        .then(pl.lit("switched"))
        .when(name.str.starts_with("PERF_RECORD_") | (name == METRIC))
        .then(pl.lit("record"))
        .when(name.is_in(list(SCHEDULER)))
        .then(name.replace(SCHEDULER))
        .when(tracepoint)
        .then(pl.lit("tracepoint"))
        .otherwise(pl.lit("sample"))
    )
    return parts.select(
        pl.col("period").cast(pl.Int64, strict=False),
        name.alias("event"),
        "rest",
        kind.cast(KIND).alias("kind"),
    )


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
