"""Waits are followed upstream, as far as anything was recorded; until when a slice may have waited."""

import polars as pl
import pytest

from tests.analyses.server_by_hand import API, ENGINE, OTHER, THIRD, WORKER, call, op, piece, run, told
from tests.analyses.test_second_ledgers import agree
from tests.charts.server import API as API_THREAD
from tests.charts.server import ENGINE as ENGINE_THREAD
from tests.charts.server import trace
from tests.findings.sheet import ANY_SIZE, MS, Sheet
from tracelib import schema
from tracelib.analyses.awaited import last_at_work, two_last, waits_until
from tracelib.findings.verdict import verdict


def test_waits_are_followed_from_worker_to_engine_to_tokenizer():
    slices = [
        call(0, 1, 1),
        piece(WORKER, 10, 90, "shm_broadcast.dequeue"),
        call(90, 95, 2),
        piece(ENGINE, 0, 20, "engine.update"),
        piece(ENGINE, 20, 80, "wait_for_requests"),
        piece(ENGINE, 80, 88, "shm_broadcast.enqueue"),
        piece(API, 30, 70, "tokenize"),
    ]
    results = run([op(0, 10, 1), op(100, 200, 2)], slices)
    assert (30, 70, "tokenization", "encode") in told(results)
    assert (80, 88, "ipc", "copy") in told(results)
    assert (70, 80, "no_work", None) in told(results)  # an API server that annotates its work had none


def woken(thread, cpu, asleep_ns, woken_ns, runs_ns, until_ns):
    return [
        event(asleep_ns, "switch", cpu, thread, "S", schema.IDLE),
        event(woken_ns, "wakeup", cpu, schema.IDLE, None, thread),
        event(runs_ns, "switch", cpu, schema.IDLE, None, thread),
        event(until_ns, "switch", cpu, thread, "S", schema.IDLE),
    ]


def test_a_dequeue_is_followed_only_until_the_message_was_sent():
    """From 40 on the worker could go on; it has no CPU until 85, and what the others do is not why."""
    slices = [
        call(0, 1, 1),
        piece(WORKER, 10, 90, "shm_broadcast.dequeue"),
        call(90, 95, 2),
        piece(ENGINE, 10, 30, "engine.schedule"),
        piece(ENGINE, 30, 40, "shm_broadcast.enqueue"),
        piece(ENGINE, 40, 100, "engine.wait_output"),
        piece(OTHER, 45, 100, "aten::mm", "op"),
        piece(API, 40, 80, "tokenize"),
    ]
    results = run([op(0, 10, 1), op(100, 200, 2)], slices, woken(WORKER, 0, 5, 41, 85, 100))
    agree(results)
    assert told(results)[:3] == [
        (10, 30, "scheduling", None),
        (30, 40, "ipc", "copy"),
        (40, 90, "ipc", "wait"),
    ]
    late = results.lost.filter((pl.col("ts_ns") >= 40) & (pl.col("ts_ns") < 90))
    assert late.select("ts_ns", "dur_ns", "thread", "cpu_state").rows() == [
        (40, 1, WORKER, "blocked"),
        (41, 44, WORKER, "runnable"),
        (85, 5, WORKER, "running"),
    ]


def test_an_engine_that_waits_for_a_worker_without_a_cpu_blames_that_worker():
    slices = [
        call(0, 1, 1),
        piece(WORKER, 10, 50, "shm_broadcast.dequeue"),
        call(90, 95, 2),
        piece(ENGINE, 10, 20, "shm_broadcast.enqueue"),
        piece(ENGINE, 20, 100, "engine.wait_output"),
    ]
    results = run([op(0, 10, 1), op(100, 200, 2)], slices)
    agree(results)
    assert (20, 50, "ipc", "wait") in told(results)
    assert results.lost.filter(pl.col("ts_ns") == 20)["thread"].to_list() == [WORKER]


def test_an_engine_that_waits_for_the_other_worker_blames_that_one():
    slices = [
        call(0, 1, 1),
        piece(WORKER, 10, 90, "shm_broadcast.dequeue"),
        call(90, 95, 2),
        piece(ENGINE, 0, 100, "engine.wait_output"),
        piece(OTHER, 20, 60, "aten::mm", "op"),
    ]
    results = run([op(0, 10, 1), op(100, 200, 2)], slices)
    assert (20, 60, "host_work", "worker") in told(results)  # that one launches nothing


def test_of_several_ranks_the_one_that_was_at_work_last_is_asked_and_no_other():
    slices = [
        call(0, 1, 1),
        piece(WORKER, 10, 90, "shm_broadcast.dequeue"),
        call(90, 95, 2),
        piece(ENGINE, 0, 80, "engine.wait_output"),
        piece(ENGINE, 80, 88, "engine.schedule"),
        piece(OTHER, 20, 60, "aten::mm", "op"),
        piece(THIRD, 40, 70, "aten::mm", "op"),
    ]
    results = run([op(0, 10, 1), op(100, 200, 2)], slices)
    agree(results)
    assert told(results)[:4] == [
        (10, 40, "ipc", "wait"),
        (40, 70, "host_work", "worker"),
        (70, 80, "ipc", "wait"),
        (80, 88, "scheduling", None),
    ]
    assert set(results.lost.filter(pl.col("ts_ns") < 80)["thread"]) == {THIRD}


def test_the_two_ranks_that_were_at_work_last_are_those_that_ended_or_began_last():
    works = pl.DataFrame(
        [(0, 0, 50), (1, 10, 20), (2, 40, 30), (3, 60, 100), (4, 64, 100)],
        schema={"thread": pl.Int32, "ts_ns": pl.Int64, "dur_ns": pl.Int64},
        orient="row",
    )
    ranks = pl.DataFrame(
        {"thread": [0, 1, 2, 3, 4], "of": [7, 7, 8, 9, 9]}, schema_overrides={"thread": pl.Int32}
    )
    last = two_last(last_at_work(works, pl.Series("until", [5, 10, 45, 60, 100])), ranks)
    assert last.sort("until").rows() == [
        (5, 7, None),
        (10, 7, None),
        (45, 8, 7),  # both at work: the one that began last
        (60, 8, 7),  # what begins at the moment itself is not before it
        (100, 9, 8),  # one rank counts once, however many of its threads work
    ]


def test_an_upstream_that_no_source_recorded_proves_nothing():
    slices = [call(0, 1, 1), piece(WORKER, 10, 90, "shm_broadcast.dequeue"), call(90, 95, 2)]
    results = run([op(0, 10, 1), op(100, 200, 2)], slices)
    assert (10, 90, "ipc", "upstream not recorded") in told(results)
    assert verdict(results, ANY_SIZE).state == "insufficient"


def test_an_idle_server_has_no_load():
    slices = [
        call(0, 1, 1),
        call(990, 992, 2),
        piece(WORKER, 10, 980, "shm_broadcast.dequeue"),
        piece(ENGINE, 0, 985, "wait_for_requests"),
        piece(API, 0, 5, "tokenize"),
    ]
    results = run([op(0, 10, 1), op(1000, 1010, 2)], slices)
    assert verdict(results, ANY_SIZE).state == "no_load"


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
    rows = gap([piece(ENGINE, 0, 30, "engine.update")], [*asleep(ENGINE, 0, 30), *asleep(API, 1, 90)])
    assert rows == [(10, 30, "scheduling", None), (30, 60, "ipc", "wait"), (60, 80, "no_work", None)]


def _slices(*rows):
    """Return slices of (thread, begin, end)."""
    made = [(0, thread, begin, end - begin, "tokenize", "annotation", None) for thread, begin, end in rows]
    return pl.DataFrame(made, schema=schema.SLICES, orient="row")


def _maybe(*rows, waits_for="upstream"):
    """Return slices that may wait, of (thread, begin, end)."""
    return pl.DataFrame(
        [(thread, waits_for, begin, end - begin) for thread, begin, end in rows],
        schema={
            "thread": pl.Int32,
            "may_wait_for": pl.Categorical,
            "whole_ts": pl.Int64,
            "whole_ns": pl.Int64,
        },
        orient="row",
    )


def until_of(maybe, made):
    return waits_until(maybe, made, made.threads.select("thread", replica=pl.lit(0, pl.Int32))).to_list()


@pytest.mark.parametrize(
    ("ended", "until"),
    [
        (
            [(API_THREAD, 20, 50), (API_THREAD, 300, 700), (API_THREAD, 800, 900), (API_THREAD, 1000, 1200)],
            900,
        ),  # the last that ended inside
        ([(API_THREAD, 20, 50), (API_THREAD, 1000, 1200)], 100),  # nothing ended inside: it did not wait
        ([(API_THREAD, 20, 100)], 100),
        ([(API_THREAD, 200, 1100)], 1100),
        ([(ENGINE_THREAD, 200, 500)], 1100),  # nothing of the API_THREAD server was recorded: nobody can say
    ],
)
def test_an_engine_waits_until_the_api_server_was_done_with_something(ended, until):
    """The engine's schedule lasts from 100 to 1100."""
    assert until_of(_maybe((ENGINE_THREAD, 100, 1100)), trace(slices=_slices(*ended))) == [until]


def test_rows_keep_their_order_and_a_named_role_is_the_one_asked():
    made = trace(slices=_slices((ENGINE_THREAD, 0, 150), (API_THREAD, 0, 950)))
    asked = _maybe((API_THREAD, 900, 1000), (API_THREAD, 100, 200), waits_for="engine")
    assert until_of(asked, made) == [900, 150]


def front_end():
    """A GPU waits for a request from 1 to 101 ms, which the API server sends at 99; it has a pool."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 101, "shm_broadcast.dequeue")
    sheet.doing(sheet.engine, 1, 101, "wait_for_requests")
    sheet.doing(sheet.api, 99, 101, "ipc_send_request")
    sheet.kernel(102, 103)
    return sheet, sheet.thread("api_server", "api_server", pid=300)


def blamed(sheet):
    """Return {(cause, sub_cause): ms} of the dequeue; both implementations say so."""
    results = sheet.results()
    agree(results)
    lost = results.lost.filter(pl.col("ts_ns") < 101 * MS).group_by("cause", "sub_cause")
    return {row[:2]: round(row[2] / MS, 3) for row in lost.agg(pl.col("dur_ns").sum()).rows()}


RESIZE = "serving/images.py(40): resize"


def test_whom_nobody_waits_for_is_not_blamed():
    """The sender works from 60 on; the pool tokenizes for others, before that and meanwhile."""
    sheet, pool = front_end()
    sheet.doing(sheet.api, 60, 99, RESIZE, "python")
    sheet.doing(pool, 10, 40, "tokenize")
    sheet.doing(pool, 70, 80, "tokenize")
    assert blamed(sheet) == {("no_work", None): 59, ("host_work", "api_server"): 39, ("ipc", "serialize"): 2}


@pytest.mark.parametrize("pause", [0.9, 1.1])
def test_the_pool_works_for_the_sender_that_goes_on_as_soon_as_it_is_done(pause):
    """Until 40, or after a pause of at most 1 ms."""
    sheet, pool = front_end()
    sheet.doing(pool, 10, 40, "tokenize")
    sheet.doing(sheet.api, 40 + pause, 99, RESIZE, "python")
    assert blamed(sheet).get(("tokenization", "encode")) == (30 if pause < 1 else None)


def test_a_sender_that_was_woken_and_has_no_cpu_did_not_pause():
    sheet, pool = front_end()
    sheet.doing(pool, 10, 40, "tokenize")
    sheet.runs(pool, 10, 40, cpu=1)
    sheet.ready(sheet.api, 40, 95, cpu=1)
    sheet.runs(sheet.api, 95, 101, cpu=1)
    assert blamed(sheet)["tokenization", "encode"] == 30


def test_of_two_senders_the_one_that_ended_the_wait_is_asked():
    """Another one sends at 20, to another engine, and tokenizes for that from 60 to 90."""
    sheet, other = front_end()
    sheet.doing(other, 20, 21, "ipc_send_request")
    sheet.doing(other, 60, 90, "tokenize")
    assert ("tokenization", "encode") not in blamed(sheet)


def test_what_the_engine_sends_to_the_front_end_ends_no_dequeue():
    """Its output thread sends on and on; who enqueues decides."""
    sheet, _ = front_end()
    out = sheet.thread("engine", "output", pid=200)
    sheet.slices = [row for row in sheet.slices if row["thread"] != sheet.engine]
    sheet.doing(sheet.engine, 20, 100, "engine.update")
    sheet.doing(sheet.engine, 100, 101.5, "shm_broadcast.enqueue")
    sheet.doing(out, 60, 101, "ipc_send_output")
    spent = blamed(sheet)
    assert spent["scheduling", None] == 80
    assert ("ipc", "serialize") not in spent


def test_between_two_polls_a_loop_polls():
    """The API server asks its socket every 0.1 ms; no frame covers a tenth of it, and samples find polls."""
    sheet, _ = front_end()
    sheet.slices.pop(-2)
    for n in range(1001):
        sheet.doing(sheet.api, 1 + n / 10, 1.09 + n / 10, "selectors.py(452): select", "python")
    sheet.sampled(sheet.api, 1, 101, ("do_poll", "[kernel.kallsyms]"), ("__poll", "/lib/libc.so.6"))
    assert blamed(sheet) == {("no_work", None): 100}
