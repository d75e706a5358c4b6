"""Text that programs write into the trace: atrace's begin/end, async and counter marks, and anything else.

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
"""

import re
from typing import NamedTuple

import polars as pl

from tracelib.sources.kernel.threads import PROCESSES

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


def nothing() -> Marks:
    """Return what a trace without markers says."""
    counters = pl.DataFrame(
        schema={"ts_ns": pl.Int64, "name": pl.String, "track": pl.String, "value": pl.Float64}
    )
    return Marks(NO_RANGES, counters, pl.DataFrame(schema=PROCESSES), 0, 0)


def texts(rows: pl.DataFrame) -> pl.DataFrame:
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
