"""Scheduler events: their fields in each spelling, the frame `sched`, and what is missing from it.

Spellings: the kernel's own (include/trace/events/sched.h), the plugin of libtraceevent that trace-cmd uses
(plugins/plugin_sched_switch.c), and trace-cmd with `-R`, where the state is a number.
"""

from __future__ import annotations

import polars as pl

from tracelib.schema import SCHED, SCHED_EVENT, THREAD_STATE
from tracelib.sources.ftrace.interned import codes_of
from tracelib.sources.plugin_states import of_newer_kernels

__all__ = ["cuts", "frame", "gaps", "nothing", "parse_fields", "states"]

EVENT = r"^sched_(?P<event>\w+): *(?P<args>.*)$"
SWITCH = (
    r"^prev_comm=(?P<prev_name>.*) prev_pid=(?P<prev>\d+) prev_prio=-?\d+ prev_state=(?P<state>\S+) "
    r"(?:==> )?next_comm=(?P<next_name>.*) next_pid=(?P<next>\d+) next_prio=-?\d+"
)
SWITCH_PLUGIN = (
    r"^(?P<prev_name>.*):(?P<prev>\d+) \[-?\d+\] (?P<state>\S+) ==> (?P<next_name>.*):(?P<next>\d+) \[-?\d+\]"
)
WAKE = r"^comm=(?P<next_name>.*) pid=(?P<next>\d+) prio=-?\d+(?: success=\d)?(?: target_cpu=(?P<cpu>\d+))?"
WAKE_PLUGIN = r"^(?P<next_name>.*):(?P<next>\d+) \[-?\d+\](?: success=\d)?(?: CPU:(?P<cpu>\d+))?"
#: The option `fields` (Linux 6.3 and later) prints each number twice; the second is the one that counts.
TWICE = r"=0x[0-9a-f]+ \((-?\d+)\)"
FIELDS = ("prev_name", "prev", "state", "next_name", "next", "cpu")

#: Letters that older kernels print: x dead; K (wakekill), W (waking), N (no load) only beside others.
LETTERS = {"x": "X", "K": "other", "W": "other", "N": "other"}
#: Bits of a numeric state since Linux 4.14 (include/linux/sched.h, TASK_REPORT) and before.
BITS = {1: "S", 2: "D", 4: "T", 8: "t", 16: "X", 32: "Z", 64: "P", 128: "I"}
OLD_BITS = {1: "S", 2: "D", 4: "T", 8: "t", 16: "Z", 32: "X", 64: "X", 128: "other", 256: "other", 512: "P"}


def parse_fields(texts: pl.Series) -> pl.DataFrame:
    """Return one row per text of an event, in their order: event, those of FIELDS (ids Int64, else String), ok Boolean.

    For wake-ups `next` is the thread woken and `prev` null. `ok` says that a spelling fits.
    """
    text = texts.to_frame("text").select(pl.col("text").str.extract_groups(EVENT).struct.unnest())
    of = pl.col("args").str.replace_all(TWICE, "=$1").str.extract_groups
    tried = text.select(
        pl.col("event").cast(SCHED_EVENT), a=of(SWITCH), b=of(SWITCH_PLUGIN), c=of(WAKE), d=of(WAKE_PLUGIN)
    )
    read = tried.select("event", *(pl.coalesce(_sources(name)).alias(name) for name in FIELDS))
    number = pl.col("prev", "next", "cpu").cast(pl.Int64, strict=False)
    plugin = tried.select(
        pl.col("b").struct.field("prev").is_not_null() & pl.col("a").struct.field("prev").is_null()
    ).to_series()
    read = read.with_columns(of_newer_kernels(read["state"], plugin))
    return read.with_columns(number).with_columns(ok=pl.col("next").is_not_null())


def _sources(name: str) -> list[pl.Expr]:
    groups = {"a": SWITCH, "b": SWITCH_PLUGIN, "c": WAKE, "d": WAKE_PLUGIN}
    return [pl.col(column).struct.field(name) for column, pattern in groups.items() if f"<{name}>" in pattern]


def states(fields: pl.DataFrame) -> pl.DataFrame:
    """Replace `state` by the letter of THREAD_STATE.

    Numbers differ by kernel, and the text does not name it. A bit above 256 is set only before 4.14. Linux 4.14 and
    4.15 wrote every state shifted by one, so that even the idle task left its CPU in state 1 (fixed by 3f5fe9fef5b2).
    """
    numeric = fields["state"].str.contains(r"^(0x[0-9a-f]{1,15}|\d{1,18})$").fill_null(value=False)
    value = {
        text: int(text, 16 if text.startswith("0x") else 10)
        for text in fields.filter(numeric)["state"].unique()
    }
    idle = fields.filter(numeric & (fields["prev"] == 0))["state"].unique().to_list()
    shifted = any(value[text] == 1 for text in idle)
    old = not shifted and any(number & 0x3FF >= 0x200 or number >= 0x400 for number in value.values())
    bits = OLD_BITS if old else BITS
    letters = {text: _letter(number >> shifted, bits) for text, number in value.items()}
    for text in fields.filter(~numeric)["state"].drop_nulls().unique():
        letters[text] = LETTERS.get(text[0], text[0] if text[0] in THREAD_STATE.categories else "other")
    state = pl.col("state").replace_strict(letters, default=None, return_dtype=pl.String)
    return fields.with_columns(state.cast(THREAD_STATE))


def _letter(number: int, bits: dict[int, str]) -> str:
    return next((letter for bit, letter in bits.items() if number & bit), "R")


def frame(rows: pl.DataFrame, fields: pl.DataFrame, wakers: pl.DataFrame, ids: pl.DataFrame) -> pl.DataFrame:
    """Return the frame `sched` with the column `index` beside it, in the order of the file.

    Parameters
    ----------
    rows
        index, ts_ns, cpu, task, text (both Categorical): one row per scheduler event whose fields are `ok`.
    fields
        Result of :func:`parse_fields` and :func:`states`, one row per code of `text`.
    wakers
        tid: the threads of the task column, one row per code of `task`.
    ids
        tid, thread.

    """
    thread = dict(zip(ids["tid"], ids["thread"], strict=True))

    def of(column: str) -> pl.Expr:
        return pl.col(column).replace_strict(thread, default=None, return_dtype=pl.Int32)

    switch = pl.col("event") == "switch"
    target = pl.when(~switch).then("cpu").cast(pl.Int32, strict=False)
    known = fields.select("event", of("prev"), "state", of("next"), target.alias("target"))
    waker = wakers.select(of("tid").alias("waker"))
    found = [*known[codes_of(rows["text"])], *waker[codes_of(rows["task"])]]
    return (
        rows.select("index", "ts_ns", "cpu")
        .hstack(found)
        .select(
            "index",
            pl.lit(0, pl.Int32).alias("source"),
            "ts_ns",
            pl.coalesce("target", "cpu").alias("cpu"),
            "event",
            pl.when(switch).then("prev").otherwise("waker").alias("prev"),
            pl.col("state").alias("prev_state"),
            "next",
        )
    )


def nothing() -> pl.DataFrame:
    """Return the frame `sched`, with index, of a trace that has no scheduler event."""
    return pl.DataFrame(schema={"index": pl.UInt32, **SCHED})


def cuts(lost: pl.DataFrame) -> pl.DataFrame:
    """Return a switch from nothing known to nothing known per loss mark, where its CPU's events go on.

    Whoever builds intervals closes the one before it, and starts the next, as unknown.
    """
    blank = {
        name: pl.lit(None, dtype) for name, dtype in SCHED.items() if name in {"prev", "prev_state", "next"}
    }
    return lost.select(
        "index",
        pl.lit(0, pl.Int32).alias("source"),
        pl.col("cut_ns").alias("ts_ns"),
        "cpu",
        pl.lit("switch").cast(SCHED_EVENT).alias("event"),
        **blank,
    )


def gaps(sched: pl.DataFrame) -> pl.DataFrame:
    """Return one row per place where at least one switch is proven to be missing: came, left (threads).

    On one CPU the thread that a switch brings is the thread that the next switch takes away; where it is not, at least
    one switch between them was not recorded. Loss marks are not counted again.
    """
    switches = sched.filter(pl.col("event") == "switch").select("ts_ns", "cpu", "prev", "next")
    if not switches["ts_ns"].is_sorted():
        switches = switches.sort("ts_ns", maintain_order=True)
    came, left = pl.col("next").shift(1).over("cpu"), pl.col("prev")
    return switches.select(came=came, left=left).filter(pl.col("came") != pl.col("left"))
