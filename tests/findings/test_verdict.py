"""What a reader sees first: the verdict, which CPUs and which quota it names, and what it leaves open."""

import polars as pl
import pytest

from tests.findings.sheet import ANY_SIZE, MS, Sheet
from tests.findings.test_cpus import GRID, gap, kept_off, stopped
from tracelib.charts.causes import causes_sentence
from tracelib.charts.timeline import timeline_sentence
from tracelib.findings import Thresholds, diagnose
from tracelib.findings.figures import cause_rows
from tracelib.findings.verdict import shares, verdict
from tracelib.report import sections
from tracelib.words import badge


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
    assert "the blamed thread was stopped by a CPU quota" in timeline_sentence(results)
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
    assert "a thread of the server wanted a CPU and had none for 83 % of the window" in said


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
    assert ("The threads had CPUs when they needed them" in told.sentence) == said


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


# -------------------- what makes it less sure, and what must be recorded first
def launching(seen_from=0):
    """200 ms: of each 2 ms the GPU works one, and waits one for an operator; the worker always has a CPU."""
    sheet = Sheet()
    for at in range(0, 200, 2):
        sheet.kernel(at, at + 0.5)
        sheet.kernel(at + 0.5, at + 1)
        sheet.doing(0, at + 1, at + 1.99, "aten::mm", "op")
    sheet.runs(0, seen_from, 200, cpu=1)
    for begin in (seen_from, 150, 190):
        sheet.runs(sheet.engine, begin, begin + 5, cpu=2)
    return sheet


def test_a_run_of_which_all_is_known_has_a_first_fix():
    document = diagnose(launching().results())
    assert (document.verdict.confidence, document.verdict.record_first) == ("high", [])
    assert document.findings[0].confidence == "high"
    assert document.findings[0].place.startswith("First")


def recorders(sheet):
    for at in range(0, 30, 2):
        sheet.doing(0, at + 1, at + 1.99, "Buffer Flush", "overhead")


def no_wakeups_before_120(sheet):
    sheet.on_cpu.clear()
    sheet.on_cpu.update(launching(120).on_cpu)


def long_operators(sheet):
    """From 101 to 130 ms the GPU waits for one operator, and nothing sampled it."""
    for name in ("ops", "slices"):
        kept = [row for row in getattr(sheet, name) if not 100.9 * MS <= row["ts_ns"] < 129.9 * MS]
        setattr(sheet, name, kept)
    sheet.doing(0, 101, 130, "aten::mm", "op")


def test_recorders_that_cost_more_than_a_twentieth_make_it_less_sure():
    sheet = launching()
    recorders(sheet)
    said = verdict(sheet.results())
    assert said.confidence == "medium"
    assert "the recorders themselves cost about 7.5 % of GPU time" in said.why


def dispatch_sampled_in(library):
    """20 of 102 ms lost in dispatch; half of the worker's samples in it lie in that library."""
    sheet = Sheet()
    sheet.kernel(0, 20)
    for n in range(5):
        sheet.doing(0, 20 + 4 * n, 24 + 4 * n, "aten::mm", "op")
        sheet.sampled(0, 20 + 4 * n, 22 + 4 * n, ("[unknown]", f"/x/{library}"))
        sheet.sampled(0, 22 + 4 * n, 24 + 4 * n, ("at::x", "/x/libtorch_cpu.so"))
    sheet.kernel(40, 102, call=(39.99, 40))
    return diagnose(sheet.results(), thresholds=ANY_SIZE)


def test_a_verdict_that_the_recorders_own_work_would_change_is_not_firm():
    """19.6 % of the window is host work, 9.8 % without the half that is the recorder's."""
    document = dispatch_sampled_in("libcupti.so.13")
    said = document.verdict
    assert (said.state, said.confidence) == ("cpu_bound", "low")
    assert "This is not firm: about 9.8 % of GPU time is the recorders' own work inside" in said.sentence
    assert said.sentence.endswith('9.8 % of GPU time, and the verdict would be "Not CPU-bound: GPU kernels".')
    assert "without with_stack" in said.record_first[0]
    assert not said.firm
    assert badge(said.state, said.limits, firm=said.firm) == "Not firm: host work"
    (launching,) = [row for row in document.findings if row.id == "launch_bound"]
    assert launching.confidence == "medium"
    assert launching.why.endswith("about 50 % of this loss is the recorders' own work inside launching")
    firm = dispatch_sampled_in("libtorch_cpu.so").verdict
    assert firm.firm
    assert (firm.state, "not firm" in firm.sentence) == ("cpu_bound", False)


def test_the_shortage_is_one_figure_wherever_it_stands():
    """20 of 102 ms without a CPU in an operator, 10 more in a wait for an engine that nobody recorded."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 60, "aten::mm", "op")
    sheet.doing(0, 60, 100, "shm_broadcast.dequeue")
    sheet.kernel(101, 102)
    batch = sheet.thread(None, "batch", pid=901)
    sheet.runs(0, 0, 20, cpu=0)
    for start, end, until in ((20, 40, 70), (70, 80, 102)):
        sheet.ready(0, start, end, cpu=0)
        sheet.runs(batch, start, end, cpu=0)
        sheet.runs(0, end, until, cpu=0)
    results = sheet.results()
    document = diagnose(results, thresholds=ANY_SIZE)
    rows = {row.id: row for row in document.findings}
    assert results.lost.filter(pl.col("cpu_state") == "runnable")["dur_ns"].sum() == 30 * MS
    assert rows["cpu_shortage"].exposed_ns == 20 * MS
    assert shares(results).starved == pytest.approx(20 / 102)
    assert sections.three_figures(document)[2][1].endswith("20 %")
    assert sum(row.shortage_ns for row in cause_rows(document) if row.accuses_host) == 20 * MS


def test_half_a_window_without_cpu_states_makes_it_less_sure():
    sheet = launching()
    no_wakeups_before_120(sheet)
    said = verdict(sheet.results())
    assert said.confidence == "medium"
    assert any("scheduler events cover 40 % of the window" in reason for reason in said.why)


def test_an_abstained_rule_over_time_that_another_explains_makes_both_less_sure():
    sheet = launching()
    long_operators(sheet)
    document = diagnose(sheet.results(), thresholds=ANY_SIZE)
    (reason,) = [row for row in document.verdict.why if "ten times as long as their siblings" in row]
    assert document.verdict.confidence != "high"
    assert all(row.confidence != "high" for row in document.findings if row.cause == "kernel_launch")
    assert "may have compiled" in reason


def test_where_cpu_states_would_change_the_order_they_are_recorded_first():
    """Without scheduler events nobody knows whether more CPUs, a cheaper change, come first."""
    sheet = launching()
    sheet.on_cpu.clear()
    document = diagnose(sheet.results())
    (record,) = document.verdict.record_first
    assert record.startswith(
        "for 50 % of GPU time no scheduler event tells whether the thread in question had a CPU"
    )
    assert "sched:sched_switch" in record
    assert all(row.confidence != "high" for row in document.findings)
    assert not document.findings[0].place.startswith("First")
    assert "Record first" in sections.verdict(document).html
    assert "Fix first" not in sections.verdict(document).html


@pytest.mark.parametrize(("blind", "first"), [(90, True), (30, False)])
def test_time_that_nothing_explains_is_recorded_first_where_it_is_more_than_the_first_change_gives(
    blind, first
):
    """200 ms with 100 ms of gaps; in those of the first `blind` ms no slice tells what the worker did."""
    sheet = launching()
    sheet.slices = [
        row for row in sheet.slices if row["category"] != "op" or row["ts_ns"] >= 1.2 * blind * MS
    ]
    document = diagnose(sheet.results())
    assert bool(document.verdict.record_first) == first
    if first:
        assert "no range and no sample covered the thread" in document.verdict.record_first[0]


def test_files_without_a_verdict_recommend_nothing():
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 100, "gc.collect")
    sheet.kernel(101, 102)
    document = diagnose(sheet.results())
    assert document.verdict.state == "insufficient"
    assert document.findings
    assert {(row.gain_ns, row.gain_share, tuple(row.advice)) for row in document.findings} == {
        (None, None, ())
    }
    assert all(row.place.startswith("No recommendation") for row in document.findings)


# -------------------- refusals name their reason
def test_launches_without_any_operation_are_counted():
    sheet = launching()
    sheet.ops.clear()
    document = diagnose(sheet.results())
    assert "200 launch calls were recorded, but no GPU operation" in document.verdict.sentence
    assert document.verdict.record_first[0].startswith("the GPUs' own operations: torch.profiler")
    assert not any("no launch call" in row.reason for row in document.abstained)


@pytest.mark.parametrize("thresholds", [Thresholds(), Thresholds(fewest_operations=1000)])
def test_launches_of_a_thread_of_which_nothing_else_was_recorded_are_named(thresholds):
    """The operators are on the worker; the calls are on a thread id that nobody else knows."""
    sheet = launching()
    other = sheet.thread(None, "", pid=100)
    for row in sheet.slices:
        if row["category"] == "runtime":
            row["thread"] = other
    said = verdict(sheet.results(), thresholds)
    assert said.state == "insufficient"
    assert "launched, and nothing else of it was recorded" in said.sentence


# -------------------- what limits, and what would settle the rest
def at_work():
    """104 ms: the GPU computes 95 of them in gemms, waits 4.5 for an operator and copies for 4.5."""
    sheet = Sheet()
    for at in range(0, 100, 10):
        sheet.kernel(at, at + 9.5, name="gemm")
        sheet.doing(0, at + 9.5, at + 10, "aten::mm", "op")
    sheet.kernel(99.5, 104, name="Memcpy DtoH", kind="memcpy")
    return sheet


def starved():
    """Of 102 ms the worker that the GPU waits for is ready for 80 and has no CPU."""
    sheet = gap()
    sheet.runs(0, 0, 10, cpu=0)
    sheet.ready(0, 10, 90, cpu=0)
    sheet.runs(sheet.thread(None, "batch", pid=901), 10, 90, cpu=0)
    sheet.runs(0, 90, 102, cpu=0)
    return sheet


def without_a_cause():
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.kernel(101, 102)
    return sheet


@pytest.mark.parametrize(
    ("sheet", "limits", "named"),
    [
        (lambda: stopped(GRID), ["quota", "host_work"], "CPU quota, host work"),
        (starved, ["cores"], "Too few CPU cores"),
        (launching, ["host_work"], "Host work"),
        (at_work, ["kernels"], "Not CPU-bound: GPU kernels"),
        (without_a_cause, [], "Cannot tell from these files"),
    ],
)
def test_the_badge_says_what_limits(sheet, limits, named):
    said = verdict(sheet().results(), ANY_SIZE)
    assert said.limits == limits
    assert badge(said.state, said.limits, firm=said.firm) == named


def test_a_run_that_the_host_does_not_limit_says_what_the_gpus_did_and_hands_the_rest_on():
    said = verdict(at_work().results(), ANY_SIZE)
    assert said.sentence == (
        "The host is not the limit: it held the GPUs up for 4.3 % of GPU time (kernel launch 4.3 %). "
        "GPU kernels took 91 % of GPU time, GPU copies 4.3 %. "
        "The longest kernels and copies: gemm 91 %, Memcpy DtoH 4.3 %."
    )
    assert said.settled_by.startswith("ncu --set roofline")


def test_what_is_open_names_the_one_recording_that_would_settle_it():
    """A run of which everything is known needs none; one without CPU states needs the scheduler's events."""
    assert verdict(launching().results()).settled_by == ""
    sheet = launching()
    sheet.on_cpu.clear()
    assert "sched:sched_switch" in verdict(sheet.results()).settled_by


def test_of_many_gpus_the_page_tells_gpu_time_and_the_verdict_says_what_it_goes_by():
    """Two of three GPUs work all the time, one waits 60 of 102 ms for its host: 20 % of all GPU time."""
    sheet = Sheet(ranks=3)
    for rank in range(2):
        sheet.kernel(0, 102, rank=rank)
    sheet.kernel(0, 41, rank=2)
    sheet.doing(sheet.workers[2], 41, 101, "aten::mm", "op")
    sheet.kernel(101, 102, rank=2)
    said = verdict(sheet.results(), ANY_SIZE)
    assert said.state == "not_cpu_bound"
    assert "held the GPUs up for 20 % of GPU time" in said.sentence
    assert said.why[0] == "the verdict goes by the median GPU, which the host held up for 0 % of the window"
