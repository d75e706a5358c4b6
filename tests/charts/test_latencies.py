"""Every launch, collective and dequeue is counted once, where the logarithmic axis has a place for it."""

import numpy as np
import polars as pl

from tests.charts.server import MS, make, named
from tracelib import charts
from tracelib.charts.latencies import log_borders


def test_log_borders_hold_all_positive_values():
    borders = log_borders(pl.Series([0, -3, 7, 1000]), per_decade=1)
    assert np.allclose(borders, [1, 10, 100, 1000, 10_000])


def test_launch_histogram_counts_each_operation_once(results):
    traces = named(charts.launches_chart(results))
    late, queued = (
        traces[n] for n in ("late: call to start, device idle", "queued: call to start, device at work")
    )
    assert (sum(late.y), sum(queued.y)) == (2, 2)
    table = charts.launches_chart(results).layout.meta["table"]
    assert [row[8] for row in table] == ["started before the return", "0", "1"]


def test_skew_points_by_straggler(results):
    figure = charts.collectives_chart(results)
    zero, one = [t for t in figure.data if t.type == "scatter"]
    assert (zero.name, list(zero.x), list(zero.y)) == ("rank 0 last", [700], [10 * MS])
    assert (one.name, list(one.x), list(one.y)) == ("rank 1 last", [500, 930], [200 * MS, 30 * MS])
    assert sum(sum(t.y) for t in figure.data if t.type == "bar") == 3


def test_of_many_stragglers_the_most_frequent_are_named_and_the_others_are_one_series(results):
    """Rank 0 comes last in ten collectives, ranks 1 to 19 in one each."""
    stragglers = [0] * 10 + list(range(1, 20))
    one = results.collectives.filter(pl.col("event") == 1).head(1)
    many = pl.concat(
        one.with_columns(event=pl.lit(n, pl.Int64), straggler=pl.lit(rank, pl.Int32))
        for n, rank in enumerate(stragglers)
    )
    names = [
        each.name for each in charts.collectives_chart(make(collectives=many)).data if each.showlegend is None
    ]
    assert len(names) == 8
    assert names[0] == "rank 0 last"
    assert names[-1] == "one of 13 others last"
