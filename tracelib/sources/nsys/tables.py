"""The tables of an nsys export, in whichever container it came, and the names and enumerations in them.

Texts are looked up once per distinct number and stay Categorical: a SQL join would copy a name for every row.

The container here is a directory of one file per table (``nsys export -t parquetdir``, ``-t arrowdir``),
with the names and columns of the SQLite export's tables: `CUPTI_ACTIVITY_KIND_KERNEL.parquet` or `.arrow`.
The file `StringIds` stands for the whole directory, as every export has it. SQLite is in :mod:`.database`.
"""

import re
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


PARQUET, ARROW = b"PAR1", b"ARROW1"
#: First bytes of an Arrow stream, which has no magic: a continuation marker, before the length of its schema.
_ARROW_STREAM = b"\xff\xff\xff\xff"
_ENTRIES = ("StringIds.parquet", "StringIds.arrow")
#: What Polars raises for a damaged file; of some lengths and offsets it panics rather than say so.
_DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
EXCERPT = 200
#: How the names of an export's tables begin.
_TABLE = re.compile(
    "CUPTI_ACTIVITY_|CUDA_|ENUM_|TARGET_INFO_|META_DATA_|NVTX_|OSRT_API|SCHED_EVENTS|COMPOSITE_EVENTS|"
    "SAMPLING_CALLCHAINS|GPU_METRICS|DIAGNOSTIC_EVENT|ANALYSIS_|PROCESSES|PROFILER_OVERHEAD|ThreadNames|"
    "ProcessStreams"
)


def is_table_of_directory(head: bytes, name: str) -> bool:
    """Say whether a file that starts with `head` is the one that stands for an export's directory."""
    return name in _ENTRIES and head.startswith((PARQUET, ARROW, _ARROW_STREAM))


def part_of_directory(path: Path, head: bytes) -> str:
    """Return what to give in place of one table of a directory, "" if the file is none or stands for all."""
    if not head.startswith((PARQUET, ARROW, _ARROW_STREAM)) or not _TABLE.match(path.name):
        return ""
    entry = f"StringIds{path.suffix}"
    table = "one table of an nsys export, which is read as a whole"
    if path.with_name(entry).is_file():
        return f"{table}: give its folder, {path.absolute().parent.name}"
    return f"{table}: give the folder of all its tables; {entry}, with the names, must lie among them"


def tables_of(entry: Path) -> list[Path]:
    """Return the files of the export in which the file `entry` lies, itself among them."""
    return sorted(file for file in entry.parent.glob(f"*{entry.suffix}") if file.is_file())


class Directory(Tables):
    """The tables of the export in which the file `entry` lies."""

    def __init__(self, entry: Path) -> None:
        super().__init__(tables_of(entry))
        self._lost: set[Path] = set()
        self._of = {file.stem: file for file in self.files}
        self.tables = {name: self._columns(file) for name, file in self._of.items()}

    def _columns(self, file: Path) -> tuple[str, ...]:
        try:
            return tuple(_scan(file).collect_schema().names())
        except _DAMAGE as error:
            self._lose(file, error)
            return ()

    @property
    def lost_bytes(self) -> int:
        """How many bytes are in files that could not be read."""
        return sum(file.stat().st_size for file in self._lost)

    def _lose(self, file: Path, error: BaseException) -> None:
        self._lost.add(file)
        reason = (str(error).splitlines() or ["unreadable"])[0]
        self.note(f"table {file.stem}: {reason[:EXCERPT]}")

    def read(self, table: str, columns: Mapping[str, Any]) -> pl.DataFrame:
        """Return `columns` (name to dtype) of `table`; a value that cannot have its dtype is null."""
        present = {name: dtype for name, dtype in columns.items() if self.has(table, name)}
        if not present:
            return pl.DataFrame(schema=dict(columns))
        absent = [
            pl.lit(None, dtype).alias(name) for name, dtype in columns.items() if not self.has(table, name)
        ]
        try:
            rows = _scan(self._of[table]).select(list(present)).collect()
            return (
                rows.select(self._typed(table, rows[name], dtype) for name, dtype in present.items())
                .with_columns(absent)
                .select(list(columns))
            )
        except _DAMAGE as error:
            self._lose(self._of[table], error)
            return pl.DataFrame(schema=dict(columns))

    def _typed(self, table: str, values: pl.Series, dtype: Any) -> pl.Series:
        """Return `values` as `dtype`; all null, and noted, if their kind has no such value (a list, a name).

        An unsigned id of 64 bits is as SQLite has it, with the uppermost bit as its sign; a time is in
        nanoseconds.
        """
        if values.dtype == pl.UInt64 and dtype == pl.Int64:
            return values.reinterpret(signed=True)
        try:
            if isinstance(values.dtype, (pl.Datetime, pl.Duration)):
                return values.dt.cast_time_unit("ns").cast(dtype)
            return values.cast(dtype, strict=False)
        except pl.exceptions.PolarsError:
            self.note(f"table {table}: its column {values.name} holds {values.dtype}, not {dtype.__name__}")
            return pl.Series(values.name, [None] * len(values), dtype)


def _scan(file: Path) -> pl.LazyFrame:
    if file.suffix == ".parquet":
        return pl.scan_parquet(file, glob=False)
    with file.open("rb") as opened:
        is_stream = opened.read(len(_ARROW_STREAM)) == _ARROW_STREAM
    return pl.read_ipc_stream(file).lazy() if is_stream else pl.scan_ipc(file)
