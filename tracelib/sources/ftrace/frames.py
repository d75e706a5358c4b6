"""Events of one ftrace text to the frames of a trace."""

from dataclasses import dataclass, field

import polars as pl

from tracelib.schema import COUNTERS, SCHED, SLICES
from tracelib.sources.ftrace.events import Events
from tracelib.sources.ftrace.heads import Heads
from tracelib.sources.ftrace.slices import (
    NO_RANGES,
    Marks,
    calls,
    clock_tie,
    marker_texts,
    no_marks,
    read_marks,
)
from tracelib.sources.health import Remarks
from tracelib.sources.kernel import sched, syscalls
from tracelib.sources.kernel.sched import LESS_TRUSTED, NAMES, PROCESSES, number_of, threads
from tracelib.sources.kernel.texts import codes_of
from tracelib.words import counted

#: The head's task: a name, which may hold anything, the thread's id, and its process where the option
#: `record-tgid` is on.
TASK = r"^\s*(?P<name>.*)-(?P<tid>\d+)\s*(?:\(\s*(?P<pid>[\d-]+)\s*\))?\s*$"
#: What trace-cmd prints before the task when it reports several files or buffers: "trace.dat:
#: bash-557".
PREFIX = r"^\S+:\s{2,}(\S.*)$"
SCHED_EVENT = r"^sched_(?P<event>\w+): *(?P<args>.*)$"
#: A process that the TGID column names counts more than one that the thread's own marks name, however often.
BY_COLUMN = 2**32


@dataclass
class Frames:
    """Makes the frames of one file from its events."""

    events: Events
    heads: Heads
    remarks: Remarks
    tasks: pl.DataFrame = field(init=False)
    fields: pl.DataFrame = field(init=False)
    sched_rows: pl.DataFrame | None = field(init=False)
    names: pl.DataFrame = field(init=False)
    processes: pl.DataFrame = field(init=False)
    threads: pl.DataFrame = field(init=False)  # without the processes that marks name
    first_ns: int = field(init=False)
    last_ns: int = field(init=False)
    wall_offset_ns: int | None = None
    lost_declared: int = 0
    lost_detected: int = 0

    def __post_init__(self) -> None:
        """Parse each distinct task and each distinct text of fields once."""
        self.tasks = _tasks(self.heads.tasks.all())
        texts = self.events.texts.all().to_frame("text")
        parts = texts.select(pl.col("text").str.extract_groups(SCHED_EVENT).struct.unnest())
        self.fields = sched.fields(parts["event"], parts["args"])
        rows = self.events.table("sched")
        self.sched_rows = None if rows is None else self._understood(rows)
        self.names, self.processes = self._named()
        self.threads = threads(self.names, self.processes)
        self.first_ns, self.last_ns = self.events.first_ns or 0, self.events.last_ns or 0

    def made(self) -> dict[str, pl.DataFrame]:
        """Return the frames sched, slices, counters and threads; what is wrong with them becomes remarks."""
        scheduled = self._sched()
        self._of_losses()
        self.lost_detected = sched.missing_switches(scheduled, self.remarks)
        marks = self._marks()
        slices = pl.concat(
            [self._syscalls(scheduled), _slices(self._graph(), "other"), _slices(marks.slices, "annotation")]
        )
        source = pl.lit(0, pl.Int32).alias("source")
        text = pl.col("name", "track").cast(pl.Categorical())
        return {
            "sched": scheduled.drop("index"),
            "slices": slices,
            "counters": marks.counters.with_columns(source, text).select(COUNTERS.names()),
            "threads": threads(self.names, pl.concat([self.processes, marks.processes])),
        }

    def _threads_of(self, rows: pl.DataFrame) -> pl.Series:
        return number_of(self.tasks["tid"], self.threads)[codes_of(rows["task"])]

    def _kinds_of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return what the first word of each row says: event (its name), ends."""
        kinds = [(kind.name, kind.ends) for kind in self.events.kinds]
        schema = pl.Schema({"event": pl.Categorical(), "ends": pl.Boolean()})
        return pl.DataFrame(kinds, schema=schema, orient="row")[codes_of(rows["word"])]

    def _sched(self) -> pl.DataFrame:
        """Return the frame `sched`, with index."""
        rows = self.sched_rows
        if rows is None:
            scheduled = pl.DataFrame(schema=SCHED).insert_column(0, pl.Series("index", [], pl.UInt32))
        else:
            rows = rows.select("index", "ts_ns", "cpu", self._threads_of(rows), text=codes_of(rows["text"]))
            scheduled = sched.frame(rows, self.fields, self.threads)
        marks = self._losses()
        if marks.height:
            lost = sched.losses(marks.select("index", "cpu", ts_ns="cut_ns"))
            scheduled = pl.concat([scheduled, lost]).sort("index", maintain_order=True)
        return scheduled

    def _understood(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the scheduler events without those whose fields fit no spelling, which are remarked."""
        if self.fields["ok"].all():
            return rows
        odd = ~self.fields["ok"][codes_of(rows["text"])]
        first = rows.filter(odd)["index"][0]
        odd_ones = counted(int(odd.sum()), "scheduler event")
        self.remarks.say("odd_scheduler_events", events=odd_ones, line=first)
        return rows.filter(~odd)

    def _losses(self) -> pl.DataFrame:
        placed = self.events.table("lost")
        waiting = self.events.waiting.with_columns(cut_ns=pl.lit(self.last_ns, pl.Int64))
        return waiting if placed is None else pl.concat([placed, waiting])

    def _of_losses(self) -> None:
        marks = self._losses()
        overwritten = max(0, (self.events.written or 0) - (self.events.in_buffer or 0))
        self.lost_declared = overwritten + int(marks["events"].fill_null(1).sum())
        if overwritten:
            self.remarks.say("overwritten", events=counted(overwritten, "event"))
        if marks.height:
            unknown = marks["events"].null_count()
            more = f" and an unknown number at {unknown} places" if unknown else ""
            cpus = ", ".join(str(cpu) for cpu in sorted(marks["cpu"].unique()))
            events, places = f"{marks['events'].sum():,}{more}", counted(marks.height, "place")
            self.remarks.say("events_lost", events=events, cpus=cpus, places=places)

    def _syscalls(self, scheduled: pl.DataFrame) -> pl.DataFrame:
        rows = self.events.table("syscall")
        if rows is None:
            return pl.DataFrame(schema=SLICES)
        kinds = self._kinds_of(rows).rename({"event": "call"})
        edges = rows.select("ts_ns", "number").hstack([self._threads_of(rows), *kinds])
        edges = edges.with_columns(raw=pl.col("call") == "")
        return syscalls.slices(edges, scheduled, (self.first_ns, self.last_ns), self.remarks)

    def _marks(self) -> Marks:
        rows = self.events.table("marker")
        if rows is None:
            return no_marks()
        tids = self.tasks["tid"][codes_of(rows["task"])]
        rows = marker_texts(rows.hstack([self._threads_of(rows), tids, *self._kinds_of(rows)]))
        marks = read_marks(rows, self.last_ns)
        if marks.open_at_end or marks.without_start:
            still_open = counted(marks.open_at_end, "marked range")
            self.remarks.say("open_marked_ranges", ranges=still_open, ends=f"{marks.without_start:,}")
        homeless = rows.filter(~(pl.col("thread") >= 0).fill_null(value=False)).height
        if homeless:
            self.remarks.say("homeless_texts", texts=counted(homeless, "text"))
        self.wall_offset_ns = clock_tie(rows)
        if self.wall_offset_ns is not None:
            self.remarks.add("info", "tied to wall time by atrace's clock_sync mark, to 1 ms")
        return marks

    def _graph(self) -> pl.DataFrame:
        rows = self.events.table("graph")
        if rows is None:
            return NO_RANGES
        rows = rows.hstack([self._threads_of(rows), *self._kinds_of(rows)])
        made, open_at_end, without_start = calls(rows.filter(pl.col("thread") >= 0), self.last_ns)
        if open_at_end or without_start:
            still_open = counted(open_at_end, "traced function")
            self.remarks.say("open_functions", functions=still_open, returned=f"{without_start:,}")
        return made

    def _named(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return what the lines show of names and of processes, as `threads` takes them."""
        names, processes = [pl.DataFrame(schema=NAMES)], [pl.DataFrame(schema=PROCESSES)]
        seen, rows = self.events.table("task"), self.sched_rows
        if seen is not None:  # a line that is not an event may have what looks like a task
            last = seen.group_by("task").agg(pl.col("index").cast(pl.Int64).max().alias("last"))
            tasks = self.tasks[codes_of(last["task"])].hstack([last["last"]])
            processes.append(tasks.select("tid", "pid", pl.col("last") + BY_COLUMN).drop_nulls())
            names.append(tasks.select("tid", "name", pl.col("last") - LESS_TRUSTED))
        if rows is not None:
            last = rows.unique("text", keep="last")
            fields = self.fields[codes_of(last["text"])]
            fields = fields.with_columns(last=last["index"].cast(pl.Int64))
            names += [fields.select(tid=side, name=f"{side}_name", last="last") for side in ("prev", "next")]
        return pl.concat(names), pl.concat(processes)


def _tasks(texts: pl.Series) -> pl.DataFrame:
    """Return one row per text of the task column, in their order: name, tid, pid (null = no TGID)."""
    parts = texts.to_frame("text").select(pl.col("text").str.extract_groups(TASK).struct.unnest())
    name = pl.col("name").str.strip_chars(" \t")
    ids = pl.col("tid", "pid").cast(pl.Int64, strict=False)
    return parts.select(pl.coalesce(name.str.extract(PREFIX), name).alias("name"), ids)


def _slices(ranges: pl.DataFrame, category: str) -> pl.DataFrame:
    """Return ranges (thread, ts_ns, dur_ns, name) as rows of the frame `slices`."""
    return ranges.select(
        pl.lit(0, pl.Int32).alias("source"),
        *("thread", "ts_ns", "dur_ns"),
        pl.col("name").cast(pl.Categorical()),
        pl.lit(category, SLICES["category"]).alias("category"),
        pl.lit(None, pl.Int64).alias("correlation"),
    ).match_to_schema(SLICES)
