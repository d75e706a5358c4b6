"""Names in an nsys export: numbers that point into `StringIds`, and the numbers of its enumerations.

Texts are looked up once per distinct number and stay Categorical: a SQL join would copy a name for every row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelib.sources.nsys.tables import Tables

__all__ = ["UNKNOWN", "enumeration", "looked_up", "shown_name", "string_ids", "without_version"]

#: The name of a call or kernel whose number is not in `StringIds`.
UNKNOWN = "[unknown]"
_NAME_SHOWN = 80
#: "cudaLaunchKernel_v7000": the CUDA release since which a call has this form. "cuMemAlloc_v2" is another call's name.
_CUDA_RELEASE = r"_v\d{4,5}$"


def string_ids(database: Tables) -> pl.DataFrame:
    """Return the export's texts: one row per id, `id` Int64, `value` String."""
    texts = database.read("StringIds", {"id": pl.Int64, "value": pl.String})
    return texts.drop_nulls().unique("id", keep="first", maintain_order=True)


def without_version(texts: pl.DataFrame) -> pl.DataFrame:
    """Return `texts` without the release that nsys appends to the names of CUDA calls."""
    return texts.with_columns(pl.col("value").str.replace(_CUDA_RELEASE, ""))


def looked_up(ids: pl.Series, texts: pl.DataFrame) -> pl.Series:
    """Return the text of each id, as Categorical in the order of `ids`; null where there is none."""
    used = texts.filter(pl.col("id").is_in(ids.unique().implode())).with_columns(
        pl.col("value").cast(pl.Categorical())
    )
    rows = ids.alias("id").to_frame()
    return rows.join(used, on="id", how="left", maintain_order="left")["value"]


def enumeration(
    database: Tables, table: str, known: Mapping[int, str], column: str = "label"
) -> dict[int, str]:
    """Return what each number of the enumeration `table` stands for; `known` where the export lacks that table."""
    rows = database.read(table, {"id": pl.Int64, column: pl.String}).drop_nulls()
    return {**known, **dict(rows.iter_rows())}


def shown_name(name: str) -> str:
    """Return a table's name for a remark: it may hold anything, of any length."""
    return "".join(c if c.isprintable() else "?" for c in name[:_NAME_SHOWN])
