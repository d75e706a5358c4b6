"""Rules on lack of CPUs: each with a run that triggers it and a near miss that does not."""

import dataclasses

import msgspec
import polars as pl
import pytest

from tests.findings.cases import Case, no_samples, no_sched, outcome, rule_tests
from tests.findings.sheet import MS, Sheet
from tracelib.analyses.capacity import server_cpus
from tracelib.analyses.cpu_time import SPINNING, polls
from tracelib.analyses.results import analyse
from tracelib.analyses.scheduling import cpu_contention
from tracelib.analyses.thread_states import THREAD_STATES
from tracelib.analyses.throttling import Supply
from tracelib.findings.finding import Abstained, shortage_note
from tracelib.findings.order import gain_words

GOMP, TORCH = ("[unknown]", "/x/libgomp.so.1"), ("at::x", "/x/libtorch_cpu.so")
BPE = ("[unknown]", "/x/tokenizers.abi3.so")


def gap():
    """One GPU idle from 1 to 101 ms, its worker inside an op all the time."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 100, "aten::mm", "op")
    sheet.kernel(101, 102)
    return sheet


def kept_off(sheet, other, start=20, end=40):
    """The worker is ready from `start` to `end`, while another thread runs on its CPU."""
    sheet.runs(0, 0, start, cpu=0)
    sheet.ready(0, start, end, cpu=0)
    sheet.runs(other, start, end, cpu=0)
    sheet.runs(0, end, 102, cpu=0)
    return sheet


def beside(sheet, other):
    """The worker runs all the time, the other thread on a CPU of its own."""
    sheet.runs(0, 0, 102, cpu=0)
    sheet.runs(other, 20, 40, cpu=1)
    return sheet


def crowded(*chain, role=None, pid=901):
    """The worker is kept off by another thread, which is in that call chain."""
    sheet = gap()
    other = sheet.thread(role, "other", pid=pid)
    sheet.sampled(other, 20, 40, *chain)
    return kept_off(sheet, other)


def asleep():
    """The worker sleeps from 20 to 40 ms, while another thread runs on its CPU."""
    sheet = gap()
    sheet.runs(0, 0, 20, cpu=0)
    sheet.runs(0, 40, 102, cpu=0)
    sheet.runs(sheet.thread(None, "batch", pid=901), 20, 40, cpu=0)
    return sheet


def next_to(other):
    """The worker runs all the time, and `other`, a function that adds a thread, on a CPU of its own."""
    sheet = gap()
    return beside(sheet, other(sheet))


def test_ready_without_a_cpu_is_shortage():
    sheet = gap()
    found = outcome("cpu_shortage", kept_off(sheet, sheet.thread(None, "batch", pid=901)).results())
    assert (found.exposed_ns, found.gain_ns, found.change) == (20 * MS, 20 * MS, "machine")
    assert "The server ran on 1 of the host's 8 CPUs" in found.claim
    assert ": batch (not known as the server's) 100 %." in found.claim
    assert found.evidence[0].value == "20.0 ms without a CPU"


def test_a_process_beside_the_server_that_has_the_wanted_cpu_is_named_by_its_process():
    """Two threads of one compressor have it for 4 ms in all, and 16 ms a thread of the API server."""
    sheet = gap()
    sheet.runs(0, 0, 20, cpu=0)
    sheet.ready(0, 20, 40, cpu=0)
    sheet.runs(0, 40, 102, cpu=0)
    sheet.runs(sheet.api, 20, 36, cpu=0)
    first, second = (sheet.thread(None, name, pid=901) for name in ("zstd-a", "zstd-b"))
    for n in (first, second):
        sheet.threads[n]["process"] = "zstd"
    sheet.runs(first, 36, 38, cpu=0)
    sheet.runs(second, 38, 40, cpu=0)
    found = outcome("cpu_shortage", sheet.results())
    assert ": api_server 80 %, zstd (not known as the server's) 20 %." in found.claim


def test_the_recorder_s_part_of_what_ran_instead_is_named_apart():
    """For 20 ms the front end serves (a range), 12 of them in the profiler (samples); perf had 5 more."""
    sheet = gap()
    sheet.runs(0, 0, 20, cpu=0)
    sheet.ready(0, 20, 45, cpu=0)
    sheet.runs(0, 45, 102, cpu=0)
    sheet.doing(sheet.api, 10, 60, "own_server.py(7): serve", "python")
    sheet.sampled(sheet.api, 20, 28, ("[unknown]", "/usr/bin/python3.12"))
    sheet.sampled(sheet.api, 28, 40, ("libkineto::x", "/x/libtorch_cpu.so"))
    sheet.runs(sheet.api, 20, 40, cpu=0)
    sheet.runs(sheet.thread("recorder", "perf", pid=901), 40, 45, cpu=0)
    found = outcome("cpu_shortage", sheet.results())
    # A moment goes to the nearest sample: that at 30 ms has it from 29 ms on.
    named = ": api_server (recording) 44 %, api_server 36 %, perf (recording) 20 %."
    assert named in found.claim


def test_without_scheduler_events_shortage_is_abstained_from():
    assert isinstance(outcome("cpu_shortage", gap().results()), Abstained)
    assert isinstance(outcome("quota_throttling", gap().results()), Abstained)


def test_shortage_behind_gpu_work_costs_nothing():
    sheet = Sheet()
    sheet.kernel(0, 101)
    sheet.kernel(101, 102)
    assert outcome("cpu_shortage", kept_off(sheet, sheet.thread(None, "batch", pid=901)).results()) is None


def switched_until(ms):
    """The worker is kept off for 20 ms; switches were recorded until then, of a window of 102 ms."""
    sheet = gap()
    sheet.runs(0, 0, 20, cpu=0)
    sheet.ready(0, 20, 40, cpu=0)
    sheet.runs(sheet.thread(None, "batch", pid=901), 20, 40, cpu=0)
    sheet.runs(0, 40, ms, cpu=0)
    return outcome("cpu_shortage", sheet.results())


def test_shortage_in_a_part_of_the_window_is_the_least_that_more_cpus_give_back():
    """The window is 102 ms: 20 ms are 20 % of it, and 40 % of the 51 ms in which switches were recorded."""
    found = msgspec.structs.replace(switched_until(51), gain_share=20 / 102)
    assert found.claim.startswith("For at least 20 % of GPU time the thread that a GPU waited for")
    assert found.known_share == pytest.approx(0.5)
    assert gain_words(found) == (
        "gain at least 20 % of GPU time, not replayed (39 % of the 50 % of it that the scheduler recorded)"
    )


def test_shortage_in_a_window_that_was_recorded_whole_is_the_most_that_more_cpus_give_back():
    found = msgspec.structs.replace(switched_until(102), gain_share=20 / 102)
    assert found.claim.startswith("For 20 % of GPU time the thread that a GPU waited for")
    assert (found.known_share, gain_words(found)) == (None, "gain up to 20 % of GPU time, not replayed")


def lost_in(**ms):
    """Lost GPU time in ms by the blamed thread's CPU state."""
    rows = [(state, n * MS) for state, n in ms.items()]
    return pl.DataFrame(rows, schema={"cpu_state": pl.String, "dur_ns": pl.Int64}, orient="row")


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (
            lost_in(runnable=20, running=20, unknown=160),
            (
                " For 50 % of the 20 % of this loss whose CPU states are known the thread was ready and had "
                "no CPU."
            ),
        ),
        (
            lost_in(runnable=10, throttled=60, blocked=30),
            (
                " For 10 % of this loss the thread was ready and had no CPU and for 60 % of this loss a CPU "
                "quota had stopped the thread."
            ),
        ),
        (lost_in(runnable=4, running=96), ""),
        (lost_in(unknown=100), ""),
        (lost_in(), ""),
    ],
)
def test_lack_of_cpus_is_a_share_of_the_time_whose_state_is_known(lost, said):
    assert shortage_note(lost) == said


# -------------------- tokenizers in the way
def tokenizer(sheet):
    thread = sheet.thread("api_server", "tokenizer", pid=300)
    sheet.doing(thread, 20, 40, "tokenize")
    return thread


def test_a_tokenizer_on_the_wanted_cpu_starves_the_worker():
    sheet = gap()
    found = outcome("tokenization_starves", kept_off(sheet, tokenizer(sheet)).results())
    assert (found.exposed_ns, found.evidence[0].who) == (20 * MS, "worker_TP0/100")
    assert found.evidence[0].what == "ready to run; tokenizer/10003 tokenized on its CPU; rank 0 waited"
    assert found.claim.endswith("while another tokenized on its CPU: tokenizer/10003 (encoding) 20 %.")


def test_one_sample_tells_of_several_short_turns():
    """A tokenizer and the worker take turns of 1 ms on one CPU; the tokenizer is sampled in every other turn.

    It has the wanted CPU for 10 ms, and each moment of them is within 2 ms, one period, of a sample by its
    own time on a CPU: so it tokenizes all the time. By the clock half of it lies further before a sample.
    """
    sheet = gap()
    other = sheet.thread("api_server", "api_server", pid=300)
    sheet.runs(0, 0, 20, cpu=0)
    for at in range(20, 40, 2):
        sheet.ready(0, at, at + 1, cpu=0)
        sheet.runs(other, at, at + 1, cpu=0)
        sheet.runs(0, at + 1, at + 2, cpu=0)
    sheet.runs(0, 40, 102, cpu=0)
    for at in range(20, 40, 4):
        sheet.sampled(other, at - 1.7, at + 0.3, BPE)
    found = outcome("tokenization_starves", sheet.results())
    assert found.exposed_ns == 10 * MS


def test_another_job_on_the_wanted_cpu_is_no_tokenizer():
    sheet = crowded(TORCH)
    tokenizer(sheet)
    assert outcome("tokenization_starves", sheet.results()) is None


def test_the_same_cpu_number_of_another_host_is_another_cpu():
    """Both other threads run on a CPU 0 from 20 to 40 ms, one of them of the worker's host."""
    sheet = gap()
    here, elsewhere = sheet.thread("worker", "here", pid=100), sheet.thread("worker", "elsewhere", pid=901)
    sheet.threads[elsewhere]["host"] = "other"
    results = kept_off(sheet, here).results()
    row = {
        "thread": elsewhere,
        "ts_ns": 20 * MS,
        "dur_ns": 20 * MS,
        "state": "running",
        "cpu": 0,
        "by": None,
        "inferred": False,
    }
    states = pl.concat([results.thread_states, pl.DataFrame([row], schema=THREAD_STATES)]).sort(
        "thread", "ts_ns"
    )
    names = {"thread": pl.Int32, "ts_ns": pl.Int64, "dur_ns": pl.Int64, "cause": pl.String}
    no_turns = pl.DataFrame(schema={**names, "sub_cause": pl.String})
    told = cpu_contention(
        results.trace, results.lost, states, results.host_activity, results.spinning, no_turns
    )
    assert told["by"].unique().to_list() == [here]
    assert server_cpus(results)[0] == 1
    assert server_cpus(dataclasses.replace(results, thread_states=states))[0] == 2


# -------------------- polling
def helper(sheet):
    """An OpenMP thread of the worker that polls from 20 to 40 ms."""
    thread = sheet.thread("worker", "worker_TP0", pid=100)
    sheet.sampled(thread, 20, 40, GOMP)
    return thread


def test_how_much_a_thread_polled_is_said_of_the_time_that_was_recorded():
    """Switches were recorded from 15 to 45 ms of 102; it polled for 20 ms of them."""
    sheet = gap()
    sheet.runs(0, 15, 20, cpu=0)
    sheet.ready(0, 20, 40, cpu=0)
    sheet.runs(helper(sheet), 20, 40, cpu=0)
    sheet.runs(0, 40, 45, cpu=0)
    results = sheet.results()
    row = outcome("busy_wait", results).evidence[-1]
    assert row.what.startswith("polls: ")
    assert (row.ts_ns, row.dur_ns, row.value) == (15 * MS, 30 * MS, "20.0 ms of CPU time")


def test_openmp_polling_on_the_wanted_cpu_costs_and_is_named():
    sheet = gap()
    found = outcome("busy_wait", kept_off(sheet, helper(sheet)).results())
    assert (found.exposed_ns, found.confidence) == (20 * MS, "high")
    assert "idle OpenMP threads polling at a barrier 20.0 ms" in found.claim
    assert found.advice[0].startswith("Let idle OpenMP threads sleep")


def test_what_polling_cost_where_a_part_was_recorded_is_the_least_of_it():
    """Switches were recorded for 30 ms of 102; the poller had the wanted CPU for 20 of them."""
    sheet = gap()
    sheet.runs(0, 15, 20, cpu=0)
    sheet.ready(0, 20, 40, cpu=0)
    sheet.runs(helper(sheet), 20, 40, cpu=0)
    sheet.runs(0, 40, 45, cpu=0)
    claim = outcome("busy_wait", sheet.results()).claim
    assert claim.startswith("Polling burnt 67 % of the server's CPU time in the 29 % of the window that the")
    assert "held the GPUs up for at least 20 % of GPU time: a poller sat on the CPU" in claim


def test_polling_that_cost_next_to_nothing_is_not_worth_a_finding():
    sheet = gap()
    assert outcome("busy_wait", kept_off(sheet, helper(sheet), 20, 21.5).results()) is None


def test_work_on_the_wanted_cpu_is_no_polling():
    sheet = gap()
    thread = sheet.thread("worker", "worker_TP0", pid=100)
    sheet.sampled(thread, 20, 40, ("at::native::x", "/x/libtorch_cpu.so"), GOMP)
    assert outcome("busy_wait", kept_off(sheet, thread).results()) is None


def beside_a_poller(*, polls=True, pinned=False):
    """The worker is ready from 20 to 40 ms while a tokenizer has its CPU; another polls or works on CPU 1."""
    sheet = gap()
    kept_off(sheet, tokenizer(sheet))
    other = sheet.thread("worker", "output", pid=200 if pinned else 100)
    sheet.doing(other, 25, 38, "cudaEventSynchronize" if polls else "aten::mm", "runtime" if polls else "op")
    sheet.runs(other, 25, 38, cpu=1)
    return sheet


def test_a_poller_on_another_cpu_than_the_wanted_one_is_named_with_what_it_takes():
    """It polls for 13 of the 102 ms of the window, all of them while the worker wants a CPU."""
    found = outcome("polling_elsewhere", beside_a_poller().results())
    assert (found.exposed_ns, found.gain_ns, found.change) == (13 * MS, 13 * MS, "code")
    who = (
        "output/10004 polled most at these moments (the driver polling for the GPU inside synchronous calls)"
    )
    assert who in found.claim
    assert "over the recorded time this took 0.13 CPUs" in found.claim
    assert (
        found.evidence[0].what
        == "ready to run; output/10004 polled on another CPU (device_wait); rank 0 waited"
    )
    assert found.advice[0].startswith("Let the host sleep while the GPU works")


def test_of_a_poller_elsewhere_figure_and_order_are_of_one_kind_of_polling():
    """It polls on for 30 ms in another way, and another thread for 50 ms, while nobody wants a CPU."""
    sheet = beside_a_poller()
    reader = sheet.thread("worker", "reader", pid=100)
    for thread, start, end in ((4, 50, 80), (reader, 45, 95)):
        sheet.doing(thread, start, end, "shm_broadcast.dequeue")
        sheet.runs(thread, start, end, cpu=1 if thread == 4 else 2)
    found = outcome("polling_elsewhere", sheet.results())
    assert "over the recorded time this took 0.13 CPUs" in found.claim
    assert [(row.who, row.value) for row in found.evidence[1:]] == [("output/10004", "13.0 ms of CPU time")]


def test_the_kind_of_polling_decides_what_must_change():
    """OpenMP's threads sleep by a setting; the flags of a CUDA event are in the server's code."""
    crowd = outcome("busy_wait", crowded(GOMP, role="worker", pid=100).results())
    assert crowd.change == "setting"
    assert outcome("polling_elsewhere", beside_a_poller().results()).change == "code"


def test_a_poller_on_a_cpu_that_the_process_never_had_takes_nothing_from_it():
    assert outcome("polling_elsewhere", beside_a_poller(pinned=True).results()) is None


# -------------------- quota
def stopped(ends, *, polls=False):
    """The worker runs 60 ms of each 100 and is ready, its CPU idle, until each of `ends`."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    for n, end in enumerate(ends):
        begin = ends[n - 1] if n else 0
        sheet.runs(0, begin, 100 * n + 60, cpu=0)
        sheet.ready(0, 100 * n + 60, end, cpu=0)
        sheet.doing(0, begin + 2, 100 * n + 40, "shm_broadcast.dequeue" if polls else "aten::mm")
        sheet.doing(0, 100 * n + 40, end - 1, "aten::mm", "op")
        sheet.kernel(end + 1, end + 2, call=(end + 0.5, end + 1))
    sheet.runs(0, ends[-1], ends[-1] + 10, cpu=0)
    return sheet


GRID = [100, 200, 300, 400, 500, 600]


def test_stops_that_end_on_one_grid_are_a_quota_and_its_size_is_told():
    """60 ms of CPU time in each period of 100 ms, then stopped: 0.6 CPUs."""
    results = stopped(GRID).results()
    found = outcome("quota_throttling", results)
    assert (found.exposed_ns, found.change) == (6 * 39 * MS, "machine")  # what the last ms was, nothing says
    assert "6 times a thread was ready" in found.claim
    assert "of GPU time a CPU quota of about 0.6 CPUs had stopped the thread" in found.claim
    assert "about 0.6 CPUs' worth of the period (0.6 to 0.6" in found.why
    assert results.quota_use["ran_ns"].to_list() == [60 * MS] * 6
    assert results.quota_use["cpus"].to_list() == [0.6] * 6


def test_the_quota_that_polling_used_up_is_pollings():
    """Of each 60 ms that the worker ran it polled 38; that share of 234 ms stopped is polling's."""
    results = stopped(GRID, polls=True).results()
    found = outcome("busy_wait", results)
    load = results.thread_load.row(0, named=True)
    assert load["spinning_ns"] == 6 * 38 * MS
    assert found.exposed_ns == round(load["spinning_ns"] / load["running_ns"] * 6 * 39 * MS)
    assert found.confidence == "medium"
    assert (
        "Of 6 polls (threads polling for a message of another process) half stayed on a CPU for up to 38.0 ms"
        in found.claim
    )


def test_how_long_polls_last_by_kind():
    """Twenty polls of 1 to 20 ms, and one of another kind: nearest rank, of 0 to 19, is 9.5 and 18."""
    rows = [(0, 100 * n * MS, n * MS, "poll") for n in range(1, 21)] + [(1, 0, 5 * MS, "openmp")]
    told = polls(pl.DataFrame(rows, schema=SPINNING, orient="row"))
    (first, other) = told.iter_rows(named=True)
    assert first["p50_ns"] in (10 * MS, 11 * MS)
    assert {**first, "p50_ns": None} == {
        "kind": "poll",
        "count": 20,
        "p50_ns": None,
        "p95_ns": 19 * MS,
        "max_ns": 20 * MS,
        "total_ns": 210 * MS,
    }
    assert other == {
        "kind": "openmp",
        "count": 1,
        "p50_ns": 5 * MS,
        "p95_ns": 5 * MS,
        "max_ns": 5 * MS,
        "total_ns": 5 * MS,
    }


def test_a_quota_used_up_by_work_is_not_pollings():
    assert outcome("busy_wait", stopped(GRID).results()) is None


# -------------------- each rule's trigger, near miss, and what it cannot do without
CASES = [
    Case("cpu_shortage", lambda: crowded(TORCH), asleep, (no_sched,)),
    Case(
        "quota_throttling", lambda: stopped(GRID), lambda: stopped([97, 171, 289, 391, 466, 583]), (no_sched,)
    ),
    Case(
        "tokenization_starves",
        lambda: crowded(BPE, role="api_server", pid=300),
        lambda: next_to(tokenizer),
        (no_sched, no_samples),
    ),
    Case(
        "busy_wait",
        lambda: crowded(GOMP, role="worker", pid=100),
        lambda: next_to(helper),
        (no_sched, no_samples),
    ),
    Case("polling_elsewhere", beside_a_poller, lambda: beside_a_poller(polls=False), (no_sched,)),
]
TestRules = rule_tests(CASES)


@pytest.mark.parametrize(("periods", "said"), [(6, False), (270, True)])
def test_counters_of_another_span_than_the_windows_are_said(periods, said):
    """The window has 0.6 s, six periods of 100 ms."""
    counters = {"nr_periods": periods, "nr_throttled": 6, "throttled_usec": 240_000}
    supply = Supply(counters=counters, since="between two readings")
    found = outcome("quota_throttling", analyse(stopped(GRID).trace(), supply=supply))
    assert ("those periods are 27.0 s, of which the window shown here is only" in found.why) == said


@pytest.mark.parametrize(("throttled", "said"), [(40, True), (1, False)])
def test_a_quota_that_the_kernel_counted_and_no_event_shows_is_said(throttled, said):
    """The worker runs all the time that was recorded; the kernel counted 82 periods."""
    sheet = gap()
    sheet.runs(0, 0, 102, cpu=0)
    sheet.runs(sheet.engine, 0, 1, cpu=1)
    counters = {"nr_periods": 82, "nr_throttled": throttled, "throttled_usec": 1_300_000}
    supply = Supply(counters=counters, since="between two readings")
    told = outcome("quota_throttling", analyse(sheet.trace(), supply=supply))
    assert isinstance(told, Abstained) == said
    assert not said or "counts 40 of 82 periods in which it ran out" in told.reason
