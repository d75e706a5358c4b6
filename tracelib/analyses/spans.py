"""What names mean that only mark where something begins and ends: the `[[span]]` of `tracelib/rules.toml`.

A range around a step holds the preparation of its input and the model; a recorder without stacks names neither, but the
first thing that the model does. A scheduler that polls passes through its idle branch again and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.long_slices import OUTLIER

if TYPE_CHECKING:
    from tracelib.rules import Rules, SpanRule


def with_spans(
    slices: pl.DataFrame, meanings: pl.DataFrame, launches: pl.DataFrame, rules: Rules
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return slices and their meanings as of :func:`tracelib.classify.slice_meanings`, and one slice for each span.

    `launches` is the frame of the analysis. A span bears the name of the slice that begins it.
    """
    calls = launches.select(thread="call_thread", at="call_ts_ns").drop_nulls().unique().sort("at")
    made = [(rule, _spans(slices, calls, rule)) for rule in rules.spans]
    told = [(rule, rows) for rule, rows in made if rows.height]
    if not told:
        return slices, meanings
    rows = [
        rows.with_columns(meaning=pl.lit(meanings.height + n, slices.schema["meaning"]))
        for n, (_, rows) in enumerate(told)
    ]
    columns = ("cause", "sub_cause", "waits_for", "weak", "covers")
    said = [{column: getattr(rule, column) for column in columns} for rule, _ in told]
    more = pl.DataFrame(said, schema={column: meanings.schema[column] for column in columns})
    filled = more.with_columns(between_launches=pl.lit(value=False))
    whole = pl.concat([meanings, filled], how="diagonal")
    return pl.concat([slices, *(part.select(slices.columns) for part in rows)]), whole


def _spans(slices: pl.DataFrame, calls: pl.DataFrame, rule: SpanRule) -> pl.DataFrame:
    begins = _named(slices, rule.begin)
    if rule.bare:
        framed = slices.filter(pl.col("category") == "python")["thread"].unique()
        begins = begins.filter(~pl.col("thread").is_in(framed.implode()))
    if begins.is_empty():
        return begins
    ends = _named(slices, rule.end).select("thread", end="ts_ns").sort("end")
    closed = begins.sort("ts_ns").join_asof(
        ends, left_on="ts_ns", right_on="end", by="thread", strategy="forward", allow_exact_matches=False,
        coalesce=False, check_sortedness=False,
    )  # fmt: skip
    again = pl.col("ts_ns").shift(-1).over("thread", order_by="ts_ns")
    own = pl.col("ts_ns") + pl.col("dur_ns")
    fits = (pl.col("end") <= again).fill_null(value=True) & ((pl.col("end") <= own) | (not rule.inside))
    launched = calls.select("thread", first="at").sort("first")
    first = closed.filter(fits).join_asof(
        launched, left_on="ts_ns", right_on="first", by="thread", strategy="forward", coalesce=False,
        check_sortedness=False,
    )  # fmt: skip
    kept = first if rule.launches else first.filter((pl.col("first") >= pl.col("end")).fill_null(value=True))
    lasts = kept.with_columns(dur_ns=pl.col("end") - pl.col("ts_ns"))
    if not rule.bare:
        return lasts
    # Without frames, nobody knows what made a span outlast its siblings by far.
    return lasts.filter(pl.col("dur_ns") <= OUTLIER * pl.col("dur_ns").median().over("thread"))


def _named(slices: pl.DataFrame, pattern: str) -> pl.DataFrame:
    names = slices["name"].unique()
    wanted = names.filter(names.cast(pl.String).str.contains(pattern))
    return slices.filter(pl.col("name").is_in(wanted.implode()) & (pl.col("category") != "gpu_annotation"))
