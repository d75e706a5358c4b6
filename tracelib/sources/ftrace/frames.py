"""Events of one ftrace text to the frames of a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import COUNTERS, IDLE, SLICE_CATEGORY
from tracelib.sources import syscall_names
from tracelib.sources.ftrace import markers, nesting, sched, syscalls
from tracelib.sources.ftrace.filtered import threads_recorded
from tracelib.sources.ftrace.graph import calls
from tracelib.sources.ftrace.interned import codes_of
from tracelib.sources.ftrace.remarks import BIGGER
from tracelib.sources.ftrace.threads import parse_tasks, thread_ids, threads_of
from tracelib.sources.remarks import Remarks, counted

if TYPE_CHECKING:
    from tracelib.sources.ftrace.events import Events
    from tracelib.sources.ftrace.heads import Heads

__all__ = ["Frames"]


@dataclass
class Frames:
    """Makes the frames of one file from its events."""

    events: Events
    heads: Heads
    remarks: Remarks
    tasks: pl.DataFrame = field(init=False)
    fields: pl.DataFrame = field(init=False)
    ids: pl.DataFrame = field(init=False)
    sched_rows: pl.DataFrame | None = field(init=False)
    first_ns: int = field(init=False)
    last_ns: int = field(init=False)
    wall_offset_ns: int | None = None
    lost_declared: int = 0
    lost_detected: int = 0

    def __post_init__(self) -> None:
        """Parse each distinct task and each distinct text of fields once."""
        self.tasks = parse_tasks(self.heads.tasks.all())
        self.sched_rows = self.events.table("sched")
        self.fields = sched.states(sched.parse_fields(self.events.texts.all()))
        seen = self.events.table("task")  # a line that is no event may have had what looks like a task
        tasks = self.tasks if seen is None else self.tasks[codes_of(seen["task"])]
        tids = pl.concat([tasks["tid"], self.fields["prev"].rename("tid"), self.fields["next"].rename("tid")])
        self.ids = thread_ids(tids)
        self.first_ns, self.last_ns = self.events.first_ns or 0, self.events.last_ns or 0

    def made(self) -> dict[str, pl.DataFrame]:
        """Return the frames sched, slices, counters and threads; what is wrong with them becomes remarks."""
        scheduled = self._sched()
        self._of_losses()
        self._of_gaps(scheduled)
        marks = self._marks()
        name = pl.col("name").cast(pl.Categorical())
        slices = pl.concat(
            [
                self._syscalls(scheduled).with_columns(name, category=pl.lit("os").cast(SLICE_CATEGORY)),
                self._graph().with_columns(name, category=pl.lit("other").cast(SLICE_CATEGORY)),
                marks.slices.with_columns(name, category=pl.lit("annotation").cast(SLICE_CATEGORY)),
            ]
        )
        source = pl.lit(0, pl.Int32).alias("source")
        text = pl.col("name", "track").cast(pl.Categorical())
        return {
            "sched": scheduled.drop("index"),
            "slices": slices.select(
                source,
                "thread",
                "ts_ns",
                "dur_ns",
                "name",
                "category",
                pl.lit(None, pl.Int64).alias("correlation"),
            ),
            "counters": marks.counters.with_columns(source, text).select(COUNTERS.names()),
            "threads": self._threads(marks.processes),
        }

    def _threads_of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return `rows` with tid and thread of their task, and event: the name that their first word says."""
        thread = self.tasks.select("tid").join(self.ids, on="tid", how="left", maintain_order="left")
        named = pl.DataFrame(
            [(kind.name, kind.ends, kind.raw) for kind in self.events.kinds],
            schema={"event": pl.Categorical(), "ends": pl.Boolean, "raw": pl.Boolean},
            orient="row",
        )
        found = [*thread[codes_of(rows["task"])], *named[codes_of(rows["word"])]]
        return rows.drop("task", "word").hstack(found)

    def _sched(self) -> pl.DataFrame:
        """Return the frame `sched`, with index."""
        rows = self.sched_rows
        if rows is not None:
            rows = self._understood(rows)
            scheduled = sched.frame(rows, self.fields, self.tasks, self.ids)
        else:
            scheduled = sched.nothing()
        marks = self._losses()
        if marks.height:
            scheduled = pl.concat([scheduled, sched.cuts(marks)]).sort("index", maintain_order=True)
        return scheduled

    def _understood(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the scheduler events without those whose fields fit no spelling, which are remarked."""
        if self.fields["ok"].all():
            return rows
        odd = ~self.fields["ok"][codes_of(rows["text"])]
        first = rows.filter(odd)["index"][0]
        self.remarks.add(
            "warning",
            f"{counted(int(odd.sum()), 'scheduler event')} with fields that are not understood, "
            f"first at line {first}",
        )
        return rows.filter(~odd)

    def _losses(self) -> pl.DataFrame:
        """Return the loss marks: index, cpu, events, cut_ns."""
        placed = self.events.table("lost")
        waiting = self.events.waiting.with_columns(cut_ns=pl.lit(self.last_ns, pl.Int64))
        return waiting if placed is None else pl.concat([placed, waiting])

    def _of_losses(self) -> None:
        """Remark what the recorder says it lost."""
        marks = self._losses()
        overwritten = max(0, (self.events.written or 0) - (self.events.in_buffer or 0))
        self.lost_declared = overwritten + int(marks["events"].fill_null(1).sum())
        if overwritten:
            self.remarks.add(
                "warning",
                f"{counted(overwritten, 'event')} overwritten before they were read: the start is missing, "
                "on each CPU up to another time",
                BIGGER,
            )
        if marks.height:
            unknown = marks["events"].null_count()
            number = f"{marks['events'].sum():,}" + (
                f" and an unknown number at {unknown} places" if unknown else ""
            )
            cpus = ", ".join(str(cpu) for cpu in sorted(marks["cpu"].unique()))
            self.remarks.add(
                "warning",
                f"{number} events lost on CPU {cpus} at {counted(marks.height, 'place')}; "
                "what those CPUs did there is unknown",
                BIGGER,
            )

    def _of_gaps(self, scheduled: pl.DataFrame) -> None:
        """Remark the switches that are proven to be missing: not recorded on purpose, or lost."""
        gaps = sched.gaps(scheduled)
        if gaps.is_empty():
            return
        if threads := threads_recorded(scheduled, gaps):
            self.remarks.add(
                "info",
                f"recorded for some threads only (at least {threads:,}): switches of others are not in the file, "
                f"what came in between is unknown at {counted(gaps.height, 'place')}",
                "To see who else ran, record all threads: without set_event_pid, or trace-cmd record without -P and -F.",
            )
            return
        self.lost_detected = gaps.height
        switches = scheduled.filter(pl.col("event") == "switch").height
        from_idle = int((gaps["came"] == IDLE).sum())
        self.remarks.add(
            "warning",
            f"at least {gaps.height:,} switches are missing beside {switches:,} recorded ({from_idle:,} of them from idle to a thread), "
            "although no loss is declared for them",
            "Running time is known only where a thread's arrival was recorded; record sched_waking and sched_wakeup as well.",
        )

    def _syscalls(self, scheduled: pl.DataFrame) -> pl.DataFrame:
        rows = self.events.table("syscall")
        if rows is None:
            return nesting.NO_RANGES
        rows = self._threads_of(rows).select("ts_ns", "thread", "event", "ends", "raw", "number")
        if not (rows["thread"] >= 0).all(ignore_nulls=False):
            rows = rows.filter(pl.col("thread") >= 0)
        rows = self._one_spelling(rows)
        state = pl.col("prev_state")
        dead = scheduled.filter(((state == "X") | (state == "Z")) & (pl.col("prev") >= 0))
        dead = dead.group_by(pl.col("prev").alias("thread")).agg(pl.col("ts_ns").max().alias("dead_ns"))
        calls = syscalls.paired(
            rows.select("ts_ns", "thread", pl.col("event").alias("name"), "ends"),
            self.first_ns,
            self.last_ns,
            dead,
        )
        if calls.at_edges:
            self.remarks.add(
                "info",
                f"{counted(calls.at_edges, 'system call')} began before the trace or did not end in it: "
                "cut at its first and last event",
            )
        if calls.without_end or calls.without_start:
            self.remarks.add(
                "warning",
                f"system calls with an entry or exit that is missing: {calls.without_end:,} have no length, "
                f"{calls.without_start:,} are left out",
                BIGGER,
            )
        return calls.slices

    def _one_spelling(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Leave out raw_syscalls events of calls that stand there by name as well; name the others by their number."""
        if not rows["raw"].any():
            return rows
        twice = rows.select(syscall_names.told_twice(pl.col("raw"), pl.col("ends"))).to_series()
        if twice.any():
            self.remarks.add(
                "info",
                f"{counted(int(twice.sum()), 'raw_syscalls event')} not used: the same calls stand there by name",
            )
            rows = rows.filter(~twice)
        numbered = rows.filter("raw")
        if numbered.is_empty():
            return rows
        machine = syscall_names.judged(numbered["number"], self.remarks)
        named = syscall_names.by_number(pl.col("number"), machine).cast(pl.Categorical())
        return rows.with_columns(event=pl.when("raw").then(named).otherwise("event"))

    def _marks(self) -> markers.Marks:
        rows = self.events.table("marker")
        if rows is None:
            return markers.nothing()
        rows = markers.texts(self._threads_of(rows))
        marks = markers.read_marks(rows, self.last_ns)
        if marks.open_at_end or marks.without_start:
            self.remarks.add(
                "info",
                f"{counted(marks.open_at_end, 'marked range')} did not end in the trace (cut at its last event), "
                f"{marks.without_start:,} ended that began before it (left out)",
            )
        homeless = rows.filter(~(pl.col("thread") >= 0).fill_null(value=False)).height
        if homeless:
            self.remarks.add(
                "info",
                f"{counted(homeless, 'text')} written while a CPU was idle belong to no thread: left out",
            )
        self.wall_offset_ns = markers.clock_tie(rows)
        if self.wall_offset_ns is not None:
            self.remarks.add("info", "tied to wall time by atrace's clock_sync mark, to 1 ms")
        return marks

    def _graph(self) -> pl.DataFrame:
        rows = self.events.table("graph")
        if rows is None:
            return nesting.NO_RANGES
        ranges, open_at_end, without_start = calls(
            self._threads_of(rows).filter(pl.col("thread") >= 0), self.last_ns
        )
        if open_at_end or without_start:
            self.remarks.add(
                "info",
                f"{counted(open_at_end, 'traced function')} did not return in the trace (cut at its last event), "
                f"{without_start:,} returned that were called before it (left out)",
            )
        return ranges

    def _threads(self, marked: pl.DataFrame) -> pl.DataFrame:
        """Return the frame `threads`: names of scheduler events are whole, the task column cuts them in latency format."""
        seen, rows = self.events.table("task"), self.sched_rows
        names, processes = [], [marked]
        if seen is not None:
            last = seen.group_by("task").agg(pl.col("index").max().alias("last"))
            tasks = self.tasks[codes_of(last["task"])].hstack([last["last"]])
            names.append(tasks.select("tid", "name", "last", pl.lit(0).alias("rank")))
            processes.append(tasks.select("tid", "pid", pl.lit(2**31, pl.UInt32).alias("count")))
        if rows is not None:
            last = rows.unique("text", keep="last")
            parsed = self.fields[codes_of(last["text"])].hstack([last["index"]])
            names += [
                parsed.select(
                    tid=pl.col(side), name=pl.col(f"{side}_name"), last=pl.col("index"), rank=pl.lit(1)
                )
                for side in ("prev", "next")
            ]
        return threads_of(names, processes, self.ids)
