"""What this run shows is told from the rules of others; what a change gives back leads with the most."""

import polars as pl

from tracelib import charts
from tracelib.analyses.capacity import capacity, demand_curve
from tracelib.analyses.whatif import AT_CORES, WHAT_IF


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


MS = 1_000_000
#: scenario, window, gained, lost, TTFT p50 and mean, why not
REPLAYED = [
    ("unchanged", 999 * MS, 1 * MS, 500 * MS, 200 * MS, 250 * MS, ""),
    ("no skew", 950 * MS, 49 * MS, 451 * MS, 190 * MS, 240 * MS, ""),
    ("8 cores", 799 * MS, 200 * MS, 300 * MS, 100 * MS, 150 * MS, ""),
    ("no recorder", None, None, None, None, None, "no time of a recorder was seen"),
]


def replayed(rows):
    return pl.DataFrame(rows, schema=WHAT_IF, orient="row")


def test_what_if_leads_with_what_gives_back_most_and_with_its_error():
    figure = charts.what_if_chart(replayed(REPLAYED))
    assert figure.layout.meta["sentence"] == (
        "Replayed with 8 cores, the window of 999 ms takes 799 ms (20 % less), and the mean time to "
        "first token 150 ms instead of 250 ms; replayed unchanged, it is off by 0.1 %."
    )
    window, ttft = figure.data
    assert list(window.y) == ["8 cores", "no skew"]
    assert list(window.x) == [200, 49]
    assert list(ttft.x) == [100, 10]
    assert figure.layout.meta["table"][-1][-1] == "no time of a recorder was seen"


def test_a_scenario_that_costs_time_says_more_and_one_that_cannot_be_replayed_has_no_bar():
    worse = [REPLAYED[0], ("1 cores", 1099 * MS, -100 * MS, 600 * MS, None, None, ""), REPLAYED[3]]
    without_ttft = [(*row[:4], None, None, row[6]) for row in worse]
    said = charts.what_if_chart(replayed(without_ttft)).layout.meta["sentence"]
    assert "takes 1.10 s (10 % more);" in said
    assert charts.what_if_chart(replayed([REPLAYED[0], REPLAYED[3]])) is None


def test_the_replay_on_other_numbers_of_cores_says_which_is_enough():
    """4 cores take less than 1 % longer than 16."""
    rows = [(2, 900, 1), (4, 603, 2), (16, 600, 3)]
    replayed = pl.DataFrame(
        [
            {"cores": n, "window_ns": ms * 10**6, "gained_ns": 0, "lost_ns": 0, "ttft_p50_ns": ttft * 10**6}
            for n, ms, ttft in rows
        ],
        schema=AT_CORES,
    ).with_columns(why_not=pl.lit(""))
    figure = charts.at_cores_chart(replayed)
    assert figure.layout.meta["sentence"] == (
        "Replayed on 4 cores the run takes 603 ms, TTFT p50 2.00 ms; more cores than those do not shorten it "
        "by another 1.0 %."
    )
    assert [bar.name for bar in figure.data] == ["window"]  # the mean time to first token is not known
    unknown = replayed.with_columns(window_ns=pl.lit(None, pl.Int64), why_not=pl.lit("no wake-ups"))
    assert charts.at_cores_chart(unknown) is None
