"""The JSON of `perf data convert --to-json`: samples with call chains, without event names and periods.

From tools/perf/util/data-convert-json.c (perf 5.14 and later). A tracepoint's fields stand among
the sample's own, as strings: they show a switch, but not which kind of wake-up. A perf that was
built without libtraceevent writes no such fields: its tracepoints look like samples.

The file is decoded whole in one go, or, where that fails, one sample at a time. A broken sample
(cut, of other types, a number beyond 64 bits) costs itself: the next one starts at the next brace followed by
a timestamp, which perf writes first.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import polars as pl

from tracelib.errors import BadTrace
from tracelib.schema import SAMPLES, SCHED
from tracelib.sources.files import open_stream, sha256
from tracelib.sources.health import source_frame
from tracelib.sources.kernel import sched
from tracelib.sources.kernel.sched import LESS_TRUSTED, NAMES, PROCESSES, number_of, threads
from tracelib.sources.perf import call_chains
from tracelib.sources.perf.heads import clock_of, tracepoints_of, wall_offset
from tracelib.sources.perf.remarks import PerfRemarks
from tracelib.trace import Trace
from tracelib.words import counted, plain

FORMAT = "perf JSON"
AS_TEXT = "perf script --header --ns -F +pid"
EXCERPT = 80
Int64 = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
Int32 = Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]
UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
START = re.compile(r'\{\s*"timestamp"')
FIRST_SAMPLE = re.compile(r'"samples"\s*:\s*\[')
HEADERS = re.compile(r'"headers"\s*:\s*(?=\{)')
GAP = re.compile(r"[\s,]*")
#: Takes raw control characters inside texts, and NaN, which the format forbids.
_READER = json.JSONDecoder(strict=False)
#: What closes the file behind the list of samples.
CLOSING = " \t\r\n}]"


class Frame(msgspec.Struct):
    """One frame of a call chain, innermost first."""

    ip: str = ""
    symbol: str | None = None
    dso: str | None = None


class Sample(msgspec.Struct, forbid_unknown_fields=True):
    """One sample; the kernel fields of a switch or a wake-up where there are any."""

    timestamp: Int64 | None = None
    pid: Int64 | str | None = None
    tid: Int64 | None = None
    cpu: Int32 | None = None
    comm: str | None = None
    callchain: list[Frame] = []
    prev_pid: str | None = None
    next_pid: str | None = None
    prev_state: str | None = None
    prev_comm: str | None = None
    next_comm: str | None = None
    target_cpu: str | None = None
    prev_prio: str | None = None
    next_prio: str | None = None
    prio: str | None = None
    success: str | None = None


class Tracepoint(Sample, forbid_unknown_fields=False):
    """A sample with other fields than those: perf adds a tracepoint's fields to those of a sample."""


FIELDS = frozenset(Sample.__struct_fields__)


class Headers(msgspec.Struct, rename="kebab"):
    """What the recording says of itself."""

    hostname: str | None = None
    nrcpus_online: Int32 | None = None
    clockid: Int32 | None = None
    clock_time: Int64 | None = None
    real_time: Int64 | None = None
    perf_version: str | None = None
    cmdline: list[str] = []


class Recording(msgspec.Struct):
    """The whole file."""

    headers: Headers = msgspec.field(default_factory=Headers)
    samples: list[Sample] = []


class _Values(msgspec.Struct):
    """The whole file, its samples not looked at yet."""

    headers: Headers = msgspec.field(default_factory=Headers)
    samples: list[dict[str, Any]] = []


def read_json(path: Path) -> Trace:
    """Return the trace in the JSON at `path`; BadTrace if it holds no sample with a time."""
    remarks = PerfRemarks()
    recording, skipped = _recording(path, remarks)
    headers = recording.headers
    samples = [sample for sample in recording.samples if sample.timestamp is not None]
    if not samples:
        raise BadTrace(path, FORMAT, "", "it holds no sample with a time", "", "Record with perf record -T.")
    rows = _rows(samples)
    _remark_on_tracepoints(remarks, rows["kind"], headers)
    fields = _scheduler_fields(samples)
    who = _threads(rows, fields, headers.hostname)
    rows = rows.with_columns(number_of(rows["tid"], who))
    sampled, stacks = _samples(samples, rows)
    switches = rows.with_row_index("text").filter(pl.col("kind") == "switch")
    scheduled = sched.frame(switches.select("ts_ns", "cpu", "thread", "text"), fields, who)
    clock = clock_of(headers.clockid, headers.cmdline)
    source = source_frame(
        path,
        "perf",
        sha256=sha256(path),
        recorder=f"perf {headers.perf_version}" if headers.perf_version else None,
        host=headers.hostname,
        cpus=headers.nrcpus_online,
        clock=clock,
        wall_offset_ns=remarks.untied(clock, wall_offset(clock, headers.clock_time, headers.real_time)),
        first_ns=rows["ts_ns"].min(),
        last_ns=rows["ts_ns"].max(),
        lost_declared=0,
        lost_detected=remarks.missing_switches(scheduled, system_wide=None),
        skipped_bytes=skipped,
    )
    return Trace.of(
        {
            "samples": sampled,
            "stacks": stacks,
            "sched": scheduled.match_to_schema(SCHED),
            "threads": who,
            "health": remarks.frame(),
            "sources": source,
        }
    )


def _remark_on_tracepoints(remarks: PerfRemarks, kinds: pl.Series, headers: Headers) -> None:
    if wakeups := int((kinds == "wakeup").sum()):
        remarks.add(
            "info", f"{wakeups:,} wake-ups are left out: this format does not tell their kind", AS_TEXT
        )
    if others := int((kinds == "tracepoint").sum()):
        left_out = f"{counted(others, 'tracepoint event')} left out: this format does not name them"
        remarks.add("info", left_out, AS_TEXT)
    if (kinds == "sample").all():
        remarks.indistinct(tracepoints_of(headers.cmdline))


def _recording(path: Path, remarks: PerfRemarks) -> tuple[Recording, int]:
    """Return the recording and how many bytes of it could not be read."""
    with open_stream(path) as stream:
        data = stream.readall()
        damage = stream.damage
    recording, lost, ended = decoded(data)
    skipped = sum(len(text.encode()) for text in lost)
    flaws = [] if ended else ["the file ends early" + (f" ({damage})" if damage else "")]
    if lost:
        flaws.append(
            f"{counted(len(lost), 'part')} of it ({skipped:,} bytes) cannot be read, "
            f"e.g. '{plain(lost[0], EXCERPT)}'"
        )
    if flaws:
        remarks.add("error", "; ".join(flaws), "convert it again: perf data convert --to-json")
    return recording, skipped


def _rows(samples: list[Sample]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "ts_ns": pl.Series([s.timestamp for s in samples], dtype=pl.Int64),
            # a wake-up's own field `pid` hides the sample's
            "pid": pl.Series([s.pid if isinstance(s.pid, int) else None for s in samples], dtype=pl.Int64),
            "tid": pl.Series([s.tid for s in samples], dtype=pl.Int64),
            "cpu": pl.Series([s.cpu for s in samples], dtype=pl.Int32),
            "comm": pl.Series([s.comm for s in samples], dtype=pl.String),
            "kind": [_kind(sample) for sample in samples],
        }
    )


def _kind(sample: Sample) -> str:
    if sample.next_pid and sample.prev_pid:
        return "switch"
    if sample.target_cpu:
        return "wakeup"
    # those that hide the sample's own `pid`, or have a priority, have no other fields
    named = isinstance(sample, Tracepoint) or isinstance(sample.pid, str) or sample.prio is not None
    return "tracepoint" if named else "sample"


def _scheduler_fields(samples: list[Sample]) -> pl.DataFrame:
    """Return what the fields of switches say, one row per sample."""
    rows = [(s.prev_comm, s.prev_pid, s.prev_state or "?", s.next_comm, s.next_pid) for s in samples]
    columns = ["prev_name", "prev", "state", "next_name", "next"]
    texts = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")
    fields = texts.with_columns(pl.col("prev", "next").cast(pl.Int64, strict=False))
    return fields.with_columns(
        sched.states(fields).alias("prev_state"),
        pl.lit("switch", SCHED["event"]).alias("event"),
        pl.lit(None, pl.Int64).alias("cpu"),
    )


def _threads(rows: pl.DataFrame, fields: pl.DataFrame, host: str | None) -> pl.DataFrame:
    rows = rows.with_row_index("last").with_columns(pl.col("last").cast(pl.Int64))
    switches = fields.with_columns(last=rows["last"] - LESS_TRUSTED).filter(rows["kind"] == "switch")
    sides = [switches.select(tid=side, name=f"{side}_name", last="last") for side in ("prev", "next")]
    names = pl.concat(side.select(NAMES.names()) for side in (rows.rename({"comm": "name"}), *sides))
    return threads(names, rows.select(PROCESSES.names()).drop_nulls(), host)


def _samples(samples: list[Sample], rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    frames = pl.DataFrame(
        [(at, f.symbol or "[unknown]", f.dso) for at, s in enumerate(samples) for f in s.callchain],
        schema={"event": pl.Int64, "symbol": pl.String, "library": pl.String},
        orient="row",
    )
    frames = frames.filter((rows["kind"] == "sample").gather(frames["event"]))
    distinct = frames.select("symbol", "library").unique(maintain_order=True).with_row_index("frame")
    chains = frames.join(distinct, on=["symbol", "library"], nulls_equal=True, maintain_order="left")
    stack, stacks = call_chains.stacks(chains, distinct, len(samples))
    sampled = rows.with_columns(stack).filter(pl.col("kind") == "sample")
    not_recorded = {"event": pl.lit(None, pl.Categorical()), "period": pl.lit(None, pl.Int64)}
    return sampled.select(
        "thread", "ts_ns", "cpu", "stack", source=pl.lit(0, pl.Int32), **not_recorded
    ).match_to_schema(SAMPLES), stacks


def decoded(data: bytes) -> tuple[Recording, list[str], bool]:
    """Return the recording in `data`, the stretches that could not be read, and whether its end is there."""
    try:
        return _whole(data), [], True
    except UNREADABLE:
        text = data.decode("utf-8-sig", errors="replace")
    recording, lost = Recording(headers=_headers(text)), list[str]()
    first = FIRST_SAMPLE.search(text)
    at = first.end() if first else len(text)
    for sample, end in _listed(text, at):
        at = end
        if isinstance(sample, Sample):
            recording.samples.append(sample)
        else:
            lost.append(sample)
    behind = text[at:].strip(CLOSING)
    if behind and not HEADERS.search(behind):
        lost.append(behind)
    return recording, lost, _next(text, at) < len(text)


def _whole(data: bytes) -> Recording:
    """Return the recording in `data`; samples with other fields cost a second look at all of them."""
    try:
        return msgspec.json.decode(data, type=Recording)
    except msgspec.ValidationError:
        values = msgspec.json.decode(data, type=_Values)
        return Recording(values.headers, [_sample(value) for value in values.samples])


def _sample(value: object) -> Sample:
    others = isinstance(value, dict) and not value.keys() <= FIELDS
    return msgspec.convert(value, Tracepoint if others else Sample)


def _headers(text: str) -> Headers:
    """Return what of the headers is readable, each field by itself."""
    start = HEADERS.search(text)
    try:
        fields = _READER.raw_decode(text, start.end())[0] if start else {}
    except UNREADABLE:
        fields = {}
    headers = Headers()
    for name, written in zip(Headers.__struct_fields__, Headers.__struct_encode_fields__, strict=True):
        try:
            setattr(headers, name, getattr(msgspec.convert({written: fields[written]}, Headers), name))
        except (KeyError, *UNREADABLE):
            continue
    return headers


def _listed(text: str, at: int) -> Iterator[tuple[Sample | str, int]]:
    """Yield each sample in the list that begins at `at`, or the text in place of one; and where it ends."""
    while (at := _next(text, at)) < len(text) and text[at] != "]":
        try:
            value, end = _READER.raw_decode(text, at)
            sample: Sample | str = _sample(value)
        except msgspec.ValidationError:
            sample = text[at:end]
        except UNREADABLE:
            following = START.search(text, at + 1)
            end = following.start() if following else len(text)
            sample = text[at:end]
        yield sample, end
        at = end


def _next(text: str, at: int) -> int:
    """Return where the next value begins."""
    gap = GAP.match(text, at)
    return gap.end() if gap else at
