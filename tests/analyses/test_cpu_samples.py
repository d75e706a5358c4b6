"""Samples of any event stand for time: by their period where that is time, else by how far apart they are."""

import polars as pl
import pytest

from tests.findings.sheet import MS, Sheet
from tracelib import schema
from tracelib.analyses.cpu_samples import symbols, weighed_samples

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
