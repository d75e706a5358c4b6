"""An ftrace text to a trace: lines into events, events into frames, and what is wrong with them into `health`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from tracelib.errors import BadTrace
from tracelib.schema import COUNTERS, SLICES, SOURCES
from tracelib.sources.files import head, sha256
from tracelib.sources.ftrace import markers, nesting, sched, syscalls
from tracelib.sources.ftrace.containers import in_page, is_trace_dat, open_text
from tracelib.sources.ftrace.events import Events
from tracelib.sources.ftrace.graph import calls
from tracelib.sources.ftrace.remarks import BIGGER, Remarks, counted, of_lines, shown
from tracelib.sources.ftrace.threads import parse_tasks, thread_ids, threads_of
from tracelib.sources.text import CHUNK, chunks, lines
from tracelib.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Text", "collect", "read"]

#: In the JavaScript string of old systrace pages, every line ends so.
IN_SCRIPT = b"\\n\\\n"
#: A last line without a line end may have been cut. It is kept where all that is used of it is surely there.
SURELY_WHOLE = re.compile(r"(next_prio=\d+|target_cpu=\d{3}|\[-?\d+\]|-> 0x[0-9a-f]+|\))$")
CLOCKS = {
    "mono": "monotonic",
    "mono_raw": "monotonic_raw",
    "boot": "boottime",
    "local": "local",
    "global": "local",
}
#: cpu_frequency is in kHz (include/trace/events/power.h).
NOTHING = "unknown"


@dataclass
class Text:
    """The events of a file, and how whole it was."""

    events: Events
    damage: str | None = None  # of the compressed data
    skipped_bytes: int = 0
    cut_line: str | None = None
    not_utf8: int = 0


def collect(path: Path, chunk_size: int = CHUNK) -> Text:
    """Read the lines of the file at `path`.

    Raises
    ------
    BadTrace
        As :func:`tracelib.sources.ftrace.containers.open_text`.

    """
    page = in_page(head(path, 1 << 10))
    text = Text(Events(markup=page))
    with open_text(path) as stream:
        for piece in chunks(stream, chunk_size):
            chunk = piece.replace(IN_SCRIPT, b"\n") if page else piece
            if not chunk.endswith(b"\n") and not page:
                chunk = _without_cut_line(chunk, text)
            if not chunk:
                continue
            series, not_utf8 = lines(chunk)
            text.not_utf8 += not_utf8
            text.events.add(series)
        text.damage = stream.damage
        text.skipped_bytes += stream.lost_bytes
    text.skipped_bytes += text.events.unread_bytes
    return text


def _without_cut_line(chunk: bytes, text: Text) -> bytes:
    start = chunk.rfind(b"\n") + 1
    last = chunk[start:]
    shown_line = last[-200:].decode(errors="replace").rstrip("\r")
    if SURELY_WHOLE.search(shown_line):
        return chunk
    text.cut_line = last[:200].decode(errors="replace")
    text.skipped_bytes += len(last)
    return chunk[:start]


def read(path: Path) -> Trace:
    """Read the ftrace text (or trace.dat) at `path`.

    Raises
    ------
    BadTrace
        It holds no event although it is not empty, it is a trace.dat that cannot be unpacked here, or it cannot be opened.

    """
    try:
        text = collect(path)
    except OSError as error:
        raise BadTrace(path, "ftrace", "", f"cannot be opened ({error.strerror or error})") from error
    events = text.events
    if not events.counts and not events.no_time and events.unread:
        at, example = events.unread_example or (1, "")
        raise BadTrace(path, "ftrace", f"line {at}", "no line is an event", example)
    remarks = Remarks()
    _of_file(text, remarks)
    of_lines(events, remarks)
    return Frames(events, remarks).trace(path, text)


@dataclass
class Frames:
    """Makes the frames of one file from its events."""

    events: Events
    remarks: Remarks
    tasks: pl.DataFrame = field(init=False)
    fields: pl.DataFrame = field(init=False)
    ids: pl.DataFrame = field(init=False)
    sched_rows: pl.DataFrame | None = field(init=False)
    first_ns: int = field(init=False)
    last_ns: int = field(init=False)

    def __post_init__(self) -> None:
        """Parse each distinct task and each distinct text of fields once."""
        seen = self.events.table("task")
        self.tasks = parse_tasks(_empty_code("task") if seen is None else seen["task"])
        self.sched_rows = self.events.table("sched")
        args = _empty_code("args") if self.sched_rows is None else self.sched_rows["args"]
        self.fields = sched.states(sched.parse_fields(args))
        tids = pl.concat(
            [self.tasks["tid"], self.fields["prev"].rename("tid"), self.fields["next"].rename("tid")]
        )
        self.ids = thread_ids(tids)
        self.first_ns, self.last_ns = self.events.first_ns or 0, self.events.last_ns or 0

    def trace(self, path: Path, text: Text) -> Trace:
        """Return the trace."""
        scheduled, lost_declared = self._sched()
        marks, wall_offset_ns = self._marks()
        slices = [
            self._syscalls(scheduled),
            self._graph(),
            marks.slices.with_columns(_category("annotation")),
        ]
        missing, from_idle = sched.missing_switches(scheduled)
        self._of_losses(missing, from_idle, scheduled)
        events = self.events
        source = {
            "source": 0, "file": path.name, "sha256": sha256(path), "bytes": path.stat().st_size, "format": "ftrace",
            "recorder": self._recorder(path), "host": None, "rank": None, "cpus": events.cpus,
            "clock": CLOCKS.get(events.clock or "", NOTHING), "wall_offset_ns": wall_offset_ns, "tied_by": None,
            "offset_ns": None, "error_ns": None, "first_ns": events.first_ns, "last_ns": events.last_ns,
            "lost_declared": lost_declared, "lost_detected": missing, "skipped_bytes": text.skipped_bytes,
        }  # fmt: skip
        return Trace.of({
            "sched": scheduled.drop("index"),
            "slices": _slices(slices),
            "counters": marks.counters.with_columns(
                pl.lit(0, pl.Int32).alias("source"), pl.col("name", "track").cast(pl.Categorical())
            ).select(COUNTERS.names()),
            "threads": self._threads(marks.processes),
            "sources": pl.DataFrame([source], schema=SOURCES),
            "health": self.remarks.frame(),
        })  # fmt: skip

    def _recorder(self, path: Path) -> str | None:
        if is_trace_dat(head(path, 16)):
            return "trace-cmd"
        return f"ftrace, tracer {self.events.tracer}" if self.events.tracer else None

    def _threads_of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return `rows` with tid and thread of their task, and event: the name that their first word says."""
        thread = self.tasks.select(pl.col("code").alias("task"), "tid").join(self.ids, on="tid", how="left")
        named = pl.DataFrame(
            [(code, kind.name, kind.ends, kind.raw) for code, kind in self.events.kinds.items()],
            schema={"word": pl.UInt32, "event": pl.String, "ends": pl.Boolean, "raw": pl.Boolean}, orient="row",
        )  # fmt: skip
        return (
            rows.with_columns(pl.col("task", "word").to_physical().cast(pl.UInt32))
            .join(thread, on="task", how="left", maintain_order="left")
            .join(named, on="word", how="left", maintain_order="left")
        )

    def _sched(self) -> tuple[pl.DataFrame, int]:
        """Return the frame `sched` (with index) and how many events the recorder says it lost."""
        parts = []
        if self.sched_rows is not None:
            rows = self._threads_of(self.sched_rows).with_columns(
                pl.col("args").to_physical().cast(pl.UInt32)
            )
            bad = self.fields.filter(~pl.col("ok"))["code"]
            odd = rows.filter(pl.col("args").is_in(bad.implode()))
            if odd.height:
                self.remarks.add("warning", f"{counted(odd.height, 'scheduler event')} with fields that are not understood, "
                                 f"first at line {odd['index'][0]}")  # fmt: skip
            parts.append(sched.frame(rows, self.fields, self.tasks.select("code", "tid"), self.ids))
        marks = self._losses()
        if marks.height:
            parts.append(sched.cuts(marks))
        events = self.events
        overwritten = max(0, (events.written or 0) - (events.in_buffer or 0))
        lost = overwritten + int(marks["events"].fill_null(1).sum())
        if not parts:
            return sched.nothing(), lost
        return pl.concat(parts).sort("index", maintain_order=True), lost

    def _losses(self) -> pl.DataFrame:
        """Return the loss marks: index, cpu, events, cut_ns."""
        placed = self.events.table("lost")
        waiting = self.events.waiting.with_columns(cut_ns=pl.lit(self.last_ns, pl.Int64))
        return waiting if placed is None else pl.concat([placed, waiting])

    def _of_losses(self, missing: int, from_idle: int, scheduled: pl.DataFrame) -> None:
        events, marks = self.events, self._losses()
        if (events.written or 0) > (events.in_buffer or 0):
            lost = (events.written or 0) - (events.in_buffer or 0)
            self.remarks.add("warning", f"{counted(lost, 'event')} overwritten before they were read: the start is missing, "
                             "on each CPU up to another time", BIGGER)  # fmt: skip
        if marks.height:
            unknown = marks["events"].null_count()
            number = f"{marks['events'].sum():,}" + (
                f" and an unknown number at {unknown} places" if unknown else ""
            )
            cpus = ", ".join(str(cpu) for cpu in sorted(marks["cpu"].unique()))
            self.remarks.add("warning", f"{number} events lost on CPU {cpus} at {counted(marks.height, 'place')}; "
                             "what those CPUs did there is unknown", BIGGER)  # fmt: skip
        if missing:
            switches = scheduled.filter(pl.col("event") == "switch").height
            self.remarks.add(
                "warning",
                f"at least {missing:,} switches are missing beside {switches:,} recorded ({from_idle:,} of them from idle to a thread), "
                "although no loss is declared for them",
                "Running time is known only where a thread's arrival was recorded; record sched_waking and sched_wakeup as well.",
            )

    def _syscalls(self, scheduled: pl.DataFrame) -> pl.DataFrame:
        rows = self.events.table("syscall")
        if rows is None:
            return nesting.NO_RANGES.with_columns(_category("os"))
        rows = self._threads_of(rows).filter(pl.col("thread") >= 0)
        rows = self._one_spelling(rows)
        dead = scheduled.filter(
            pl.col("prev_state").cast(pl.String).is_in(["X", "Z"]) & (pl.col("prev") >= 0)
        )
        dead = dead.group_by(pl.col("prev").alias("thread")).agg(pl.col("ts_ns").max().alias("dead_ns"))
        calls = syscalls.paired(
            rows.select("index", "ts_ns", "thread", pl.col("event").alias("name"), "ends"),
            self.first_ns,
            self.last_ns,
            dead,
        )
        if calls.at_edges:
            self.remarks.add("info", f"{counted(calls.at_edges, 'system call')} began before the trace or did not end in it: "
                             "cut at its first and last event")  # fmt: skip
        if calls.without_end or calls.without_start:
            self.remarks.add("warning", f"system calls with an entry or exit that is missing: {calls.without_end:,} have no length, "
                             f"{calls.without_start:,} are left out", BIGGER)  # fmt: skip
        return calls.slices.with_columns(_category("os"))

    def _one_spelling(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Keep the named events where both they and raw_syscalls were recorded; name raw ones by their number."""
        raw = rows.filter("raw")
        if raw.is_empty():
            return rows
        if raw.height < rows.height:
            self.remarks.add(
                "info",
                f"{counted(raw.height, 'raw_syscalls event')} not used: the same calls stand there by name",
            )
            return rows.filter(~pl.col("raw"))
        table = syscalls.machine_of(raw["number"])
        machine = "arm64" if table is syscalls.ARM64 else "x86-64"
        self.remarks.add("info", f"system calls are named by number as on {machine}, judged by which numbers occur",
                         "To be certain, record syscalls:* instead of raw_syscalls:*")  # fmt: skip
        names = pl.col("number").replace_strict(table, default=None, return_dtype=pl.String)
        return rows.with_columns(event=pl.coalesce(names, pl.format("syscall {}", "number")))

    def _marks(self) -> tuple[markers.Marks, int | None]:
        rows = self.events.table("marker")
        if rows is None:
            return markers.nothing(), None
        rows = markers.texts(self._threads_of(rows))
        marks = markers.read_marks(rows, self.last_ns)
        if marks.open_at_end or marks.without_start:
            self.remarks.add("info", f"{counted(marks.open_at_end, 'marked range')} did not end in the trace (cut at its last event), "
                             f"{marks.without_start:,} ended that began before it (left out)")  # fmt: skip
        tie = markers.clock_tie(rows)
        if tie is not None:
            self.remarks.add("info", "tied to wall time by atrace's clock_sync mark, to 1 ms")
        return marks, tie

    def _graph(self) -> pl.DataFrame:
        rows = self.events.table("graph")
        if rows is None:
            return nesting.NO_RANGES.with_columns(_category("other"))
        ranges, open_at_end, without_start = calls(
            self._threads_of(rows).filter(pl.col("thread") >= 0), self.last_ns
        )
        if open_at_end or without_start:
            self.remarks.add("info", f"{counted(open_at_end, 'traced function')} did not return in the trace (cut at its last event), "
                             f"{without_start:,} returned that were called before it (left out)")  # fmt: skip
        return ranges.with_columns(_category("other"))

    def _threads(self, marked: pl.DataFrame) -> pl.DataFrame:
        """Return the frame `threads`: names of scheduler events are whole, the task column cuts them in latency format."""
        seen, rows = self.events.table("task"), self.sched_rows
        u4 = pl.col("code").to_physical().cast(pl.UInt32)
        names, processes = [], [marked]
        if seen is not None:
            last = seen.group_by("task").agg(pl.col("index").max()).rename({"task": "code"}).with_columns(u4)
            tasks = self.tasks.join(last, on="code")
            names.append(tasks.select("tid", "name", pl.col("index").alias("last"), pl.lit(0).alias("rank")))
            processes.append(tasks.select("tid", "pid", pl.lit(2**31, pl.UInt32).alias("count")))
        if rows is not None:
            last = rows.group_by("args").agg(pl.col("index").max()).rename({"args": "code"}).with_columns(u4)
            parsed = self.fields.join(last, on="code")
            for side in ("prev", "next"):
                names.append(parsed.select(
                    pl.col(side).alias("tid"), pl.col(f"{side}_name").alias("name"), pl.col("index").alias("last"), pl.lit(1).alias("rank")
                ))  # fmt: skip
        return threads_of(names, processes, self.ids)


def _empty_code(name: str) -> pl.Series:
    return pl.Series(name, [], dtype=pl.Categorical())


def _category(name: str) -> pl.Expr:
    return pl.lit(name).cast(SLICES["category"]).alias("category")


def _slices(parts: list[pl.DataFrame]) -> pl.DataFrame:
    missing = {"source": pl.lit(0, pl.Int32), "correlation": pl.lit(None, pl.Int64)}
    return (
        pl.concat(parts).with_columns(pl.col("name").cast(pl.Categorical()), **missing).select(SLICES.names())
    )


def _of_file(text: Text, remarks: Remarks) -> None:
    """Add what is wrong with the file as a whole."""
    if text.damage:
        remarks.add(
            "error",
            f"the file is damaged: {text.damage}; events after that are missing",
            "Copy or record it again.",
        )
    if text.cut_line is not None:
        remarks.add(
            "warning",
            f"the last line is cut and was left out: {shown(text.cut_line)!r}",
            "Copy the whole file.",
        )
    if text.not_utf8:
        remarks.add("info", f"{counted(text.not_utf8, 'place')} not UTF-8, shown as U+FFFD")
    if not text.events.counts:
        remarks.add(
            "error",
            "no event with a time and a task",
            "Switch events on before recording: trace-cmd record -e sched",
        )
