"""Threads for which nobody waits (NCCL's watchdog, the driver's event thread): nothing that they do is a cause."""

import polars as pl
import pytest

from tests.findings.sheet import MS, Sheet

#: As the reference captures name them.
HELPERS = ("pt_nccl_watchdg", "pt_nccl_heartbt", "pt_tcpstore_uv", "cuda-EvtHandlr", "NCCL Progress 0")


def by_cause(name=None, what="", category="os"):
    """The worker waits for the engine, which waits for the worker; another thread of the worker's is in a call meanwhile."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 91, "shm_broadcast.dequeue")
    sheet.doing(sheet.engine, 1, 91, "engine.wait_output")
    if name:
        thread = sheet.thread("worker", name, pid=100)
        for begin in range(1, 91, 5):
            sheet.doing(thread, begin, begin + 4.5, what, category)
    sheet.kernel(101, 102)
    summed = sheet.results().lost.group_by("cause", "sub_cause").agg(pl.col("dur_ns").sum())
    return {(cause, sub): ns / MS for cause, sub, ns in summed.iter_rows()}


@pytest.mark.parametrize(
    ("what", "category"), [("pthread_cond_timedwait", "os"), ("write", "os"), ("cudaEventQuery", "runtime")]
)
@pytest.mark.parametrize("name", HELPERS)
def test_what_a_helper_does_is_no_cause(name, what, category):
    assert by_cause(name, what, category) == by_cause()


def test_what_another_thread_of_the_worker_does_is_one():
    assert by_cause("worker_TP0", "write") == {
        ("ipc", "copy"): 81,
        ("ipc", "wait"): 9,
        ("unattributed", None): 9.99,
        ("kernel_launch", "api"): 0.01,
    }
