"""Why a GPU waits in a collective, by hand: what held the straggler up, or that it has more to do."""

import pytest

from tests.analyses.server_by_hand import COLLECTIVE, OTHER, call, op, piece, run, told


@pytest.mark.parametrize(
    ("until", "rest"),
    [
        # As much work as the other rank had: it only began late, for what its thread did at the time.
        (120, [(80, 120, "kernel_launch", "dispatch")]),
        # 20 more: that much is imbalance.
        (140, [(80, 120, "kernel_launch", "dispatch"), (120, 140, "imbalance", None)]),
        # Less: what is waited for is all late.
        (100, [(80, 100, "kernel_launch", "dispatch")]),
    ],
)
def test_a_rank_that_began_late_is_late_for_what_it_idled_while_the_other_worked(until, rest):
    end = until + 10
    ops = [
        *(op(0, 10, 1), op(10, 20, 2, **COLLECTIVE), op(20, 60, 3), op(60, end, 4, **COLLECTIVE)),
        *(op(0, 10, 1, gpu=1), op(10, 20, 2, gpu=1, **COLLECTIVE), op(80, until, 3, gpu=1)),
        op(until, end, 4, gpu=1, **COLLECTIVE),
    ]
    slices = [
        *(call(n, n + 1, n + 1) for n in range(4)),
        *(call(n, n + 1, n + 1, OTHER) for n in range(2)),
        piece(OTHER, 20, 70, "aten::mm", "op"),
        *(call(70, 75, 3, OTHER), call(76, 77, 4, OTHER)),
    ]
    waits = [row for row in told(run(ops, slices)) if row[0] >= 60]
    before = [
        (60, 70, "kernel_launch", "dispatch"),
        (70, 75, "kernel_launch", "api"),
        (75, 80, "kernel_launch", "latency"),
    ]
    assert waits == before + rest
