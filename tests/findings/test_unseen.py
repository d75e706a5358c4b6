"""Every rule, found once, must abstain when what it rests on is taken away: silence would be a "no" that nobody recorded."""

import pytest

from tests.findings.sheet import Sheet
from tracelib.findings import diagnose
from tracelib.findings.rules import RULES

CUPTI, TORCH = ("[unknown]", "/x/libcupti.so.13"), ("at::x", "/x/libtorch_cpu.so")
GC, LOCK = (
    ("gc_collect_main", "/usr/bin/python3.12"),
    (("futex_wait", "/x/libc.so"), ("take_gil", "/usr/bin/python3.12")),
)
GOMP, BPE = ("[unknown]", "/x/libgomp.so.1"), ("[unknown]", "/x/tokenizers.abi3.so")


def gap(name="aten::mm", category="op", begin=1, end=100):
    """One GPU idle from 1 to 101 ms, its worker in a slice."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, begin, end, name, category)
    sheet.kernel(101, 102)
    return sheet


def sampled(*chain):
    """The same in four ops, in which samples tell what went on from 20 to 60 ms."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    for begin, end in ((1, 2), (2, 3), (3, 4), (4, 100)):
        sheet.doing(0, begin, end, "aten::sdpa", "op")
    sheet.sampled(0, 20, 60, *chain)
    sheet.kernel(101, 102)
    return sheet


def recorders():
    sheet = gap()
    sheet.sampled(0, 1, 50, CUPTI)
    sheet.sampled(0, 50, 100, TORCH)
    return sheet


def upstream(engine="engine.schedule", api=""):
    """The worker waits for the engine, which schedules, sends, or waits for the API server."""
    sheet = gap("shm_broadcast.dequeue", "annotation", 1, 91)
    sheet.doing(sheet.api, 0, 0.5, "tokenize")
    sheet.doing(sheet.engine, 1, 91, engine)
    if api:
        sheet.doing(sheet.api, 1, 91, api)
    return sheet


def crowded(*chain, role=None, pid=901):
    """The worker is ready from 20 to 40 ms, while another thread runs on its CPU, in that call chain."""
    sheet = gap()
    other = sheet.thread(role, "other", pid=pid)
    sheet.runs(0, 0, 20, cpu=0)
    sheet.ready(0, 20, 40, cpu=0)
    sheet.runs(other, 20, 40, cpu=0)
    sheet.runs(0, 40, 102, cpu=0)
    sheet.sampled(other, 20, 40, *(chain or [TORCH]))
    return sheet


def quota():
    """The worker is ready and its CPU idle from 60 to 100 ms of each period."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    for begin in range(0, 600, 100):
        sheet.runs(0, begin, begin + 60, cpu=0)
        sheet.ready(0, begin + 60, begin + 100, cpu=0)
        sheet.doing(0, begin + 2, begin + 99, "aten::mm", "op")
        sheet.kernel(begin + 101, begin + 102, call=(begin + 100.5, begin + 101))
    sheet.runs(0, 600, 610, cpu=0)
    return sheet


def alone():
    sheet = gap()
    sheet.runs(0, 0, 102, cpu=0)
    return sheet


def ranks(compute=0.0):
    """Rank 1 comes 5 ms late to each of ten collectives; its host is in an op meanwhile, or its GPU computes."""
    sheet = Sheet(ranks=2)
    for rank in (0, 1):
        sheet.kernel(-2, -1, rank=rank)
    for n in range(10):
        begin = 20 * n
        sheet.doing(1, begin + 6, begin + 14.99, "aten::mm", "op")
        if compute:
            sheet.kernel(begin + 6, begin + 6 + compute, call=(begin + 5, begin + 5.1), rank=1)
        sheet.all_reduce([begin + 10.0, begin + 15.0], begin + 16, n)
        for rank in (0, 1):
            sheet.kernel(begin + 16, begin + 24, call=(begin + 15.5, begin + 15.6), rank=rank)
    return sheet


def bursts():
    sheet = Sheet()
    for start in range(0, 401, 100):
        sheet.kernel(start, start + 50)
        sheet.doing(0, start + 50, start + 99, "aten::mm", "op")
    return sheet


def full():
    sheet = Sheet()
    for n in range(10):
        sheet.kernel(10 * n, 10 * n + 9.9)
    return sheet


def no_calls(sheet):
    sheet.slices = [row for row in sheet.slices if row.get("correlation") is None]


def no_gpu(sheet):
    sheet.ops.clear()


def no_sched(sheet):
    sheet.on_cpu.clear()


def no_samples(sheet):
    sheet.samples.clear()


def no_server(sheet):
    sheet.slices = [row for row in sheet.slices if row["thread"] not in (sheet.engine, sheet.api)]


def no_api(sheet):
    sheet.slices = [row for row in sheet.slices if row["thread"] != sheet.api]


def no_rank_1(sheet):
    sheet.ops = [row for row in sheet.ops if row["gpu"] == 0]


CASES = [
    ("allocation_hot_path", lambda: gap("cudaMalloc", "runtime"), no_calls),
    ("busy_wait", lambda: crowded(GOMP, role="worker", pid=100), no_sched),
    ("busy_wait", lambda: crowded(GOMP, role="worker", pid=100), no_samples),
    ("cpu_shortage", crowded, no_sched),
    ("engine_scheduling", upstream, no_server),
    ("gc_pauses", lambda: sampled(GC), no_samples),
    ("gc_pauses", lambda: gap("gc.collect", "annotation"), no_calls),
    ("gil_contention", lambda: sampled(*LOCK), no_samples),
    ("gpu_bound", full, no_gpu),
    ("host_synchronisation", lambda: gap("cudaStreamSynchronize", "runtime"), no_calls),
    ("ipc_stretched", lambda: upstream("shm_broadcast.enqueue"), no_server),
    ("launch_bound", gap, no_calls),
    ("launch_skew_amplified", ranks, no_rank_1),
    ("low_graph_coverage", gap, no_calls),
    ("module_loading", lambda: gap("cuLibraryLoadData", "driver"), no_calls),
    ("no_load", lambda: upstream("wait_for_requests"), no_server),
    ("profiler_overhead", recorders, no_samples),
    ("quota_throttling", quota, no_sched),
    ("rank_imbalance", lambda: ranks(9.0), no_rank_1),
    ("run_time_compilation", lambda: sampled(("nvrtcCompileProgram", "/x/libnvrtc.so.13")), no_samples),
    ("single_thread_saturated", alone, no_sched),
    ("staircase", bursts, no_calls),
    ("straggler_rank", ranks, no_rank_1),
    ("tokenization_exposed", lambda: upstream("wait_for_requests", "tokenize"), no_api),
    ("tokenization_starves", lambda: crowded(BPE, role="api_server", pid=300), no_sched),
    ("tokenization_starves", lambda: crowded(BPE, role="api_server", pid=300), no_samples),
]


def test_every_rule_is_among_the_cases():
    assert {name for name, _, _ in CASES} == {rule.__name__ for rule in RULES}


@pytest.mark.parametrize(("rule", "run", "without"), CASES, ids=[f"{n}-{w.__name__}" for n, _, w in CASES])
def test_without_its_evidence_a_rule_abstains_and_says_what_to_record(rule, run, without):
    sheet = run()
    assert rule in {row["id"] for row in diagnose(sheet.results())["findings"]}
    without(sheet)
    document = diagnose(sheet.results())
    assert rule not in {row["id"] for row in document["findings"]}
    (row,) = [row for row in document["abstained"] if row["id"] == rule]
    assert row["reason"]
    assert "perf record" in row["record_with"] or "profile" in row["record_with"]


def test_without_any_gpu_every_rule_abstains():
    sheet = gap()
    no_gpu(sheet)
    assert {rule.__name__ for rule in RULES} <= {row["id"] for row in diagnose(sheet.results())["abstained"]}


def test_where_no_gpu_time_was_lost_nothing_is_abstained_from():
    """A full GPU: whatever was not recorded cost less than a hundredth of the time."""
    rules = {rule.__name__ for rule in RULES}
    sheet = full()
    sheet.slices = [row for row in sheet.slices if row.get("correlation") is not None]
    document = diagnose(sheet.results())
    assert {row["id"] for row in document["abstained"]} & rules <= {"cpu_shortage", "quota_throttling"}
