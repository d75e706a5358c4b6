"""Until when a slice may have waited, where no scheduler event tells."""

import polars as pl
import pytest

from tests.charts.server import API, ENGINE, trace
from tracelib import schema
from tracelib.analyses.upstream import waits_until


def _slices(*rows):
    """Return slices of (thread, begin, end)."""
    made = [(0, thread, begin, end - begin, "tokenize", "annotation", None) for thread, begin, end in rows]
    return pl.DataFrame(made, schema=schema.SLICES, orient="row")


def _maybe(*rows, waits_for="upstream"):
    """Return slices that may wait, of (thread, begin, end)."""
    return pl.DataFrame(
        [(thread, waits_for, begin, end - begin) for thread, begin, end in rows],
        schema={
            "thread": pl.Int32,
            "may_wait_for": pl.Categorical,
            "whole_ts": pl.Int64,
            "whole_ns": pl.Int64,
        },
        orient="row",
    )


@pytest.mark.parametrize(
    ("ended", "until"),
    [
        (
            [(API, 20, 50), (API, 300, 700), (API, 800, 900), (API, 1000, 1200)],
            900,
        ),  # the last that ended inside
        ([(API, 20, 50), (API, 1000, 1200)], 100),  # nothing ended inside: it did not wait
        ([(API, 20, 100)], 100),
        ([(API, 200, 1100)], 1100),
        ([(ENGINE, 200, 500)], 1100),  # nothing of the API server was recorded: nobody can say
    ],
)
def test_an_engine_waits_until_the_api_server_was_done_with_something(ended, until):
    """The engine's schedule lasts from 100 to 1100."""
    assert waits_until(_maybe((ENGINE, 100, 1100)), trace(slices=_slices(*ended))).to_list() == [until]


def test_rows_keep_their_order_and_a_named_role_is_the_one_asked():
    made = trace(slices=_slices((ENGINE, 0, 150), (API, 0, 950)))
    asked = _maybe((API, 900, 1000), (API, 100, 200), waits_for="engine")
    assert waits_until(asked, made).to_list() == [900, 150]
