"""CPU samples in an nsys export, and their call chains.

`COMPOSITE_EVENTS` has one row per sample; the frames of sample `id` are the rows of `SAMPLING_CALLCHAINS` with that id,
innermost (`stackDepth` 0) first. Chains repeat: each distinct one is kept once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import FRAMES
from tracelib.sources.nsys.names import looked_up

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelib.sources.nsys.tables import Tables

__all__ = ["TABLE", "call_chains", "samples", "trigger"]

TABLE = "COMPOSITE_EVENTS"
CHAINS = "SAMPLING_CALLCHAINS"
_TRIGGER = re.compile(r"Event '(?P<event>[^']+)', with sampling period (?P<period>\d+)")
_REMARK = re.compile(r"\s*\([^()]*\)\s*$")
_ADDRESS = r"^0x[0-9a-fA-F]+$"


def trigger(diagnostics: Iterable[str]) -> tuple[str, int | None]:
    """Return the event that triggered the samples and its period, which nsys tells among its diagnostics."""
    for text in diagnostics:
        if found := _TRIGGER.search(text):
            event = _REMARK.sub("", found["event"].lower())  # "CPU Clock (sw)"
            return {"cpu cycles": "cycles"}.get(event, event.replace(" ", "-")), int(found["period"])
    return "cpu-sample", None


def samples(database: Tables, event: str, period: int | None) -> pl.DataFrame:
    """Return the samples, before threads and stacks got their numbers.

    One row per sample: `id` and `globalTid` Int64, `ts_ns` Int64, `cpu` Int32, `event` Categorical, `period` Int64.
    """
    rows = database.read(TABLE, dict.fromkeys(("id", "start", "cpu", "globalTid"), pl.Int64))
    return rows.drop_nulls("start").select(
        "id",
        "globalTid",
        ts_ns="start",
        cpu=pl.col("cpu").cast(pl.Int32, strict=False),
        event=pl.lit(event).cast(pl.Categorical()),
        period=pl.lit(period, pl.Int64),
    )


def call_chains(database: Tables, texts: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `stacks` as :data:`tracelib.schema.STACKS` has them, and `id`, `stack`: the stack of each sample id."""
    columns = dict.fromkeys(("id", "symbol", "module", "unresolved", "stackDepth"), pl.Int64)
    rows = database.read(CHAINS, columns).drop_nulls(["id", "stackDepth"])
    places = rows.select("symbol", "module", "unresolved").unique(maintain_order=True).with_row_index("place")
    rows = rows.join(places, on=["symbol", "module", "unresolved"], nulls_equal=True, maintain_order="left")
    chains = (
        rows.sort("id", "stackDepth", maintain_order=True).group_by("id", maintain_order=True).agg("place")
    )
    distinct = chains.group_by("place", maintain_order=True).agg("id").with_row_index("stack")
    distinct = distinct.with_columns(pl.col("stack").cast(pl.Int32))
    frames = distinct.select(
        "stack", "place", depth=pl.int_ranges(0, pl.col("place").list.len(), dtype=pl.Int16)
    )
    frames = frames.explode("place", "depth").join(
        _named(places, texts), on="place", how="left", maintain_order="left"
    )
    stacks = frames.select("stack", "depth", "symbol", "library").match_to_schema(FRAMES["stacks"])
    return stacks, distinct.select("stack", "id").explode("id")


def _named(places: pl.DataFrame, texts: pl.DataFrame) -> pl.DataFrame:
    symbol = looked_up(places["symbol"], texts).cast(pl.String).rename("name").to_frame()
    resolved = ~pl.col("name").str.contains(_ADDRESS)
    known = symbol.select(pl.when(resolved).then("name").fill_null("[unknown]").cast(pl.Categorical()))[
        "name"
    ]
    return places.select("place", symbol=known, library=looked_up(places["module"], texts))
