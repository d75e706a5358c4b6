"""Scheduler tracepoints (`sched:sched_switch`, wake-ups) as rows of `sched`, and proof of those that are missing.

Fields as in the kernel's include/trace/events/sched.h; perf prints them as `prev_pid=1 … ==> next_pid=2 …`, the parser
that trace-cmd brings as `a:1 [120] R ==> b:2 [120]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import IDLE, THREAD_STATE
from tracelib.sources.plugin_states import of_newer_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["missing", "switches", "wakeups"]

SWITCH = (
    r"^prev_comm=(?P<prev_comm>.*?) prev_pid=(?P<prev>-?\d+)(?:.*? prev_state=(?P<state>\S+))?.*? next_comm=(?P<next_comm>.*) next_pid=(?P<next>-?\d+)",
    r"^(?P<prev_comm>.*):(?P<prev>-?\d+) \[-?\d+\] (?P<state>\S+) ==> (?P<next_comm>.*):(?P<next>-?\d+) \[",
)
WAKEUP = (
    r"^comm=(?P<comm>.*) pid=(?P<woken>-?\d+) prio=-?\d+(?:.*target_cpu=(?P<target>\d+))?",
    r"^(?P<comm>.*):(?P<woken>-?\d+) \[-?\d+\](?:.*CPU:(?P<target>\d+))?",
)
LETTERS = [state for state in THREAD_STATE.categories if len(state) == 1]
#: Bits of a state that was printed as a number (TASK_REPORT in include/linux/sched.h), lowest first.
BITS = {1: "S", 2: "D", 4: "T", 8: "t", 16: "X", 32: "Z", 64: "P", 128: "I"}


def switches(rest: pl.Series) -> pl.DataFrame:
    """Return one row per text of a switch: `prev`, `next` (tid, Int64), `prev_state`, `prev_comm`, `next_comm`; nulls if unreadable."""
    found = _first_match(rest, SWITCH, ["prev_comm", "prev", "state", "next_comm", "next"])
    by_plugin = ~rest.str.contains(SWITCH[0]).fill_null(value=True)
    return found.with_columns(of_newer_kernels(found["state"], by_plugin)).select(
        pl.col("prev", "next").cast(pl.Int64, strict=False),
        _state().alias("prev_state"),
        "prev_comm",
        "next_comm",
    )


def wakeups(rest: pl.Series) -> pl.DataFrame:
    """Return one row per text of a wake-up: `woken` (tid, Int64), `target` (CPU, Int32), `comm`; nulls if unreadable."""
    found = _first_match(rest, WAKEUP, ["comm", "woken", "target"])
    return found.select(
        pl.col("woken").cast(pl.Int64, strict=False), pl.col("target").cast(pl.Int32, strict=False), "comm"
    )


def _first_match(text: pl.Series, patterns: Sequence[str], names: list[str]) -> pl.DataFrame:
    groups = [pl.col("text").str.extract_groups(pattern).struct.rename_fields(names) for pattern in patterns]
    chosen = pl.coalesce(pl.when(group.struct.field(names[1]).is_not_null()).then(group) for group in groups)
    return pl.DataFrame({"text": text}, schema={"text": pl.String}).select(chosen.struct.unnest())


def _state() -> pl.Expr:
    """Return the state's letter: the first of joined forms ("R+", "D|W"); a number is read bit by bit."""
    letter = pl.col("state").str.head(1)
    number = pl.coalesce(
        pl.col("state").str.extract(r"^0x([0-9a-f]+)$").str.to_integer(base=16, strict=False),
        pl.col("state").cast(pl.Int64, strict=False),
    )
    of_bits = pl.coalesce(
        *(pl.when(number & bit != 0).then(pl.lit(name)) for bit, name in BITS.items()),
        pl.when(number.is_not_null()).then(pl.lit("R")),
    )
    known = pl.when(letter.is_in(LETTERS)).then(letter).when(letter.is_not_null()).then(pl.lit("other"))
    return pl.coalesce(of_bits, known).cast(THREAD_STATE)


def missing(sched: pl.DataFrame) -> dict[str, int]:
    """Return counts that prove switches to be missing from `sched`.

    `breaks`: switches whose CPU next switches away from another thread than the one that came, so that at least one
    switch between the two is missing; `switches`: pairs looked at; `to_idle`, `from_idle`: switches to and from idle.
    """
    switch = sched.filter((pl.col("event") == "switch") & pl.col("cpu").is_not_null())
    following = switch.sort("cpu", "ts_ns", maintain_order=True).select(
        "next", pl.col("prev").shift(-1).over("cpu").alias("leaves")
    )
    pairs = following.drop_nulls()
    return {
        "breaks": pairs.filter(pl.col("next") != pl.col("leaves")).height,
        "switches": pairs.height,
        "to_idle": switch.filter(pl.col("next") == IDLE).height,
        "from_idle": switch.filter(pl.col("prev") == IDLE).height,
    }
