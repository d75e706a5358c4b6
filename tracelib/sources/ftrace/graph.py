"""Lines of the function_graph tracer as tracefs prints them, turned into the form in which trace-cmd does.

Source of the format: kernel/trace/trace_functions_graph.c; the time needs the option `funcgraph-abstime`, the
task `funcgraph-proc`::

    9344.122358 |   1)   ksoftir-21   |  ..s. |   1.747 us    |    e1000_clean_rx_irq [e1000]();
    9344.122387 |   1)   ksoftir-21   |  ..s. | + 35.582 us   |  } /* e1000_clean [e1000] */
    9344.121158 |   1)   ping-1922    |  ...1 |               |  /* sys_sched_setaffinity -> 0x0 */
     1)   0.081 us    |  pick_task_fair();

An event in comment marks is that event, text in them is a marker. A leaf and an opening line start at their
time; a closing line ends at its own.
"""

import polars as pl

from tracelib.sources.ftrace.heads import GAP
from tracelib.sources.ftrace.markers import matched

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
