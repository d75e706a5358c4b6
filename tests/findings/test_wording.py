"""What a reader sees first: which CPUs, which quota, what to fix first and what it gives."""

from tests.findings.sheet import Sheet
from tests.findings.test_cpus import GRID, gap, kept_off, stopped
from tests.report.example import findings
from tracelib.charts.causes import causes_sentence
from tracelib.charts.timeline import timeline_sentence
from tracelib.findings.verdict import verdict
from tracelib.report.sections import findings_list
from tracelib.report.ticket import summary


def test_the_verdict_counts_the_cpus():
    sheet = gap()
    said = verdict(kept_off(sheet, sheet.thread(None, "batch", pid=901)).results()).sentence
    assert "wanted a CPU while the server's only CPU (of the host's 8) was busy" in said


def test_the_verdict_sizes_the_quota():
    said = verdict(stopped(GRID).results()).sentence
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
    assert "(run-time compilation 59 %, kernel launch 20 %)" in verdict(sheet.results()).sentence


def test_the_report_and_the_ticket_say_what_a_finding_gives():
    page = findings_list(findings())._repr_html_()
    assert "gain up to 25\N{NO-BREAK SPACE}% of the window" in page
    assert "First, because it takes a change of the server." in page
    assert "gain up to 25 % of the window" in summary(findings())


def without_gpus(*, asleep):
    """Worker and engine wake up every 100 ms: for 1 ms, or for 60."""
    sheet = Sheet()
    for n in range(5):
        for thread in (sheet.workers[0], sheet.engine):
            sheet.runs(thread, 100 * n, 100 * n + (1 if asleep else 60), cpu=thread)
    return verdict(sheet.results())


def test_a_server_that_slept_may_have_had_nothing_to_record():
    said = without_gpus(asleep=True)
    assert said.state == "insufficient"
    assert "if the GPUs were recorded, there was no load" in said.sentence
    assert "no load" not in without_gpus(asleep=False).sentence
