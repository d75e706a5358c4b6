"""Work per distinct text: the same as work per text, however often texts repeat."""

import polars as pl
import pytest

from tracelib.sources.kernel.texts import MOST_DISTINCT, Texts, codes_of, distinct, per_distinct

SEVERAL = ["b", "a", "b", "", "c", "a"]


def test_texts_are_numbered_as_they_come_and_are_not_forgotten():
    known = Texts()
    assert codes_of(pl.Series(SEVERAL).cast(known.kind)).to_list() == [0, 1, 0, 2, 3, 1]
    assert codes_of(pl.Series(["d", "a"]).cast(known.kind)).to_list() == [4, 1]
    assert known.all().to_list() == ["b", "a", "", "c", "d"]


@pytest.mark.parametrize("texts", [SEVERAL, [f"{n}" for n in range(MOST_DISTINCT + 1)] + SEVERAL, []])
def test_what_is_made_per_distinct_text_stands_at_each_text(texts):
    column = pl.Series(texts, dtype=pl.String)
    different, places = distinct(column)
    assert different[places].to_list() == texts
    made = per_distinct(
        column, pl.col("text").str.len_bytes().alias("size"), (pl.col("text") + "!").alias("loud")
    )
    assert made.rows() == [(len(text), text + "!") for text in texts]
