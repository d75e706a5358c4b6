"""What absences of threads from the CPU say of two clocks, by hand."""

import polars as pl

from tracelib.align.activity import bounds

US, S = 1_000, 1_000_000_000
FEW = 6  # absences at each end of the recording: fewer than 12 in all say nothing


def seen(before, after):
    """Absences of 1 ms of one thread, and when it last and first did something around each.

    `before` and `after` are by how many us it stays clear of them: at the recording's begin, at its end, 10 s
    later.
    """
    off, at = [], []
    for begin, last, first in zip((0, 10 * S), before, after, strict=True):
        for n in range(FEW):
            left = begin + 5 * n * 1_000 * US
            came = left + 1_000 * US
            off.append((1, left, came))
            at += [left - last * US, came + first * US]
    absences = pl.DataFrame(off, schema={"tid": pl.Int64, "left": pl.Int64, "came": pl.Int64}, orient="row")
    return pl.DataFrame({"tid": [1] * len(at), "at": at}), absences


def test_the_error_of_a_steady_clock_is_that_of_its_shift():
    """At both ends the clock may be 5 us off, and no drift makes it more anywhere between them."""
    told = bounds(*seen(before=(5, 5), after=(5, 5)))
    assert (told.low_ns, told.high_ns, told.error_ns) == (-5 * US, 5 * US, 5 * US)


def test_the_error_holds_for_clocks_that_drift():
    """It may be 50 us fast at the begin and slow at the end: of one shift for both, 5 us at most."""
    told = bounds(*seen(before=(50, 5), after=(5, 50)))
    assert (told.low_ns, told.high_ns) == (-5 * US, 5 * US)
    assert 45 * US <= told.error_ns <= 51 * US
