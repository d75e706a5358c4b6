"""Rules on what the launching thread does: each with a run that triggers it and a near miss that does not."""

import pytest

from tests.findings.cases import Case, no_calls, no_samples, outcome, rule_tests
from tests.findings.sheet import MS, Sheet
from tracelib.analyses.launches import graph_coverage
from tracelib.findings import diagnose
from tracelib.findings.finding import Abstained, Finding

CUPTI, TORCH = ("[unknown]", "/x/libcupti.so.13"), ("at::x", "/x/libtorch_cpu.so")
NVRTC, GC = ("nvrtcCompileProgram", "/x/libnvrtc.so.13"), ("gc_collect_main", "/usr/bin/python3.12")
LOCK = (("futex_wait", "/x/libc.so"), ("take_gil", "/usr/bin/python3.12"))
PYTHON = (("_PyEval_EvalFrameDefault", "/usr/bin/python3.12"),)


def gap(**kernel):
    """One GPU idle from 1 to 101 ms."""
    sheet = Sheet()
    sheet.kernel(0, 1, **kernel)
    sheet.kernel(101, 102, **kernel)
    return sheet


def hidden():
    """The same with one long kernel over it: whatever the host does, the GPU is busy."""
    sheet = Sheet()
    sheet.kernel(0, 101)
    sheet.kernel(101, 102)
    return sheet


def inside(name, category, sheet=None):
    """The worker is in a slice nearly all the time: while its GPU is idle, or in another run."""
    sheet = sheet or gap()
    sheet.doing(0, 1, 100, name, category)
    return sheet


def sampled(*chain):
    """It is in four ops one after the other, in which samples tell what went on from 20 to 60 ms."""
    sheet = gap()
    for begin, end in ((1, 2), (2, 3), (3, 4), (4, 100)):
        sheet.doing(0, begin, end, "aten::sdpa", "op")
    sheet.sampled(0, 20, 60, *chain)
    return sheet


def synchronising(until):
    """The GPU is done at 50 ms, the host returns from the synchronisation at `until`."""
    sheet = Sheet()
    sheet.kernel(0, 50)
    sheet.doing(0, 1, until, "cudaStreamSynchronize", "runtime")
    sheet.kernel(100, 101)
    return sheet


#: rule, name of the slice, its category, its cause: each lasts 20 of 102 ms.
NAMED = [
    ("run_time_compilation", "_compile.compile_inner (dynamo_timed)", "op", "kernel_launch"),
    ("run_time_compilation", "nvrtcCompileProgram", "runtime", "kernel_launch"),
    ("module_loading", "cuLibraryLoadData", "driver", "kernel_launch"),
    ("allocation_hot_path", "cudaMalloc", "runtime", "kernel_launch"),
    ("gc_pauses", "gc.collect", "annotation", "gc"),
    ("profiler_overhead", "Buffer Flush", "overhead", "profiler"),
    ("launch_bound", "aten::mm", "op", "kernel_launch"),
]


@pytest.mark.parametrize(("rule", "name", "category", "cause"), NAMED, ids=[row[1] for row in NAMED])
def test_what_the_gpu_waited_for_is_reported(rule, name, category, cause):
    sheet = gap()
    sheet.doing(0, 20, 40, name, category)
    found = outcome(rule, sheet.results())
    assert isinstance(found, Finding)
    latency = round(0.01 * MS) if rule == "launch_bound" else 0  # the launch call itself
    assert (found.exposed_ns, found.cause) == (20 * MS + latency, cause)
    assert found.exposed_share == pytest.approx(found.exposed_ns / (102 * MS))
    worst = found.evidence[-1 if rule == "profiler_overhead" else 0]
    assert (worst.ts_ns, worst.dur_ns, worst.who) == (20 * MS, 20 * MS, "worker_TP0/100")


@pytest.mark.parametrize(("rule", "name", "category", "cause"), NAMED, ids=[row[1] for row in NAMED])
def test_what_ran_behind_gpu_work_is_not(rule, name, category, cause):
    sheet = hidden()
    sheet.doing(0, 20, 40, name, category)
    assert outcome(rule, sheet.results()) is None


def test_a_long_op_without_samples_is_abstained_from():
    sheet = gap()
    for n in range(4):
        sheet.doing(0, 2 + n, 2.1 + n, "aten::sdpa", "op")
    sheet.doing(0, 10, 90, "aten::sdpa", "op")
    found = outcome("run_time_compilation", sheet.results())
    assert isinstance(found, Abstained)
    assert found.record_with.startswith("perf record")
    rows = {row.id: row for row in diagnose(sheet.results()).findings}
    for rule in ("launch_bound", "low_graph_coverage"):
        assert rows[rule].confidence == "medium"
        assert "for 99 % of it the thread was in operators over ten times as long" in rows[rule].why


def test_ops_alike_are_no_reason_to_abstain():
    sheet = gap()
    for n in range(9):
        sheet.doing(0, 2 + 10 * n, 11 + 10 * n, "aten::sdpa", "op")
    assert outcome("run_time_compilation", sheet.results()) is None


# -------------------- synchronisation
def test_a_synchronisation_that_outlasts_the_gpu_costs():
    found = outcome("host_synchronisation", synchronising(until=60).results())
    assert (found.exposed_ns, found.gain_ns) == (10 * MS, 10 * MS)
    assert "Synchronisations took 59.0 ms altogether" in found.claim


def test_a_synchronisation_that_had_no_cpu_to_return_on_is_not_to_blame():
    sheet = synchronising(until=60)
    sheet.runs(0, 0, 49, cpu=0)
    sheet.ready(0, 49, 60, cpu=0)
    sheet.runs(sheet.thread(None, "batch", pid=901), 49, 60, cpu=0)
    sheet.runs(0, 60, 101, cpu=0)
    assert outcome("host_synchronisation", sheet.results()) is None


# -------------------- graphs
def test_single_launches_that_cannot_keep_up_call_for_graphs():
    sheet = gap()
    sheet.doing(0, 20, 40, "aten::mm", "op")
    found = outcome("low_graph_coverage", sheet.results())
    assert found.gain_ns == round(20.01 * MS)
    assert found.claim.startswith("None of 2 kernels came from CUDA graphs")


@pytest.mark.parametrize(
    ("known", "said"), [(True, "beyond any lack of CPUs."), (False, "lack of a CPU is not known.")]
)
def test_lack_of_cpus_is_told_apart_from_launching_only_where_cpu_states_are_known(known, said):
    sheet = gap()
    sheet.doing(0, 20, 40, "aten::mm", "op")
    if known:
        sheet.runs(0, 0, 102, cpu=0)
    assert outcome("low_graph_coverage", sheet.results()).claim.endswith(said)


def test_of_graphs_recorded_whole_nobody_knows_how_many_kernels_they_hold():
    """3 kernels and 1 graph of any number of kernels: no coverage, neither 25 % nor 0."""
    sheet = gap()
    sheet.kernel(102, 110, kind="graph", graph=7)
    sheet.kernel(110, 111)
    sheet.doing(0, 20, 40, "aten::mm", "op")
    results = sheet.results()
    found = outcome("low_graph_coverage", results)
    assert isinstance(found, Abstained)
    assert "(1 launch)" in found.reason
    assert "--cuda-graph-trace=node" in found.record_with
    assert graph_coverage(results.launches) is None
    assert "by graphs" not in outcome("launch_bound", results).claim


def test_coverage_counts_kernels():
    sheet = gap(graph=1)
    sheet.kernel(102, 110)
    sheet.kernel(111, 112, kind="memcpy")
    assert graph_coverage(sheet.results().launches) == 2 / 3


def test_graphs_that_are_launched_late_call_for_something_else():
    sheet = gap(graph=1)
    sheet.doing(0, 20, 40, "aten::mm", "op")
    assert outcome("low_graph_coverage", sheet.results()) is None


def test_single_launches_that_keep_up_cost_nothing():
    sheet = hidden()
    sheet.doing(0, 20, 40, "aten::mm", "op")
    assert outcome("low_graph_coverage", sheet.results()) is None


def test_single_launches_that_lack_a_cpu_call_for_cpus_not_graphs():
    sheet = gap()
    sheet.doing(0, 20, 40, "aten::mm", "op")
    sheet.runs(0, 0, 19, cpu=0)
    sheet.ready(0, 19, 41, cpu=0)
    sheet.runs(sheet.thread(None, "batch", pid=901), 19, 41, cpu=0)
    sheet.runs(0, 41, 102, cpu=0)
    assert outcome("low_graph_coverage", sheet.results()) is None


# -------------------- who emptied the queue
def read_back(*, item=True, graph=None):
    """Steps of 10 ms launch four kernels ahead; then a value is read back, and operators run for 5.9 ms."""
    sheet = Sheet()
    for at in range(0, 60, 10):
        for k in range(4):
            call = at + 3 + 0.1 * k
            sheet.kernel(at + 3.02 + k, at + 4.02 + k, call=(call, call + 0.01), graph=graph)
        if item:
            sheet.doing(0, at + 3.5, at + 7.03, "aten::item", "op")
        sheet.doing(0, at + (7.1 if item else 3.5), at + 13, "aten::mm", "op")
    return sheet


def test_launches_behind_a_value_that_is_read_back_are_its_consequence():
    results = read_back().results()
    said = outcome("host_synchronisation", results)
    late = 5 * round(5.92 * MS)
    assert said.exposed_ns == said.gain_ns == late + 5 * round(0.01 * MS)
    assert "aten::item 5 times, 5 late launches behind it" in said.claim
    launching = outcome("launch_bound", results)
    assert (launching.exposed_ns, launching.gain_ns) == (late, None)
    assert (
        "55 % of GPU time was lost right behind aten::item, which let the launch queue run empty."
        in launching.claim
    )
    assert outcome("low_graph_coverage", results) is None
    slow = read_back(item=False).results()
    assert outcome("host_synchronisation", slow) is None
    assert outcome("launch_bound", slow).gain_ns == late + 5 * round(0.08 * MS)
    assert isinstance(outcome("low_graph_coverage", slow), Finding)


def test_of_late_calls_it_says_what_they_start():
    """The first of four calls of each of six steps is late; each of these starts two operations, not one."""
    sheet = read_back()
    sheet.ops += [{**op, "stream": 9} for op in sheet.ops if op["correlation"] % 4 == 1]
    claim = outcome("launch_bound", sheet.results()).claim
    assert "25 % of the launch calls, which start 40 % of the operations, came after the GPU had run" in claim


def test_host_work_that_emptied_the_queue_says_what_that_cost_besides():
    sheet = Sheet()
    for at in range(0, 60, 10):
        for k in range(4):
            call = at + 3 + 0.1 * k
            sheet.kernel(at + 3.02 + k, at + 4.02 + k, call=(call, call + 0.01))
        sheet.doing(0, at + 3.5, at + 12, "write_metrics")
        sheet.doing(0, at + 12, at + 13, "aten::mm", "op")
    said = outcome("host_work", sheet.results())
    assert said.claim.endswith("late launches behind it cost another 9.4 % of GPU time.")


@pytest.mark.parametrize("graph", [None, 1])
def test_graphs_are_no_advice_where_most_kernels_come_from_them(graph):
    sheet = read_back(item=False, graph=graph)
    documents = [outcome(rule, sheet.results()) for rule in ("launch_bound", "low_graph_coverage")]
    advice = " ".join(text for row in documents if row for text in row.advice)
    assert ("graph" in advice) == (graph is None)


# -------------------- interpreter lock
def locked(pid):
    """The worker sleeps from 20 to 40 ms inside an op; another thread's samples are in the interpreter."""
    sheet = gap()
    sheet.doing(0, 19, 41, "aten::mm", "op")
    sheet.runs(0, 0, 20, cpu=0)
    sheet.runs(0, 40, 102, cpu=0)
    other = sheet.thread("worker", "metrics", pid=pid)
    sheet.runs(other, 20, 40, cpu=1)
    sheet.sampled(other, 20, 40, *PYTHON)
    return sheet


def test_asleep_while_a_sibling_runs_python_is_likely_the_lock():
    found = outcome("gil_contention", locked(pid=100).results())
    assert (found.exposed_ns, found.confidence) == (20 * MS, "low")
    assert "likely" in found.claim


def test_asleep_without_samples_is_abstained_from():
    sheet = locked(pid=100)
    sheet.samples.clear()
    assert isinstance(outcome("gil_contention", sheet.results()), Abstained)


# -------------------- recorder
def test_the_recorders_part_of_launching_is_told_from_samples():
    """20 ms of dispatch, half of the worker's samples in CUPTI: some 10 ms are the recorder's."""
    sheet = gap()
    for n in range(5):
        sheet.doing(0, 20 + 4 * n, 24 + 4 * n, "aten::mm", "op")
        sheet.sampled(0, 20 + 4 * n, 22 + 4 * n, ("[unknown]", "/x/libcupti.so.13"))
        sheet.sampled(0, 22 + 4 * n, 24 + 4 * n, ("at::x", "/x/libtorch_cpu.so"))
    found = outcome("profiler_overhead", sheet.results())
    assert found.exposed_ns == round(0.5 * 20.01 * MS)
    assert "50 % of the CPU time on the workers' launch path is the profiler's own" in found.claim


# -------------------- each rule's trigger, near miss, and what it cannot do without
def recorders():
    """Half of the samples in an op that the GPU waits for are in the recorder."""
    sheet = inside("aten::mm", "op")
    sheet.sampled(0, 1, 50, CUPTI)
    sheet.sampled(0, 50, 100, TORCH)
    return sheet


CASES = [
    Case("run_time_compilation", lambda: sampled(NVRTC), lambda: sampled(TORCH), (no_samples,)),
    *(
        Case(
            rule,
            lambda name=name, category=category: inside(name, category),
            lambda name=name, category=category: inside(name, category, hidden()),
            (no_calls,),
        )
        for rule, name, category in (
            ("module_loading", "cuLibraryLoadData", "driver"),
            ("allocation_hot_path", "cudaMalloc", "runtime"),
            ("low_graph_coverage", "aten::mm", "op"),
            ("launch_bound", "aten::mm", "op"),
            ("gc_pauses", "gc.collect", "annotation"),
        )
    ),
    Case("host_synchronisation", lambda: synchronising(60), lambda: synchronising(50), (no_calls,)),
    Case("gc_pauses", lambda: sampled(GC), lambda: sampled(TORCH), (no_samples,)),
    Case("gil_contention", lambda: sampled(*LOCK), lambda: locked(pid=901), (no_samples,)),
    Case("profiler_overhead", recorders, lambda: sampled(TORCH), (no_samples,)),
]
TestRules = rule_tests(CASES)
