"""Waiting in collectives that carry no name of NCCL, in groups that are not whole, and in replicas of one
server.
"""

import gzip
import json

import polars as pl
import pytest

from tests.conftest import thorough
from tests.findings.sheet import MS, Sheet
from tracelib.analyses.collectives import missing_ranks, waiting_caused, whole_collectives
from tracelib.analyses.gpu_time import gpu_states, gpu_time
from tracelib.analyses.window import Window

CUSTOM = {
    "vllm": "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals)",
    "trtllm": "void tensorrt_llm::kernels::ar_fusion::"
    "allreduce_fusion_kernel_oneshot_lamport<(x)1, float, 2, true>(P)",
    "symmetric memory": "void c10d::symmetric_memory::"
    "multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(x)",
}


def lined_up(
    starts: list[list[float]],
    ends: list[float],
    kernel: str,
    first: int = 0,
    sheet: Sheet | None = None,
    **more,
) -> Sheet:
    """Return a run in which ranks from `first` on enter collective n at `starts[n]` and leave it at
    `ends[n]`.
    """
    sheet = sheet or Sheet(ranks=first + len(starts[0]))
    for entered, left in zip(starts, ends, strict=True):
        for rank, start in enumerate(entered, first):
            sheet.kernel(start - 2, start, rank=rank, name="gemm")
            sheet.kernel(start, left, rank=rank, name=kernel, collective="all_reduce", **more)
    return sheet


def ledger(sheet: Sheet) -> dict[int, dict[str, float]]:
    trace = sheet.trace()
    over = Window(0, 100 * MS, "by hand")
    time = gpu_time(gpu_states(trace, over, whole_collectives(trace, over)))
    assert (time.group_by("gpu").agg(pl.col("ns").sum())["ns"] == over.duration_ns).all()
    return {
        gpu: {state: ns / MS for state, ns in rows.select(pl.col("state").cast(pl.String), "ns").iter_rows()}
        for (gpu,), rows in time.group_by("gpu")
    }


@pytest.mark.parametrize("kernel", CUSTOM.values(), ids=CUSTOM)
@pytest.mark.parametrize("graph", [None, 3])
def test_a_late_rank_is_waited_for_in_any_engine_s_own_all_reduce(kernel, graph):
    sheet = lined_up([[10, 17], [30, 38], [50, 59]], [18, 39, 60], kernel, group_size=2, graph=graph)
    time = ledger(sheet)
    assert time[0]["collective_wait"] == 7 + 8 + 9  # hand-worked: rank 1 enters so much later
    assert time[1]["collective_wait"] == 0
    assert time[0]["collective_transfer"] == time[1]["collective_transfer"] == 3
    assert time[0]["compute"] == time[1]["compute"] == 6  # three gemms of 2 ms; spinning is no computing
    met = sheet.results().collectives
    assert met["matched"].all()
    assert set(met["straggler"]) == {1}


def test_two_implementations_in_one_graph_are_numbered_apart():
    """A rank whose recording begins one custom all-reduce earlier does not shift NCCL's."""
    sheet = Sheet(ranks=2)
    lined_up([[4, 5]], [6], CUSTOM["vllm"], sheet=sheet, group_size=2, graph=1)
    del sheet.ops[-2:]  # rank 1 was not recorded yet
    lined_up([[10, 17], [30, 38], [50, 59]], [18, 39, 60], CUSTOM["vllm"], sheet=sheet, group_size=2, graph=1)
    lined_up(
        [[20, 21], [42, 43], [63, 65]],
        [22, 44, 66],
        "ncclDevKernel_AllReduce_x",
        sheet=sheet,
        group_size=2,
        graph=1,
    )
    time = ledger(sheet)
    assert time[0]["collective_wait"] == 7 + 8 + 9 + 1 + 1 + 2
    assert time[0]["collective"] == 2  # the one that has no partner: neither useful nor lost


@pytest.mark.parametrize("size", [4, 8])
def test_part_of_a_group_cannot_tell_waiting_from_transfer(size):
    sheet = lined_up([[10, 17], [30, 38]], [18, 39], "nccl", group="tp", group_size=size, elements=8)
    time = ledger(sheet)
    assert time[0]["collective"] == 8 + 9
    assert time[0]["collective_wait"] == time[0]["collective_transfer"] == 0
    assert missing_ranks(sheet.trace()) == (size - 2, list(range(2, size)))
    assert sheet.results().collectives["wait_ns"].null_count() == 4


def test_a_whole_group_misses_nobody():
    assert missing_ranks(lined_up([[10, 17]], [18], "nccl", group="tp", group_size=2).trace()) == (0, [])


def test_replicas_whose_groups_have_one_name_are_told_by_who_meets_whom():
    sheet = Sheet(ranks=4)
    for first, late in ((0, 3), (2, 5)):
        at = [10 + 20 * n + 7 * first for n in range(4)]
        starts = [[start, start + late] for start in at]
        ends = [start + late + 1 for start in at]
        lined_up(starts, ends, "nccl", first, sheet, group="tp", group_size=2, elements=8)
    time = ledger(sheet)
    assert [time[gpu]["collective_wait"] for gpu in range(4)] == [12, 0, 20, 0]
    met = whole_collectives(sheet.trace(), Window(0, 100 * MS, "by hand")).filter("matched")
    assert met.height == 16
    pairs = met.group_by("event").agg(pl.col("gpu").sort())["gpu"].to_list()
    assert sorted(set(map(tuple, pairs))) == [(0, 1), (2, 3)]


def test_ranks_that_never_meet_are_not_paired_whatever_their_number():
    """Four ranks without a group's name or size, of which two and two meet."""
    sheet = Sheet(ranks=4)
    for first, at in ((0, 0), (2, 9)):
        starts = [[10 + 20 * n + at, 13 + 20 * n + at] for n in range(4)]
        lined_up(starts, [14 + 20 * n + at for n in range(4)], CUSTOM["symmetric memory"], first, sheet)
    time = ledger(sheet)
    assert [time[gpu]["collective_wait"] for gpu in range(4)] == [12, 0, 12, 0]


@pytest.mark.parametrize("kind", ["send", "recv", "send_recv"])
def test_a_pipeline_s_transfers_are_neither_useful_nor_lost(kind):
    sheet = lined_up([[10, 17], [30, 38]], [18, 39], "ncclDevKernel_SendRecv(x)", group="pp", group_size=2)
    for op in sheet.ops:
        op["collective"] = op.get("collective") and kind
    time = ledger(sheet)
    assert time[0]["collective"] == 17
    assert time[0]["collective_wait"] == 0


KERNELS = ("vllm_2cpus", "vllm_32cpus", "vllm_starved_stack", "vllm_healthy_stack")


def union_ns(path, inside):
    """Return the union of a Kineto file's kernels but collectives, by `json` alone, cut at `inside`."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    base = int(document["baseTimeNanoseconds"])
    spans = sorted(
        (max(start, inside[0]), min(end, inside[1]))
        for event in document["traceEvents"]
        if event.get("cat") == "kernel"
        and not any(w in event["name"] for w in ("ncclDev", "cross_device_reduce"))
        if (start := base + round(event["ts"] * 1000)) < inside[1]
        if (end := start + round(event["dur"] * 1000)) > inside[0]
    )
    total, at = 0, inside[0]
    for start, end in spans:
        total += max(0, end - max(start, at))
        at = max(at, end)
    return total


@pytest.mark.parametrize("capture", thorough(KERNELS, but=("vllm_32cpus", "vllm_healthy_stack")))
def test_both_ranks_of_a_real_server_compute_as_long(run_of, capture):
    folder, results = run_of(capture).folder, run_of(capture).results
    inside = (results.window.start_ns, results.window.end_ns)
    compute = results.gpu_time.filter(pl.col("state") == "compute").sort("gpu")["ns"].to_list()
    for rank, ns in enumerate(compute):
        assert ns == pytest.approx(union_ns(folder / f"rank{rank}.pt.trace.json.gz", inside), rel=0.01)
    assert compute[0] == pytest.approx(compute[1], rel=0.05)
    unmatched = results.collectives.filter(~pl.col("matched"))
    assert unmatched.height <= 0.001 * results.collectives.height


def test_who_caused_the_waiting_need_not_have_come_last_most_often():
    """Rank 0 is last three times by 1 ms, rank 1 once by 97; of a fifth one the clocks do not tell."""
    last = [(0, 1, True), (0, 1, True), (0, 1, True), (1, 97, True), (0, 50, False)]
    rows = pl.DataFrame(
        [
            {"event": n, "straggler": who, "wait_ns": wait if gpu != who else 0, "order_known": known}
            for n, (who, wait, known) in enumerate(last)
            for gpu in (0, 1)
        ],
        schema_overrides={"straggler": pl.Int32},
    )
    assert waiting_caused(rows).rows() == [(1, 1, 97, 0.97), (0, 3, 3, 0.03)]
