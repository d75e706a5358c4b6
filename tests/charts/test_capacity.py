"""What this run shows is told from the rules of others."""

import polars as pl

from tracelib import charts
from tracelib.analyses.capacity import capacity, demand_curve


def test_only_the_rules_of_others_are_called_so(full):
    """2 GPUs: the article's rule asks for 10, the floor for 4, the band for 8 to 16."""
    sentence = charts.capacity_chart(capacity(full, 8192)).layout.meta["sentence"]
    assert sentence.endswith("others' rules ask for 4 to 16 (4 of them).")
    one = capacity(full).with_columns(
        cores=pl.when(pl.col("estimate").str.starts_with("cores that")).then(1.0).otherwise("cores")
    )
    said = charts.capacity_chart(one).layout.meta["sentence"]
    assert said.startswith("4 are recommended. The server had 1 core; ")
    assert said.endswith("others' rules ask for 4 to 16 (3 of them).")


def test_the_demand_curve_says_what_is_enough_for_nearly_all_of_the_time(full):
    """By test_the_demand_curve_by_hand: more than 4 for 4 % of the time, more than 6 never."""
    figure = charts.demand_curve_chart(demand_curve(full))
    assert figure.layout.meta["sentence"] == (
        "More than 4 cores were wanted for at most 5 % of the time, more than 6 never."
    )
    assert list(figure.data[0].y)[3] == 4.0
    assert charts.demand_curve_chart(demand_curve(full).clear()) is None
