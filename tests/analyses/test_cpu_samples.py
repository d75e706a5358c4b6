"""Samples of any event stand for time: by their period where that is time, else by how far apart they are."""

import polars as pl
import pytest

from tests.findings.sheet import MS, Sheet
from tracelib import schema
from tracelib.analyses.cpu_samples import sample_stretches, symbols, weighed_samples
from tracelib.analyses.thread_states import CPU_STATE, thread_states
from tracelib.analyses.window import Window
from tracelib.slice_rules import load_rules

COLLECT = ("gc_collect_main", "/usr/bin/python3.12")


def server(event, period):
    """The engine, sampled every 2 ms for 100 ms while a GPU waits for it, collects garbage."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 101, "shm_broadcast.dequeue")
    sheet.sampled(sheet.engine, 1, 101, COLLECT)
    for row in sheet.samples:
        row.update(event=event, period=period)
    sheet.kernel(102, 103)
    return sheet


def stands(sheet):
    return weighed_samples(sheet.trace())["stands_ns"].to_list()


@pytest.mark.parametrize(
    ("event", "period"),
    [
        ("cpu-clock", 2 * MS),
        ("task-clock:u", 2 * MS),
        ("cpu-clock", None),  # perf script -F without the period
        ("cycles:P", 6_000_000),
        ("cpu_core/cycles/", 6_000_000),
        ("instructions", 12_345),
        ("LLC-load-misses", 1),
        (None, None),  # perf script -F without the event
    ],
)
def test_samples_of_any_event_count(event, period):
    sheet = server(event, period)
    assert stands(sheet) == [2 * MS] * 50
    results = sheet.results()
    assert results.lost.filter(pl.col("cause") == "gc")["dur_ns"].sum() == 100 * MS
    assert results.cpu_time.select("role", "cause", "cpu_ns").rows() == [("engine", "gc", 100 * MS)]


def test_cycles_weigh_what_they_counted():
    """The recorder begins with a small period: such a sample stands for less."""
    sheet = server("cycles", 6_000_000)
    sheet.samples[10].update(ts_ns=sheet.samples[10]["ts_ns"] - MS, period=3_000_000)
    assert stands(sheet) == [MS if n == 10 else 2 * MS for n in range(50)]


def test_a_thread_that_sleeps_between_its_samples_is_no_measure():
    sheet = server("cycles", None)
    for n, row in enumerate(sheet.samples[:20]):
        row["ts_ns"] -= (20 - n) * 50 * MS
    assert stands(sheet) == [2 * MS] * 50


@pytest.mark.parametrize("event", ["page-faults", "context-switches", "cpu-migrations:u", "dummy:HG"])
def test_counts_of_happenings_are_no_time(event):
    assert stands(server(event, 1)) == []


def test_one_sample_alone_has_no_length():
    sheet = server("cycles", 6_000_000)
    del sheet.samples[1:]
    assert stands(sheet) == []


def test_a_clock_is_preferred_where_both_sampled_a_thread():
    sheet = server("cpu-clock", 2 * MS)
    both = [{**row, "event": "cycles", "period": 6_000_000} for row in sheet.samples]
    other = [{**row, "thread": sheet.api} for row in both]
    sheet.samples += [{**row, "ts_ns": row["ts_ns"] + 10} for row in both] + other
    weighed = weighed_samples(sheet.trace())
    assert weighed.group_by("thread", "event").len().sort("thread").rows() == [
        (sheet.engine, "cpu-clock", 50),
        (sheet.api, "cycles", 50),
    ]


def test_a_sample_goes_by_the_function_that_says_most():
    chains = [
        [("memcpy", "/lib/libc.so.6"), ("xgrammar::Fill", "/x/xgrammar.so"), COLLECT],
        [("[unknown]", "/x/libcuda.so.1"), ("do_idle", "[kernel.kallsyms]")],
        [("[unknown]", "/x/libcuda.so.1")],
        [("do_select", "[kernel.kallsyms]"), ("py::propose", "[JIT] tid 7"), COLLECT],
        [("do_syscall_64", "[kernel.kallsyms]"), COLLECT],
    ]
    rows = [(n, depth, *place) for n, chain in enumerate(chains) for depth, place in enumerate(chain)]
    named = symbols(pl.DataFrame(rows, schema=schema.STACKS, orient="row"))
    assert named["symbol"].to_list() == [
        "xgrammar::Fill",
        "do_idle",
        "libcuda.so.1",
        "py::propose",
        "do_syscall_64",
    ]


def engine_in(*chain):
    """What the GPU's lost time is put to while the engine's only samples, of 30 ms, are in `chain`."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 101, "shm_broadcast.dequeue")
    sheet.sampled(sheet.engine, 20, 50, *chain)
    sheet.kernel(102, 103)
    return sheet


@pytest.mark.parametrize(
    ("chain", "what"),
    [
        ([("_PyEval_EvalFrameDefault", "/usr/bin/python3.12")], "_PyEval_EvalFrameDefault"),
        ([("solve", "/x/libsolver.so")], "solve"),
        ([("clear_page_erms", "[kernel.kallsyms]"), ("solve", "/x/libsolver.so")], "solve"),
    ],
)
def test_a_sample_that_no_rule_names_is_work_of_its_thread(chain, what):
    lost = engine_in(*chain).results().lost
    work = lost.filter(pl.col("cause") == "host_work")
    assert work.select("sub_cause", "what").unique().rows() == [("engine", what)]
    assert work["dur_ns"].sum() == 30 * MS


def test_beside_polling_it_is_polling():
    sheet = engine_in(("_PyEval_EvalFrameDefault", "/usr/bin/python3.12"))
    sheet.chains.append((("do_sched_yield", "[kernel.kallsyms]"), ("__sched_yield", "/lib/libc.so.6")))
    for n in range(1, 15, 2):
        sheet.samples[n]["stack"] = 1
    assert "host_work" not in sheet.results().lost["cause"].to_list()


def test_lost_time_that_only_samples_saw_is_called_by_their_function():
    lost = server("cycles", 6_000_000).results().lost
    assert lost.filter(pl.col("cause") == "gc")["what"].unique().to_list() == ["gc_collect_main"]


def told(sheet, lost=()):
    """Which ms of the engine's time go to the sample taken at which ms; at `lost` begin unknown states."""
    trace, over, rules = sheet.trace(), Window(0, 40 * MS, ""), load_rules()
    gone = pl.col("ts_ns").is_in([at * MS for at in lost])
    unknown = pl.when(gone).then(pl.lit("unknown")).otherwise("state").cast(CPU_STATE)
    states = thread_states(trace, over).with_columns(state=unknown)
    rows = sample_stretches(trace, over, rules, states).filter(pl.col("thread") == sheet.engine)
    times = rows.select("taken_ns", "ts_ns", end=pl.col("ts_ns") + pl.col("dur_ns"))
    return [tuple(ns / MS for ns in row) for row in times.iter_rows()]


def turns(*samples):
    """The engine runs 0 to 1 ms, sleeps until 5, is ready until 6, runs until 8, sleeps until 20, runs on."""
    sheet = Sheet()
    for begin, end in ((0, 1), (6, 8), (20, 40)):
        sheet.runs(sheet.engine, begin, end, cpu=0)
    sheet.ready(sheet.engine, 5, 6, cpu=0)
    for at in samples:
        sheet.sampled(sheet.engine, at - 2, at, COLLECT)
    return sheet


def test_a_sample_tells_of_the_turns_around_it_and_of_the_wait_for_one_but_not_of_sleep():
    """At 7 ms the engine had run for 2 ms: 4 ms, two periods, of its own time after that end at 23."""
    assert told(turns(7)) == [(7, 0, 1), (7, 5, 6), (7, 6, 8), (7, 20, 23)]


def test_between_two_samples_the_nearer_one_tells():
    """At 7 and 21 ms it had run for 2 and 4 ms; the middle, 3 ms, is when it fell asleep at 8."""
    assert told(turns(7, 21)) == [(7, 0, 1), (7, 5, 6), (7, 6, 8), (21, 20, 25)]


def test_where_no_scheduler_event_tells_a_sample_tells_of_the_time_before_it():
    sheet = Sheet()
    for at in (7, 8, 21):
        sheet.sampled(sheet.engine, at - 2, at, COLLECT)
    assert told(sheet) == [(7, 5, 7), (8, 7, 8), (21, 19, 21)]


def test_what_lies_beyond_lost_events_is_not_near():
    """Whether it ran from 8 to 20 ms is not known: what comes after that is another stretch of own time."""
    assert told(turns(7), lost=[8]) == [(7, 0, 1), (7, 5, 6), (7, 6, 8)]
