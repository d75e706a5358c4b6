"""The interval algebra against its definition, nanosecond by nanosecond."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tracelib import intervals

SCHEMA = {"thread": pl.Int32, "ts_ns": pl.Int64, "dur_ns": pl.Int64}
KEYS = range(3)
END = 40

rows = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 30), st.integers(0, 10)), max_size=12)


def frame(values) -> pl.DataFrame:
    return pl.DataFrame(values, schema=SCHEMA, orient="row")


def nested(values):
    """Clip each interval to the one it begins in, so that all nest properly."""
    out, open_ = [], {}
    for key, begin, length in sorted(values, key=lambda r: (r[0], r[1], -r[2])):
        stack = [end for end in open_.get(key, []) if end > begin]
        end = min([begin + length, *stack])
        open_[key] = [*stack, end]
        out.append((key, begin, end - begin))
    return out


def moments(timeline: pl.DataFrame, column: str | None = None) -> dict:
    """{(key, t): value} of a timeline, checking that no moment is covered twice."""
    covered = {}
    for row in timeline.iter_rows(named=True):
        for t in range(row["ts_ns"], row["ts_ns"] + row["dur_ns"]):
            assert (row["thread"], t) not in covered
            covered[row["thread"], t] = row[column] if column else True
    return covered


def innermost_by_definition(values) -> dict:
    out = {}
    for key in KEYS:
        for t in range(END + 10):
            open_ = [(b, -n, i) for i, (k, b, n) in enumerate(values) if k == key and b <= t < b + n]
            if open_:
                out[key, t] = max(open_)[2]
    return out


@given(rows)
def test_union_covers_what_any_interval_covers_in_the_fewest_stretches(values):
    covered = intervals.union(frame(values), "thread")
    want = {(k, t) for k, b, n in values for t in range(b, b + n)}
    assert set(moments(covered)) == want
    ends = {(r["thread"], r["ts_ns"] + r["dur_ns"]) for r in covered.iter_rows(named=True)}
    assert not ends & {(r["thread"], r["ts_ns"]) for r in covered.iter_rows(named=True)}


@given(rows)
def test_innermost_of_any_intervals_is_the_one_that_began_last(values):
    found = intervals.innermost(frame(values), "thread")
    assert moments(found, "row") == innermost_by_definition(values)


@given(rows.map(nested))
def test_innermost_of_nested_intervals_is_the_deepest_and_self_times_add_up(values):
    found = intervals.innermost(frame(values), "thread")
    assert moments(found, "row") == innermost_by_definition(values)
    assert found["dur_ns"].sum() == intervals.union(frame(values), "thread")["dur_ns"].sum()


@given(
    rows,
    st.lists(
        st.tuples(st.sampled_from([*KEYS, 9, None]), st.integers(0, 30), st.integers(0, 10)), max_size=6
    ),
)
def test_overlay_cuts_pieces_and_loses_no_time(values, pieces):
    line = intervals.innermost(frame(values), "thread")
    wanted = frame(pieces).with_row_index("piece")
    parts = intervals.overlay(wanted, line, "thread")
    assert parts["dur_ns"].sum() == wanted["dur_ns"].sum()
    state = moments(line, "row")
    for row in parts.iter_rows(named=True):
        piece = wanted.row(row["piece"], named=True)
        assert piece["ts_ns"] <= row["ts_ns"]
        assert row["ts_ns"] + row["dur_ns"] <= piece["ts_ns"] + piece["dur_ns"]
        for t in range(row["ts_ns"], row["ts_ns"] + row["dur_ns"]):
            assert state.get((row["thread"], t)) == row["row"]


@given(rows)
def test_fill_covers_the_stretch_without_gap_or_overlap(values):
    line = intervals.innermost(frame(values), "thread")
    whole = intervals.fill(line, "thread", list(KEYS), 5, 25)
    assert set(moments(whole)) == {(k, t) for k in KEYS for t in range(5, 25)}
    kept = {key: row for key, row in moments(whole, "row").items() if row is not None}
    assert kept == {key: row for key, row in moments(line, "row").items() if 5 <= key[1] < 25}


@given(rows, rows)
def test_an_earlier_layer_hides_the_later_ones(first, second):
    line = intervals.layered(
        [("a", frame(first)), ("b", frame(second))], "thread", list(KEYS), 0, END, "rest"
    )
    a, b = (set(moments(intervals.union(frame(v), "thread"))) for v in (first, second))
    for key, state in moments(line, "state").items():
        assert state == ("a" if key in a else "b" if key in b else "rest")
    assert line["dur_ns"].sum() == END * len(KEYS)
    neighbours = line.filter(
        (pl.col("thread") == pl.col("thread").shift(1)) & (pl.col("state") == pl.col("state").shift(1))
    )
    assert neighbours.is_empty()
