"""Scheduler events in each spelling, the frames `sched` and `threads`, and which switches are missing.

Spellings: the kernel's own (include/trace/events/sched.h), which perf and tracefs print; the plugin of
libtraceevent that trace-cmd uses, and perfs that load it (plugins/plugin_sched_switch.c); and trace-cmd with
`-R`, where the state is a number.

An event shows only thread ids, so two processes that used one id after another cannot be told apart.
"""

import re

import numpy as np
import polars as pl

from tracelib.schema import IDLE, SCHED, SCHED_EVENT, THREAD_STATE, THREADS
from tracelib.sources.health import Remarks
from tracelib.words import counted

SWITCH = (
    r"^prev_comm=(?P<prev_name>.*) prev_pid=(?P<prev>-?\d+) prev_prio=-?\d+ prev_state=(?P<state>\S+) "
    r"(?:==> )?next_comm=(?P<next_name>.*) next_pid=(?P<next>-?\d+) next_prio=-?\d+"
)
SWITCH_BY_PLUGIN = (
    r"^(?P<prev_name>.*):(?P<prev>-?\d+) \[-?\d+\] (?P<state>\S+) ==> "
    r"(?P<next_name>.*):(?P<next>-?\d+) \[-?\d+\]"
)
WAKEUP = (
    r"^comm=(?P<next_name>.*) pid=(?P<next>-?\d+) prio=-?\d+(?: success=\d)?(?: target_cpu=(?P<cpu>\d+))?"
)
WAKEUP_BY_PLUGIN = r"^(?P<next_name>.*):(?P<next>-?\d+) \[-?\d+\](?: success=\d)?(?: CPU:(?P<cpu>\d+))?"
#: A switch or wake-up, and how one that was not cut ends: with a number that a cut cannot have shortened, or
#: that is not used.
SWITCH_OR_WAKEUP = re.compile(r"^(?:sched:)?sched_(?:switch|wak(?:eup|ing|eup_new)):")
WHOLE_END = re.compile(r"(?:next_prio=-?\d+|target_cpu=\d{3}|success=\d|CPU:\d{3}|\[-?\d+\]|\))\s*$")
SPELLINGS = {"a": SWITCH, "b": SWITCH_BY_PLUGIN, "c": WAKEUP, "d": WAKEUP_BY_PLUGIN}
FIELDS = ("prev_name", "prev", "state", "next_name", "next", "cpu")
#: The option `fields` (Linux 6.3 and later) prints each number twice; the second is the one that counts.
TWICE = r"=0x[0-9a-f]+ \((-?\d+)\)"

#: The plugin names bits as kernels before 4.14 numbered them. A thread that leaves in "W" alone shows a newer
#: kernel.
PLUGIN_LETTERS, NEWER_LETTERS, SHOWS_NEWER = ("Z", "X", "x", "W"), ("X", "Z", "P", "I"), "W"
#: Letters that older kernels print: x dead; K (wakekill), W (waking), N (no load) only beside others.
OLDER_LETTERS = {"x": "X", "K": "other", "W": "other", "N": "other"}
#: Bits of a numeric state since Linux 4.14 (include/linux/sched.h, TASK_REPORT) and before.
BITS = {1: "S", 2: "D", 4: "T", 8: "t", 16: "X", 32: "Z", 64: "P", 128: "I"}
OLD_BITS = {1: "S", 2: "D", 4: "T", 8: "t", 16: "Z", 32: "X", 64: "X", 128: "other", 256: "other", 512: "P"}


def ends_whole(rest: str) -> bool:
    """Say whether all that is used of an event is surely there, in a last line without its line end."""
    return not SWITCH_OR_WAKEUP.match(rest) or WHOLE_END.search(rest) is not None


def fields(events: pl.Series, args: pl.Series) -> pl.DataFrame:
    """Return what the scheduler events of a file say, one row per text, in their order.

    `events` has the names without `sched_` (null or another = not one of the scheduler's), `args` what stands
    behind them. Columns: event (SCHED_EVENT), prev_name, prev, prev_state, next_name, next, cpu, ok: a
    spelling fits. Ids are Int64. For wake-ups `next` is the thread woken and `cpu` the CPU it is woken on,
    `prev` is null.
    """
    texts = pl.DataFrame([events.cast(SCHED_EVENT, strict=False).alias("event"), args.alias("args")])
    read = pl.col("args").str.replace_all(TWICE, "=$1").str.extract_groups
    tried = texts.select("event", **{spelling: read(pattern) for spelling, pattern in SPELLINGS.items()})
    parsed = tried.select("event", *(pl.coalesce(_readings(name)).alias(name) for name in FIELDS))
    by_plugin = tried.select(
        pl.col("b").struct.field("prev").is_not_null() & pl.col("a").struct.field("prev").is_null()
    ).to_series()
    numbers = pl.col("prev", "next", "cpu").cast(pl.Int64, strict=False)
    parsed = parsed.with_columns(_of_newer_kernels(parsed["state"], by_plugin)).with_columns(numbers)
    return parsed.with_columns(
        states(parsed).alias("prev_state"), ok=pl.col("next").is_not_null() & pl.col("event").is_not_null()
    ).drop("state")


def _readings(name: str) -> list[pl.Expr]:
    return [pl.col(key).struct.field(name) for key, pattern in SPELLINGS.items() if f"<{name}>" in pattern]


def _of_newer_kernels(state: pl.Series, by_plugin: pl.Series) -> pl.Series:
    """Return `state` in the letters of newer kernels where the plugin wrote it and such a kernel shows."""
    if not (state.filter(by_plugin) == SHOWS_NEWER).any():
        return state
    return state.replace(PLUGIN_LETTERS, NEWER_LETTERS).zip_with(by_plugin, state)


def states(fields: pl.DataFrame) -> pl.Series:
    """Return the states (THREAD_STATE) of `state`, letters or numbers, in which the threads `prev` leave.

    Numbers differ by kernel, and the text does not name it. A bit above 256 is set only before 4.14. Linux
    4.14 and 4.15 wrote every state shifted by one, so that even the idle task left its CPU in state 1 (fixed
    by 3f5fe9fef5b2).
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
        letters[text] = OLDER_LETTERS.get(text[0], text[0] if text[0] in THREAD_STATE.categories else "other")
    return fields["state"].replace_strict(letters, default=None, return_dtype=pl.String).cast(THREAD_STATE)


def _letter(number: int, bits: dict[int, str]) -> str:
    return next((letter for bit, letter in bits.items() if number & bit), "R")


def frame(rows: pl.DataFrame, fields: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    """Return the frame `sched`, and every other column of `rows` before it, in their order.

    `rows` has ts_ns, cpu, text (row of :func:`fields`) and thread, on whose head the event stands: of a
    wake-up, the waker.
    """
    parsed = fields.select(
        "event",
        number_of(fields["prev"], threads).alias("prev"),
        "prev_state",
        number_of(fields["next"], threads).alias("next"),
        pl.col("cpu").cast(pl.Int32, strict=False).alias("target"),
    )
    is_switch = pl.col("event") == "switch"
    others = [name for name in rows.columns if name not in {"ts_ns", "cpu", "text", "thread"}]
    return rows.hstack(parsed[rows["text"]]).select(
        *others,
        pl.lit(0, pl.Int32).alias("source"),
        "ts_ns",
        pl.when(is_switch).then("cpu").otherwise(pl.coalesce("target", "cpu")).alias("cpu"),
        "event",
        pl.when(is_switch).then("prev").otherwise("thread").alias("prev"),
        "prev_state",
        "next",
    )


def missing_switches(sched: pl.DataFrame, remarks: Remarks, *, system_wide: bool | None = None) -> int:
    """Return how many switches at least are proven to be lost; say that, or that others were not recorded.

    On one CPU the thread that a switch brings is the thread that the next switch takes away; where it is not,
    at least one switch between the two was not recorded. A loss that the recorder declares, a switch from
    nothing to nothing, is not counted again. `system_wide` says whether all threads were recorded, None where
    the file does not tell.
    """
    handovers = _handovers(sched)
    gaps = handovers.filter(pl.col("came") != pl.col("left"))
    if gaps.is_empty():
        return 0
    recorded = threads_recorded(sched, gaps) if system_wide is None else 0
    if recorded or system_wide is False:
        least = f" (at least {recorded:,})" if recorded else ""
        remarks.say("some_threads_recorded", least=least, places=counted(gaps.height, "place"))
        return 0
    remarks.say(
        "switches_missing",
        switches=counted(gaps.height, "switch", "switches"),
        gaps=f"{gaps.height:,}",
        handovers=f"{handovers.height:,}",
        from_idle=f"{int((gaps['came'] == IDLE).sum()):,}",
    )
    return gaps.height


def _handovers(sched: pl.DataFrame) -> pl.DataFrame:
    """Return who came by a switch and who left by the next on that CPU: came, left, one row per two."""
    switches = sched.filter((pl.col("event") == "switch") & pl.col("cpu").is_not_null())
    switches = switches.select("ts_ns", "cpu", "prev", "next")
    if not switches["ts_ns"].is_sorted():
        switches = switches.sort("ts_ns", maintain_order=True)
    return switches.select(came=pl.col("next").shift(1).over("cpu"), left=pl.col("prev")).drop_nulls()


#: Of fewer switches, and at fewer gaps, a loss may look the same by chance as a recording for some threads
#: only.
FEWEST_SWITCHES, FEWEST_GAPS = 10, 2


def threads_recorded(sched: pl.DataFrame, gaps: pl.DataFrame) -> int:
    """Return for how many threads at least the trace was recorded, 0 if for all, or if one cannot tell.

    `set_event_pid` and `trace-cmd record -P` leave out the others, and the text does not say so. Such a
    recording holds every switch to or from these threads and no other, every wake-up that they make or
    receive and no other; what seems to be missing between its switches was left out, not lost.

    At a gap the thread that came and the one that leaves are both others: of a recorded thread, the switch
    between would stand there. No switch and no wake-up may then join two of the others or of them and the
    idle task, and each thread that must be a recorded one comes and leaves by turns.
    """
    switch, pair = pl.col("event") == "switch", ["prev", "next"]
    switches = sched.filter(switch).drop_nulls(pair).sort("ts_ns", maintain_order=True)
    if gaps.height < FEWEST_GAPS or switches.height < FEWEST_SWITCHES:
        return 0
    others = pl.concat([gaps["came"], gaps["left"], pl.Series([IDLE], dtype=gaps.schema["came"])]).unique()
    other = pl.col("prev", "next").is_in(others.implode()).fill_null(value=True)
    woken = sched.filter(~switch).select(other)
    sides = switches.select(other)
    if any((rows["prev"] & rows["next"]).any() for rows in (woken, sides)):
        return 0
    recorded = pl.concat(
        [switches["prev"].filter(sides["next"]), switches["next"].filter(sides["prev"])]
    ).unique()
    return recorded.len() if _take_turns(switches, recorded) else 0


def _take_turns(switches: pl.DataFrame, threads: pl.Series) -> bool:
    """Say whether each of the threads comes, leaves, and comes again."""
    rows = switches.select("prev", "next").with_row_index("place")
    sides = [
        rows.select("place", pl.col(side).alias("thread"), pl.lit(side == "next").alias("comes"))
        for side in ("prev", "next")
    ]
    turns = pl.concat(sides).filter(pl.col("thread").is_in(threads.implode())).sort("place")
    again = pl.col("comes") == pl.col("comes").shift(1).over("thread")
    return not turns.select(again.fill_null(value=False)).to_series().any()


def losses(marks: pl.DataFrame) -> pl.DataFrame:
    """Return places where a recorder says that it lost events (ts_ns, cpu and others) as rows of `sched`.

    Each is a switch from nothing known to nothing known: whoever builds intervals closes the one before it,
    and starts the next, as unknown.
    """
    nothing = {name: pl.lit(None, SCHED[name]) for name in ("prev", "prev_state", "next")}
    others = [name for name in marks.columns if name not in SCHED]
    event = pl.lit("switch", SCHED_EVENT).alias("event")
    return marks.select(*others, pl.lit(0, pl.Int32).alias("source"), "ts_ns", "cpu", event, **nothing)


#: What stands in place of a name that the kernel has forgotten, or that perf never learned.
STAND_IN = r"^(?::-?\d+|<\.\.\.>)$"
#: Subtracted from the places of names that count only where no other is shown. perf keeps track of names and
#: prints the present one in heads, with what a kworker works on; ftrace prints there what it last remembered,
#: cut in latency format.
LESS_TRUSTED = 2**62
NAMES = pl.Schema({"tid": pl.Int64, "name": pl.String, "last": pl.Int64})
PROCESSES = pl.Schema({"tid": pl.Int64, "pid": pl.Int64, "last": pl.Int64})


def threads(names: pl.DataFrame, processes: pl.DataFrame, host: str | None = None) -> pl.DataFrame:
    """Return the frame `threads`: one row per thread id above 0 that `names` or `processes` shows.

    `names` has tid, name (null = only the id is shown) and last, its place in the file: the latest name
    counts (see LESS_TRUSTED). `processes` has tid, pid and last: of several processes of a thread, that with
    the highest counts. The id of a process is also the id of its first thread. All threads are of `host`.
    """
    named = names.filter(~pl.col("name").str.contains(STAND_IN)).sort("last", maintain_order=True)
    name = named.group_by("tid", maintain_order=True).agg(pl.col("name").last())
    owned = processes.filter(pl.col("pid") > 0).sort("last", maintain_order=True)
    owner = owned.group_by("tid", maintain_order=True).agg(pl.col("pid").last())
    first_threads = owned.select(pl.col("pid").unique().alias("tid")).with_columns(own=pl.col("tid"))
    tids = pl.concat([names["tid"], processes["tid"]])
    process = name.select(pl.col("tid").alias("pid"), pl.col("name").alias("process"))
    rows = (
        tids.filter(tids > 0)
        .unique()
        .to_frame()
        .join(name, on="tid", how="left")
        .join(owner, on="tid", how="left")
        .join(first_threads, on="tid", how="left")
        .with_columns(pl.coalesce("pid", "own"))
        .join(process, on="pid", how="left")
        .sort("tid")
    )
    return rows.select(
        pl.int_range(pl.len(), dtype=pl.Int32).alias("thread"),
        pl.lit(host, pl.String).alias("host"),
        *("pid", "tid", "process", "name"),
        *(pl.lit(None, THREADS[column]).alias(column) for column in ("role", "rank")),
    ).match_to_schema(THREADS)


def number_of(tid: pl.Series, threads: pl.DataFrame) -> pl.Series:
    """Return each tid's row in `threads`: IDLE for 0, each CPU's idle task; null for null or unknown."""
    tids = threads["tid"].to_numpy()
    wanted = tid.fill_null(-1).to_numpy()
    place = np.searchsorted(tids, wanted)
    there = (
        (place < len(tids)) & (tids[np.minimum(place, len(tids) - 1)] == wanted)
        if len(tids)
        else np.zeros(len(wanted), dtype=bool)
    )
    rows = pl.Series("thread", np.where(wanted == 0, IDLE, place), dtype=pl.Int32)
    return pl.select(pl.when(pl.Series(there | (wanted == 0))).then(rows)).to_series().alias("thread")
