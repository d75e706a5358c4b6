"""The rules' tables: each complete, in the docs, and with a case in its topic's test file."""

import importlib
import inspect

import pytest

from tests.findings.cases import outcome
from tests.findings.sheet import Sheet
from tests.findings.test_cpus import BPE, TORCH, gap
from tracelib.findings.__main__ import generated
from tracelib.findings.rules import RULES, TOPICS

IDS = [rule.id for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_each_rule_has_a_trigger_and_a_near_miss_in_its_topics_test_file(rule):
    """Add a `Case` to CASES of tests/findings/test_TOPIC.py."""
    cases = importlib.import_module(f"tests.findings.test_{rule.topic}").CASES
    assert any(case.without for case in cases if case.rule == rule.id)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_a_rule_is_a_whole_table_or_has_a_function(rule):
    assert (
        (rule.cause and rule.claim and rule.why)
        if not hasattr(TOPICS[rule.topic], rule.id)
        else not rule.claim
    )
    assert rule.verify
    assert rule.disproof
    assert rule.statement or rule.abstains_without


@pytest.mark.parametrize("topic", TOPICS)
def test_each_function_of_a_topic_that_takes_a_rule_is_one(topic):
    functions = inspect.getmembers(TOPICS[topic], inspect.isfunction)
    names = {name for name, f in functions if next(iter(inspect.signature(f).parameters), "") == "rule"}
    assert {name for name in names if not name.startswith("_")} <= set(IDS)


def test_no_rule_is_twice():
    assert len(set(IDS)) == len(IDS)


@pytest.mark.parametrize(("path", "text"), generated().items(), ids=lambda part: getattr(part, "name", ""))
def test_what_docs_has_of_them_is_as_generated(path, text):
    """`python -m tracelib.findings` writes it."""
    assert path.read_text(encoding="utf-8") == text


# -------------------- advice
def launching_in(name="aten::mm", category="op", operation="k"):
    """A run whose GPU waits 100 ms for a launch; a slice of that name lies in front of it."""
    sheet = Sheet()
    sheet.kernel(0, 1, name=operation)
    sheet.doing(0, 0.1, 0.9, name, category)
    sheet.doing(0, 1.5, 100, "aten::mm", "op")
    sheet.kernel(101, 102)
    return sheet


def advised(sheet, rule="launch_bound"):
    return " ".join(outcome(rule, sheet.results()).advice)


@pytest.mark.parametrize(
    ("name", "category", "operation", "recommends"),
    [
        ("## Call CompiledFxGraph abc ##", "op", "k", "torch.compile"),
        ("aten::mm", "op", "triton_poi_fused_add_0", "torch.compile"),
        ("vllm/v1/core/sched/async_scheduler.py(20): x", "python", "k", "--async-scheduling"),
        ("a/py_executor.py(9): async_output_busy_loop", "python", "k", "--async-scheduling"),
    ],
)
def test_what_the_trace_proves_to_be_on_is_not_advised(name, category, operation, recommends):
    assert recommends in advised(launching_in())
    assert recommends not in advised(launching_in(name, category, operation))


def test_results_that_are_read_beside_the_launching_are_asynchronous():
    """A thread of the worker that launches nothing waits for the device; another process's proves nothing."""
    for pid, role, advises in ((100, "worker", False), (900, None, True)):
        sheet = launching_in()
        sheet.doing(sheet.thread(role, "output", pid=pid), 2, 90, "cudaEventSynchronize", "runtime")
        assert ("--async-scheduling" in advised(sheet)) == advises


@pytest.mark.parametrize(
    ("memories", "advises"), [(["Pinned"], False), (["Pinned", "Pageable"], True), ([], True)]
)
def test_pinned_memory_is_advised_unless_all_copies_use_it(memories, advises):
    sheet = Sheet()
    sheet.kernel(0, 1)
    for n, memory in enumerate(memories):
        sheet.kernel(1 + n / 10, 1.05 + n / 10, name=f"Memcpy DtoH (Device -> {memory})", kind="memcpy")
    sheet.doing(0, 2, 100, "cudaStreamSynchronize", "runtime")
    sheet.kernel(101, 102)
    assert ("pinned memory" in advised(sheet, "host_synchronisation")) == advises


def short_of_cpus(tokenizers, *, openmp=False, unnamed=False, unsampled=False):
    """The worker waits for its CPU while threads of the API server beside its main one tokenize in turn."""
    sheet = gap()
    sheet.runs(0, 0, 10, cpu=0)
    sheet.ready(0, 10, 90, cpu=0)
    sheet.runs(0, 90, 102, cpu=0)
    if not unsampled:
        sheet.sampled(0, 90, 102, *([("[unknown]", None)] if unnamed else [TORCH]))
    for n in range(tokenizers):
        thread = sheet.thread("api_server", "tokenizer", pid=300)
        sheet.sampled(thread, 10 + 20 * n, 30 + 20 * n, BPE)
        sheet.runs(thread, 10 + 20 * n, 30 + 20 * n, cpu=0)
    if openmp:
        helper = sheet.thread("worker", "helper", pid=100)
        sheet.sampled(helper, 20, 40, TORCH, ("gomp_thread_start", "/x/libgomp.so.1"))
        sheet.runs(helper, 20, 40, cpu=1)
    return sheet


@pytest.mark.parametrize(
    ("sheet", "tokenizers", "openmp"),
    [
        (short_of_cpus(2), False, False),
        (short_of_cpus(3), True, False),
        (short_of_cpus(2, openmp=True), False, True),
        (short_of_cpus(2, unnamed=True), True, True),
        (short_of_cpus(2, unsampled=True), True, True),
    ],
    ids=["two", "three", "OpenMP at work", "samples without names", "a process that was not sampled"],
)
def test_a_pool_of_two_threads_is_not_to_be_capped(sheet, tokenizers, openmp):
    """Only samples that name what every process of the server did prove how many threads a pool has."""
    advice = advised(sheet, "cpu_shortage")
    assert ("RAYON_NUM_THREADS" in advice) == tokenizers
    assert ("OMP_NUM_THREADS" in advice) == openmp
