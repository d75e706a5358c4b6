"""Quantiles by nearest rank: a value that was measured, never one between two (docs/numbers.md)."""

import polars as pl

#: A product such as 0.95 x 20 may lie a hair above the whole number that it stands for.
HAIR = 1e-9


def nearest_rank(values: pl.Expr, q: float) -> pl.Expr:
    """Return the smallest known value that at least the share `q` of them does not exceed, or null.

    >>> pl.select(p50=nearest_rank(pl.lit(pl.Series([30, 10, None, 40, 20])), 0.5)).item()
    20
    """
    rank = (values.count() * q - HAIR).ceil().cast(pl.Int64) - 1
    return values.drop_nulls().sort().slice(pl.max_horizontal(rank, 0), 1).first()
