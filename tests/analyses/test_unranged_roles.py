"""A process that only the scheduler saw: asleep, it may wait for anyone; awake, it may do anything."""

from tests.analyses.test_ledgers import API, ENGINE, OTHER, WORKER, call, op, piece, run, told
from tests.analyses.test_second_ledgers import agree
from tracelib import schema

NOT_RECORDED = ("ipc", "upstream not recorded")


def event(ts, kind, cpu, prev, state, after):
    columns = ("source", "ts_ns", "cpu", "event", "prev", "prev_state", "next")
    return dict(zip(columns, (0, ts, cpu, kind, prev, state, after), strict=True))


def asleep(thread, cpu, until):
    """Return the events of a thread that sleeps from 2 on, and is woken at `until`."""
    return [
        event(2, "switch", cpu, thread, "S", schema.IDLE),
        event(until, "wakeup", cpu, schema.IDLE, None, thread),
        event(until, "switch", cpu, schema.IDLE, None, thread),
        event(until + 30, "switch", cpu, thread, "S", schema.IDLE),
    ]


def gap(slices, sched):
    """The GPU idles from 10 to 100; its worker waits for the engine from 10 to 80 and launches at 90."""
    own = [call(0, 1, 1), piece(WORKER, 5, 80, "shm_broadcast.dequeue"), call(90, 100, 2)]
    sched = sorted(sched, key=lambda e: e["ts_ns"])
    results = run([op(0, 10, 1), op(100, 200, 2)], [*own, *slices], sched)
    agree(results)  # the second implementation says the same
    return [row for row in told(results) if row[0] < 80]


def test_a_sleeping_engine_may_wait_for_the_worker_that_works():
    """Until 40 rank 1 works, for which the engine may wait; then nobody does anything."""
    other = [
        piece(OTHER, 0, 40, "cudaStreamSynchronize", "runtime"),
        piece(OTHER, 40, 95, "shm_broadcast.dequeue"),
    ]
    rows = gap(other, [*asleep(ENGINE, 0, 90), *asleep(API, 1, 90)])
    assert rows == [(10, 40, *NOT_RECORDED), (40, 80, "no_work", None)]


def test_what_an_engine_does_that_no_range_tells_of_is_not_known():
    rows = gap([], [*asleep(ENGINE, 0, 50), *asleep(API, 1, 90)])
    assert rows == [(10, 50, "no_work", None), (50, 80, *NOT_RECORDED)]


def test_an_engine_that_has_ranges_is_awake_beside_them_for_a_message_and_asleep_for_requests():
    """It is awake until 60."""
    rows = gap([piece(ENGINE, 0, 30, "shm_broadcast.enqueue")], [*asleep(ENGINE, 0, 30), *asleep(API, 1, 90)])
    assert rows == [(10, 30, "ipc", "copy"), (30, 60, "ipc", "wait"), (60, 80, "no_work", None)]
