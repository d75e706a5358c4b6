"""Launch metrics by hand, and each tool's launch delay on the same operations."""

from resource import RUSAGE_SELF, getrusage

import polars as pl

from tests.analyses.server_by_hand import call, op, run
from tracelib import schema
from tracelib.analyses.launches import LAUNCH_DELAYS, launch_delays


def test_launch_metrics_keep_negative_returns():
    results = run([op(0, 10, 1), op(50, 60, 2)], [call(0, 1, 1), call(40, 55, 2)])
    row = results.launches.row(1, named=True)
    assert (row["api_ns"], row["launch_to_start_ns"], row["return_to_start_ns"], row["late"]) == (
        15,
        10,
        -5,
        True,
    )


def test_of_several_calls_with_one_id_the_outermost_counts():
    """The second call begins inside the first, the third at the same time and is shorter."""
    results = run([op(50, 60, 1), op(70, 80, 1)], [call(12, 18, 1), call(10, 20, 1), call(10, 15, 1)])
    assert results.launches.select("ts_ns", "call_ts_ns", "call_dur_ns").rows() == [
        (50, 10, 10),
        (70, 10, 10),
    ]


def test_many_calls_and_operations_of_one_id_are_no_square():
    """Joined with every call, 6000 operations would be 36 million rows, of more than a gigabyte."""
    many = range(6_000)
    ops, calls = [[make(10 * n, 10 * n + 1, 1) for n in many] for make in (op, call)]
    before = getrusage(RUSAGE_SELF).ru_maxrss
    assert run(ops, calls).launches["call_ts_ns"].to_list() == [0] * 6_000
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 300_000  # kB


COLUMNS = {
    "kind": schema.GPU_OP_KIND,
    "call_ts_ns": pl.Int64,
    "call_dur_ns": pl.Int64,
    "ts_ns": pl.Int64,
    "dur_ns": pl.Int64,
}


#: Call's begin and length, operation's start and length, in microseconds.
OPERATIONS = [
    ("kernel", 0, 10, 25, 5),  # 15 after the return
    ("kernel", 100, 50, 130, 10),  # starts 20 before the return, which comes last
    ("memcpy", 200, 5, 405, 1),  # 200 after the return
    ("kernel", 1_000, 10, 3_010, 100),  # 2000 after the return
    ("kernel", None, None, 4_000, 1),  # no launch recorded
]


def frame(rows):
    scaled = [(kind, *(None if v is None else v * 1000 for v in values)) for kind, *values in rows]
    return pl.DataFrame(scaled, schema=COLUMNS, orient="row")


def test_each_definition_by_hand():
    rows = launch_delays(frame(OPERATIONS)).rows_by_key("name", named=True, unique=True)
    got = {
        name: (row["operations"], row["sum_ns"] / 1000, row["max_ns"] / 1000, row["above_threshold"])
        for name, row in rows.items()
    }
    assert got == {
        "launch_to_start": (4, 25 + 30 + 205 + 2_010, 2_010, None),
        "return_to_start": (4, 15 - 20 + 200 + 2_000, 2_000, None),
        "t_l": (3, 25 + 30 + 2_010, 2_010, None),
        "launch_delay": (4, 15 + 0 + 200 + 2_000, 2_000, 2),  # above 100 us
        "Queue": (2, 15 + 2_000, 2_000, None),
        "Total": (3, 30 + 50 + 2_110, 2_110, None),
        "starvation": (2, 15 + 2_000, 2_000, 1),  # above 1 ms
    }
    assert rows["return_to_start"]["p50_ns"] == 15_000  # of -20, 15, 200, 2000 us


def test_without_launches_nothing_is_zero_that_was_not_seen():
    rows = launch_delays(frame(OPERATIONS[-1:]))
    assert rows.schema == LAUNCH_DELAYS
    assert rows["operations"].to_list() == [0] * rows.height
    assert rows["sum_ns"].null_count() == rows["p95_ns"].null_count() == rows.height
