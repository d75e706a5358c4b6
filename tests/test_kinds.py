"""Kinds of slices against a Python dictionary."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelib import kinds, schema

SCHEMA = {c: schema.SLICES[c] for c in ("name", "category")}
pairs = st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from(["op", "python", "other", None]))


def frame(rows) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


@given(st.lists(pairs, max_size=12), st.sampled_from([1, 2, 100]))
def test_each_slice_is_of_its_kind(rows, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds, "AT_ONCE", at_once)
        found = kinds.kinds(frame(rows))
        numbers = kinds.kind_numbers(frame(rows), found)
    assert found.equals(found.sort("category", "name"))
    assert sorted(found.rows(), key=repr) == sorted(set(rows), key=repr)
    assert [found.row(n) for n in numbers] == rows


@given(st.lists(pairs, max_size=12), st.sets(pairs))
def test_slices_of_some_kinds_keep_their_order(rows, some):
    assert kinds.of_kinds(frame(rows), frame(list(some))).rows() == [row for row in rows if row in some]
