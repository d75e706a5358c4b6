"""Dispatch must be earned, and what no rule names is the host's own work: runs written by hand, in ms."""

import polars as pl
import pytest

from tests.findings.sheet import MS, Sheet
from tracelib.analyses.dispatch import bursts


def launches(*at_ms: float, thread: int = 0) -> pl.DataFrame:
    rows = {"call_thread": [thread] * len(at_ms), "call_ts_ns": [round(at * MS) for at in at_ms]}
    return pl.DataFrame(rows, schema={"call_thread": pl.Int32, "call_ts_ns": pl.Int64})


def states(*rows: tuple[float, float, str]) -> pl.DataFrame:
    schema = {"thread": pl.Int32, "ts_ns": pl.Int64, "dur_ns": pl.Int64, "state": pl.String}
    return pl.DataFrame(
        [(0, round(a * MS), round((b - a) * MS), s) for a, b, s in rows], schema, orient="row"
    )


def spans(frame: pl.DataFrame) -> list[tuple[float, float]]:
    return [(ts / MS, (ts + dur) / MS) for ts, dur in frame.select("ts_ns", "dur_ns").iter_rows()]


def test_launches_close_together_are_a_burst_and_a_step_apart_are_not():
    found = bursts(launches(1.0, 1.1, 1.2, 9.0, 9.1), states())
    assert spans(found) == [(1.0, 1.1), (1.1, 1.2), (9.0, 9.1)]


def test_one_launch_a_step_is_no_burst():
    assert bursts(launches(0, 8, 16, 24), states()).is_empty()


def test_a_thread_that_is_kept_off_its_cpu_is_in_its_burst_still():
    late = launches(1.0, 1.1, 1.2, 5.3, 5.4)
    assert (1.2, 5.3) not in spans(bursts(late, states()))
    assert (1.2, 5.3) in spans(bursts(late, states((1.25, 5.25, "runnable"))))
    assert (1.2, 5.3) not in spans(bursts(late, states((1.25, 5.25, "blocked"))))


def server(role: str = "worker") -> tuple[Sheet, int]:
    """Return ten steps of 20 ms (five launches 0.1 ms apart, a wait of 10 ms) and the role's thread."""
    sheet = Sheet(ranks=1)
    thread = {"worker": sheet.workers[0], "engine": sheet.engine, "api_server": sheet.api}[role]
    for step in range(10):
        at = 20 * step
        for n in range(5):
            call = (at + 0.1 * n, at + 0.1 * n + 0.01)
            sheet.kernel(at + 0.5 + 1.8 * n, at + 0.5 + 1.8 * (n + 1), call=call)
    return sheet, thread


def lost_to(sheet: Sheet) -> dict[tuple[str, str | None], float]:
    """Return the lost ms by cause and sub-cause."""
    lost = sheet.results().lost.group_by("cause", "sub_cause").agg(pl.col("dur_ns").sum() / MS)
    return {(cause, sub): ms for cause, sub, ms in lost.iter_rows()}


#: Names that no rule knows, and as what they are recorded.
UNKNOWN = [
    ("engine/v2/spec_decode.py(310): propose", "python"),
    ("company/middleware.py(12): sign_payload", "python"),
    ("load adapters", "annotation"),
    ("execute_model", "annotation"),
]


@pytest.mark.parametrize(("name", "category"), UNKNOWN)
def test_what_no_rule_names_is_the_workers_own_work_and_never_dispatch(name, category):
    sheet, worker = server()
    for step in range(9):
        sheet.doing(worker, 20 * step + 9.6, 20 * step + 20, name, category)
    lost = lost_to(sheet)
    assert lost["host_work", "worker"] > 80
    assert ("kernel_launch", "dispatch") not in lost
    (finding,) = [f for f in results_findings(sheet) if f.id == "host_work"]
    assert name in finding.claim


def results_findings(sheet: Sheet) -> list:
    from tracelib.findings import diagnose

    return diagnose(sheet.results()).findings


def test_the_same_frame_between_two_launches_of_a_burst_is_dispatch():
    sheet = Sheet(ranks=1)
    for n in range(200):  # launches 0.5 ms apart, each kernel takes half of it: the host is late every time
        sheet.kernel(0.5 * n + 0.02, 0.5 * n + 0.25, call=(0.5 * n, 0.5 * n + 0.01))
    sheet.doing(sheet.workers[0], 0, 100, "model.py(7): run_layers", "python")
    lost = lost_to(sheet)
    assert lost["kernel_launch", "dispatch"] > 40
    assert ("host_work", "worker") not in lost


def test_only_threads_that_launch_dispatch():
    """The worker waits for an engine that runs operators on the CPU."""
    sheet, worker = server()
    for step in range(9):
        sheet.doing(worker, 20 * step + 9.6, 20 * step + 20, "shm_broadcast.dequeue")
        sheet.doing(sheet.engine, 20 * step + 9.6, 20 * step + 19.9, "aten::argmax", "op")
    lost = lost_to(sheet)
    assert lost["host_work", "engine"] > 80
    assert ("kernel_launch", "dispatch") not in lost


def test_a_gap_between_two_nodes_of_one_graph_launch_is_the_devices_own():
    sheet = Sheet(ranks=1)
    sheet.kernel(0, 10)
    sheet.kernel(20, 30, call=(18, 19), graph=5)
    sheet.kernel(34, 40, call=(18, 19), graph=5)
    sheet.kernel(50, 60, call=(44, 45))
    sheet.slices = [s for s in sheet.slices if s["correlation"] != 3]  # one launch for both nodes
    sheet.ops[2]["correlation"] = 2
    lost = lost_to(sheet)
    assert lost["device", "inside a graph"] == 4


def test_a_launched_operation_that_does_not_start_is_nobodys_beyond_the_usual_latency():
    sheet = Sheet(ranks=1)
    for n in range(10):  # the device starts 0.05 ms after the call
        sheet.kernel(10 * n + 0.06, 10 * n + 5, call=(10 * n, 10 * n + 0.01))
    sheet.kernel(190, 195, call=(100, 100.01))
    lost = lost_to(sheet)
    assert lost["kernel_launch", "latency"] == pytest.approx(9 * 0.05 + 10 * 0.05, abs=0.01)
    assert lost["unattributed", "launched, not started"] == pytest.approx(90 - 0.01 - 0.5, abs=0.02)


def test_a_schedule_that_waits_in_every_step_is_no_scheduling():
    sheet, worker = server()
    for step in range(9):
        sheet.doing(worker, 20 * step + 9.6, 20 * step + 20, "shm_broadcast.dequeue")
        sheet.doing(sheet.engine, 20 * step + 9.6, 20 * step + 19.9, "schedule: new requests")
        sheet.doing(sheet.api, 20 * step + 19, 20 * step + 19.8, "tokenize")
    lost = lost_to(sheet)
    assert lost.get(("scheduling", None), 0) < 5
    assert lost["no_work", None] > 50


def test_collectives_on_the_cpu_wait_for_other_ranks():
    sheet, worker = server()
    for step in range(9):
        sheet.doing(worker, 20 * step + 9.6, 20 * step + 20, "c10d::broadcast_", "op")
    assert lost_to(sheet)["ipc", "cpu_collective"] > 80


def test_nccl_s_calls_launch_however_long_they_take():
    sheet, worker = server()
    for step in range(9):
        sheet.doing(worker, 20 * step + 9.6, 20 * step + 20, "c10d::allreduce_", "op")
        sheet.doing(worker, 20 * step + 9.61, 20 * step + 19.99, "record_param_comms", "op")
    lost = lost_to(sheet)
    assert lost["kernel_launch", "dispatch"] > 80
    assert lost["ipc", "cpu_collective"] < 1  # the rim of the outer one, which alone may be anybody's


@pytest.mark.parametrize("inside", [None, "aten::stack"])
def test_the_data_loader_is_the_input_pipeline(inside):
    sheet, worker = server()
    for step in range(9):
        sheet.doing(worker, 20 * step + 9.6, 20 * step + 20, "enumerate(DataLoader)#_Iter.__next__")
        if inside:
            sheet.doing(worker, 20 * step + 10, 20 * step + 19, inside, "op")
    lost = lost_to(sheet)
    assert lost["host_work", "input_pipeline"] > 80
    assert ("kernel_launch", "dispatch") not in lost


@pytest.mark.parametrize(("role", "of"), [("engine", "engine"), (None, "other")])
def test_work_that_a_rule_names_is_put_to_the_role_of_its_thread(role, of):
    sheet = Sheet()
    thread = sheet.thread(role, "x", pid=700)
    sheet.kernel(0, 1)
    sheet.doing(thread, 1, 9, "structured_output/backend_xgrammar.py(150): fill_bitmask", "python")
    sheet.kernel(10, 11)
    rows = sheet.results().host_activity.filter(pl.col("thread") == thread)
    assert rows.select("cause", "sub_cause").cast(pl.String).rows() == [("host_work", of)]
