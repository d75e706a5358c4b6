"""Who is to blame while a thread waits for another process: the wait is followed upstream.

A worker's dequeue leads to the engine, the engine's wait for requests to the API server, the engine's wait
for outputs to the workers. At each step the question is what that process does *at the same moment*: if one
of its threads tokenizes, the cause is tokenization; else whatever else it works on; if it waits too, the
question goes on; it ends when the message was sent, for from then on the wait is its receiver's own. Where
the message is known, the thread that sent it is asked, and the others only as far as they can have worked for
it (:func:`tracelib.analyses.ipc.senders`): for what else they do, nobody waits. Of several ranks one is
asked: the one that sent, else the one that was at work last before the wait ended. Where everybody waits and
the API server has nothing to do, there was no work. Nothing recorded at all proves nothing. Only processes of
the same replica are asked. A script that launches by itself has no engine to wait for: the other threads of
its process are asked instead. docs/numbers.md, "Ledger 2", defines this.

A slice that may wait inside (an engine's schedule step takes microseconds, or seconds while it waits for a
request) is told from work by the scheduler, or, without its events, by what ends a wait: the process upstream
is done with something.
"""

from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from tracelib.align.roles import parts_beside
from tracelib.analyses.awaited import (
    WORKS,
    Ranks,
    decided,
    doubted,
    during,
    in_words,
    of_processes,
    role_asked,
    stacked,
    two_last,
)
from tracelib.analyses.ipc import SENDERS, busy, senders, thread_processes, untaken
from tracelib.analyses.scheduling import WAITS_FOR_CPU
from tracelib.intervals import fill, overlay, union
from tracelib.trace import Trace

#: The role behind which only clients are: when it has nothing to do, or waits for them, there is no work.
ENTRANCE, CLIENTS = "api_server", "clients"
#: Who is asked where a worker has neither an engine nor a front end: the other threads of its process,
#: "process 3".
OWN_PROCESS = "process "
#: Longest chain that is followed: worker, engine, other worker, engine, API server.
STEPS = 4

NOT_RECORDED = "upstream not recorded"
#: A role that is asked, the process of it that is (None = all), the thread that sent the message (None = not
#: known), and whether that was under way: whether others may work for it.
_Asked = tuple[str, int | None, int | None, bool | None]
SENDS = ("enqueue", "send")
#: The role of which one process is asked: the other ranks do not work for its messages.
RANKS = "worker"


@dataclass(frozen=True)
class Upstream:
    """The recorded activity of the threads of one replica, and who waits for whom.

    `host_activity`, `thread_states` and `ipc` are the frames of the analyses of those names. The `threads` of
    `trace` are those of the replica; `span` is when the window begins and ends.

    Rank by rank: to ask for one rank's waiting, `host_activity` need hold its own threads, those of other
    roles, and, of other ranks, the rows that :meth:`asked` returns; `ranks` is then what all ranks say of
    themselves at :attr:`moments`. The rest of a run changes nothing.
    """

    trace: Trace
    host_activity: pl.DataFrame
    thread_states: pl.DataFrame
    ipc: pl.DataFrame
    span: tuple[int, int]
    ranks: Ranks | None = None
    #: What each role did, once made: a wait can lead to one role several times.
    _timelines: dict[_Asked, pl.DataFrame] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _busy: dict[str, pl.DataFrame] = field(default_factory=dict, init=False, repr=False, compare=False)
    _categories: dict[str, list[str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def blame(self, pieces: pl.DataFrame) -> pl.DataFrame:
        """Cut `pieces` (`thread`, `ts_ns`, `dur_ns` …) by what their thread did, and name the causes.

        Returns the columns of `pieces` and `cause`, `sub_cause` (String), `what` (Categorical); `thread`
        becomes the thread that is blamed. Adds up to the time of `pieces`; in no order.
        """
        keep = [column for column in pieces.columns if column != "thread"]
        pieces = pieces.with_columns(origin=self._process_of(pieces["thread"]))
        cut = self._until_sent(in_words(overlay(pieces, self.host_activity, "thread")))
        waits = pl.col("waits_for").is_not_null()
        done = [cut.filter(~waits).with_columns(cause=pl.col("cause").fill_null("unattributed"))]
        asking = self._resolve(cut.filter(waits))
        for _ in range(STEPS):
            if asking.is_empty():
                break
            decided, asking = self._ask(asking)
            done.append(decided)
        if asking.height:  # everybody waits for everybody: a message is on its way
            done.append(asking.with_columns(cause=pl.lit("ipc"), sub_cause=pl.lit("wait")))
        columns = [*keep, "thread", "cause", "sub_cause", "what"]
        return pl.concat([frame.select(columns) for frame in done])

    def _until_sent(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Cut rows of threads that wait where their message was sent: from then on they wait for nobody."""
        waits = pl.col("waits_for").is_not_null()
        cut = overlay(rows.filter(waits), self._untaken, "thread")
        own = cut.with_columns(waits_for=pl.when(pl.col("taken").is_null()).then("waits_for"))
        return pl.concat([rows.filter(~waits), own.drop("taken")])

    @cached_property
    def _untaken(self) -> pl.DataFrame:
        return untaken(self.trace, self.ipc)

    def within_call(self, pieces: pl.DataFrame) -> pl.DataFrame:
        """Say what a launch call spent its time on: `api`, or what is more exact than that."""
        cut = in_words(overlay(pieces, self.host_activity, "thread"))
        launches = (pl.col("cause") == "kernel_launch") & (pl.col("sub_cause") != "dispatch")
        exact = (pl.col("cause") == "profiler") | launches
        return cut.with_columns(
            cause=pl.when(exact).then("cause").otherwise(pl.lit("kernel_launch")),
            sub_cause=pl.when(exact).then("sub_cause").otherwise(pl.lit("api")),
        )

    def _resolve(self, waiting: pl.DataFrame) -> pl.DataFrame:
        """Add `asked`: the role that the thread waits for, upstream of its own where it waits for that."""
        joined = waiting.join(self._parts, on="thread", how="left", maintain_order="left")
        asked = role_asked(pl.col("waits_for"))
        if "engine" not in self._roles:
            own = OWN_PROCESS + pl.col("process").cast(pl.String)
            upstream = (
                pl.when(pl.col("process").is_in(self._schedulers))
                .then(pl.lit(ENTRANCE))
                .otherwise(pl.lit("engine"))
                if ENTRANCE in self._roles
                else own
            )
            of_worker = (pl.col("role") == "worker") & (pl.col("waits_for") == "upstream")
            asked = pl.when(of_worker).then(upstream).otherwise(asked)
        return joined.with_columns(asked=asked).drop("role", "process")

    @cached_property
    def _parts(self) -> pl.DataFrame:
        """Each thread's role and the number of its process."""
        return self.trace.threads.select("thread", "role").join(
            thread_processes(self.trace), on="thread", maintain_order="left"
        )

    @cached_property
    def _schedulers(self) -> list[int]:
        """The processes that schedule what they launch."""
        threads = parts_beside(self.trace, "scheduler")
        return self._parts.filter(pl.col("thread").is_in(threads.implode()))["process"].unique().to_list()

    @cached_property
    def _roles(self) -> set[str]:
        return set(self.trace.threads["role"].drop_nulls())

    def _ask(self, asking: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Put the pieces to the role they wait for; return what is decided, and what waits further."""
        done: list[pl.DataFrame] = []
        further: list[pl.DataFrame] = []
        for (role,), pieces in asking.group_by("asked"):
            if role == CLIENTS:
                done.append(pieces.with_columns(cause=pl.lit("no_work"), sub_cause=pl.lit(None, pl.String)))
                continue
            if role and str(role).startswith(OWN_PROCESS):
                done.append(self._within_process(str(role), pieces))
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

    def _within_process(self, process: str, pieces: pl.DataFrame) -> pl.DataFrame:
        """Ask the other threads of a process without anybody upstream; a front end waits for its clients."""
        answer = self._answer(process, pieces).with_columns(pl.col("cause").fill_null("ipc"))
        waits = pl.col("waits_for").is_not_null() | (pl.col("cause") == "ipc")
        serves = pl.lit(self._threads(process).is_in(parts_beside(self.trace, "entrance").implode()).any())
        return answer.with_columns(
            cause=pl.when(~waits).then("cause").when(serves).then(pl.lit("no_work")).otherwise(pl.lit("ipc")),
            sub_cause=pl.when(~waits).then("sub_cause").when(~serves).then(pl.lit(NOT_RECORDED)),
        )

    @cached_property
    def _recorded(self) -> set[str]:
        """Roles of which any source recorded what they did."""
        trace = self.trace
        columns = [trace.slices["thread"], trace.samples["thread"], trace.sched["prev"], trace.sched["next"]]
        threads = pl.concat([column.drop_nulls().unique() for column in columns]).unique()
        seen = trace.threads.filter(pl.col("thread").is_in(threads.implode()))
        return set(seen["role"].drop_nulls().to_list())

    def _answer(self, role: str, pieces: pl.DataFrame) -> pl.DataFrame:
        """Cut the pieces by what the processes of `role` did; `cause` null = nothing recorded."""
        waits = self._idle(pieces["thread"].drop_nulls().unique())
        own = overlay(pieces, self._senders(role, waits), "thread")
        own = own.with_columns(process=self._process_of(own["sender"]))
        if role == RANKS:
            own = self._with_last(own, waits)
        own = own.drop("thread", "cause", "sub_cause", "what", "waits_for", "asked")
        zero = pl.lit(0, pl.Int32)
        answers: list[pl.DataFrame] = []
        asked = ["process", "sender", "under_way"]
        for (process, sender, under_way), asking in own.partition_by(*asked, as_dict=True).items():
            of = role, process if role == RANKS else None, sender, under_way
            line = self._timeline(of).with_columns(_role=zero)
            cut = overlay(asking.drop(asked).with_columns(_role=zero), line, "_role")
            answers.append(self._asleep(of, in_words(cut.drop("_role"))))
        return pl.concat(answers)

    def _idle(self, threads: pl.Series) -> pl.DataFrame:
        """Return when each of `threads` did nothing itself: thread, ts_ns, dur_ns."""
        if threads.is_empty():
            return self.host_activity.select("thread", "ts_ns", "dur_ns").clear()
        rows = self.host_activity.filter(pl.col("thread").is_in(threads.implode()) & WORKS)
        works = union(rows, "thread").with_columns(_works=pl.lit(value=True))
        free = fill(works, "thread", threads.to_list(), *self.span).filter(pl.col("_works").is_null())
        return free.select("thread", "ts_ns", "dur_ns")

    def _senders(self, role: str, waits: pl.DataFrame) -> pl.DataFrame:
        """Return which thread of `role` sent the messages that threads of other roles waited for."""
        others = self._parts.filter((pl.col("role") != role).fill_null(value=True))["thread"]
        waits = waits.filter(pl.col("thread").is_in(others.implode()))
        sent = self.ipc.filter(
            pl.col("thread").is_in(self._threads(role).implode()) & pl.col("kind").is_in(SENDS)
        )
        if sent.is_empty() or waits.is_empty():
            return pl.DataFrame(schema=SENDERS)
        taken = self.ipc.filter(pl.col("kind") == "dequeue")["thread"].unique()
        busy_times = self._busy_times(role, sent["thread"].unique())
        return senders(waits, self._together(role, sent), busy_times, taken)

    def _process_of(self, threads: pl.Series) -> pl.Series:
        parts = self._parts
        return threads.replace_strict(parts["thread"], parts["process"], default=None)

    def _with_last(self, asking: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
        """Fill in `process`, where no other rank sent: the one at work last. Ranks ask all ranks."""
        if self._rank_threads["of"].n_unique() < 2:
            return asking
        last = self._last.filter(pl.col("thread").is_in(waits["thread"].unique().implode()))
        told = overlay(asking, last, "thread")
        other = pl.when(pl.col("last").ne_missing(pl.col("origin"))).then("last").otherwise("before")
        known = told.with_columns(other=other).drop("last", "before")
        own = (pl.col("process") == pl.col("origin")) & pl.col("other").is_not_null()
        sent = known.with_columns(
            pl.when(~own.fill_null(value=False)).then(column).alias(column)
            for column in ("process", "sender", "under_way")
        )
        return sent.with_columns(process=pl.coalesce("process", "other")).drop("other")

    @cached_property
    def _rank_threads(self) -> pl.DataFrame:
        return self._parts.filter(pl.col("role") == RANKS).select("thread", of="process")

    @cached_property
    def _waits_for_ranks(self) -> pl.DataFrame:
        """When threads of other roles that ever wait for ranks did nothing: thread, ts_ns, dur_ns, until."""
        asks = self.host_activity.filter(pl.col("waits_for").cast(pl.String) == RANKS)["thread"].unique()
        others = asks.filter(~asks.is_in(self._rank_threads["thread"].implode()))
        own = others.filter(others.is_in(self._parts["thread"].implode())).sort()
        return self._idle(own).with_columns(until=pl.col("ts_ns") + pl.col("dur_ns"))

    @property
    def moments(self) -> pl.Series:
        """When waits for ranks end, which is when each is asked what it had been at work on last: `until`."""
        return self._waits_for_ranks["until"].unique()

    @cached_property
    def _ranks(self) -> Ranks:
        return self.ranks or self.about(self._rank_threads["thread"], self.moments)

    def about(self, threads: pl.Series, moments: pl.Series) -> Ranks:
        """Return what ranks with these threads say of themselves."""
        rows = self.host_activity.filter(pl.col("thread").is_in(threads.implode()))
        sending = self.ipc.filter(pl.col("kind").is_in(SENDS))["thread"].unique()
        at_work = self._busy_of(RANKS, threads, sending)
        return Ranks.of(rows, self._until_sent(rows), at_work, moments)

    @cached_property
    def _last(self) -> pl.DataFrame:
        """Waits for ranks, with the two that were at work last: thread, ts_ns, dur_ns, last, before."""
        found = two_last(self._ranks.last, self._rank_threads)
        return self._waits_for_ranks.join(found, on="until", how="left", maintain_order="left").drop("until")

    def asked(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of the ranks' `host_activity` for which others' waits may ask them."""
        sent = self._senders(RANKS, self._last.drop("last", "before"))
        sent = sent.with_columns(process=self._process_of(sent["sender"]))
        return during(rows, of_processes(self._last, sent), self._rank_threads)

    def _busy_times(self, role: str, of: pl.Series) -> pl.DataFrame:
        if role == RANKS:
            return self._ranks.busy
        if role not in self._busy:
            self._busy[role] = self._busy_of(role, self._threads(role), of)
        return self._busy[role]

    def _busy_of(self, role: str, threads: pl.Series, sending: pl.Series) -> pl.DataFrame:
        rows = self.host_activity.filter(pl.col("thread").is_in(threads.implode()))
        own = sending.filter(sending.is_in(threads.implode()))
        states = self.thread_states.filter(pl.col("thread").is_in(own.implode()))
        return busy(self._together(role, rows), self._together(role, states))

    def _together(self, role: str, rows: pl.DataFrame) -> pl.DataFrame:
        """Add `of`: a number of those who work for one message, each rank for its own."""
        of = self._process_of(rows["thread"]) if role == RANKS else pl.lit(0, pl.UInt32)
        return rows.with_columns(of=of)

    def _timeline(self, asked: _Asked) -> pl.DataFrame:
        """Return what a role's processes did over time: tokenizing before other work, work before waiting.

        Before all of it the work of the message's sender; of it alone, if the message was not under way.
        """
        line = self._timelines.get(asked)
        if line is None:
            role, process, sender, under_way = asked
            threads = self._threads(role, process)
            rows = self.host_activity.filter(pl.col("thread").is_in(threads.implode()))
            rows = self._until_sent(rows)
            tokenizes = WORKS & (pl.col("cause") == "tokenization")
            own = (pl.col("thread") == sender) if sender is not None else pl.lit(value=False)
            kinds = [own & WORKS, tokenizes & ~own, WORKS & ~tokenizes & ~own, own & ~WORKS, ~WORKS & ~own]
            alone = [kinds[0], kinds[3]]
            layers = [rows.filter(kind) for kind in (alone if under_way is False else kinds)]
            line = self._timelines[asked] = stacked([layer.drop("seen_by") for layer in layers])
        return line

    def _threads(self, role: str, process: int | None = None) -> pl.Series:
        named = OWN_PROCESS + pl.col("process").cast(pl.String)
        own = (named if role.startswith(OWN_PROCESS) else pl.col("role")) == role
        one = pl.lit(process is None) | (pl.col("process") == (process or 0))
        return self._parts.filter(own & one)["thread"]

    def _asleep(self, asked: _Asked, cut: pl.DataFrame) -> pl.DataFrame:
        """Put what nobody recorded to the message's sender, or else to the main thread of those asked.

        It waits if the scheduler saw it asleep.
        """
        role, process, sender, _ = asked
        main = self._main_thread(role, process) if sender is None else sender
        silent = cut.filter(pl.col("cause").is_null()).with_columns(thread=pl.lit(main, pl.Int32))
        recorded = cut.filter(pl.col("cause").is_not_null())
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
        return pl.concat([recorded, marked.select(recorded.columns)])

    def _doubted(self, role: str, crossed: pl.DataFrame) -> pl.DataFrame:
        """Leave open whether a role without ranges waits while another thread of it, or a worker, is busy.

        Of such a role the scheduler saw one thread sleep; for whom it waits, a range would have said.
        """
        about = pl.col("state").cast(pl.String).is_in(["running", *WAITS_FOR_CPU])
        of_role = pl.col("thread").is_in(self._threads(role).implode())
        awake = [self.thread_states.filter(of_role & about)]
        if role != ENTRANCE:
            awake.append(self._ranks.works)
        return doubted(crossed, awake)

    def _main_thread(self, role: str, process: int | None) -> int | None:
        """Return the thread of the role that did most, or its process's first one if nothing was recorded."""
        of = self._threads(role, process)
        threads = self.trace.threads.filter(pl.col("thread").is_in(of.implode()))
        rows = self._ranks.spent if role == RANKS else self.host_activity.select("thread", ns="dur_ns")
        own = rows.filter(pl.col("thread").is_in(of.implode()))
        busiest = own.group_by("thread").agg(pl.col("ns").sum()).sort("ns", "thread")
        first = threads.filter(pl.col("pid") == pl.col("tid"))["thread"]
        for candidates in (busiest["thread"].tail(1), first, threads["thread"]):
            if candidates.len():
                return int(candidates[0])
        return None

    def _decide(self, role: str, answer: pl.DataFrame) -> pl.DataFrame:
        """Give a cause to pieces that end here: between a role's ranges a message is on its way."""
        ranges = self._ranges(role)
        message = "wait" if ranges else NOT_RECORDED
        return decided(answer, message, entrance=role == ENTRANCE, annotates="annotation" in ranges)

    def _ranges(self, role: str) -> list[str]:
        """Return the categories of the role's slices; none = only the scheduler and samples saw it."""
        if role not in self._categories:
            slices = self.trace.slices.filter(pl.col("thread").is_in(self._threads(role).implode()))
            self._categories[role] = slices["category"].cast(pl.String).unique().to_list()
        return self._categories[role]
