"""The order of a trace's rows."""

import polars as pl

from tracelib.schema import FRAMES
from tracelib.trace import Trace

#: One frame around all, with two more of one extent inside it: which of the two is the inner one, only the
#: file's own order tells.
OUTER, CALLER, CALLED, BEFORE = ("run", 0, 20), ("info", 5, 10), ("emit", 5, 10), ("schedule", 1, 3)


def in_order(*written):
    columns = {name: [None] * len(written) for name in FRAMES["slices"]}
    rows = pl.DataFrame(columns, schema=FRAMES["slices"]).with_columns(
        source=pl.lit(0, pl.Int32),
        thread=pl.lit(0, pl.Int32),
        name=pl.Series([name for name, *_ in written]).cast(pl.Categorical),
        ts_ns=pl.Series([ts for _, ts, _ in written]),
        dur_ns=pl.Series([dur for *_, dur in written]),
    )
    threads = pl.DataFrame({"thread": [0]}, schema={"thread": pl.Int32})
    whole = threads.with_columns(
        pl.lit(None, dtype).alias(name) for name, dtype in FRAMES["threads"].items() if name != "thread"
    )
    made = Trace.of({"slices": rows.select(list(FRAMES["slices"])), "threads": whole})
    return made.slices["name"].cast(pl.String).to_list()


def test_of_slices_of_one_extent_the_one_that_was_written_as_it_ended_first_is_inside():
    assert in_order(BEFORE, CALLED, CALLER, OUTER) == ["run", "schedule", "info", "emit"]


def test_of_slices_of_one_extent_the_one_that_was_written_later_is_inside_where_files_go_by_begin():
    assert in_order(OUTER, BEFORE, CALLER, CALLED) == ["run", "schedule", "info", "emit"]
    assert in_order(("other", 30, 1), OUTER, BEFORE, CALLER, CALLED)[:4] == [
        "run",
        "schedule",
        "info",
        "emit",
    ]
