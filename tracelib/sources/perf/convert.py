"""The JSON of `perf data convert --to-json`: samples with call chains, without event names and periods.

From tools/perf/util/data-convert-json.c (perf 5.14 and later). A tracepoint's fields stand beside the sample's own, as
strings; a switch is told by them, a wake-up cannot be told from its kin. A perf that was built without libtraceevent
writes no such fields: its tracepoints look like samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.errors import BadTrace
from tracelib.schema import SAMPLES, SCHED, SOURCES, STACKS
from tracelib.sources.files import open_stream, sha256
from tracelib.sources.kernel import sched
from tracelib.sources.kernel.threads import LESS_TRUSTED, NAMES, PROCESSES, number_of, threads
from tracelib.sources.perf import frames
from tracelib.sources.perf.decoded import Recording, Sample, Tracepoint, decoded
from tracelib.sources.perf.header import clock_of, tracepoints_of, wall_offset
from tracelib.sources.perf.health import PerfRemarks
from tracelib.trace import Trace
from tracelib.words import counted

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = "perf JSON"
EXCERPT = 80


def read_json(path: Path) -> Trace:
    """Return the trace in the JSON at `path`.

    Raises
    ------
    BadTrace
        It is no such JSON, or holds no sample with a time.

    """
    remarks = PerfRemarks()
    recording, skipped = _decoded(path, remarks)
    samples = [sample for sample in recording.samples if sample.timestamp is not None]
    if not samples:
        raise BadTrace(path, FORMAT, "", "it holds no sample with a time", "", "Record with perf record -T.")
    rows = _rows(samples)
    fields = _scheduler_fields(samples)
    who = _threads(rows, fields, recording.headers.hostname)
    rows = rows.with_columns(number_of(rows["tid"], who))
    woken = rows.filter(pl.col("kind") == "wakeup").height
    if woken:
        remarks.add(
            "info",
            f"{woken:,} wake-ups are left out: this format does not tell their kind",
            "perf script --header --ns -F +pid",
        )
    others = rows.filter(pl.col("kind") == "tracepoint").height
    if others:
        remarks.add(
            "info",
            f"{counted(others, 'tracepoint event')} left out: this format does not name them",
            "perf script --header --ns -F +pid",
        )
    if rows["kind"].eq("sample").all():
        remarks.untold(tracepoints_of(recording.headers.cmdline))
    chained, stacks = _stacks(samples, rows)
    switched = rows.with_row_index("text").filter(pl.col("kind") == "switch")
    switched = switched.select("ts_ns", "cpu", "thread", "text")
    scheduled = sched.frame(switched, fields, who).match_to_schema(SCHED)
    told = recording.headers
    clock = clock_of(told.clockid, told.cmdline)
    offset = wall_offset(clock, told.clock_time, told.real_time)
    source = {
        "source": 0,
        "file": path.name,
        "sha256": sha256(path),
        "bytes": path.stat().st_size,
        "format": "perf",
        "recorder": f"perf {recording.headers.perf_version}" if recording.headers.perf_version else None,
        "host": recording.headers.hostname,
        "cpus": recording.headers.nrcpus_online,
        "clock": clock,
        "wall_offset_ns": offset,
        "first_ns": rows["ts_ns"].min(),
        "last_ns": rows["ts_ns"].max(),
        "lost_declared": 0,
        "lost_detected": 0,
        "skipped_bytes": skipped,
    }
    if offset is None:
        remarks.add(
            "warning", f"the file does not tie its clock ({clock}) to wall time", "perf record -k mono"
        )
    source["lost_detected"] = remarks.missing_switches(scheduled, system_wide=None)
    return Trace.of(
        {
            "samples": chained,
            "stacks": stacks,
            "sched": scheduled,
            "threads": who,
            "health": remarks.frame(),
            "sources": pl.DataFrame([{name: source.get(name) for name in SOURCES.names()}], schema=SOURCES),
        }
    )


def _decoded(path: Path, remarks: PerfRemarks) -> tuple[Recording, int]:
    """Return the recording and how many bytes of it could not be read."""
    with open_stream(path) as stream:
        data = stream.readall()
        damage = stream.damage
    recording, lost, ended = decoded(data)
    skipped = sum(len(text.encode()) for text in lost)
    said = [] if ended else ["the file ends early" + (f" ({damage})" if damage else "")]
    if lost:
        said.append(
            f"{counted(len(lost), 'part')} of it ({skipped:,} bytes) cannot be read, e.g. {lost[0][:EXCERPT]!r}"
        )
    if said:
        remarks.add("error", "; ".join(said), "convert it again: perf data convert --to-json")
    return recording, skipped


def _rows(samples: list[Sample]) -> pl.DataFrame:
    """Return one row per sample: its own fields, and what kind of event it is."""
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
    """Return the frame `threads`, from the samples and what those of switches say."""
    rows = rows.with_row_index("last").with_columns(pl.col("last").cast(pl.Int64))
    said = fields.with_columns(last=rows["last"] - LESS_TRUSTED).filter(rows["kind"] == "switch")
    sides = [said.select(tid=side, name=f"{side}_name", last="last") for side in ("prev", "next")]
    names = pl.concat(side.select(NAMES.names()) for side in (rows.rename({"comm": "name"}), *sides))
    return threads(names, rows.select(PROCESSES.names()).drop_nulls(), host)


def _stacks(samples: list[Sample], rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frames `samples` and `stacks`."""
    names = pl.DataFrame(
        [(at, f.symbol or "[unknown]", f.dso) for at, s in enumerate(samples) for f in s.callchain],
        schema={"event": pl.Int64, "symbol": pl.String, "library": pl.String},
        orient="row",
    )
    kept = names.filter((rows["kind"] == "sample").gather(names["event"]))
    distinct = kept.select("symbol", "library").unique(maintain_order=True).with_row_index("frame")
    numbered = kept.join(distinct, on=["symbol", "library"], nulls_equal=True, maintain_order="left")
    stack, stacks = frames.intern(
        numbered["event"].to_numpy(), numbered["frame"].cast(pl.Int64).to_numpy(), len(samples)
    )
    made = (
        rows.with_columns(pl.Series("stack", stack, dtype=pl.Int32))
        .filter(pl.col("kind") == "sample")
        .select(
            pl.lit(0, pl.Int32).alias("source"),
            "thread",
            "ts_ns",
            "cpu",
            pl.lit(None, pl.Categorical()).alias("event"),
            pl.lit(None, pl.Int64).alias("period"),
            pl.when(pl.col("stack") >= 0).then("stack").alias("stack"),
        )
    )
    named = stacks.select(
        "stack",
        "depth",
        *(
            distinct[name].gather(stacks["frame"]).cast(pl.Categorical()).alias(name)
            for name in ("symbol", "library")
        ),
    )
    return made.match_to_schema(SAMPLES), named.match_to_schema(STACKS)
