"""What a reader sees first: the verdict, which CPUs and which quota it names, and what it leaves open."""

import pytest

from tests.findings.sheet import ANY_SIZE, Sheet
from tests.findings.test_cpus import GRID, gap, kept_off, stopped
from tracelib.charts.causes import causes_sentence
from tracelib.charts.timeline import timeline_sentence
from tracelib.findings.verdict import shares, verdict


def test_the_verdict_counts_the_cpus():
    sheet = gap()
    said = verdict(kept_off(sheet, sheet.thread(None, "batch", pid=901)).results(), ANY_SIZE).sentence
    assert "wanted a CPU while the server's only CPU (of the host's 8) was busy" in said


def test_the_verdict_sizes_the_quota():
    said = verdict(stopped(GRID).results(), ANY_SIZE).sentence
    assert (
        "a CPU quota of about 0.6 CPUs had stopped the thread that a GPU waited for, while CPUs were idle"
        in said
    )


def test_captions_tell_a_quota_from_taken_cpus():
    results = stopped(GRID).results()
    assert "the blamed thread was stopped by a CPU quota" in causes_sentence(results)
    assert "the launching threads were stopped by a CPU quota for" in timeline_sentence(results)
    sheet = gap()
    taken = kept_off(sheet, sheet.thread(None, "batch", pid=901)).results()
    assert "the blamed thread wanted a CPU and had none" in causes_sentence(taken)


def test_the_verdict_names_compilation_apart_from_launching():
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 61, "_compile.compile_inner (dynamo_timed)", "op")
    sheet.doing(0, 61, 81, "aten::mm", "op")
    sheet.kernel(101, 102)
    assert "(run-time compilation 59 %, kernel launch 20 %)" in verdict(sheet.results(), ANY_SIZE).sentence


def without_gpus(*, asleep):
    """Worker and engine wake up every 100 ms: for 1 ms, or for 60."""
    sheet = Sheet()
    for n in range(5):
        for thread in (sheet.workers[0], sheet.engine):
            sheet.runs(thread, 100 * n, 100 * n + (1 if asleep else 60), cpu=thread)
    return verdict(sheet.results(), ANY_SIZE)


def test_a_server_that_slept_may_have_had_nothing_to_record():
    said = without_gpus(asleep=True)
    assert said.state == "insufficient"
    assert "if the GPUs were recorded, there was no load" in said.sentence
    assert "no load" not in without_gpus(asleep=False).sentence


def test_a_server_whose_threads_wanted_cpus_did_not_sleep_however_many_others_did():
    """The engine is ready for 400 of 500 ms and runs for 5; a hundred threads sleep."""
    sheet = Sheet()
    batch = sheet.thread(None, "batch", pid=901)
    for n in range(5):
        sheet.ready(sheet.engine, 100 * n, 100 * n + 80, cpu=1)
        sheet.runs(sheet.engine, 100 * n + 80, 100 * n + 81, cpu=1)
        sheet.runs(batch, 100 * n, 100 * n + 80, cpu=1)
    for n in range(100):
        sheet.runs(sheet.thread("worker", f"idle{n}", pid=100), 400, 400.1, cpu=2)
    said = verdict(sheet.results()).sentence
    assert "slept" not in said
    assert "a thread of the server wanted a CPU and had none for 83 % of the time" in said


@pytest.mark.parametrize(("unseen", "said"), [(0, True), (20, False)])
def test_the_threads_had_cpus_only_where_their_states_are_known(unseen, said):
    """The worker runs while its GPU idles; for `unseen` ms nobody recorded the scheduler."""
    sheet = Sheet()
    for at in range(0, 200, 2):
        sheet.kernel(at, at + 0.5)
        sheet.kernel(at + 0.5, at + 1)
        sheet.doing(0, at + 1, at + 1.99, "aten::mm", "op")
    sheet.runs(0, unseen, 200, cpu=1)
    for begin in (unseen, 150):
        sheet.runs(sheet.engine, begin, begin + 10, cpu=2)
    told = verdict(sheet.results())
    assert told.state == "cpu_bound"
    assert ("the threads had CPUs when they needed them" in told.sentence) == said


# -------------------- collectives that cannot be split, because ranks were not recorded
def one_rank_of(size: int, *, collective_ms: float) -> Sheet:
    """Return 100 ms of one rank, whose collectives take `collective_ms` of every 10 ms."""
    sheet = Sheet(ranks=1)
    for at in range(0, 100, 10):
        sheet.kernel(at, at + 9 - collective_ms, name="gemm")
        end = at + 9
        sheet.kernel(
            end - collective_ms, end, collective="all_reduce", group="tp", group_size=size, elements=8
        )
    return sheet


def test_a_rank_that_mostly_waits_or_transfers_is_neither_useful_nor_gpu_bound():
    results = one_rank_of(2, collective_ms=5).results()
    said = verdict(results, ANY_SIZE)
    assert said.state == "insufficient"
    assert "waiting cannot be told from transfer" in said.sentence
    assert said.why[0].startswith("rank 1 was not recorded")
    assert said.confidence != "high"
    assert shares(results).useful == pytest.approx(0.4, abs=0.01)  # the gemms alone
    assert shares(results).collective == pytest.approx(0.5, abs=0.01)


def test_a_few_collectives_leave_the_verdict_and_say_at_least():
    said = verdict(one_rank_of(4, collective_ms=1).results(), ANY_SIZE)
    assert said.state != "insufficient"
    assert "at least" in said.sentence
    assert said.why[0].startswith("ranks 1, 2, 3 were not recorded")
