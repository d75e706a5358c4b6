"""Ranges and marks in ftrace text: what programs write into the trace, and the function_graph tracer's calls.

Source of the marks: Android's libcutils (system/core/libcutils/include/cutils/trace.h, trace-dev.inc)::

    B|pid|name   E|pid   begins and ends a range on the writing thread; ranges nest
    S|pid|name|cookie   F|pid|name|cookie   a range that may end on another thread
    G|pid|track|name|cookie   H|pid|track|cookie   the same on a named track
    C|pid|name|value   a reading of a counter
    I|pid|name   N|pid|track|name   an instant

Chromium writes a category after a counter's value (`C|pid|name|5|cat`), arguments and a category after a
cookie. Names of OpenHarmony's hitrace begin with `H:`; after its marks stand the level and the tags
(`B|pid|H:name|M62|…`), and older releases write the value behind a blank (`C|pid|H:name 5`, `S|pid|H:name
5`).

Lines of the function_graph tracer as tracefs prints them are turned into the form in which trace-cmd does.
Their source: kernel/trace/trace_functions_graph.c; the time needs the option `funcgraph-abstime`, the task
`funcgraph-proc`::

    9344.122358 |   1)   ksoftir-21   |  ..s. |   1.747 us    |    e1000_clean_rx_irq [e1000]();
    9344.122387 |   1)   ksoftir-21   |  ..s. | + 35.582 us   |  } /* e1000_clean [e1000] */
    9344.121158 |   1)   ping-1922    |  ...1 |               |  /* sys_sched_setaffinity -> 0x0 */
     1)   0.081 us    |  pick_task_fair();

An event in comment marks is that event, text in them is a marker. A leaf and an opening line start at their
time; a closing line ends at its own.
"""

import re
from typing import NamedTuple

import polars as pl

from tracelib.sources.ftrace.heads import GAP
from tracelib.sources.kernel.sched import PROCESSES

NO_RANGES = pl.DataFrame(
    schema={"thread": pl.Int32, "ts_ns": pl.Int64, "dur_ns": pl.Int64, "name": pl.String}
)


def matched(rows: pl.DataFrame, last_ns: int) -> tuple[pl.DataFrame, int, int]:
    """Return the ranges (thread, ts_ns, dur_ns, name), how many did not end, how many ends had no begin.

    `rows` has ts_ns, thread, name, ends Boolean and key, of each key in the order of time: what began last
    ends first. A range whose end is missing ends at `last_ns`.
    """
    depth = pl.when("ends").then(-1).otherwise(1).cum_sum().over("key")
    level = pl.when("ends").then(depth).otherwise(depth - 1)  # begins and ends of one level take turns
    turns = rows.with_columns(pl.struct("key", level.alias("level")).alias("key"))
    turns = turns.with_columns(
        end_ns=pl.col("ts_ns").shift(-1).over("key"),
        ended=pl.col("ends").shift(-1).over("key").fill_null(value=False),
        begun=(~pl.col("ends").shift(1).over("key")).fill_null(value=False),
    )
    begins = turns.filter(~pl.col("ends"))
    end = pl.when("ended").then("end_ns").otherwise(pl.max_horizontal("ts_ns", pl.lit(last_ns, pl.Int64)))
    ranges = begins.select("thread", "ts_ns", (end - pl.col("ts_ns")).alias("dur_ns"), "name")
    stray = turns.filter(pl.col("ends") & ~pl.col("begun")).height
    return ranges, begins.height - int(begins["ended"].sum()), stray


FIRST = r"^([BECSFGHIN])(?:\|(\d+))?(?:\|(.*))?$"
VALUE = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,2})?"
COUNTER = rf"^(?:(?P<name>.*?)\|(?P<value>{VALUE})(?:\|.*)?|(?P<blank_name>H:.*) (?P<blank_value>{VALUE}) *)$"
ASYNC = r"^(?:(?P<name>.*?)\|(?P<cookie>-?\d+)(?:\|.*)?|(?P<blank_name>H:.*) (?P<blank_cookie>-?\d+) *)$"
#: Level (debug, info, critical, commercial) and numbers of tags, and what may follow them.
HITRACE = r"^(H:.*?) *(?:\|[DICM]\d+(?:\|.*)?)?$"
SYNC = re.compile(r"trace_event_clock_sync: realtime_ts=(\d{1,14})\b")


class Marks(NamedTuple):
    """What markers say."""

    slices: pl.DataFrame  # thread Int32, ts_ns, dur_ns, name String
    counters: pl.DataFrame  # ts_ns, name String, track String, value Float64
    processes: pl.DataFrame  # tid, pid, last (how often): processes that threads gave as their own
    open_at_end: int  # ranges that did not end: cut at the trace's last event
    without_start: int  # ends of ranges that began before the trace


def no_marks() -> Marks:
    """Return what a trace without markers says."""
    counters = pl.DataFrame(
        schema={"ts_ns": pl.Int64, "name": pl.String, "track": pl.String, "value": pl.Float64}
    )
    return Marks(NO_RANGES, counters, pl.DataFrame(schema=PROCESSES), 0, 0)


def marker_texts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return marker rows with `text`: the fields without what trace_printk writes before it."""
    args = pl.col("args")
    own = args.str.strip_prefix("tracing_mark_write:")  # by trace-cmd: plain, and with -R
    own = own.str.replace(r"^ *ip=\S+ buf=", "").str.strip_chars_start(" ")
    printed = args.str.replace(r"^(?:0x[0-9a-f]+s?|\w[\w.+/]*): ", "")
    return rows.with_columns(
        text=pl.when(pl.col("event").is_in(["bprint", "bputs"])).then(printed).otherwise(own)
    )


def clock_tie(rows: pl.DataFrame) -> int | None:
    """Return wall time minus the times in ns, to 1 ms, by atrace's clock_sync mark, None without one."""
    marks = rows.filter(pl.col("text").str.starts_with("trace_event_clock_sync: re"))
    for ts_ns, text in marks.select("ts_ns", "text").iter_rows():
        if sync := SYNC.match(text):
            return int(sync[1]) * 1_000_000 - int(ts_ns)
    return None


def read_marks(rows: pl.DataFrame, last_ns: int) -> Marks:
    """Turn texts into slices and counters.

    `rows` has index, ts_ns, thread (null or negative = idle or unknown), tid and text: one row per text.
    Ranges that do not end are cut at `last_ns`.
    """
    rows = _marked(rows)
    mark = pl.col("mark")
    ranges, open_ranges, stray = matched(_nested(rows), last_ns)
    apart, open_apart, stray_apart = matched(_apart(rows), last_ns)
    of_track = pl.col("more").str.replace(r"^[^|]*\|", "")
    name = pl.when(mark == "N").then(of_track).when(mark == "I").then(_own_name()).otherwise("text")
    instants = rows.filter(mark.is_null() | mark.is_in(["I", "N"]))
    instants = instants.select("thread", "ts_ns", pl.lit(0, pl.Int64).alias("dur_ns"), name.alias("name"))
    own = rows.filter(mark.is_in(["B", "E"]) & (pl.col("pid") > 0))
    return Marks(
        pl.concat([ranges, apart, instants]).filter(pl.col("thread") >= 0),
        _counters(rows),
        own.group_by("tid", "pid").agg(pl.len().cast(pl.Int64).alias("last")).select(PROCESSES.names()),
        open_ranges + open_apart,
        stray + stray_apart,
    )


def _marked(rows: pl.DataFrame) -> pl.DataFrame:
    """Return `rows` with `mark` (null = plain text), `pid` and `more`, what stands behind the process."""
    rows = (
        rows.rechunk()
    )  # columns in unequal pieces, the first one empty, have made Polars panic (pl.format)
    parts = pl.col("text").str.extract_groups(FIRST).struct.rename_fields(["mark", "pid", "more"])
    rows = rows.with_columns(parts.struct.unnest()).with_columns(pl.col("pid").cast(pl.Int64, strict=False))
    mark, more = pl.col("mark"), pl.col("more")
    whole = (
        pl.when(mark == "E")
        .then(pl.lit(value=True))
        .when(mark == "C")
        .then(more.str.contains(COUNTER))
        .otherwise(more.is_not_null() & ((mark == "B") | pl.col("pid").is_not_null()))
    )
    return rows.with_columns(mark=pl.when(whole).then(mark))


def _nested(rows: pl.DataFrame) -> pl.DataFrame:
    """Return begins and ends on threads, keyed by thread."""
    on = rows.filter(pl.col("mark").is_in(["B", "E"]) & (pl.col("thread") >= 0))
    ends = pl.col("mark") == "E"
    on = on.sort("thread", "ts_ns", "index")
    return on.select("ts_ns", "thread", _own_name().alias("name"), ends.alias("ends"), key="thread")


def _own_name() -> pl.Expr:
    """Return the name in `more` without what hitrace writes after it."""
    return pl.col("more").str.replace(HITRACE, "$1")


def _apart(rows: pl.DataFrame) -> pl.DataFrame:
    """Return begins and ends of async ranges, keyed by process, name (or track) and cookie.

    Ranges of one key may overlap, as where every cookie is 0: the last that began is taken to end first.
    """
    mark, ends = pl.col("mark"), pl.col("mark").is_in(["F", "H"])
    parts, read = pl.col("more").str.split("|"), pl.col("more").str.extract_groups(ASYNC).struct.field
    own = mark.is_in(["S", "F"])
    first = pl.coalesce(pl.when(own).then(pl.coalesce(read("name"), read("blank_name"))), parts.list.first())
    cookie = pl.coalesce(
        pl.when(own).then(pl.coalesce(read("cookie"), read("blank_cookie"))), parts.list.last()
    )
    name = pl.when(mark == "G").then(parts.list.get(1, null_on_oob=True)).otherwise(first)
    on = rows.filter(mark.is_in(["S", "F", "G", "H"])).sort("ts_ns", "index")
    key = pl.struct("pid", first.alias("first"), cookie.alias("cookie"))
    return on.select("ts_ns", "thread", name.alias("name"), ends.alias("ends"), key=key)


def _counters(rows: pl.DataFrame) -> pl.DataFrame:
    read = pl.col("more").str.extract_groups(COUNTER).struct.field
    return rows.filter(pl.col("mark") == "C").select(
        "ts_ns",
        pl.coalesce(read("name"), read("blank_name")).alias("name"),
        pl.concat_str(pl.lit("process "), "pid").alias("track"),
        pl.coalesce(read("value"), read("blank_value")).cast(pl.Float64, strict=False).alias("value"),
    )


#: In irqsoff's and wakeup's graphs the time counts from the start of the trace, in µs: it places nothing.
TIME = rf"(?:(?:(?P<seconds>\d{{1,9}})\.(?P<fraction>\d{{1,9}})|\d+(?:\.\d+)? us){GAP}+\|{GAP}+)?"
TASK = rf"(?:(?P<task>\S.*?-\d+){GAP}*\|{GAP}+)?"
FLAGS = rf"(?:[^\s|\d]\S{{3,5}}{GAP}+\|{GAP}*)?"
COLUMNS = rf"^{GAP}*{TIME}(?P<cpu>\d{{1,6}})\){GAP}*{TASK}{FLAGS}"
#: No two gaps stand side by side: to share out blanks among them takes Python a time that grows with their
#: number's cube.
BEFORE_CALL = rf"{COLUMNS}(?:[^\w\s|]{GAP}*)?(?:(?P<duration>\d+(?:\.\d*)?) us{GAP}*)?\|{GAP}*"
DRAWN = rf"{BEFORE_CALL}(?P<call>\S.*?)\s*$"
#: The same with the option `funcgraph-duration` off: what stands last must then look like a call, its end or
#: a comment.
WITHOUT_DURATION = rf"{COLUMNS}(?P<call>(?:\}}|/\*).*?|\S.*\)(?:;| \{{)(?: /\*.*\*/)?)\s*$"
#: What an event or a system call in a comment begins with; other comments are text that a program wrote (the
#: kernel's print_graph_comment leaves out its `tracing_mark_write: `).
NAMED = r"^(?:\w+:(?: |$)|sys_\w+(?:\(| ->)|\S+ <-|<stack trace|UNKNOWN TYPE \d)"


def graph_events(others: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Return events as :meth:`Heads.split` does, the other lines, and how many lines cannot be placed.

    Those have no time, no task, or no column of durations. The rest of an event is `funcgraph_entry: 1.747 us
    | name();`, `funcgraph_exit: …`, the event in comment marks, or `tracing_mark_write: …` for the text in
    them.
    """
    lines = _columns(others)
    drawn, comment = lines["call"].is_not_null(), lines["call"].str.starts_with("/*")
    own_threads = lines["call"].str.contains(r"^/\* *sched_")  # such an event names them itself
    placed = drawn & lines["seconds"].is_not_null() & (lines["task"].is_not_null() | own_threads)
    placed &= lines["by_bar"] | comment
    nanoseconds = pl.col("fraction").str.pad_end(9, "0").str.slice(0, 9).cast(pl.Int64, strict=False)
    events = lines.filter(placed).select(
        "index",
        pl.col("task").fill_null(""),
        pl.col("cpu").cast(pl.Int32, strict=False),
        (pl.col("seconds").cast(pl.Int64, strict=False) * 1_000_000_000 + nanoseconds).alias("ts_ns"),
        _rest().alias("rest"),
    )
    return events, others.filter(~drawn), int((drawn & ~placed).sum())


def _columns(others: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of each line, null where it is not a graph's, and `by_bar`: it has durations."""
    lines = others.with_columns(
        pl.col("line").str.extract_groups(DRAWN).struct.unnest(), by_bar=pl.lit(value=True)
    )
    if not lines["call"].null_count():
        return lines
    bare = pl.col("line").str.extract_groups(WITHOUT_DURATION).struct.unnest()
    rest = lines.filter(pl.col("call").is_null()).select("index", "line", bare, by_bar=pl.lit(value=False))
    return pl.concat([lines.filter(pl.col("call").is_not_null()), rest], how="diagonal").sort("index")


def _rest() -> pl.Expr:
    """Return `call` as trace-cmd prints the same event."""
    call = pl.col("call")
    inside = call.str.strip_prefix("/*").str.strip_suffix("*/").str.strip_chars(" ")
    text = pl.concat_str(pl.lit("tracing_mark_write: "), inside)
    duration = pl.coalesce(pl.col("duration") + " us | ", pl.lit("| "))
    return (
        pl.when(call.str.starts_with("/*"))
        .then(pl.when(inside.str.contains(NAMED)).then(inside).otherwise(text))
        .when(call.str.starts_with("}"))
        .then(pl.concat_str(pl.lit("funcgraph_exit: "), duration, call))
        .otherwise(pl.concat_str(pl.lit("funcgraph_entry: "), duration, call))
    )


#: A mark of a long call ("! 100.500 us") may stand before its time.
CALL = (
    r"^[^\w\s|]?\s*(?:(?P<us>\d{1,12})\.?(?P<part>\d*) us)?\s*\|\s*"
    r"(?P<leaf>.*?)(?:\(.*\))?\s*(?P<mark>[;{}])?\s*(?:/\*.*\*/)?\s*$"
)


def calls(rows: pl.DataFrame, last_ns: int) -> tuple[pl.DataFrame, int, int]:
    """Return the calls (thread, ts_ns, dur_ns, name), how many did not return, how many returns had no call.

    `rows` has index, ts_ns, thread, ends and args of entries and exits; a leaf is an entry that states its
    duration. A call that did not return ends at `last_ns`.
    """
    rows = rows.with_columns(pl.col("args").str.extract_groups(CALL).struct.unnest())
    leaf = ~pl.col("ends") & pl.col("us").is_not_null()
    part = pl.col("part").fill_null("").str.pad_end(3, "0").str.slice(0, 3).cast(pl.Int64, strict=False)
    duration = pl.col("us").cast(pl.Int64, strict=False) * 1000 + part
    by_address = pl.col("args").str.extract(r"\bfunc=(\S+)")  # trace-cmd report -R
    name = pl.coalesce(pl.col("leaf").str.replace(r"\(.*$", "").str.strip_chars(" "), by_address, pl.lit("?"))
    leaves = rows.filter(leaf).select("thread", "ts_ns", duration.alias("dur_ns"), name.alias("name"))
    nested = rows.filter(~leaf).sort("thread", "ts_ns", "index")
    keyed = nested.select("ts_ns", "thread", name.alias("name"), "ends", key="thread")
    ranges, open_at_end, without_start = matched(keyed, last_ns)
    return pl.concat([ranges, leaves]), open_at_end, without_start
