"""What a thread did: never what a helper does, nor what it cannot have done asleep."""

import polars as pl
import pytest

from tests.analyses.scheduling_frames import IDLE, switch, trace, wakeup, window
from tests.findings.sheet import MS, Sheet
from tracelib import schema
from tracelib.analyses.cpu_samples import sample_stretches
from tracelib.analyses.host_activity import host_activity
from tracelib.analyses.launches import launches
from tracelib.analyses.thread_states import thread_states
from tracelib.slice_rules import load_rules

#: As the reference captures name them.
HELPERS = ("pt_nccl_watchdg", "pt_nccl_heartbt", "pt_tcpstore_uv", "cuda-EvtHandlr", "NCCL Progress 0")


def by_cause(name=None, what="", category="os"):
    """The worker waits for the engine, which waits for the worker; another thread of the worker's is in a
    call meanwhile.
    """
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


def test_a_sample_after_a_sleep_tells_only_of_the_time_awake():
    """Thread 1 sleeps 0..900, runs 900..1400, and is sampled at 1000 with a period of 500: all that it ran is
    its doing, and nothing before.
    """
    made = trace(
        [
            switch(0, 0, 1, "S", IDLE),
            wakeup(900, 0, 1),
            switch(900, 0, IDLE, "R", 1),
            switch(1400, 0, 1, "S", IDLE),
        ],
        samples=[(1000, 1)],
        period=500,
    )
    stacks = pl.DataFrame(
        [(0, 0, "gc_collect_main", "/usr/bin/python3.12")], schema=schema.STACKS, orient="row"
    )
    sampled = made.replace(samples=made.samples.with_columns(stack=pl.lit(0, pl.Int32)), stacks=stacks)
    over = window(0, 1400)
    told = host_activity(
        sampled,
        over,
        load_rules(),
        thread_states(sampled, over),
        sample_stretches(sampled, over, load_rules(), thread_states(sampled, over)),
        launches(sampled, over),
        sampled.threads.select("thread", replica=pl.lit(0, pl.Int32)),
    )
    assert told.select("thread", "ts_ns", "dur_ns", "cause").rows() == [(1, 900, 500, "gc")]
