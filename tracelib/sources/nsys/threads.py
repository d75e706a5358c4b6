"""Threads of an nsys export and their numbers in the frames, context switches, samples and call chains.

A `globalTid` packs hardware id (8 bits), VM id (8), process (24) and thread (24) into a signed 64-bit
integer; a `globalPid` is the same with a thread of 0 (Nsight Systems User Guide, "Serialized process and
thread identifiers").

`SCHED_EVENTS` has two rows per switch where both threads are known, "out" and "in", each with a time of its
own, and nothing for a thread that was not traced: between an "out" and the next "in" on a CPU it may have
idled or run others. So an "out" gives a switch whose `next` is not recorded, an "in" one whose `prev` is not;
only where both happen at the same nanosecond are they one switch. nsys records no wake-ups.

`COMPOSITE_EVENTS` has one row per sample; the frames of sample `id` are the rows of `SAMPLING_CALLCHAINS`
with that id, innermost (`stackDepth` 0) first. Chains repeat: each distinct one is kept once.
"""

import re
from collections.abc import Iterable

import polars as pl

from tracelib.schema import FRAMES, IDLE, SCHED_EVENT, THREAD_STATE
from tracelib.sources.nsys.tables import Tables, enumeration, looked_up

#: What a process's or a thread's field can hold.
FIELD = 1 << 24


def process(column: str) -> pl.Expr:
    """Return what identifies the process in `column`, a globalTid or globalPid."""
    return pl.col(column) // FIELD


def pid(column: str) -> pl.Expr:
    """Return the process id in `column`."""
    return process(column) % FIELD


def tid(column: str) -> pl.Expr:
    """Return the thread id in `column`."""
    return pl.col(column) % FIELD


def threads(
    database: Tables, texts: pl.DataFrame, used: pl.Series, given: pl.DataFrame, host: str | None
) -> pl.DataFrame:
    """Return the threads `used` (globalTid) and those that the export names in the same processes.

    `given` are the names that programs gave through NVTX (`globalTid`, `name`), `host` is the machine's. One
    row per thread: `globalTid` Int64 and the columns of :data:`tracelib.schema.THREADS`.
    """
    named = _thread_names(database, texts, given)
    seen = used.drop_nulls().unique().to_frame("globalTid")
    siblings = named.select("globalTid").join(
        seen.select(key=process("globalTid")).unique(),
        left_on=process("globalTid"),
        right_on="key",
        how="semi",
    )
    both = pl.concat([seen, siblings.select("globalTid")]).unique().sort("globalTid")
    both = both.join(named, on="globalTid", how="left", maintain_order="left").with_columns(
        key=process("globalTid")
    )
    both = both.join(_process_names(database, named), on="key", how="left", maintain_order="left")
    return both.with_row_index("thread").select(
        "globalTid",
        pl.col("thread").cast(pl.Int32),
        host=pl.lit(host, pl.String),
        pid=pid("globalTid"),
        tid=tid("globalTid"),
        name="name",
        process="process",
        role=pl.lit(None, pl.String),
        rank=pl.lit(None, pl.Int32),
    )


def _thread_names(database: Tables, texts: pl.DataFrame, given: pl.DataFrame) -> pl.DataFrame:
    """Return `globalTid`, `name`: the name the system knows, else the one given through NVTX."""
    listed = database.read("ThreadNames", dict.fromkeys(("nameId", "priority", "globalTid"), pl.Int64))
    listed = listed.sort("priority", descending=True, nulls_last=True, maintain_order=True)
    listed = listed.select("globalTid", name=looked_up(listed["nameId"], texts).cast(pl.String))
    return pl.concat([listed, given]).drop_nulls().unique("globalTid", keep="first", maintain_order=True)


def _process_names(database: Tables, named: pl.DataFrame) -> pl.DataFrame:
    """Return `key`, `process`: the process's name, else that of its main thread."""
    listed = database.read("PROCESSES", {"globalPid": pl.Int64, "name": pl.String})
    listed = listed.select(key=process("globalPid"), process="name")
    main = named.filter(tid("globalTid") == pid("globalTid")).select(key=process("globalTid"), process="name")
    return pl.concat([listed, main]).drop_nulls().unique("key", keep="first", maintain_order=True)


def ranks(database: Tables) -> pl.DataFrame:
    """Return `process` (id), `rank` Int32 of the processes whose MPI rank the export tells."""
    columns = dict.fromkeys(("globalTid", "globalPid", "rank"), pl.Int64)
    rows = database.read("MPI_RANKS", columns).with_columns(thread=pl.coalesce("globalTid", "globalPid"))
    return (
        rows.select(process=pid("thread"), rank=pl.col("rank").cast(pl.Int32, strict=False))
        .drop_nulls()
        .unique()
    )


def only_process(column: pl.Series) -> int | None:
    """Return the globalPid of the only process in `column`, globalTids; None if there are several or none."""
    processes = column.to_frame("of").select(process("of")).to_series().drop_nulls().unique()
    return int(processes[0]) * FIELD if len(processes) == 1 else None


def numbered(column: pl.Series, thread_ids: pl.DataFrame) -> pl.Series:
    """Return the number in `threads` of each globalTid in `column`."""
    rows = column.alias("globalTid").to_frame()
    return rows.join(
        thread_ids.select("globalTid", "thread"), on="globalTid", how="left", maintain_order="left"
    )["thread"]


SCHED_TABLE = "SCHED_EVENTS"
#: ENUM_SAMPLING_THREAD_STATE, and the kernel's letter for each.
_STATES = dict(enumerate(("Unknown", "Running", "Interruptible", "Uninterruptible", "Stopped", "Terminated")))
_LETTERS = {"Running": "R", "Interruptible": "S", "Uninterruptible": "D", "Stopped": "T", "Terminated": "X"}


def switches(database: Tables) -> pl.DataFrame:
    """Return the context switches, before the threads got their numbers.

    One row per switch: `ts_ns` Int64, `cpu` Int32, `event`, `prev` and `next` (globalTid, IDLE for the idle
    task, null = not recorded), `prev_state`.
    """
    columns = ("start", "cpu", "isSchedIn", "globalTid", "threadState")
    rows = database.read(SCHED_TABLE, dict.fromkeys(columns, pl.Int64)).drop_nulls(
        ["start", "isSchedIn", "globalTid"]
    )
    thread = pl.when((pid("globalTid") == 0) & (tid("globalTid") == 0)).then(IDLE).otherwise("globalTid")
    comes = pl.col("isSchedIn") != 0
    rows = rows.with_columns(thread=thread).sort("start", "cpu", maintain_order=True)
    rows = rows.with_columns(joined=_joined(comes))
    return (
        rows.select(
            "joined",
            ts_ns="start",
            cpu=pl.col("cpu").cast(pl.Int32, strict=False),
            event=pl.lit("switch", SCHED_EVENT),
            prev=pl.when(~comes).then("thread"),
            prev_state=pl.when(~comes).then(_state(database)),
            next=pl.when(comes).then("thread").when("joined").then(pl.col("thread").shift(-1)),
        )
        .filter(~pl.col("joined").shift(1, fill_value=False))
        .drop("joined")
    )


def _joined(comes: pl.Expr) -> pl.Expr:
    """Say of each row whether it is an "out" whose "in" follows at the same time on the same CPU."""
    same = (pl.col("start") == pl.col("start").shift(-1)) & (pl.col("cpu") == pl.col("cpu").shift(-1))
    return (~comes & comes.shift(-1) & same).fill_null(value=False)


def _state(database: Tables) -> pl.Expr:
    states = enumeration(database, "ENUM_SAMPLING_THREAD_STATE", _STATES, column="name")
    letters = {
        number: None if name == "Unknown" else _LETTERS.get(name, "other") for number, name in states.items()
    }
    return (
        pl.col("threadState").replace_strict(letters, default=None, return_dtype=pl.String).cast(THREAD_STATE)
    )


SAMPLES_TABLE = "COMPOSITE_EVENTS"
CHAINS = "SAMPLING_CALLCHAINS"
_TRIGGER = re.compile(r"Event '(?P<event>[^']+)', with sampling period (?P<period>\d+)")
_REMARK = re.compile(r"\s*\([^()]*\)\s*$")
_ADDRESS = r"^0x[0-9a-fA-F]+$"


def trigger(diagnostics: Iterable[str], period: int | None = None) -> tuple[str, int | None]:
    """Return the event that triggered the samples and its period.

    The event only nsys's diagnostics name; `period` is that among the recording's options, which goes before
    what they say of it: prose changes with the version.
    """
    for text in diagnostics:
        if match := _TRIGGER.search(text):
            event = _REMARK.sub("", match["event"].lower())  # "CPU Clock (sw)"
            said = int(match["period"])
            return {"cpu cycles": "cycles"}.get(event, event.replace(" ", "-")), period or said
    return "cpu-sample", period


def samples(database: Tables, event: str, period: int | None) -> pl.DataFrame:
    """Return the samples, before threads and stacks got their numbers.

    One row per sample: `id` and `globalTid` Int64, `ts_ns` Int64, `cpu` Int32, `event` Categorical, `period`
    Int64.
    """
    rows = database.read(SAMPLES_TABLE, dict.fromkeys(("id", "start", "cpu", "globalTid"), pl.Int64))
    return rows.drop_nulls("start").select(
        "id",
        "globalTid",
        ts_ns="start",
        cpu=pl.col("cpu").cast(pl.Int32, strict=False),
        event=pl.lit(event).cast(pl.Categorical()),
        period=pl.lit(period, pl.Int64),
    )


def call_chains(database: Tables, texts: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `stacks` (:data:`tracelib.schema.STACKS`), and `id`, `stack`: that of each sample id."""
    columns = dict.fromkeys(("id", "symbol", "module", "unresolved", "stackDepth"), pl.Int64)
    rows = database.read(CHAINS, columns).drop_nulls(["id", "stackDepth"])
    places = rows.select("symbol", "module", "unresolved").unique(maintain_order=True).with_row_index("place")
    rows = rows.join(places, on=["symbol", "module", "unresolved"], nulls_equal=True, maintain_order="left")
    chains = (
        rows.sort("id", "stackDepth", maintain_order=True).group_by("id", maintain_order=True).agg("place")
    )
    distinct = chains.group_by("place", maintain_order=True).agg("id").with_row_index("stack")
    distinct = distinct.with_columns(pl.col("stack").cast(pl.Int32))
    frames = distinct.select(
        "stack", "place", depth=pl.int_ranges(0, pl.col("place").list.len(), dtype=pl.Int16)
    )
    frames = frames.explode("place", "depth").join(
        _named(places, texts), on="place", how="left", maintain_order="left"
    )
    stacks = frames.select("stack", "depth", "symbol", "library").match_to_schema(FRAMES["stacks"])
    return stacks, distinct.select("stack", "id").explode("id")


def _named(places: pl.DataFrame, texts: pl.DataFrame) -> pl.DataFrame:
    symbol = looked_up(places["symbol"], texts).cast(pl.String).rename("name").to_frame()
    resolved = ~pl.col("name").str.contains(_ADDRESS)
    shown = symbol.select(pl.when(resolved).then("name").fill_null("[unknown]").cast(pl.Categorical()))[
        "name"
    ]
    return places.select("place", symbol=shown, library=looked_up(places["module"], texts))
