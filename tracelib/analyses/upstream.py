"""Who is to blame while a thread waits for another process: follow the wait upstream (docs/numbers.md, Ledger 2).

A worker's dequeue leads to the engine, the engine's wait for requests to the API server, the engine's wait for outputs
to the workers. At each step the question is what that process does *at the same moment*: if one of its threads
tokenizes, the cause is tokenization; else whatever else it works on; if it waits too, the question goes on. Where
everybody waits and the API server has nothing to do, there was no work. Nothing recorded at all proves nothing.

A slice that may wait inside (an engine's schedule step takes microseconds, or seconds while it waits for a request) is
told from work by the scheduler, or, without its events, by what ends a wait: the process upstream is done with something.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from tracelib.intervals import begin, end, innermost, overlay, union

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelib.trace import Trace

#: Whose work a role waits for when it waits for "upstream".
UPSTREAM = {"worker": "engine", "engine": "api_server", "api_server": "clients"}
#: The role behind which only clients are: when it has nothing to do, or waits for them, there is no work.
ENTRANCE, CLIENTS = "api_server", "clients"
#: Longest chain that is followed: worker, engine, other worker, engine, API server.
STEPS = 4

NOT_RECORDED = "upstream not recorded"


@dataclass(frozen=True)
class Upstream:
    """The recorded activity of all threads, and who waits for whom.

    `activity` is the frame of :func:`tracelib.analyses.host_activity.host_activity`, `thread_states` that of
    :func:`tracelib.analyses.thread_states.thread_states`.
    """

    trace: Trace
    activity: pl.DataFrame
    thread_states: pl.DataFrame
    #: What each role did, once made: a wait can lead to one role several times.
    _timelines: dict[str, pl.DataFrame] = field(default_factory=dict, init=False, repr=False, compare=False)
    _categories: dict[str, list[str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def blame(self, pieces: pl.DataFrame) -> pl.DataFrame:
        """Cut `pieces` (`thread`, `ts_ns`, `dur_ns` and others) by what their thread did, and say the cause of each.

        Returns the columns of `pieces` and `cause`, `sub_cause` (String), `what` (Categorical); `thread` becomes the
        thread that is blamed. Adds up to the time of `pieces`; in no order.
        """
        keep = [column for column in pieces.columns if column != "thread"]
        told = _in_words(overlay(pieces, self.activity, "thread"))
        cause = pl.col("cause").fill_null("unattributed")
        done = [told.filter(pl.col("waits_for").is_null()).with_columns(cause=cause)]
        asking = self._resolve(told.filter(pl.col("waits_for").is_not_null()).with_columns(seen=pl.lit("")))
        for _ in range(STEPS):
            if asking.is_empty():
                break
            decided, asking = self._ask(asking)
            done.append(decided)
        if asking.height:  # everybody waits for everybody: a message is on its way
            done.append(asking.with_columns(cause=pl.lit("ipc"), sub_cause=pl.lit("wait")))
        columns = [*keep, "thread", "cause", "sub_cause", "what"]
        return pl.concat([frame.select(columns) for frame in done])

    def within_call(self, pieces: pl.DataFrame) -> pl.DataFrame:
        """Say what a launch call spent its time on: `api`, or a more exact sub-cause of kernel_launch or profiler."""
        told = _in_words(overlay(pieces, self.activity, "thread"))
        exact = (pl.col("cause") == "profiler") | (
            (pl.col("cause") == "kernel_launch") & (pl.col("sub_cause") != "dispatch")
        )
        return told.with_columns(
            cause=pl.when(exact).then("cause").otherwise(pl.lit("kernel_launch")),
            sub_cause=pl.when(exact).then("sub_cause").otherwise(pl.lit("api")),
        )

    def _resolve(self, waiting: pl.DataFrame) -> pl.DataFrame:
        """Replace `waits_for` = upstream by the role that is upstream of the waiting thread's own."""
        roles = self.trace.threads.select("thread", "role")
        own = waiting.join(roles, on="thread", how="left", maintain_order="left")
        role = pl.col("role").replace_strict(UPSTREAM, default=None, return_dtype=pl.String)
        asked = pl.when(pl.col("waits_for") == "upstream").then(role).otherwise(pl.col("waits_for"))
        return own.with_columns(asked=asked).drop("role")

    def _ask(self, asking: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Put the pieces to the role they wait for; return what is decided, and what waits further."""
        done: list[pl.DataFrame] = []
        further: list[pl.DataFrame] = []
        for (role,), pieces in asking.group_by("asked"):
            if role == CLIENTS:
                done.append(pieces.with_columns(cause=pl.lit("no_work"), sub_cause=pl.lit(None, pl.String)))
                continue
            if role is None or role not in self._recorded:
                done.append(pieces.with_columns(cause=pl.lit("ipc"), sub_cause=pl.lit(NOT_RECORDED)))
                continue
            answer = self._answer(str(role), pieces)
            waits = pl.col("waits_for").is_not_null()
            done.append(self._decide(str(role), answer.filter(~waits)))
            further.append(self._resolve(answer.filter(waits)))
        empty = asking.clear()
        return pl.concat([*done, empty], how="diagonal"), pl.concat([*further, empty], how="diagonal")

    @cached_property
    def _recorded(self) -> set[str]:
        """Roles of which any source recorded what they did."""
        seen = [
            self.trace.slices["thread"],
            self.trace.samples["thread"],
            self.trace.sched["prev"],
            self.trace.sched["next"],
        ]
        threads = pl.concat([column.drop_nulls().unique() for column in seen]).unique()
        known = self.trace.threads.filter(pl.col("thread").is_in(threads.implode()))
        return set(known["role"].drop_nulls().to_list())

    def _answer(self, role: str, pieces: pl.DataFrame) -> pl.DataFrame:
        """Cut the pieces by what the processes of `role` did; `cause` null = nothing recorded."""
        own = pieces.drop("thread", "cause", "sub_cause", "what", "waits_for").rename({"asked": "_role"})
        line = self._timeline_of(role)
        key = own.with_columns(_role=pl.lit(0, pl.Int32))
        cut = _in_words(overlay(key, line.with_columns(_role=pl.lit(0, pl.Int32)), "_role").drop("_role"))
        return self._asleep(role, cut)

    def _timeline_of(self, role: str) -> pl.DataFrame:
        line = self._timelines.get(role)
        if line is None:
            line = self._timelines[role] = self._role_timeline(role)
        return line

    def _role_timeline(self, role: str) -> pl.DataFrame:
        """Return what the processes of a role did over time: tokenizing before other work, work before waiting."""
        threads = self.trace.threads.filter(pl.col("role") == role)["thread"]
        rows = self.activity.filter(pl.col("thread").is_in(threads.implode())).drop("seen_by")
        works = pl.col("waits_for").is_null()
        tokenizes = works & (pl.col("cause") == "tokenization")
        return _stacked([rows.filter(tokenizes), rows.filter(works & ~tokenizes), rows.filter(~works)])

    def _asleep(self, role: str, cut: pl.DataFrame) -> pl.DataFrame:
        """Nothing recorded: name the role's main thread, and take it for waiting if the scheduler saw it asleep."""
        main = self._main_thread(role)
        silent = cut.filter(pl.col("cause").is_null()).with_columns(thread=pl.lit(main, pl.Int32))
        told = cut.filter(pl.col("cause").is_not_null())
        states = self.thread_states.select("thread", "ts_ns", "dur_ns", "state")
        crossed = overlay(silent, states, "thread").with_columns(pl.col("state").cast(pl.String))
        if not self._ranges(role):
            crossed = self._doubted(role, crossed)
        asleep = pl.col("state").fill_null("unknown") == "blocked"
        upstream = pl.lit(None if role == ENTRANCE else "upstream", pl.String)
        marked = crossed.with_columns(
            waits_for=pl.when(asleep).then(upstream),
            sub_cause=pl.when(asleep).then(pl.lit("asleep")).otherwise("state"),
        ).drop("state")
        return pl.concat([told, marked.select(told.columns)])

    def _doubted(self, role: str, crossed: pl.DataFrame) -> pl.DataFrame:
        """Take no sleep of a role without any range for idleness while another thread of it is about, or a worker works.

        Of such a role the scheduler saw one thread sleep; for whom it waits, a range would have said.
        """
        threads = self.trace.threads.filter(pl.col("role") == role)["thread"]
        about = pl.col("state").cast(pl.String).is_in(["running", "runnable", "throttled"])
        busy = [self.thread_states.filter(pl.col("thread").is_in(threads.implode()) & about)]
        if role != ENTRANCE:
            busy.append(self._timeline_of("worker").filter(pl.col("waits_for").is_null()))
        spans = pl.concat([rows.select("ts_ns", "dur_ns", _role=pl.lit(0, pl.Int32)) for rows in busy])
        line = union(spans, "_role").with_columns(_busy=pl.lit(value=True))
        cut = overlay(crossed.with_columns(_role=pl.lit(0, pl.Int32)), line, "_role")
        asleep = pl.col("state").fill_null("unknown") == "blocked"
        doubt = asleep & pl.col("_busy").fill_null(value=False)
        return cut.with_columns(state=pl.when(doubt).then(pl.lit("unknown")).otherwise("state")).drop(
            "_role", "_busy"
        )

    def _main_thread(self, role: str) -> int | None:
        """Return the thread of the role that did most; the process's first thread where nothing was recorded of it."""
        threads = self.trace.threads.filter(pl.col("role") == role)
        mine = self.activity.filter(pl.col("thread").is_in(threads["thread"].implode()))
        busiest = mine.group_by("thread").agg(pl.col("dur_ns").sum()).sort("dur_ns", "thread")
        first = threads.filter(pl.col("pid") == pl.col("tid"))["thread"]
        for found in (busiest["thread"].tail(1), first, threads["thread"]):
            if found.len():
                return int(found[0])
        return None

    def _decide(self, role: str, answer: pl.DataFrame) -> pl.DataFrame:
        """Give a cause to the pieces that end here: between two ranges a message is on its way; without any, who knows."""
        silent = pl.col("cause").is_null()
        known = pl.col("sub_cause").fill_null("unknown")  # of a silent piece: what the scheduler saw
        idle = (known == "asleep") | (pl.lit(self._annotates(role)) & (known == "unknown"))
        nothing_to_do = silent & idle if role == ENTRANCE else pl.lit(value=False)
        return answer.with_columns(
            cause=pl.when(nothing_to_do)
            .then(pl.lit("no_work"))
            .when(silent)
            .then(pl.lit("ipc"))
            .otherwise("cause"),
            sub_cause=pl.when(nothing_to_do)
            .then(None)
            .when(silent)
            .then(pl.lit("wait" if self._ranges(role) else NOT_RECORDED))
            .otherwise("sub_cause"),
        )

    def _annotates(self, role: str) -> bool:
        """Whether a profiler recorded named ranges of the role, so that silence means it had none open."""
        return "annotation" in self._ranges(role)

    def _ranges(self, role: str) -> list[str]:
        """Return the categories of what profilers recorded of the role; none = only the scheduler and samples saw it."""
        known = self._categories.get(role)
        if known is None:
            threads = self.trace.threads.filter(pl.col("role") == role)["thread"]
            own = self.trace.slices.filter(pl.col("thread").is_in(threads.implode()))
            known = self._categories[role] = own["category"].cast(pl.String).unique().to_list()
        return known


def _in_words(told: pl.DataFrame) -> pl.DataFrame:
    """Return rows of activity with their meaning as text; `name` is called `what` in the ledgers."""
    return told.rename({"name": "what"}).with_columns(
        pl.col("cause", "sub_cause", "waits_for").cast(pl.String)
    )


def _stacked(layers: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return one timeline of all rows, as if they were of one thread; an earlier layer hides the later ones."""
    rows = pl.concat([layer.with_columns(_layer=pl.lit(n)) for n, layer in enumerate(layers)])
    if rows.is_empty():
        return rows.drop("_layer")
    first = begin(rows)
    whole = pl.DataFrame({"_key": [0], "ts_ns": [first], "dur_ns": [end(rows) - first]})
    out: list[pl.DataFrame] = []
    for layer in layers:
        keyed = layer.with_columns(_key=pl.lit(0, pl.Int64))
        at = innermost(keyed, "_key")
        line = pl.concat(
            [at.drop("row"), layer.drop("ts_ns", "dur_ns").select(pl.all().gather(at["row"]))],
            how="horizontal",
        )
        cut = overlay(whole, line, "_key")
        out.append(cut.filter(pl.col("cause").is_not_null()).drop("_key"))
        whole = cut.filter(pl.col("cause").is_null()).select("_key", "ts_ns", "dur_ns")
    return pl.concat(out).select(layers[0].columns).sort("ts_ns")


def waits_until(maybe: pl.DataFrame, trace: Trace) -> pl.Series:
    """Return until when each slice of `maybe` may have waited: the last moment in it at which the role that it waits for ended something.

    Takes `thread`, `may_wait_for` (a role, or "upstream" = the one before the thread's own), `whole_ts`, `whole_ns` (the
    slice's begin and length). One Int64 a row, in ns: the slice's begin if nothing came (it did not wait); its end if no
    slice of that role was recorded at all (nobody can say).
    """
    roles = trace.threads.select("thread", "role")
    own = maybe.select("thread", "may_wait_for", "whole_ts", until=pl.col("whole_ts") + pl.col("whole_ns"))
    own = own.with_row_index("_row").join(roles, on="thread", how="left")
    upstream = pl.col("role").replace_strict(UPSTREAM, default=None, return_dtype=pl.String)
    asked = pl.col("may_wait_for").cast(pl.String)
    asked = pl.when(asked == "upstream").then(upstream).otherwise(asked)
    ends = _ends(trace, own.select(asked.alias("asked")).to_series().unique())
    found = (
        own.with_columns(asked=asked)
        .sort("until")
        .join_asof(
            ends,
            left_on="until",
            right_on="came",
            by="asked",
            strategy="backward",
            check_sortedness=False,
            coalesce=False,
        )
    )
    recorded = pl.col("asked").is_in(ends["asked"].unique().implode()).fill_null(value=False)
    last = pl.max_horizontal("whole_ts", "came")
    return found.sort("_row").select(pl.when(recorded).then(last).otherwise("until")).to_series()


def _ends(trace: Trace, asked: pl.Series) -> pl.DataFrame:
    """Return when the threads of each role in `asked` ended a slice: asked, came; sorted by `came`."""
    whose = trace.threads.filter(pl.col("role").is_in(asked.implode())).select("thread", asked="role")
    ends = trace.slices.select("thread", came=pl.col("ts_ns") + pl.col("dur_ns")).join(whose, on="thread")
    return ends.select("asked", "came").sort("came")
