"""What to fix first: cheap changes among those that give the most, then the rest, then symptoms."""

import pytest

from tests.analyses.test_what_if import served
from tests.findings.sheet import MS, Sheet
from tracelib.findings import Thresholds, diagnose, order
from tracelib.findings.finding import Finding
from tracelib.findings.order import gain_words, ordered, place, replay_words

#: Runs written by hand are small, and most of their gaps are nobody's.
ANY = Thresholds(shortest_ns=0, fewest_operations=0, insufficient=1)


def finding(name, gain, change="code", exposed=None, statement=""):
    return Finding(
        id=name,
        cause=None,
        claim="claim",
        exposed_ns=gain if exposed is None else exposed,
        exposed_share=0.1,
        confidence="high",
        why="why",
        evidence=[],
        disproof="",
        advice=[],
        verify=[],
        change=change,
        gain_ns=gain,
        gain_share=None,
        place=statement,
    )


ORDERS = [
    ([finding("code", 100), finding("cores", 30, "machine")], ["cores", "code"]),
    ([finding("code", 100), finding("cores", 24, "machine")], ["code", "cores"]),
    (
        [finding("code", 100), finding("flag", 40, "setting"), finding("cores", 30, "machine")],
        ["cores", "flag", "code"],
    ),
    ([finding("symptom", None, "none", 500), finding("code", 1)], ["code", "symptom"]),
    ([finding("code", 100), finding("leading", None, "none", 500, "no load")], ["leading", "code"]),
    (
        [
            finding("idle", None, "none", 500, "no load"),
            finding("code", 100),
            finding("symptom", None, "none", 9),
        ],
        ["code", "symptom", "idle"],
    ),
    ([finding("b", 7), finding("a", 7)], ["a", "b"]),
]


@pytest.mark.parametrize(
    ("found", "names"), ORDERS, ids=[f"{n}: {' '.join(names)}" for n, (_, names) in enumerate(ORDERS)]
)
def test_order(found, names):
    assert [f.id for f in ordered(found, {"leading"})] == names
    assert [f.id for f in ordered(reversed(found), {"leading"})] == names


def test_each_says_why_it_stands_there():
    assert place(finding("cores", 30, "machine"), 1).startswith(
        "First, because it needs no change to the server"
    )
    assert place(finding("flag", 30, "setting"), 1).startswith(
        "First, because no cheaper change gives as much"
    )
    assert place(finding("code", 30), 2).startswith("Takes a change to the server")
    assert place(finding("steps", None, "none"), 3).startswith("A symptom")
    assert place(finding("idle", None, "none", 5, "No load."), 1) == "No load."


def test_gains_of_a_run_that_the_recorders_slowed_down_say_so():
    """20 of 102 ms in dispatch: half of the worker's samples in them are in CUPTI, half in PyTorch."""
    said = {}
    for library in ("libcupti.so.13", "libtorch_cpu.so"):
        sheet = Sheet()
        sheet.kernel(0, 1)
        for n in range(5):
            sheet.doing(0, 20 + 4 * n, 24 + 4 * n, "aten::mm", "op")
            sheet.sampled(0, 20 + 4 * n, 22 + 4 * n, ("[unknown]", f"/x/{library}"))
            sheet.sampled(0, 22 + 4 * n, 24 + 4 * n, ("at::x", "/x/libtorch_cpu.so"))
        sheet.kernel(101, 102)
        said[library] = {f.id: f.place for f in diagnose(sheet.results(), thresholds=ANY).findings}
    cost = "The recorders cost about 9.8 % of GPU time: part of this gain may be theirs."
    assert said["libcupti.so.13"]["launch_bound"].endswith(cost)
    assert cost not in said["libcupti.so.13"]["profiler_overhead"]  # it promises no gain
    assert "recorders" not in said["libtorch_cpu.so"]["launch_bound"]


def test_the_document_holds_gain_and_place():
    """20 of 102 ms in dispatch, for 15 of them without a CPU: cores give back 15, launching 5.01."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 20, 40, "aten::mm", "op")
    sheet.kernel(101, 102)
    sheet.runs(0, 0, 22, cpu=0)
    sheet.ready(0, 22, 37, cpu=0)
    sheet.runs(sheet.thread(None, "batch", pid=901), 22, 37, cpu=0)
    sheet.runs(0, 37, 102, cpu=0)
    rows = {f.id: f for f in diagnose(sheet.results(), thresholds=ANY).findings}
    assert next(iter(rows)) == "cpu_shortage"
    assert rows["cpu_shortage"].gain_ns == 15 * MS
    assert rows["launch_bound"].gain_ns == round(5.01 * MS)
    assert rows["launch_bound"].gain_share == pytest.approx(5.01 / 102)


# -------------------- gains by replay
def shortage_of(results):
    found = diagnose(results, thresholds=ANY).findings
    return next(row for row in found if row.id == "cpu_shortage")


def test_a_gain_is_what_a_replay_of_the_change_gives_back():
    """The worker lacks a CPU for 3 ms before each of two launches, and nothing else happens meanwhile."""
    results = served(short=3).results()
    found = shortage_of(results)
    assert found.gain_ns == pytest.approx(6 * MS, abs=10_000)
    assert found.replay.window_ns == pytest.approx(results.window.duration_ns - 6 * MS, abs=10_000)
    assert (found.bound_ns, found.not_replayed) == (6 * MS, None)
    assert found.gain_share == pytest.approx(6 * MS / results.window.duration_ns, rel=0.01)
    assert gain_words(found).startswith("gain about ")
    assert replay_words(found).startswith("Replayed with no thread waiting for a CPU, the same work takes ")


def test_a_run_that_is_too_large_keeps_the_bound_and_says_so(monkeypatch):
    monkeypatch.setattr(order, "MOST_ROWS", 1)
    found = shortage_of(served(short=3).results())
    assert (found.gain_ns, found.bound_ns, found.replay) == (6 * MS, 6 * MS, None)
    assert "too many for a report's time" in found.not_replayed
    assert gain_words(found).endswith("of GPU time, not replayed")
