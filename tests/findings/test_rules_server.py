"""Rules on the server's parts, its ranks and the run as a whole: each with a run that triggers it and a near miss."""

from tests.findings.sheet import MS, Sheet
from tracelib.findings.finding import Abstained
from tracelib.findings.rules.engine_scheduling import engine_scheduling
from tracelib.findings.rules.gpu_bound import gpu_bound
from tracelib.findings.rules.ipc_stretched import ipc_stretched
from tracelib.findings.rules.launch_skew_amplified import launch_skew_amplified
from tracelib.findings.rules.no_load import no_load
from tracelib.findings.rules.rank_imbalance import rank_imbalance
from tracelib.findings.rules.staircase import staircase
from tracelib.findings.rules.straggler_rank import straggler_rank
from tracelib.findings.rules.tokenization_exposed import tokenization_exposed
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


# ------------------------------------------------------------------------------------------ engine and API server
def test_a_wait_that_ends_at_the_tokenizer_is_tokenization():
    results = tokenizing(waiting()).results()
    found = tokenization_exposed(results)
    assert (found.exposed_ns, found.evidence[0].who) == (80 * MS, "api_server/300")
    assert verdict(results).state == "cpu_bound"


def test_tokenization_behind_gpu_work_is_not_reported():
    sheet = Sheet()
    sheet.kernel(0, 101)
    sheet.kernel(101, 102)
    assert tokenization_exposed(tokenizing(sheet).results()) is None


def test_an_engine_that_schedules_while_workers_wait():
    sheet = waiting()
    sheet.doing(sheet.engine, 1, 51, "engine.schedule")
    sheet.runs(sheet.engine, 1, 51, cpu=2)
    assert engine_scheduling(sheet.results()).exposed_ns == 50 * MS


def test_an_engine_asleep_inside_its_scheduler_waits_for_requests():
    sheet = waiting()
    sheet.doing(sheet.engine, 1, 51, "engine.schedule")
    sheet.runs(sheet.engine, 0, 1, cpu=2)
    sheet.runs(sheet.engine, 51, 60, cpu=2)
    assert engine_scheduling(sheet.results()) is None


def test_a_message_on_its_way_is_ipc():
    sheet = waiting()
    sheet.doing(sheet.engine, 1, 91, "shm_broadcast.enqueue")
    found = ipc_stretched(sheet.results())
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
    found = ipc_stretched(sheet.results())
    assert (found.exposed_ns, found.gain_ns) == (90 * MS, 30 * MS)
    assert found.advice[0].startswith("Mend the lack of CPUs first")


def test_an_engine_that_nobody_recorded_proves_nothing():
    assert isinstance(ipc_stretched(waiting().results()), Abstained)


def test_a_short_message_is_none():
    assert ipc_stretched(waiting(end=2).results()) is None


# ------------------------------------------------------------------------------------------------- the whole run
def idle():
    """The API server has answered a request before, and has none now."""
    sheet = waiting()
    sheet.doing(sheet.api, 0, 0.5, "tokenize")
    sheet.doing(sheet.engine, 1, 91, "wait_for_requests")
    return sheet


def test_all_waiting_is_no_load():
    results = idle().results()
    found = no_load(results)
    assert (found.exposed_ns, found.leads) == (90 * MS, True)
    assert verdict(results).state == "no_load"


def test_a_little_idleness_does_not_lead():
    """40 ms without a request, 50 ms with one at the tokenizer."""
    sheet = idle()
    sheet.doing(sheet.api, 41, 91, "tokenize")
    found = no_load(sheet.results())
    assert (found.exposed_ns, found.leads) == (40 * MS, False)


def test_a_request_at_the_tokenizer_is_load():
    sheet = idle()
    sheet.doing(sheet.api, 1, 91, "tokenize")
    assert no_load(sheet.results()) is None


def test_a_full_gpu_is_the_limit():
    sheet = Sheet()
    for n in range(10):
        sheet.kernel(10 * n, 10 * n + 9.9)
    results = sheet.results()
    assert gpu_bound(results).cause is None
    assert verdict(results).state == "not_cpu_bound"


def test_a_half_full_gpu_is_not():
    sheet = Sheet()
    for n in range(10):
        sheet.kernel(10 * n, 10 * n + 5)
    assert gpu_bound(sheet.results()) is None


# --------------------------------------------------------------------------------------------------------- steps
def bursts(busy, name="aten::mm", length=400):
    """GPU busy for `busy` ms of each 100, the worker in a slice of that name meanwhile."""
    sheet = Sheet()
    for start in range(0, length + 1, 100):
        sheet.kernel(start, start + busy)
        sheet.doing(0, start + busy, start + 99, name, "annotation" if "." in name else "op")
    return sheet


def test_bursts_and_starvation_in_turn_are_steps():
    found = staircase(bursts(50).results())
    assert (found.gain_ns, found.exposed_ns) == (None, 4 * 49 * MS + 4 * round(0.01 * MS))
    assert "4 stretches a GPU (median 50 ms" in found.claim


def test_steady_half_use_is_not():
    sheet = Sheet()
    for n in range(250):
        sheet.kernel(2 * n, 2 * n + 1)
        sheet.doing(0, 2 * n + 1, 2 * n + 1.9, "aten::mm", "op")
    assert staircase(sheet.results()) is None


def test_waves_of_requests_are_not():
    sheet = bursts(50, "shm_broadcast.dequeue")
    sheet.doing(sheet.api, 0, 0.5, "tokenize")
    sheet.doing(sheet.engine, 0, 450, "wait_for_requests")
    assert staircase(sheet.results()) is None


# --------------------------------------------------------------------------------------------------------- ranks
def ranks(late, name="aten::mm", compute=0.0):
    """Ten collectives of two ranks, 5 ms apart on the rank that `late` gives; it is in a slice meanwhile, or computes."""
    sheet = Sheet(ranks=2)
    for rank in (0, 1):
        sheet.kernel(-2, -1, rank=rank)
    for n in range(10):
        begin = 20 * n
        starts = [begin + 10.0, begin + 10.0]
        starts[late(n)] += 5
        sheet.doing(late(n), begin + 6, begin + 14.99, name, "op")
        if compute:
            sheet.kernel(begin + 6, begin + 6 + compute, call=(begin + 5, begin + 5.1), rank=late(n))
        sheet.all_reduce(starts, begin + 16, n)
        for rank in (0, 1):
            sheet.kernel(begin + 16, begin + 24, call=(begin + 15.5, begin + 15.6), rank=rank)
    return sheet.results()


def test_one_rank_always_last_is_a_straggler():
    found = straggler_rank(ranks(lambda _: 1))
    assert (found.exposed_ns, found.cause) == (10 * 5 * MS, None)
    assert found.claim.startswith("Rank 1 came last in 10 of 10 collectives and caused 100 % of the waiting")
    assert found.evidence[0].who == "rank 0"


def test_ranks_last_in_turn_are_none():
    assert straggler_rank(ranks(lambda n: n % 2)) is None


def test_a_late_host_is_amplified_by_collectives():
    results = ranks(lambda n: n % 2)
    found = launch_skew_amplified(results)
    assert found.exposed_ns == 50 * MS
    assert "came late by 50 ms in all, which cost 50 ms of GPU time (1.0 times as much)" in found.claim
    assert rank_imbalance(results) is None


def test_a_late_gpu_is_imbalance_and_no_launch_skew():
    results = ranks(lambda n: n % 2, compute=9.0)
    assert rank_imbalance(results).exposed_ns == 50 * MS
    assert launch_skew_amplified(results) is None
