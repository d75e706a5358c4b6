"""The interval algebra against its definition, nanosecond by nanosecond."""

from collections import Counter
from itertools import chain, groupby, pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tracelib import intervals
from tracelib.intervals import by_key, cover, nesting

SCHEMA = {"thread": pl.Int32, "ts_ns": pl.Int64, "dur_ns": pl.Int64}
KEYS = range(3)
END = 40

rows = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 30), st.integers(0, 10)), max_size=12)
pieces_ = st.lists(
    st.tuples(st.sampled_from([*KEYS, 9, None]), st.integers(0, 30), st.integers(0, 10)), max_size=6
)


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
        assert row["dur_ns"] > 0
        for t in range(row["ts_ns"], row["ts_ns"] + row["dur_ns"]):
            assert (row["thread"], t) not in covered
            covered[row["thread"], t] = row[column] if column else True
    return covered


def in_order(timeline: pl.DataFrame) -> bool:
    return timeline.equals(timeline.sort("thread", "ts_ns"))


def innermost_by_definition(values) -> dict:
    out = {}
    for key in KEYS:
        for t in range(END + 10):
            open_ = [(b, -n, i) for i, (k, b, n) in enumerate(values) if k == key and b <= t < b + n]
            if open_:
                out[key, t] = max(open_)[2]
    return out


# ----------------------------------------------------------------------------------------------- union,
# innermost
@given(rows)
def test_begin_and_end_are_those_of_the_rows(values):
    if values:
        assert intervals.begin(frame(values)) == min(b for _, b, _ in values)
        assert intervals.end(frame(values)) == max(b + n for _, b, n in values)


@given(rows, st.integers(0, 20), st.integers(0, 20))
def test_clip_keeps_the_moments_inside(values, start, length):
    kept = intervals.clip(frame(values), start, start + length)
    want = Counter((k, t) for k, b, n in values for t in range(b, b + n) if start <= t < start + length)
    assert Counter((k, t) for k, b, n in kept.rows() for t in range(b, b + n)) == want
    assert (kept["dur_ns"] > 0).all()


@given(rows)
def test_union_covers_what_any_interval_covers_in_the_fewest_stretches(values):
    covered = intervals.union(frame(values), "thread")
    want = {(k, t) for k, b, n in values for t in range(b, b + n)}
    assert set(moments(covered)) == want
    assert in_order(covered)
    ends = {(r["thread"], r["ts_ns"] + r["dur_ns"]) for r in covered.iter_rows(named=True)}
    assert not ends & {(r["thread"], r["ts_ns"]) for r in covered.iter_rows(named=True)}


@settings(max_examples=300)
@given(rows)
@example([(0, 0, 5), (0, 3, 6), (0, 4, 1)])  # two that cross, one inside both
@example([(0, 0, 9), (0, 2, 7), (0, 2, 7)])  # equal ends, and equal altogether
def test_innermost_of_any_intervals_is_the_one_that_began_last(values):
    found = intervals.innermost(frame(values), "thread")
    assert moments(found, "row") == innermost_by_definition(values)
    assert in_order(found)


@given(rows.map(nested))
def test_innermost_of_nested_intervals_is_the_deepest_and_self_times_add_up(values):
    found = intervals.innermost(frame(values), "thread")
    assert moments(found, "row") == innermost_by_definition(values)
    self_time = dict(found.group_by("row").agg(pl.col("dur_ns").sum()).iter_rows())
    for i, (key, begin, length) in enumerate(values):
        children = {
            t
            for j, (k, b, n) in enumerate(values)
            if k == key and (b, -n, j) > (begin, -length, i)
            for t in range(b, b + n)
        }
        assert self_time.get(i, 0) == sum(t not in children for t in range(begin, begin + length))


@given(rows)
@example(
    [(0, 0, 9), (0, 2, 7), (0, 2, 7), (0, 5, 6), (1, 5, 1)]
)  # equal ends, equal altogether, one that crosses
def test_outermost_is_what_no_earlier_one_of_its_key_reaches_beyond(values):
    ordered = sorted(
        ((k, b, n, i) for i, (k, b, n) in enumerate(values)), key=lambda v: (v[0], v[1], -v[2], v[3])
    )
    kept = [
        (k, b, n)
        for at, (k, b, n, _) in enumerate(ordered)
        if not any(other == k and begin + length >= b + n for other, begin, length, _ in ordered[:at])
    ]
    assert intervals.outermost(frame(values), "thread").rows() == kept


def test_rows_without_a_key_belong_to_no_timeline():
    values = frame([(None, 0, 5), (0, 2, 2)])
    assert intervals.union(values, "thread").rows() == [(0, 2, 2)]
    assert intervals.innermost(values, "thread").rows() == [(0, 2, 2, 1)]


# --------------------------------------------------------------------------------- overlay and what is made
# of it
def overlay_by_definition(pieces, state) -> list:
    """Return, per piece, the runs of moments in which the timeline's row is the same."""
    out = []
    for number, (key, begin, length) in enumerate(pieces):
        at = 0
        for row, run in groupby(state.get((key, t)) for t in range(begin, begin + length)):
            n = len(list(run))
            out.append((number, key, begin + at, n, row))
            at += n
    return out


def of_distinct_stretches(line: pl.DataFrame) -> pl.DataFrame:
    """Give each stretch a number of its own, so that neighbours differ."""
    return line.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64))


@given(rows, pieces_)
def test_overlay_cuts_pieces_and_loses_no_time(values, pieces):
    line = of_distinct_stretches(intervals.innermost(frame(values), "thread"))
    parts = intervals.overlay(frame(pieces).with_row_index("piece"), line, "thread")
    assert parts.columns == ["piece", "thread", "ts_ns", "dur_ns", "row"]
    assert parts.rows() == overlay_by_definition(pieces, moments(line, "row"))


@given(rows, pieces_, st.randoms())
def test_overlay_takes_a_timeline_in_any_order(values, pieces, random):
    line = of_distinct_stretches(intervals.innermost(frame(values), "thread"))
    order = list(range(line.height))
    random.shuffle(order)
    wanted = frame(pieces)
    assert intervals.overlay(wanted, line[order], "thread").equals(intervals.overlay(wanted, line, "thread"))


@given(rows, rows)
def test_intersection_and_subtraction_are_the_covered_and_the_bare_parts(first, second):
    a, b = (intervals.union(frame(values), "thread") for values in (first, second))
    cut = intervals.overlay(a, b.with_columns(seen=pl.lit(value=True)), "thread")
    both, only = (set(moments(part)) for part in (cut.filter("seen"), cut.filter(pl.col("seen").is_null())))
    in_a, in_b = set(moments(a)), set(moments(b))
    assert (both, only) == (in_a & in_b, in_a - in_b)


def test_a_timeline_that_overlaps_is_refused():
    with pytest.raises(ValueError, match="overlap on one thread"):
        intervals.overlay(frame([(0, 0, 10)]), frame([(0, 1, 5), (0, 3, 5)]), "thread")


@given(rows)
def test_fill_covers_the_stretch_without_gap_or_overlap(values):
    line = intervals.innermost(frame(values), "thread")
    whole = intervals.fill(line, "thread", [2, 0, 7], 5, 25)
    assert set(moments(whole)) == {(k, t) for k in (0, 2, 7) for t in range(5, 25)}
    assert in_order(whole)
    kept = {key: row for key, row in moments(whole, "row").items() if row is not None}
    assert kept == {
        key: row for key, row in moments(line, "row").items() if 5 <= key[1] < 25 and key[0] in (0, 2)
    }


@given(rows, rows)
def test_beneath_shows_the_second_where_the_first_has_nothing(first, second):
    a, b = (intervals.innermost(frame(values), "thread") for values in (first, second))
    a, b = a.with_columns(of=pl.lit("a")), b.with_columns(of=pl.lit("b"))
    found = intervals.beneath(a, b, "thread")
    assert found.columns == a.columns
    assert in_order(found)
    in_a, in_b = (
        {key: (of, row) for key, row in moments(f, "row").items()} for of, f in (("a", a), ("b", b))
    )
    got = {key: (of, moments(found, "row")[key]) for key, of in moments(found, "of").items()}
    assert got == {**in_b, **in_a}


@given(rows, rows)
def test_an_earlier_layer_hides_the_later_ones(first, second):
    line = intervals.layered(
        [("a", frame(first)), ("b", frame(second))], "thread", list(KEYS), 0, END, "rest"
    )
    a, b = (set(moments(intervals.union(frame(v), "thread"))) for v in (first, second))
    for key, state in moments(line, "state").items():
        assert state == ("a" if key in a else "b" if key in b else "rest")
    assert line["dur_ns"].sum() == END * len(KEYS)
    assert in_order(line)
    neighbours = line.filter(
        (pl.col("thread") == pl.col("thread").shift(1)) & (pl.col("state") == pl.col("state").shift(1))
    )
    assert neighbours.is_empty()


@given(rows, st.lists(st.sampled_from(["x", "y", None]), min_size=12, max_size=12))
def test_merging_joins_what_touches_and_agrees(values, told):
    line = of_distinct_stretches(intervals.innermost(frame(values), "thread"))
    line = line.with_columns(kind=pl.Series([told[n % 12] for n in range(line.height)], dtype=pl.String))
    merged = intervals.merge_equal(line, ["thread", "kind"])
    assert moments(merged, "kind") == moments(line, "kind")
    told = merged.select("thread", "ts_ns", "dur_ns", "kind").rows()
    for (key, at, length, kind), (then, follows, _, other) in pairwise(told):
        assert (key, at + length, kind) != (then, follows, other)


# --------------------------------------------------------------------------- times that lie too far apart for
# one line
FAR = 1_700_000_000_000_000_000  # wall time beside a clock that began at boot


@settings(max_examples=50)
@given(rows, pieces_, st.sets(st.sampled_from(KEYS)))
def test_keys_whose_clocks_are_decades_apart_do_not_mix(values, pieces, moved):
    def far(some):
        return [(k, b + FAR * (k in moved), n) for k, b, n in some]

    def back(found):
        far_off = pl.col("thread").is_in(list(moved)) & (pl.col("ts_ns") > FAR // 2)
        return found.with_columns(ts_ns=pl.when(far_off).then(pl.col("ts_ns") - FAR).otherwise("ts_ns"))

    near, distant = frame(values), frame(far(values))
    assert back(intervals.union(distant, "thread")).equals(intervals.union(near, "thread"))
    line, away = (intervals.innermost(f, "thread") for f in (near, distant))
    assert back(away).equals(line)
    cut = intervals.overlay(frame(far(pieces)), away, "thread")
    assert back(cut).equals(intervals.overlay(frame(pieces), line, "thread"))


# ---------------------------------------------------------------------------------- how rows are worked on in
# parts
@given(rows, st.sampled_from([1, 3, 10_000]))
def test_rows_are_put_in_order_and_equal_ones_keep_theirs(values, runs):
    numbered = frame(values).with_row_index("row")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_key, "MANY_RUNS", runs)
        assert intervals.in_order(numbered, "thread").equals(
            numbered.sort("thread", "ts_ns", maintain_order=True)
        )


@given(rows, pieces_)
def test_working_in_parts_makes_no_difference(values, pieces):
    some, wanted = frame(values).sort("thread", maintain_order=True), frame(pieces)

    def made():
        inner = intervals.innermost(some, "thread")
        return intervals.union(some, "thread"), inner, intervals.overlay(wanted, inner, "thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_key, "CHUNK", 1)
        patch.setattr(nesting, "AT_ONCE", 1)  # each part takes over what is open, crossing intervals too
        patch.setattr(cover, "AT_ONCE", 1)
        in_parts = made()
    assert all(a.equals(b) for a, b in zip(in_parts, made(), strict=True))


@given(rows)
def test_whole_keys_are_not_broken_apart(values):
    keys = np.sort([key for key, _, _ in values])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_key, "CHUNK", 2)
        parts = [keys[a:b].tolist() for a, b in intervals.whole_keys(keys)]
    assert list(chain.from_iterable(parts)) == keys.tolist()
    assert all(a[-1] < b[0] for a, b in pairwise(parts))
    assert all(len(part) <= 2 or len(set(part)) == 1 for part in parts)


@given(st.lists(st.sampled_from([-3, 0, 2, 70_000]), max_size=8))
def test_keys_come_in_order_and_equal_ones_keep_theirs(keys):
    order = intervals.key_by_key(np.array(keys, np.int64))
    assert order.tolist() == sorted(range(len(keys)), key=lambda n: keys[n])
