"""Rules on the server's processes and on the run as a whole."""

import pytest

from tests.findings.cases import Case, no_api, no_calls, no_gpu, no_sched, no_server, outcome, rule_tests
from tests.findings.sheet import ANY_SIZE, MS, Sheet
from tests.findings.test_cpus import gap
from tests.findings.test_launching import hidden, inside
from tracelib.findings import diagnose
from tracelib.findings.finding import Abstained
from tracelib.findings.verdict import verdict


def waiting(end=91):
    """The worker waits for its next step from 1 ms to `end`; its GPU is idle from 1 to 101 ms."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, end, "shm_broadcast.dequeue")
    sheet.kernel(101, 102)
    return sheet


def tokenizing(sheet, end=81):
    sheet.doing(sheet.engine, 1, end, "wait_for_requests")
    sheet.doing(sheet.api, 1, end, "tokenize")
    return sheet


# -------------------- engine and API server
def test_a_wait_that_ends_at_the_tokenizer_is_tokenization():
    results = tokenizing(waiting()).results()
    found = outcome("tokenization_exposed", results)
    assert (found.exposed_ns, found.evidence[0].who) == (80 * MS, "api_server/300")
    assert verdict(results, ANY_SIZE).state == "cpu_bound"


def test_an_engine_that_schedules_while_workers_wait():
    sheet = waiting()
    sheet.doing(sheet.engine, 1, 51, "engine.schedule")
    sheet.runs(sheet.engine, 1, 51, cpu=2)
    assert outcome("engine_scheduling", sheet.results()).exposed_ns == 50 * MS


def test_what_helps_follows_from_whose_threads_hold_the_step_up():
    """The worker prepares inputs for 60 ms; then the engine schedules for 20, or for longer than that."""
    for end, words, advised in (
        (81, "for workers to prepare the next step's input (worker 60 %, engine 20 %)", "MODEL_RUNNER"),
        (181, "for the next step to be scheduled and its input prepared (engine", "one engine per replica"),
    ):
        sheet = Sheet()
        sheet.kernel(0, 1)
        sheet.doing(0, 1, 61, "vllm/v1/worker/gpu_model_runner.py(9): _prepare_inputs", "python")
        sheet.doing(0, 61, end, "shm_broadcast.dequeue")
        sheet.doing(sheet.engine, 61, end, "engine.schedule")
        sheet.runs(sheet.engine, 61, end, cpu=2)
        sheet.kernel(end, end + 19)
        found = outcome("engine_scheduling", sheet.results())
        assert words in found.claim
        assert advised in " ".join(found.advice)
        assert ("between a step's message and its first launch" in found.verify[0]) == (end == 81)


def test_an_engine_asleep_inside_its_scheduler_waits_for_requests():
    sheet = waiting()
    sheet.doing(sheet.engine, 1, 51, "engine.schedule")
    sheet.runs(sheet.engine, 0, 1, cpu=2)
    sheet.runs(sheet.engine, 51, 60, cpu=2)
    assert isinstance(outcome("engine_scheduling", sheet.results()), Abstained)


def test_a_message_on_its_way_is_ipc():
    sheet = waiting()
    sheet.doing(sheet.engine, 1, 91, "shm_broadcast.enqueue")
    found = outcome("ipc_stretched", sheet.results())
    assert (found.exposed_ns, found.gain_ns) == (90 * MS, 90 * MS)
    assert found.advice[0].startswith("Use blocking sockets")


def test_a_message_whose_sender_has_no_cpu_is_shortage_first():
    """Of 90 ms the engine is ready for 60: another transport gives back 30 at most."""
    sheet = waiting()
    sheet.doing(sheet.engine, 1, 91, "shm_broadcast.enqueue")
    sheet.runs(sheet.engine, 0, 11, cpu=2)
    sheet.ready(sheet.engine, 11, 71, cpu=2)
    sheet.runs(sheet.thread(None, "batch", pid=901), 11, 71, cpu=2)
    sheet.runs(sheet.engine, 71, 102, cpu=2)
    found = outcome("ipc_stretched", sheet.results())
    assert (found.exposed_ns, found.gain_ns) == (90 * MS, 30 * MS)
    assert found.advice[0].startswith("Fix the lack of CPUs first")


def test_an_engine_that_nobody_recorded_proves_nothing():
    assert isinstance(outcome("ipc_stretched", waiting().results()), Abstained)


# -------------------- the whole run
def idle():
    """The API server has answered a request before, and has none now."""
    sheet = waiting()
    sheet.doing(sheet.api, 0, 0.5, "tokenize")
    sheet.doing(sheet.engine, 1, 91, "wait_for_requests")
    return sheet


def test_all_waiting_is_no_load():
    results = idle().results()
    assert outcome("no_load", results).exposed_ns == 90 * MS
    assert diagnose(results).findings[0].id == "no_load"
    assert verdict(results, ANY_SIZE).state == "no_load"


def test_a_little_idleness_does_not_lead():
    """40 ms without a request, 50 ms with one at the tokenizer."""
    sheet = idle()
    sheet.doing(sheet.api, 41, 91, "tokenize")
    results = sheet.results()
    assert outcome("no_load", results).exposed_ns == 40 * MS
    assert diagnose(results).findings[0].id == "tokenization_exposed"


def busy(share):
    """The GPU works that part of each 10 ms."""
    sheet = Sheet()
    for n in range(10):
        sheet.kernel(10 * n, 10 * n + 10 * share)
    return sheet


def test_a_full_gpu_is_the_limit():
    results = busy(0.99).results()
    assert outcome("gpu_bound", results).cause is None
    assert verdict(results, ANY_SIZE).state == "not_cpu_bound"


# -------------------- steps
def bursts(busy, name="aten::mm", length=400):
    """GPU busy for `busy` ms of each 100, the worker in a slice of that name meanwhile."""
    sheet = Sheet()
    for start in range(0, length + 1, 100):
        sheet.kernel(start, start + busy)
        sheet.doing(0, start + busy, start + 99, name, "annotation" if "." in name else "op")
    return sheet


def test_bursts_and_starvation_in_turn_are_steps():
    found = outcome("staircase", bursts(50).results())
    assert (found.gain_ns, found.exposed_ns) == (None, 4 * 49 * MS + 4 * round(0.01 * MS))
    assert "each GPU was starved 4 times, at the median for 50.0 ms" in found.claim


def test_steady_half_use_is_not():
    sheet = Sheet()
    for n in range(250):
        sheet.kernel(2 * n, 2 * n + 1)
        sheet.doing(0, 2 * n + 1, 2 * n + 1.9, "aten::mm", "op")
    assert outcome("staircase", sheet.results()) is None


# -------------------- each rule's trigger, near miss, and what it cannot do without
def upstream(engine, api="", end=91):
    """The worker waits for the engine, which schedules, sends, or waits for the API server."""
    sheet = waiting(end)
    sheet.doing(sheet.api, 0, 0.5, "tokenize")
    sheet.doing(sheet.engine, 1, end, engine)
    if api:
        sheet.doing(sheet.api, 1, end, api)
    return sheet


def waves():
    """The GPU works half of each 100 ms, and there is no request in the other half."""
    sheet = bursts(50, "shm_broadcast.dequeue")
    sheet.doing(sheet.api, 0, 0.5, "tokenize")
    sheet.doing(sheet.engine, 0, 450, "wait_for_requests")
    return sheet


# -------------------- one full thread
def test_a_thread_that_works_all_the_time_is_saturated():
    sheet = gap()
    sheet.runs(0, 0, 102, cpu=0)
    found = outcome("single_thread_saturated", sheet.results())
    assert found.exposed_ns == round(99.01 * MS)  # the op and the launch call
    assert found.claim.startswith("Thread worker_TP0/100 worked for 100 % of the window")


@pytest.mark.parametrize(("library", "sure"), [("libcupti.so.13", False), ("libtorch_cpu.so", True)])
def test_a_worker_is_less_surely_full_if_the_recorders_fill_much_of_it(library, sure):
    sheet = gap()
    sheet.runs(0, 0, 102, cpu=0)
    for begin in range(0, 100, 4):
        sheet.sampled(0, begin, begin + 2, ("[unknown]", f"/x/{library}"))
        sheet.sampled(0, begin + 2, begin + 4, ("at::x", "/x/libtorch_cpu.so"))
    document = diagnose(sheet.results(), thresholds=ANY_SIZE)
    (full,) = [row for row in document.findings if row.id == "single_thread_saturated"]
    doubt = "about 50 % of the workers' launching, as sampled, is the recorders' own work"
    assert (full.confidence == "high", doubt in full.why) == (sure, not sure)


def test_a_thread_of_which_a_part_was_recorded_is_saturated_by_that_part():
    """Switches were recorded for 51 of the 102 ms; it worked for 50 of them."""
    sheet = gap()
    sheet.runs(0, 10, 60, cpu=0)
    sheet.runs(sheet.engine, 60, 61, cpu=1)
    found = outcome("single_thread_saturated", sheet.results())
    assert found.exposed_ns == 50 * MS
    worked = (
        "worked for 98 % of the 50 % of the window that the scheduler recorded, as much as one thread can"
    )
    assert found.claim.startswith(f"Thread worker_TP0/100 {worked}")
    assert "for at least 49 % of GPU time the GPUs waited for it" in found.claim


def test_a_thread_that_slept_in_the_part_that_was_recorded_is_not_saturated():
    """It worked for 40 of the 51 ms in which switches were recorded."""
    sheet = gap()
    sheet.runs(0, 10, 40, cpu=0)
    sheet.runs(0, 51, 61, cpu=0)
    assert outcome("single_thread_saturated", sheet.results()) is None


def test_a_thread_that_began_late_had_slept_or_was_not_there():
    """Switches were recorded for all 102 ms; of the thread's the first is at 51, from when on it works."""
    sheet = gap()
    sheet.runs(sheet.engine, 0, 1, cpu=1)
    sheet.runs(0, 51, 102, cpu=0)
    assert outcome("single_thread_saturated", sheet.results()) is None


def test_a_thread_that_polls_all_the_time_is_not():
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 95, "cudaStreamSynchronize", "runtime")
    sheet.kernel(101, 102)
    sheet.runs(0, 0, 102, cpu=0)
    assert outcome("single_thread_saturated", sheet.results()) is None


@pytest.mark.parametrize("asleep", [30, 60])
def test_a_thread_that_sleeps_in_between_is_not(asleep):
    sheet = gap()
    sheet.runs(0, 0, 20, cpu=0)
    sheet.runs(0, 20 + asleep, 102, cpu=0)
    assert outcome("single_thread_saturated", sheet.results()) is None


def test_a_thread_that_compiles_all_the_time_is_not():
    """Compilation happens once: another rule names it, and its advice is another."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 100, "_compile.compile_inner (dynamo_timed)", "op")
    sheet.kernel(101, 102)
    sheet.runs(0, 0, 102, cpu=0)
    assert outcome("single_thread_saturated", sheet.results()) is None


def alone(until=102):
    """The worker works from the first millisecond on; the engine's last switch ends what was recorded."""
    sheet = gap()
    sheet.runs(0, 0, until, cpu=0)
    sheet.runs(sheet.engine, 101, 102, cpu=1)
    return sheet


CASES = [
    Case(
        "engine_scheduling",
        lambda: upstream("engine.schedule"),
        lambda: upstream("engine.schedule", end=3),
        (no_server,),
    ),
    Case(
        "tokenization_exposed",
        lambda: upstream("wait_for_requests", "tokenize"),
        lambda: upstream("wait_for_requests"),
        (no_api,),
    ),
    Case(
        "detokenization_exposed",
        lambda: upstream("wait_for_requests", "detokenize"),
        lambda: upstream("wait_for_requests", "tokenize"),
        (no_api,),
    ),
    Case(
        "ipc_stretched",
        lambda: upstream("shm_broadcast.enqueue"),
        lambda: upstream("shm_broadcast.enqueue", end=2),
        (no_server,),
    ),
    Case(
        "no_load",
        lambda: upstream("wait_for_requests"),
        lambda: upstream("wait_for_requests", "tokenize"),
        (no_server,),
    ),
    Case(
        "host_work",
        lambda: upstream("build a report for billing"),
        lambda: upstream("build a report for billing", end=3),
        (no_calls,),
    ),
    Case(
        "input_pipeline",
        lambda: inside("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "annotation"),
        lambda: inside(
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "annotation", hidden()
        ),
        (no_calls,),
    ),
    Case("gpu_bound", lambda: busy(0.99), lambda: busy(0.5), (no_gpu,)),
    Case("single_thread_saturated", alone, lambda: alone(until=80), (no_sched,)),
    Case("staircase", lambda: bursts(50), waves, (no_calls,)),
]
TestRules = rule_tests(CASES)
