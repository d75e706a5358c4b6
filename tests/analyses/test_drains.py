"""Which event emptied the launch queue before launches came late."""

import pytest

from tests.findings.sheet import MS, Sheet
from tracelib.analyses.drains import behind

STEPS, LENGTH = 6, 10


def steps(draw, *, first=(3, 7.02), kernels=4):
    """Each step of 10 ms launches four kernels of 1 ms ahead, from 3.00 ms on; `draw` adds the rest."""
    sheet = Sheet()
    for n in range(STEPS):
        at = LENGTH * n
        for k in range(kernels):
            call = at + first[0] + 0.1 * k
            sheet.kernel(at + 3.02 + k, at + 4.02 + k, call=(call, call + 0.01))
        draw(sheet, at)
    return sheet


def drains(sheet):
    return sheet.results().drains


def item(sheet, at):
    """Read a value back: the device runs dry at 7.02 ms, the host sees it at 7.03."""
    sheet.doing(0, at + 3.5, at + 7.03, "aten::item", "op")
    sheet.doing(0, at + 3.6, at + 7.03, "aten::_local_scalar_dense", "op")
    sheet.doing(0, at + 3.7, at + 7.03, "cudaStreamSynchronize", "runtime")


def test_a_value_that_is_read_back_empties_the_queue():
    found = drains(steps(item))
    assert found.height == STEPS - 1
    assert found.select("cause", "what", "late", "caught_up", "thread").unique().rows() == [
        ("sync", "aten::item", 1, True, 0)
    ]
    row = found.row(0, named=True)
    assert (row["ts_ns"], row["dur_ns"], row["lost_ns"]) == (round(7.02 * MS), 6 * MS, 6 * MS)
    assert row["event_ns"] == round(3.53 * MS)


@pytest.mark.parametrize(
    ("call", "cause"), [("cudaMemcpyAsync", "sync"), ("cudaMemcpy", "sync"), ("cudaFree", "kernel_launch")]
)
def test_a_blocking_copy_or_a_freeing_does_and_the_operator_around_it_is_named(call, cause):
    def copy(sheet, at):
        sheet.doing(0, at + 3.5, at + 7.04, "aten::copy_", "op")
        sheet.doing(0, at + 3.6, at + 7.03, call, "runtime")

    row = drains(steps(copy)).row(0, named=True)
    assert (row["cause"], row["sub_cause"]) == (cause, "alloc" if call == "cudaFree" else None)
    assert row["what"] == (f"{call} in aten::copy_" if cause == "sync" else call)


def test_a_synchronisation_that_returned_before_the_device_ran_dry_did_not():
    def early(sheet, at):
        sheet.doing(0, at + 3.5, at + 5, "cudaEventSynchronize", "runtime")
        sheet.doing(0, at + 5, at + 12.9, "write_metrics", "annotation")

    assert drains(steps(early)).select("cause", "what").unique().rows() == [("host_work", "write_metrics")]


def test_a_long_stretch_on_the_host_counts_with_the_part_before_the_device_ran_dry():
    """It lasts 6.4 ms, 2.98 of them after the device ran dry; then an operator runs for 3 ms."""

    def stretch(sheet, at):
        sheet.doing(0, at + 3.6, at + 10, "write_metrics", "annotation")
        sheet.doing(0, at + 10, at + 13, "aten::mm", "op")

    row = drains(steps(stretch)).row(0, named=True)
    assert (row["cause"], row["event_ns"]) == ("host_work", round(6.4 * MS))


def test_launches_that_do_not_keep_up_drained_nothing():
    """Each kernel of 0.02 ms comes 0.1 ms after the one before it: all are late, and one burst."""
    sheet = Sheet()
    for n in range(50):
        sheet.kernel(0.1 * n + 0.02, 0.1 * n + 0.04, call=(0.1 * n, 0.1 * n + 0.01))
        sheet.doing(0, 0.1 * n + 0.02, 0.1 * n + 0.1, "aten::mm", "op")
    found = drains(sheet)
    assert found.select("cause", "sub_cause", "late", "caught_up").rows() == [
        ("kernel_launch", "dispatch", 49, False)
    ]


def test_late_launches_in_the_wake_of_a_drained_queue_are_its_consequence():
    """After the value was read back, operators run for 5.9 ms before the first launch, all behind it."""

    def then_dispatch(sheet, at):
        item(sheet, at)
        sheet.doing(0, at + 7.1, at + 13, "aten::mm", "op")

    results = steps(then_dispatch).results()
    rows = behind(results.lost, results.drains)
    assert set(rows["of"]) == {"sync"}
    launching = results.lost.filter(results.lost["cause"] == "kernel_launch")
    assert rows["dur_ns"].sum() == launching["dur_ns"].sum() == (STEPS - 1) * round(5.92 * MS)


def test_nothing_is_behind_a_queue_that_never_fills_again():
    """A synchronisation at each kernel's end, and no launch ahead: the launches are late by themselves."""
    sheet = Sheet()
    for n in range(20):
        sheet.kernel(n + 0.02, n + 0.3, call=(n, n + 0.01))
        sheet.doing(0, n + 0.1, n + 0.31, "cudaDeviceSynchronize", "runtime")
    results = sheet.results()
    assert set(results.drains["cause"]) == {"sync"}
    assert behind(results.lost, results.drains).is_empty()
