"""The verdict where collectives cannot be split, because ranks were not recorded."""

import pytest

from tests.findings.sheet import Sheet
from tracelib.findings.verdict import shares, verdict


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
    said = verdict(results)
    assert said.state == "insufficient"
    assert "waiting cannot be told from transfer" in said.sentence
    assert said.why[0].startswith("rank 1 was not recorded")
    assert said.confidence != "high"
    assert shares(results).useful == pytest.approx(0.4, abs=0.01)  # the gemms alone
    assert shares(results).collective == pytest.approx(0.5, abs=0.01)


def test_a_few_collectives_leave_the_verdict_and_say_at_least():
    said = verdict(one_rank_of(4, collective_ms=1).results())
    assert said.state != "insufficient"
    assert "at least" in said.sentence
    assert said.why[0].startswith("ranks 1, 2, 3 were not recorded")
