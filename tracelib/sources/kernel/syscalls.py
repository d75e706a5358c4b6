"""System calls: their entries and exits, by name or by number, as slices of category `os`.

A thread is in one call at a time, so an entry and the next event of the same thread belong together if that
is the exit of the same call. The name is the call's without `sys_` ("futex"), as nsys names its OS runtime
calls. The number of a call means what it does on the machine that the call was made on, which a text need not
name: `syscalls.toml`.
"""

import functools
import re
from typing import NamedTuple

import polars as pl

from tracelib.data import data
from tracelib.schema import SLICES
from tracelib.sources.health import Remarks
from tracelib.words import counted

#: First words of the events of system calls, and whether they end one. Without a group, the number tells the
#: call.
SPELLINGS = tuple(
    (re.compile(pattern), ends)
    for pattern, ends in (
        (r"sys_enter:", False),
        (r"sys_exit:", True),
        (r"sys_enter_(\w+):", False),
        (r"sys_exit_(\w+):", True),
        (r"sys_(\w+)\(.*", False),
        # "sys_futex -> 0x0"; the function tracer's "sys_futex <-caller" looks alike: its reader tells it
        # apart
        (r"sys_(\w+)", True),
    )
)
#: `NR 202 (…)`; `id=202`, or `id=0xca (202)` with the option `fields`.
NUMBER = r"^(?:NR |id=(?:0x[0-9a-f]+ \()?)(-?\d+)\b"
#: The number with which the kernel tells the end of rt_sigreturn, whatever the machine.
OF_SIGRETURN = -1
#: Calls from which a thread that did not enter them returns: it is the new thread.
BIRTHS = ("clone", "clone3", "fork", "vfork")
#: Calls whose end the kernel does not tell by their name: they never return, or (the last) without their
#: number.
ENDS = ("exit", "exit_group", "rt_sigreturn")
#: A machine is known by its usual calls only where these are more than this share of all calls.
LEAST_USUAL = 0.25


class Edge(NamedTuple):
    """What the first word of an event says of a system call."""

    call: str  # "" = its number tells
    ends: bool


def edge_of(word: str) -> Edge | None:
    """Return what an event's first word (`sys_enter_futex:`) says, None if it is not a system call."""
    for pattern, ends in SPELLINGS:
        if matched := pattern.fullmatch(word):
            return Edge(matched[1] if pattern.groups else "", ends)
    return None


class Machine(NamedTuple):
    """One machine of `syscalls.toml`."""

    uname: str
    numbers: dict[str, int]
    usual: list[str]


@functools.cache
def machines() -> dict[str, Machine]:
    """Return the machines whose numbers are known, by name."""
    return {name: Machine(**table) for name, table in data(__file__, "syscalls.toml").items()}


def machine_of(numbers: pl.Series) -> str | None:
    """Return the machine that calls with these numbers were made on, None where they do not show it.

    The calls that every program makes most have numbers on one machine that mean rare calls on the others.
    """
    hits = {
        name: int(numbers.is_in([machine.numbers[call] for call in machine.usual]).sum())
        for name, machine in machines().items()
    }
    best = max(hits, key=lambda name: hits[name])
    shown = hits[best] > sum(hits.values()) - hits[best] and hits[best] > LEAST_USUAL * len(numbers)
    return best if shown and machines()[best].uname else None


def _machine(uname: str | None, numbers: pl.Series, remarks: Remarks) -> str | None:
    """Return the machine on which calls of these numbers were made; say where the file does not name it."""
    if uname is not None:
        return next((name for name, machine in machines().items() if machine.uname == uname), None)
    machine = machine_of(numbers)
    named = f"named by number as on {machine}, judged by which numbers occur"
    remarks.say("system_calls_by_number", how=named if machine else "known by number only")
    return machine


def names_of(numbers: pl.Series, machine: str | None) -> pl.Series:
    """Return the name of each call, "syscall 9999" where number or machine are not in `syscalls.toml`."""
    calls = machines()[machine].numbers if machine else {}
    names = {number: call for call, number in calls.items()} | {OF_SIGRETURN: "rt_sigreturn"}
    number = pl.col("number")
    return (
        numbers.to_frame("number")
        .select(
            pl.coalesce(
                number.replace_strict(names, default=None, return_dtype=pl.String),
                pl.concat_str(pl.lit("syscall "), number.cast(pl.String).fill_null("?")),
            )
        )
        .to_series()
    )


def slices(
    edges: pl.DataFrame,
    sched: pl.DataFrame,
    during: tuple[int, int],
    remarks: Remarks,
    uname: str | None = None,
) -> pl.DataFrame:
    """Return the system calls of a file as rows of the frame `slices`.

    `edges` has ts_ns, thread, call (Categorical), ends, raw (by number) and number of each entry or exit, in
    the order of the file. A call recorded by name and by number counts once, by name. `uname` is the machine
    as `uname -m` has it, None where the file does not name it. A call that did not begin or end `during` the
    whole trace is cut at its first or last time; a thread that left its CPU for good, as `sched` says, is in
    no call any more.
    """
    rows = edges if (edges["thread"] >= 0).all(ignore_nulls=False) else edges.filter(pl.col("thread") >= 0)
    # nearly every text is in the order of time already, and a stable sort by one key costs a fifth
    key = ["thread"] if rows["ts_ns"].is_sorted() else ["thread", "ts_ns"]
    rows = rows.sort(key, maintain_order=True)
    rows = _named(rows, uname, remarks) if rows["raw"].any() else rows
    state = pl.col("prev_state")
    dead = sched.filter(((state == "X") | (state == "Z")) & (pl.col("prev") >= 0))
    dead = dead.group_by(pl.col("prev").alias("thread")).agg(pl.col("ts_ns").max().alias("dead_ns"))
    return _paired(rows, during, dead, remarks)


def _named(rows: pl.DataFrame, uname: str | None, remarks: Remarks) -> pl.DataFrame:
    """Return `rows` (by thread and time) without calls recorded twice, those recorded by number named."""
    neighbours = [
        ((~pl.col("raw")).shift(step) & (pl.col("ends").shift(step) == pl.col("ends"))).over("thread")
        for step in (1, -1)  # two entries, or two exits, next to each other are one recorded twice
    ]
    twice = rows.select((pl.col("raw") & pl.any_horizontal(neighbours)).fill_null(value=False)).to_series()
    if twice.any():
        remarks.say("system_calls_twice", events=counted(int(twice.sum()), "raw_syscalls event"))
        rows = rows.filter(~twice)
    numbers = rows.filter("raw")["number"]
    if numbers.is_empty():
        return rows
    if (numbers == OF_SIGRETURN).any():
        sigreturn = pl.lit(OF_SIGRETURN, rows.schema["number"])
        ended = (pl.col("ends") & (pl.col("number") == OF_SIGRETURN)).shift(-1).over("thread")
        rows = rows.with_columns(number=pl.when(~pl.col("ends") & ended).then(sigreturn).otherwise("number"))
    names = names_of(rows["number"], _machine(uname, numbers, remarks)).cast(rows.schema["call"])
    return rows.with_columns(call=pl.when("raw").then(names).otherwise("call"))


def _paired(
    rows: pl.DataFrame, during: tuple[int, int], dead: pl.DataFrame, remarks: Remarks
) -> pl.DataFrame:
    """Return the slices of `rows` (by thread and time); `dead` has thread and dead_ns."""
    first_ns, last_ns = during
    if dead.is_empty():
        rows = rows.with_columns(dead_ns=pl.lit(None, pl.Int64))
    else:
        rows = rows.join(dead, on="thread", how="left", maintain_order="left")
    thread, call, ends = pl.col("thread"), pl.col("call"), pl.col("ends")
    first = (thread != thread.shift(1)).fill_null(value=True)
    last = (thread != thread.shift(-1)).fill_null(value=True)
    births, finals = call.is_in(BIRTHS), call.is_in(ENDS)
    closed = ~ends & ~last & ends.shift(-1) & (call.shift(-1) == call)
    rows = rows.with_columns(
        closed=closed.fill_null(value=False),
        next_ns=pl.col("ts_ns").shift(-1),
        open_end=~ends & last & ~finals,
        open_start=ends & first & ~births,
        unpaired_exit=ends & ~first,  # unless the row before closes with it: taken off below
        unpaired_entry=~ends & ~last & ~finals,
    )
    until = pl.min_horizontal(pl.lit(last_ns), pl.when(pl.col("dead_ns") >= pl.col("ts_ns")).then("dead_ns"))
    end = pl.when("closed").then("next_ns").when("open_end").then(until).otherwise("ts_ns")
    start = pl.when("open_start").then(first_ns).otherwise("ts_ns")
    at_edges, without_end, without_start = rows.select(
        (pl.col("open_end") | pl.col("open_start")).sum(),
        pl.col("unpaired_entry").sum() - (pl.col("closed") & ~finals).sum(),
        pl.col("unpaired_exit").sum() - pl.col("closed").sum(),
    ).row(0)
    if at_edges:
        remarks.say("system_calls_cut", calls=counted(at_edges, "system call"))
    if without_end or without_start:
        remarks.say(
            "system_calls_unpaired", without_end=f"{without_end:,}", without_start=f"{without_start:,}"
        )
    return (
        rows.filter(~ends | pl.col("open_start"))
        .select(
            pl.lit(0, pl.Int32).alias("source"),
            "thread",
            start.alias("ts_ns"),
            (end - start).alias("dur_ns"),
            call.alias("name"),
            pl.lit("os", SLICES["category"]).alias("category"),
            pl.lit(None, pl.Int64).alias("correlation"),
        )
        .match_to_schema(SLICES)
    )
