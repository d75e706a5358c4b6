"""Scheduler states: every rule on rows worked by hand, a second implementation, and a simulator that knows
the truth.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelib import load
from tracelib.analyses.scheduler_events import covers
from tracelib.analyses.thread_states import thread_states
from tracelib.analyses.window import Window
from tracelib.analyses.window import window as gpu_window

if TYPE_CHECKING:
    from tracelib.trace import Trace

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode does not
from scheduling_frames import IDLE, loss, merged, rows, slow_states, switch, trace, wakeup, window

A, B, C = 1, 2, 3


def states_of(
    sched: list[tuple[object, ...]], thread: int, end: int = 100, samples: list[tuple[int, int]] = ()
) -> list[tuple[object, ...]]:
    """Rows of one thread over [0, end); the recording begins at its first event."""
    return merged(rows(thread_states(trace(sched, samples), window(0, end)), thread))


# ------------------------------------------------------------------------------------------- what is recorded


def test_sleep_wake_wait_run() -> None:
    got = states_of(
        [
            switch(10, 0, A, "S", B),
            wakeup(20, 0, A, waker=B),
            switch(35, 0, B, "S", A),
            switch(60, 0, A, "S", IDLE),
            switch(99, 1, IDLE, "R", C),
        ],
        A,
    )
    # The recording begins at 10: A's first event. It ran before, but for how long no event says. It ends at
    # 99.
    assert got == [
        (0, 10, "unknown", None, None, False),
        (10, 20, "blocked", 0, None, False),
        (20, 35, "runnable", 0, B, False),
        (35, 60, "running", 0, None, False),
        (60, 100, "blocked", 0, None, False),
    ]


def test_preempted_by_the_next_thread() -> None:
    got = states_of(
        [
            switch(10, 0, B, "S", A),
            switch(20, 0, A, "R", B),
            switch(50, 0, B, "S", A),
            switch(99, 0, A, "S", IDLE),
        ],
        A,
    )
    assert got[1:] == [
        (10, 20, "running", 0, None, False),
        (20, 50, "runnable", 0, B, False),
        (50, 99, "running", 0, None, False),
        (
            99,
            100,
            "unknown",
            None,
            None,
            False,
        ),  # no wake-ups are recorded at all, so no telling how long it sleeps
    ]


def test_without_wakeups_sleep_and_wait_cannot_be_told_apart() -> None:
    got = states_of([switch(10, 0, A, "S", B), switch(50, 0, B, "S", A), switch(60, 0, A, "S", B)], A, 60)
    assert got == [(0, 50, "unknown", 0, None, False), (50, 60, "running", 0, None, False)]


def test_waking_stands_in_for_wakeup() -> None:
    got = states_of(
        [switch(10, 0, A, "S", B), wakeup(20, 0, A, B, event="waking"), switch(30, 0, B, "S", A)], A, 31
    )
    assert [r[:3] for r in got[1:3]] == [(10, 20, "blocked"), (20, 30, "runnable")]


def test_waking_before_a_wakeup_is_not_a_second_one() -> None:
    got = states_of(
        [
            switch(10, 0, A, "S", B),
            wakeup(20, 0, A, B, event="waking"),
            wakeup(22, 0, A, B),
            switch(30, 0, B, "S", A),
        ],
        A,
        31,
    )
    assert [r[:3] for r in got[1:3]] == [(10, 22, "blocked"), (22, 30, "runnable")]


def test_waking_a_thread_that_runs_changes_nothing() -> None:
    sched = [
        switch(10, 0, B, "S", A),
        wakeup(20, 0, A, C),
        switch(30, 0, A, "R", B),
        wakeup(35, 0, A, C),
        switch(40, 0, B, "S", A),
    ]
    got = states_of([*sched, switch(50, 0, A, "S", B)], A, 50)
    assert [r[:3] for r in got[1:]] == [(10, 30, "running"), (30, 40, "runnable"), (40, 50, "running")]


def test_a_new_thread() -> None:
    got = states_of(
        [
            wakeup(5, 1, C, B),
            wakeup(10, 0, A, B, event="wakeup_new"),
            switch(15, 0, B, "R", A),
            switch(20, 0, A, "X", B),
        ],
        A,
        30,
    )
    assert [r[:3] for r in got] == [
        (0, 10, "unknown"),
        (10, 15, "runnable"),
        (15, 20, "running"),
        (20, 30, "unknown"),
    ]


def test_next_cpu_is_another_one() -> None:
    got = states_of(
        [
            wakeup(5, 1, C),
            switch(10, 0, A, "R", B),
            switch(20, 1, C, "S", A),
            switch(30, 1, A, "S", IDLE),
            switch(40, 0, B, "S", IDLE),
        ],
        A,
        30,
    )
    assert got[1:] == [(10, 20, "runnable", 0, B, False), (20, 30, "running", 1, None, False)]


def test_a_lost_event_makes_both_ends_unknown() -> None:
    # CPU 0: B comes at 20, yet A leaves at 40: the switch between was lost.
    sched = [
        wakeup(5, 1, C),
        switch(10, 0, A, "R", B),
        switch(15, 0, B, "S", A),
        switch(20, 0, A, "R", B),
        switch(40, 0, A, "S", C),
        switch(50, 0, C, "S", B),
        switch(60, 0, B, "S", IDLE),
    ]
    assert [r[:3] for r in states_of(sched, A, 60)][1:] == [
        (10, 15, "runnable"),
        (15, 20, "running"),
        (20, 40, "unknown"),
        (40, 60, "blocked"),
    ]
    assert [r[:3] for r in states_of(sched, B, 60)][1:] == [
        (10, 15, "running"),
        (15, 50, "unknown"),
        (50, 60, "running"),
    ]


def test_a_loss_mark_closes_both_sides_as_unknown() -> None:
    # CPU 0 lost events between 20 and 40: A may have left and come back, B may have been there in between.
    sched = [
        wakeup(5, 1, C),
        switch(10, 0, B, "R", A),
        wakeup(20, 1, C, B),
        loss(40, 0),
        switch(50, 0, A, "S", IDLE),
        wakeup(55, 1, A),
        switch(60, 1, C, "S", A),
        switch(70, 1, A, "S", C),
    ]
    assert [r[:3] for r in states_of(sched, A, 70)] == [
        (0, 50, "unknown"),
        (50, 55, "blocked"),
        (55, 60, "runnable"),
        (60, 70, "running"),
    ]


def test_a_thread_that_leaves_after_a_loss_has_an_unknown_coming() -> None:
    sched = [
        wakeup(5, 1, C),
        switch(10, 0, B, "R", A),
        loss(40, 0),
        switch(50, 0, B, "R", A),
        switch(60, 0, A, "R", B),
        switch(80, 0, B, "S", IDLE),
    ]
    assert [r[:3] for r in states_of(sched, B, 80)] == [
        (0, 50, "unknown"),
        (50, 60, "runnable"),
        (60, 80, "running"),
    ]
    assert [r[:3] for r in states_of(sched, A, 80)] == [
        (0, 50, "unknown"),
        (50, 60, "running"),
        (60, 80, "unknown"),  # it may have come to another CPU since
    ]


def test_a_loss_on_one_cpu_says_nothing_of_another() -> None:
    sched = [wakeup(5, 1, C), switch(10, 0, B, "S", A), switch(60, 0, A, "S", IDLE), wakeup(70, 1, A)]
    assert states_of([*sched[:2], loss(40, 1), *sched[2:]], A, 70) == states_of(sched, A, 70)
    assert [r[:3] for r in states_of(sched, A, 70)][1] == (10, 60, "running")


def test_a_loss_while_the_cpu_idled_hides_who_came() -> None:
    # Without the mark, A's coming to the idle CPU would be bounded by its wake-up; with it, anything may have
    # been.
    sched = [wakeup(5, 1, C), switch(10, 0, A, "S", IDLE), wakeup(30, 0, A), switch(50, 0, A, "S", IDLE)]
    assert [r[:3] for r in states_of(sched, A, 50)][1:] == [(10, 30, "blocked"), (30, 50, "running")]
    marked = [*sched[:3], loss(50, 0), *sched[3:]]
    assert [r[:3] for r in states_of(marked, A, 50)][1:] == [(10, 30, "blocked"), (30, 50, "unknown")]


def test_idle_is_no_thread() -> None:
    states = thread_states(trace([switch(10, 0, A, "S", IDLE), switch(20, 0, IDLE, "R", B)]), window(0, 30))
    assert states["thread"].unique().sort().to_list() == [A, B]
    assert states["by"].is_null().all()


def test_no_scheduler_events() -> None:
    assert thread_states(trace([]), window(0, 10)).is_empty()


# --------------------------------------------------------------------- comings that the kernel did not record


def test_woken_on_an_idle_cpu_it_comes_at_once() -> None:
    got = states_of(
        [
            switch(10, 0, A, "S", IDLE),
            wakeup(30, 0, A),
            switch(50, 0, A, "S", IDLE),
            switch(99, 1, B, "S", IDLE),
        ],
        A,
        99,
    )
    assert got[1:] == [
        (10, 30, "blocked", 0, None, False),
        (30, 50, "running", 0, None, True),
        (50, 99, "blocked", 0, None, False),
    ]


def test_woken_on_a_busy_cpu_it_ran_from_its_first_act() -> None:
    # Idle only since 40; A wakes B at 60, so it runs then; where it came between 40 and 60 is not known.
    sched = [
        switch(10, 0, A, "S", B),
        wakeup(30, 0, A, B),
        switch(40, 0, B, "S", IDLE),
        wakeup(60, 1, B, A),
        switch(70, 0, A, "S", IDLE),
    ]
    assert states_of(sched, A, 70)[1:] == [
        (10, 30, "blocked", 0, None, False),
        (30, 40, "runnable", 0, None, True),
        (40, 60, "unknown", 0, None, False),
        (60, 70, "running", 0, None, True),
    ]


def test_a_sample_is_an_act_and_its_absence_a_bound() -> None:
    # Samples every 2000 ns: A left ready at 10 000, is seen at 50 000. Before 46 000 it would have been seen.
    sched = [
        wakeup(500, 1, C),
        switch(10_000, 0, A, "R", IDLE),
        switch(60_000, 0, A, "S", IDLE),
        switch(70_000, 1, C, "S", IDLE),
    ]
    samples = [(0, B), (50_000, A), (52_000, A), (70_000, B)]
    assert states_of(sched, A, 60_000, samples)[1:] == [
        (10_000, 46_000, "runnable", 0, None, True),
        (46_000, 50_000, "unknown", 0, None, False),
        (50_000, 60_000, "running", 0, None, True),
    ]


def test_woken_on_an_idle_cpu_but_not_sampled_it_did_not_run() -> None:
    sched = [
        switch(10_000, 0, A, "S", IDLE),
        wakeup(20_000, 0, A),
        switch(60_000, 0, A, "S", IDLE),
        switch(70_000, 1, C, "S", IDLE),
    ]
    samples = [(0, B), (58_000, A), (70_000, B)]
    assert states_of(sched, A, 60_000, samples)[2:] == [
        (20_000, 54_000, "runnable", 0, None, True),
        (54_000, 58_000, "unknown", 0, None, False),
        (58_000, 60_000, "running", 0, None, True),
    ]


# ------------------------------------------------------------------------------------------- several sources


def doubled(sched: list[tuple[object, ...]], late_ns: int) -> list[tuple[object, ...]]:
    """The same events as a second recorder wrote them, which began later."""
    return sched + [(1, *row[1:]) for row in sched if row[1] >= late_ns]


def test_what_two_recorders_saw_counts_once() -> None:
    sched = [switch(10 * n, 0, A if n % 2 else B, "R", B if n % 2 else A) for n in range(1, 40)]
    alone = thread_states(trace(sched), window(0, 400))
    both = thread_states(trace(doubled(sched, 100), sources=2), window(0, 400))
    assert both.equals(alone)
    assert both.group_by("thread").agg(pl.col("dur_ns").sum())["dur_ns"].to_list() == [400, 400]


def test_of_two_recorders_the_denser_is_used_where_both_record() -> None:
    dense = [switch(10 * n, 0, A if n % 2 else B, "R", B if n % 2 else A) for n in range(10, 40)]
    sparse = [(1, *row[1:]) for n, row in enumerate(dense) if n % 3 == 0]
    early = [switch(10 * n, 0, A if n % 2 else B, "R", B if n % 2 else A, source=1) for n in range(1, 10)]
    got = (
        covers(trace(dense + sparse + early, sources=2))
        .select("source", "from_ns", "until_ns", "segment")
        .rows()
    )
    assert got == [(1, 10, 100, 0), (0, 100, 391, 0)]


def test_nothing_is_carried_over_a_hole_between_recordings() -> None:
    first = [wakeup(5, 1, C), switch(10, 0, B, "S", A), switch(20, 0, A, "S", B)]
    second = [wakeup(500, 1, C, source=1), switch(520, 0, A, "S", B, source=1)]
    got = rows(thread_states(trace(first + second, sources=2), window(0, 600)), A)
    assert [r[:3] for r in got if r[1] > 20 and r[0] < 520] == [
        (20, 21, "blocked"),
        (21, 500, "unknown"),
        (500, 520, "unknown"),
    ]


# ---------------------------------------------------------------------------------------- invariants, oracle


def simulate(  # noqa: C901, PLR0915  a scheduler in one loop
    seed: int, cpus: int, threads: int, steps: int, comings_seen: float, lost: float, *, marks: bool = False
) -> tuple[Trace, dict[int, list[tuple[int, int, str]]], int]:
    """Return a trace, the truth as (from, until, state) per thread, and the end, of a scheduler with one
    queue.

    `comings_seen`: share of the idle-to-thread switches that are recorded; `lost`: share of all events that
    are not. Samples come every 2000 ns on each busy CPU; at most one event happens at a time. `marks`: before
    the next event of a CPU whose events were lost, the recorder says so, as ftrace does.
    """
    rng = random.Random(seed)
    state = dict.fromkeys(range(threads), "blocked")
    since = dict.fromkeys(range(threads), 0)
    truth: dict[int, list[tuple[int, int, str]]] = {t: [] for t in range(threads)}
    on_cpu = [IDLE] * cpus
    queue: list[int] = []
    sched: list[tuple[object, ...]] = []
    samples: list[tuple[int, int]] = []
    now = 0

    def become(thread: int, new: str) -> None:
        truth[thread].append((since[thread], now, state[thread]))
        state[thread], since[thread] = new, now

    cut: set[object] = set()

    def record(row: tuple[object, ...], share: float = 1.0) -> None:
        chance = rng.random()
        if chance < share * (1 - lost):
            if marks and row[2] in cut:
                sched.append(loss(now, row[2]))  # type: ignore[arg-type]
                cut.discard(row[2])
            sched.append(row)
        elif chance >= 1 - lost:
            cut.add(row[2])

    def put(cpu: int, thread: int, left: str) -> None:
        share = comings_seen if on_cpu[cpu] == IDLE else 1.0
        record(switch(now, cpu, on_cpu[cpu], "R" if on_cpu[cpu] == IDLE else left, thread), share)
        on_cpu[cpu] = thread
        if thread != IDLE:
            become(thread, "running")

    for _ in range(steps):
        ahead = rng.choice([1, 7, 300, 2_500, 9_000])
        samples += [
            (t, thread)
            for t in range(now - now % 2000 + 2000, now + ahead, 2000)
            for thread in on_cpu
            if thread != IDLE
        ]
        now += ahead
        kind, cpu = rng.random(), rng.randrange(cpus)
        asleep = [t for t in state if state[t] == "blocked"]
        if kind < 0.5 and asleep:
            woken = rng.choice(asleep)
            idle = [c for c in range(cpus) if on_cpu[c] == IDLE]
            target = idle[0] if idle else cpu
            waker = rng.choice([*(t for t in on_cpu if t != IDLE), IDLE])
            record(wakeup(now, target, woken, waker))
            become(woken, "runnable")
            if idle:
                put(target, woken, "")
            else:
                queue.append(woken)
        elif on_cpu[cpu] != IDLE:
            leaving = on_cpu[cpu]
            ready = kind < 0.75 and bool(queue)
            come = queue.pop(0) if queue else IDLE
            become(leaving, "runnable" if ready else "blocked")
            if ready:
                queue.append(leaving)
            put(cpu, come, "R" if ready else "S")
    for thread, book in truth.items():
        book.append((since[thread], now, state[thread]))
    return trace(sched, samples), truth, now


SIMULATED = {
    "seed": st.integers(0, 10**9),
    "cpus": st.integers(1, 4),
    "threads": st.integers(1, 7),
    "steps": st.integers(2, 250),
}


def span(of: Trace) -> tuple[int, int]:
    return of.sched["ts_ns"].min(), of.sched["ts_ns"].max() + 1  # type: ignore[operator, return-value]


def fast(of: Trace, first: int, last: int) -> list[tuple[object, ...]]:
    """Rows of thread_states in the form of slow_states, quotas taken back."""
    states = thread_states(of, Window(first, last, "test"))
    assert not (states["state"] == "throttled").any()
    return sorted(
        states.select(
            "thread",
            "ts_ns",
            (pl.col("ts_ns") + pl.col("dur_ns")).alias("until"),
            pl.col("state").cast(pl.String),
            "inferred",
        ).rows()
    )


@settings(max_examples=150, deadline=None)
@given(
    **SIMULATED,
    comings_seen=st.sampled_from([0.0, 0.1, 1.0]),
    lost=st.sampled_from([0.0, 0.05, 0.4]),
    marks=st.booleans(),
)
def test_two_implementations_agree_to_the_nanosecond(
    seed, cpus, threads, steps, comings_seen, lost, marks
) -> None:
    of, _, _ = simulate(seed, cpus, threads, steps, comings_seen, lost, marks=marks)
    if of.sched.is_empty():
        return
    assert fast(of, *span(of)) == slow_states(of, *span(of))


@settings(max_examples=60, deadline=None)
@given(**SIMULATED)
def test_a_complete_recording_tells_the_truth(seed, cpus, threads, steps) -> None:
    of, truth, _ = simulate(seed, cpus, threads, steps, comings_seen=1.0, lost=0.0)
    if of.sched.is_empty():
        return
    told = fast(of, *span(of))
    last = {thread: b for thread, _, b, _, _ in told}
    for n, (thread, a, b, state, inferred) in enumerate(told):
        if inferred:  # only what follows a thread's last event needs rebuilding
            assert last[thread] == (told[n + 1][2] if told[n + 1 : n + 2] and told[n + 1][0] == thread else b)
        assert agrees(truth[thread], a, b, state), (thread, a, b, state)


@settings(max_examples=100, deadline=None)
@given(**SIMULATED, comings_seen=st.sampled_from([0.0, 0.2]))
def test_what_is_rebuilt_is_never_invented(seed, cpus, threads, steps, comings_seen) -> None:
    """With idle-to-thread switches missing, every state that is not `unknown` is the true one."""
    of, truth, _ = simulate(seed, cpus, threads, steps, comings_seen, lost=0.0)
    if of.sched.is_empty():
        return
    for thread, a, b, state, inferred in fast(of, *span(of)):
        assert agrees(truth[thread], a, b, state), (thread, a, b, state, inferred)


def agrees(truth: list[tuple[int, int, str]], a: int, b: int, state: str) -> bool:
    """Whether the thread was in `state` all of [a, b), by the simulator's own book; the last nanosecond is
    the edge's.
    """
    return state == "unknown" or all(s == state for x, y, s in truth if max(x, a) < min(y, b))


@settings(max_examples=40, deadline=None)
@given(
    **SIMULATED,
    comings_seen=st.sampled_from([0.0, 1.0]),
    lost=st.sampled_from([0.0, 0.2]),
    shift=st.integers(-(10**12), 10**12),
)
def test_a_shift_of_all_clocks_changes_nothing(seed, cpus, threads, steps, comings_seen, lost, shift) -> None:
    of, _, _ = simulate(seed, cpus, threads, steps, comings_seen, lost)
    if of.sched.is_empty():
        return
    first, last = span(of)
    moved = of.replace(
        sched=of.sched.with_columns(pl.col("ts_ns") + shift),
        samples=of.samples.with_columns(pl.col("ts_ns") + shift),
    )
    back = [(t, a - shift, b - shift, s, i) for t, a, b, s, i in fast(moved, first + shift, last + shift)]
    assert back == fast(of, first, last)


@settings(max_examples=40, deadline=None)
@given(**SIMULATED, lost=st.sampled_from([0.0, 0.3]))
def test_rows_cover_the_window(seed, cpus, threads, steps, lost) -> None:
    of, _, end = simulate(seed, cpus, threads, steps, 0.5, lost)
    states = thread_states(of, window(-50, end + 50))
    for (_,), own in states.group_by("thread"):
        assert own["ts_ns"][0] == -50
        assert (own["ts_ns"] + own["dur_ns"]).to_list() == [*own["ts_ns"][1:], end + 50]
        assert (own["dur_ns"] > 0).all()


# ---------------------------------------------------------------------------------------------- the captures


@pytest.mark.corpus
@pytest.mark.parametrize("capture", ["starved", "healthy"])
@pytest.mark.parametrize("format_", ["perf", "ftrace"])
def test_second_implementation_on_captures(captures, capture: str, format_: str) -> None:
    of = load([captures / capture / "perf.txt.gz", captures / capture / "ftrace.txt.gz"], ftrace_clock="mono")
    source = of.sources.filter(pl.col("format") == format_)["source"][0]
    one = of.replace(sched=of.sched.filter(pl.col("source") == source))
    assert fast(one, *span(one)) == slow_states(one, *span(one))


@pytest.mark.corpus
def test_starved_workers_wait_for_a_cpu_several_times_longer(run_of) -> None:
    waited = {}
    for capture in ("starved", "healthy"):
        of = run_of(capture).trace
        states = thread_states(of, gpu_window(of))
        launching = of.threads.filter(
            pl.col("name").str.starts_with("worker_TP") & (pl.col("pid") == pl.col("tid"))
        )
        own = states.filter(pl.col("thread").is_in(launching["thread"].implode()))
        waited[capture] = own.filter(pl.col("state") == "runnable")["dur_ns"].sum()
        assert launching.height == 2
        whole = own.group_by("thread").agg(pl.col("dur_ns").sum())["dur_ns"].unique().to_list()
        assert whole == [gpu_window(of).duration_ns]
        assert own.filter(pl.col("state") == "unknown")["dur_ns"].sum() < 0.03 * own["dur_ns"].sum()
    assert waited["starved"] > 5 * waited["healthy"]
    assert waited["starved"] > 500_000_000
