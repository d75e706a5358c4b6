"""What stands after the head of an event line, by kind of event, chunk by chunk: only what is used is kept.

The first word says which event it is. Texts repeat (a pair of threads switches many times), and each distinct
one is looked at once in a chunk; those of scheduler events are kept interned and their fields read once, at
the end.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from tracelib.sources.ftrace.heads import Piece
from tracelib.sources.ftrace.slices import graph_events
from tracelib.sources.kernel import syscalls
from tracelib.sources.kernel.texts import Texts, codes_of

#: First words, by the group of the event that they name; the first that fits counts.
WORDS = tuple(
    (re.compile(pattern), group, ends)
    for pattern, group, ends in (
        (r"sched_(switch|wakeup|waking|wakeup_new):", "sched", False),
        # trace_marker (tracing_mark_write, or print), trace_printk (bprint, bputs); "0" in kernels before 3.4
        (r"(tracing_mark_write|print|bprint|bputs|0)(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?:", "marker", False),
        (r"(funcgraph_entry):", "graph", False),
        (r"(funcgraph_exit):", "graph", True),
        (r"(\S+):", "other", False),
    )
)
#: First words of events that are neither named nor functions. The second is the kernel's "UNKNOWN TYPE 5":
#: with the option `fields` it prints nothing else of text that programs wrote.
UNPRINTED = "unknown type"
BARE = {"<stack": "stack trace", "UNKNOWN": UNPRINTED}
#: tracefs and trace-cmd; the number is absent where the kernel does not know it. Of a buffer or one of
#: several files, trace-cmd writes the name before it.
LOST = (
    r"^(?:\s*\S+:\s+)?CPU:(?P<cpu>\d{1,6}) "
    r"\[(?:LOST (?:(?P<lost>\d+) )?EVENTS|(?:(?P<dropped>\d+) )?EVENTS DROPPED)\]"
)
WRITTEN = re.compile(r"^#.*entries-in-buffer/entries-written:\s*(\d{1,17})/(\d{1,17})\b")
CPUS = re.compile(r"^(?:(?:\s*\S+:\s+)?cpus=(\d{1,6})|#.*#P:(\d{1,6}))\b")
CLOCK = re.compile(r"^#\s*(?:trace_)?clock:\s*(?:.*\[)?(\w[\w-]*)")
TRACER = re.compile(r"^# tracer: (\S+)")
#: What systrace appends where the device had no such mark.
NO_SYNC = "trace_event_clock_sync: parent_ts=0.0"
#: Lines that belong to the text but say nothing of their own: blank, a kernel stack (its head is an event),
#: the mark of the thread that a function graph goes on with, its arrows at interrupts, trace-cmd's remarks.
SILENT = (
    r"^\s*$|^\s*=> |^ -{20,}$|^ *\d+\)\s+\S.*\s=>\s|^.*\d\) .*(?:={9,}>|<={9,}) \|\s*$"
    r"|^version = |^CPU \d+ is empty|^(?:\s*\S+:\s+)?(?:cpus=\d+|CPU:\d+ \[.*EVENTS)"
)


class Kind(NamedTuple):
    """What a first word says: the group that the event goes to, its name, and whether it ends something."""

    group: str  # sched, syscall, marker, graph, other
    name: str  # "" = a system call that only its number names
    ends: bool = False


def kind_of(word: str) -> Kind:
    """Return what the first word of a rest says; without the colon of an event's name it is a function."""
    if edge := syscalls.edge_of(word):
        return Kind("syscall", edge.call, edge.ends)
    for pattern, group, ends in WORDS:
        if matched := pattern.fullmatch(word):
            return Kind(group, matched[1], ends)
    return Kind("other", next((name for start, name in BARE.items() if word.startswith(start)), "function"))


def _name(word: str) -> str:
    """Return the event's name as the text spells it: what is counted."""
    kind = kind_of(word)
    return re.split(r"[:(]", word)[0] if kind.group in {"sched", "syscall"} else kind.name


#: What is kept of the events of each group, besides index, ts_ns, cpu and task.
KEPT = {
    "sched": ["text"],
    "syscall": ["word", "number"],
    "marker": ["word", "args"],
    "graph": ["word", "args"],
}
GROUPS = (*KEPT, "other")
NUMBER = pl.col("args").str.extract(syscalls.NUMBER).cast(pl.Int32, strict=False)
MOST_HEADERS = 1000
MARKS = pl.Schema({"index": pl.UInt32, "cpu": pl.Int32, "events": pl.Int64})


@dataclass
class Events:
    """What is kept of a file."""

    words: Texts = field(default_factory=Texts)
    texts: Texts = field(default_factory=Texts)  # of scheduler events, whole
    kinds: list[Kind] = field(default_factory=list)  # by the code of the word
    parts: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    #: Loss marks without their time yet.
    waiting: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=MARKS))
    markup: bool = False  # the text stands in a web page: what is not an event is the page's
    first_ns: int | None = None
    last_ns: int | None = None
    in_buffer: int | None = None
    written: int | None = None
    cpus: int | None = None
    clock: str | None = None
    tracer: str | None = None
    continued: int = 0
    in_marker: bool = False  # the last event was text, which may go on in the next piece
    no_time: int = 0  # lines of a function graph without a time or a task
    unread: int = 0
    unread_bytes: int = 0
    unread_example: tuple[int, str] | None = None

    def add(self, piece: Piece) -> None:
        """Take the next lines of the file."""
        for line in piece.comments:
            self._header(line)
        events, others = piece.events, piece.others
        if others.height:
            drawn, others, no_time = graph_events(others)
            self.no_time += no_time
            rest = piece.rests.add(drawn["rest"])
            drawn = drawn.cast({"task": events.schema["task"]}).with_columns(rest=rest)
            events = pl.concat([events, drawn]).sort("index") if drawn.height else events
        if (events["ts_ns"] == 0).any():
            empty_sync = piece.rests.all().str.ends_with(NO_SYNC)[events["rest"]]
            events = events.filter(~((pl.col("ts_ns") == 0) & empty_sync))
        markers = self._keep(events, piece.rests.all()) if events.height else events["index"]
        if others.height:
            self._others(others, events["index"], markers)
        if events.height:
            self.in_marker = markers.tail(1).equals(events["index"].tail(1))
            self._place_losses(events)

    def table(self, group: str) -> pl.DataFrame | None:
        """Return the rows of `group` in the order of the file, None if there are none."""
        parts = self.parts.get(group)
        return pl.concat(parts) if parts else None

    def _header(self, line: str) -> None:
        if matched := WRITTEN.match(line):
            self.in_buffer = (self.in_buffer or 0) + int(matched[1])
            self.written = (self.written or 0) + int(matched[2])
        if matched := CPUS.match(line):
            self.cpus = int(matched[1] or matched[2])
        if matched := CLOCK.match(line):
            self.clock = matched[1]
        if matched := TRACER.match(line):
            self.tracer = matched[1]

    def _keep(self, events: pl.DataFrame, rests: pl.Series) -> pl.Series:
        """Keep what is used of events, by group; return the indices of those that are markers."""
        first, last = events.select(first=pl.col("ts_ns").min(), last=pl.col("ts_ns").max()).row(0)
        self.first_ns = first if self.first_ns is None else min(first, self.first_ns)
        self.last_ns = last if self.last_ns is None else max(last, self.last_ns)
        self._part("task", events.select("task", "index").unique("task", keep="last"))
        place = events["rest"].alias("place")
        table = self._kinds(rests, place)
        rows = events.select("index", "ts_ns", "cpu", "task").hstack([place])
        group = table["group"][place]
        of = {name: rows.filter(group == GROUPS.index(name)) for name in GROUPS[:-1]}
        for name, some in of.items():
            self._part(name, some.drop("place").hstack(table.select(KEPT[name])[some["place"]]))
        return of["marker"]["index"]

    def _kinds(self, texts: pl.Series, places: pl.Series) -> pl.DataFrame:
        """Return what the distinct texts say: word, text, args, number, group (index in GROUPS)."""
        split = pl.col("text").str.splitn(" ", 2).struct.rename_fields(["word", "args"]).struct.unnest()
        args = pl.col("args").str.strip_chars_start(" ").fill_null("")
        uses = pl.Series("uses", np.bincount(places, minlength=texts.len()))
        table = texts.to_frame().with_columns(split)
        table = table.with_columns(pl.col("word").cast(self.words.kind), args, uses)
        table = table.with_columns(self._groups(table))
        group = pl.col("group")
        return table.with_columns(
            pl.when(group == GROUPS.index("sched")).then("text").cast(self.texts.kind).alias("text"),
            pl.when(group == GROUPS.index("syscall")).then(NUMBER).alias("number"),
        )

    def _groups(self, table: pl.DataFrame) -> pl.Series:
        """Return the group of each text, an index into GROUPS, and count events (`uses`) by name."""
        self.kinds += [kind_of(word) for word in self.words.all()[len(self.kinds) :]]
        uses = table.group_by("word").agg(pl.col("uses").sum()).filter(pl.col("uses") > 0)
        for word, count in uses.iter_rows():
            name = _name(word)
            self.counts[name] = self.counts.get(name, 0) + count
        groups = pl.Series("group", [GROUPS.index(kind.group) for kind in self.kinds], dtype=pl.UInt8)
        # the function tracer's lines look like an exit: "sys_read <-do_syscall_64"; the unused are not events
        none = table.select(pl.col("args").str.starts_with("<-") | (pl.col("uses") == 0)).to_series()
        return groups[codes_of(table["word"])].set(none, len(GROUPS) - 1)

    def _others(self, others: pl.DataFrame, events: pl.Series, markers: pl.Series) -> None:
        """Sort out the lines that are not events: loss marks, text that goes on, and what cannot be read.

        `events` and `markers` are indices: of all events around those lines, and of those that are markers.
        """
        line = pl.col("line")
        marks = others.select("index", line.str.extract_groups(LOST).struct.unnest()).drop_nulls("cpu")
        lost = pl.coalesce("lost", "dropped").cast(pl.Int64, strict=False).alias("events")
        marks = marks.select("index", pl.col("cpu").cast(pl.Int32), lost)
        self.waiting = pl.concat([self.waiting, marks])
        for text in others.filter(line.str.contains("cpus=", literal=True))["line"].head(MOST_HEADERS):
            self._header(text)
        others = others.filter(~line.str.contains(SILENT))
        if others.height and not self.markup:  # the text of a marker may hold line ends
            before = others.join_asof(events.to_frame().with_columns(before="index"), on="index")["before"]
            goes_on = before.is_in(markers.implode()).fill_null(value=self.in_marker)
            self.continued += int(goes_on.sum())
            others = others.filter(~goes_on)
        if others.height and not self.markup:
            self.unread += others.height
            self.unread_bytes += int(others["line"].str.len_bytes().sum()) + others.height
            self.unread_example = self.unread_example or others.row(0)

    def _place_losses(self, events: pl.DataFrame) -> None:
        """Give each loss mark the time of the next event on its CPU: both tools print it just before."""
        if not self.waiting.height:
            return
        ahead = events.select("index", "cpu", pl.col("ts_ns").alias("cut_ns"))
        placed = self.waiting.join_asof(
            ahead, on="index", by="cpu", strategy="forward", check_sortedness=False
        )
        self._part("lost", placed.filter(pl.col("cut_ns").is_not_null()))
        self.waiting = placed.filter(pl.col("cut_ns").is_null()).drop("cut_ns")

    def _part(self, group: str, rows: pl.DataFrame) -> None:
        if rows.height:
            self.parts.setdefault(group, []).append(rows)
