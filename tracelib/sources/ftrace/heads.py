"""The head of an event line: task, CPU, time; what follows is the event and its fields.

The forms are those of the kernel's `trace_print_context` and `trace_print_lat_context`
(kernel/trace/trace_output.c) and of trace-cmd's `tep_print_event` (libtraceevent, as called in
tracecmd/trace-read.c)::

    bash-557     (    557) [027] d..2.    99.408277: sched_switch: …     tracefs, with the TGID column
    bash-557     [027]    99.408277013: sched_switch:         …          trace-cmd report -t, no flags column
    <idle>-0     [000]178922114556024: cpu_idle:              …          a clock that counts
    <idle>-0       2d..1.  2084.021443: cpu_idle:             …          latency format
    bash-20445    0d..2. 20618us!: sched_switch: …                       latency format, from the start

One regular expression says what a head is. Running it on every line costs more than everything else together,
and nearly all lines of a file have their columns at the same places. So the expression is run on one line,
its columns are tried on all others, and a line where any of them does not fit goes to the expression: the
result is the same. Of the columns only the time differs from line to line; the others repeat few texts, and
each of these is tried once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

import polars as pl

from tracelib.sources.kernel.texts import Listed, Texts, per_distinct

#: White space inside a line. With `\s` the search in a whole text would go on into the lines that follow,
#: from each anew.
GAP = r"[^\S\n]"
NUMBER = rf"-\d+(?:{GAP}+\({GAP}*[\d-]+\))?"
#: A name may be empty; blanks before it are taken along, as by the columns of a layout.
TASK = rf"(?P<task>.*?{NUMBER})"
TASK_ENDS = rf"{NUMBER} +$"
STARTS = r"^: [^\s(]"
FLAGS = r"[^\s\d\[\](]\S{3,5}"
TIME = r"(?P<seconds>\d{1,19})(?:\.(?P<fraction>\d{1,9}))?"
#: `(+232)` is what `trace-cmd report --ts-diff` adds.
REST = rf":(?:{GAP}+\(\+\d+\))?{GAP}+(?P<rest>\S.*)$"
HEAD = rf"^{TASK}{GAP}+\[(?P<cpu>\d{{1,6}})\](?:{GAP}+(?P<flags>{FLAGS}))?{GAP}*{TIME}{REST}"
#: Where lines of two writers are mixed, the first head is the line's: the columns of a layout may fit a later
#: one.
HOLDS_HEAD = HEAD.removesuffix(r".*)$") + ")"
LATENCY = rf"^{TASK}{GAP}+(?P<cpu>\d{{1,6}}){FLAGS}{GAP}+{TIME}(?P<unit>us[ +!#*@$]?)?{GAP}*{REST}"

#: How many places of columns are tried before the rest of a chunk goes to the regular expression.
LAYOUTS = 6
EXAMPLES = 200
#: Bytes; a longer line is not an event: the kernel's own buffer for one is a page.
LONGEST_LINE = 1 << 16
EXCERPT = 200
NS = 1_000_000_000
#: Seconds, and counts of µs, beyond these do not fit into 64 bits as ns: such a line is not an event.
MOST_SECONDS, MOST_MICROSECONDS = 9_000_000_000, 9_000_000_000_000_000


@dataclass(frozen=True)
class Layout:
    """Where the columns of a head stand, in characters from the start of the line."""

    bracket: int  # "[" before the CPU
    close: int  # "]" after it
    flags: tuple[int, int]  # start and end; (0, 0) = no such column
    seconds: int
    point: int  # "." of the time; equal to `colon` where the clock counts
    colon: int

    @classmethod
    def of(cls, line: str) -> Layout | None:
        """Return the columns of `line`, None if it is not an event in brackets form."""
        head = re.match(HEAD, line)
        if head is None:
            return None
        flags = head.span("flags") if head["flags"] else (0, 0)
        colon = max(head.end("seconds"), head.end("fraction"))
        return cls(
            head.start("cpu") - 1, head.end("cpu"), flags, head.start("seconds"), head.end("seconds"), colon
        )

    def columns(self) -> list[pl.Expr]:
        """Return slices of a head: task, between (bracket to point), fraction, rest from the colon."""

        def part(start: int, end: int) -> pl.Expr:
            return pl.col("line").str.slice(start, end - start)

        return [
            part(0, self.bracket).alias("task"),
            part(self.bracket, self.fraction).alias("between"),
            part(self.fraction, self.colon).alias("fraction"),
            pl.col("line").str.slice(self.colon).alias("rest"),
        ]

    @property
    def fraction(self) -> int:
        """Where the digits after the point begin; equal to `colon` where the clock counts."""
        return min(self.point + 1, self.colon)

    def between(self) -> list[pl.Expr]:
        """Return cpu and seconds of `text`, bracket to point; null where its columns are others."""
        start, end = self.flags
        flags = rf" {{{start - self.close - 1}}}[^\s\d\[\](]\S{{{end - start - 1}}}" if end else ""
        blanks, digits = self.seconds - (end or self.close + 1), self.point - self.seconds
        point = r"\." if self.colon > self.point else ""
        pattern = rf"^\[(\d{{{self.close - self.bracket - 1}}})\]{flags} {{{blanks}}}(\d{{{digits}}}){point}$"
        cpu, seconds = (pl.col("text").str.extract(pattern, group) for group in (1, 2))
        return [
            cpu.cast(pl.Int32, strict=False).alias("cpu"),
            seconds.cast(pl.Int64, strict=False).alias("seconds"),
        ]

    def ts_ns(self) -> pl.Expr:
        """Return the time of `seconds` and `fraction`, null if they are not one; counters count ns."""
        seconds = pl.col("seconds")
        if self.point == self.colon:
            return seconds
        # a number may have its sign: "1.+23456" is not a time
        fraction, digits = pl.col("fraction"), self.colon - self.fraction
        ns = pl.when(~fraction.str.starts_with("+")).then(fraction.cast(pl.UInt32, strict=False))
        return pl.when(seconds <= MOST_SECONDS).then(seconds * NS + ns * 10 ** (9 - digits))


def _where(pattern: str, without: str | None = None) -> pl.Expr:
    """Return `text` where `pattern` is in it and `without` is not, else null."""
    text = pl.col("text").str
    fits = text.contains(pattern) if without is None else text.contains(pattern) & ~text.contains(without)
    return pl.when(fits).then("text")


class Piece(NamedTuple):
    """Some lines of a file, sorted out."""

    comments: list[str]
    events: (
        pl.DataFrame
    )  # one row per event: index UInt32 (its line, from 1), task ("bash-557 (557)"), cpu, ts_ns, rest
    others: pl.DataFrame  # index, line: what is not an event
    rests: Listed  # of the events


@dataclass
class Heads:
    """Splits lines into heads and rests; remembers from chunk to chunk which layouts the file has."""

    lines: int = 0  # seen so far
    layouts: list[Layout] = field(default_factory=list)
    tasks: Texts = field(default_factory=Texts)
    rests: Listed = field(default_factory=Listed)  # of one piece
    counting: int = 0  # lines whose clock has no decimal point
    long_bytes: int = 0  # of lines that are too long for an event, beyond the start of each that is kept
    since_start: int = 0  # lines in tracefs's latency format, whose times count from the start of the trace

    def piece(self, lines: pl.Series) -> Piece:
        """Sort out the next lines of the file."""
        self.rests = Listed()
        numbered = lines.to_frame("line").with_row_index("index", self.lines + 1)
        self.lines += numbered.height
        comment = lines.str.starts_with("#")
        comments = lines.filter(comment).to_list() if comment.any() else []
        # what no expression need look at: comments, empty lines, and lines longer than any event
        size = lines.str.len_bytes()
        looked_at = ~comment & (size > 0) & (size <= LONGEST_LINE)
        events, others = self.split(numbered if looked_at.all() else numbered.filter(looked_at))
        if (size > LONGEST_LINE).any():
            long = numbered.filter(~comment & (size > LONGEST_LINE))
            starts = long.with_columns(pl.col("line").str.head(EXCERPT))
            self.long_bytes += int((long["line"].str.len_bytes() - starts["line"].str.len_bytes()).sum())
            others = pl.concat([others, starts]).sort("index")
        return Piece(comments, events, others, self.rests)

    def split(self, lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the events of `lines` (columns index, line) and the lines that are not events."""
        parts: list[pl.DataFrame] = []
        used: list[tuple[int, Layout]] = []
        earlier = iter(self.layouts)
        for _ in range(LAYOUTS):
            layout = next(earlier, None) or self._learn(lines)
            if layout is None or lines.is_empty():
                break
            events, lines = self._by_layout(lines, layout)
            parts.append(events)
            used.append((events.height, layout))
        # the next chunk looks most like this one: seconds have one digit more for good
        self.layouts = [layout for hits, layout in sorted(used, key=lambda use: -use[0]) if hits]
        if lines.height or not parts:
            odd, lines = self._by_expression(lines)
            parts.append(odd)
        parts = [events for events in parts if events.height] or parts[:1]
        return (pl.concat(parts).sort("index") if len(parts) > 1 else parts[0]), lines

    @staticmethod
    def _learn(lines: pl.DataFrame) -> Layout | None:
        for line in lines["line"].gather_every(max(1, lines.height // EXAMPLES)):
            layout = Layout.of(line)
            if layout:
                return layout
        return None

    def _by_layout(self, lines: pl.DataFrame, layout: Layout) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the events that fit `layout`, and the other lines."""
        tried = lines.select("index", *layout.columns())
        parts = [
            *per_distinct(
                tried["task"], _where(TASK_ENDS, without=HOLDS_HEAD).cast(self.tasks.kind).alias("task")
            ),
            *per_distinct(tried["between"], *layout.between()),
            self.rests.add(tried["rest"], _where(STARTS).str.slice(2)).alias("rest"),
        ]
        tried = tried.select("index", "fraction").hstack(parts)
        events = tried.select("index", "task", "cpu", layout.ts_ns().alias("ts_ns"), "rest")
        fits = pl.all_horizontal(pl.all().is_not_null())
        if any(column.null_count() for column in events):
            others, events = lines.filter(events.select(~fits).to_series()), events.filter(fits)
        else:
            others = lines.clear()
        self.counting += events.height if layout.point == layout.colon else 0
        return events, others

    def _by_expression(self, lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return events and other lines, by the regular expressions alone."""
        parts = []
        for pattern in (HEAD, LATENCY):
            groups = pl.col("line").str.extract_groups(pattern).struct.unnest()
            tried = lines.select("index", groups).with_columns(pl.col("seconds").cast(pl.Int64, strict=False))
            in_us = "unit" in tried.columns
            tried = tried.with_columns(_ts_ns(in_us=in_us).alias("ts_ns"), pl.col("cpu").cast(pl.Int32))
            fits = tried["ts_ns"].is_not_null() & tried["cpu"].is_not_null()
            events, lines = tried.filter(fits), lines.filter(~fits)
            self.since_start += events["unit"].count() if in_us else 0
            self.counting += 0 if in_us else events["fraction"].null_count()
            events = events.cast({"task": self.tasks.kind}).with_columns(rest=self.rests.add(events["rest"]))
            parts.append(events.select("index", "task", "cpu", "ts_ns", "rest"))
        return pl.concat(parts).sort("index"), lines


def _ts_ns(*, in_us: bool) -> pl.Expr:
    """Return the time of what the expressions found; null where it does not fit into 64 bits."""
    whole, fraction = pl.col("seconds"), pl.col("fraction")
    split = whole * NS + fraction.str.pad_end(9, "0").cast(pl.Int64, strict=False)
    ts_ns = pl.when(fraction.is_null()).then(whole).otherwise(pl.when(whole <= MOST_SECONDS).then(split))
    micros = pl.when(whole <= MOST_MICROSECONDS).then(whole * 1000)
    return pl.when(pl.col("unit").is_not_null()).then(micros).otherwise(ts_ns) if in_us else ts_ns
