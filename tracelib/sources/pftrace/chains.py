"""Call chains: Perfetto keeps them as a tree, each call site with the one that called it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracelib.sources.pftrace.processor import Query

__all__ = ["chains"]


def chains(query: Query, used: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frame `stacks` of the call sites in `used`, and which stack each site (`callsite`) has."""
    sites = query(
        "SELECT c.id AS site, c.parent_id AS parent, f.name AS symbol, m.name AS library FROM stack_profile_callsite c "
        "JOIN stack_profile_frame f ON c.frame_id = f.id LEFT JOIN stack_profile_mapping m ON f.mapping = m.id",
        {"site": pl.Int64(), "parent": pl.Int64(), "symbol": pl.String(), "library": pl.String()},
    )
    stack_of = pl.DataFrame({"callsite": used.drop_nulls().unique().sort()}).with_columns(
        stack=pl.int_range(pl.len(), dtype=pl.Int32)
    )
    rows: list[pl.DataFrame] = []
    at = stack_of.select("stack", site="callsite")
    while at.height:
        here = at.join(sites, on="site").with_columns(depth=pl.lit(len(rows), pl.Int16))
        rows.append(here)
        at = here.drop_nulls("parent").select("stack", site="parent")
    named = (
        pl.concat(rows)
        if rows
        else sites.clear().with_columns(stack=pl.lit(0, pl.Int32), depth=pl.lit(0, pl.Int16))
    )
    symbol = pl.when(pl.col("symbol") == "").then(None).otherwise("symbol").fill_null("[unknown]")
    stacks = named.select(
        "stack", "depth", symbol.cast(pl.Categorical).alias("symbol"), pl.col("library").cast(pl.Categorical)
    )
    return stacks, stack_of
