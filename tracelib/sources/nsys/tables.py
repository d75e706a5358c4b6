"""The tables of an nsys export, in whichever container it came, and the names and enumerations in them.

Texts are looked up once per distinct number and stay Categorical: a SQL join would copy a name for every row.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from tracelib.words import plain


class Tables(ABC):
    """The tables of one open export, any of which may be absent or lack columns.

    `files` are the files it lies in, `tables` maps each table's name to its columns, `damage` says in words
    what could not be read so far.
    """

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.damage: list[str] = []
        self.tables: dict[str, tuple[str, ...]] = {}

    @property
    @abstractmethod
    def lost_bytes(self) -> int:
        """How many bytes of the input could not be read so far."""

    @abstractmethod
    def read(self, table: str, columns: Mapping[str, Any]) -> pl.DataFrame:
        """Return `columns` (name to dtype) of `table`: null where it lacks one, no rows without a table."""

    def has(self, table: str, *columns: str) -> bool:
        """Say whether `table` is there and has all `columns`."""
        return table in self.tables and set(columns) <= set(self.tables[table])

    def note(self, damage: str) -> None:
        """Add to `damage`, once: some tables are read more than once."""
        damage = plain(damage)  # a table's name may hold anything
        if damage not in self.damage:
            self.damage.append(damage)


#: What an SQLite file begins with.
SQLITE = b"SQLite format 3\0"
#: The name of a call or kernel whose number is not in `StringIds`.
UNKNOWN = "[unknown]"
_NAME_SHOWN = 80
#: "cudaLaunchKernel_v7000": the CUDA release since which a call has this form. "cuMemAlloc_v2" is another
#: call's name.
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
    database: Tables, table: str, default: Mapping[int, str], column: str = "label"
) -> dict[int, str]:
    """Return what each number of the enumeration `table` stands for; `default` where the export lacks it."""
    rows = database.read(table, {"id": pl.Int64, column: pl.String}).drop_nulls()
    return {**default, **dict(rows.iter_rows())}


def shown_name(name: str) -> str:
    """Return a table's name for a remark: it may hold anything, of any length."""
    return plain(name, _NAME_SHOWN)
