"""An nsys export of one file per table: ``nsys export -t parquetdir`` or ``-t arrowdir``.

The files have the names and columns of the SQLite export's tables: `CUPTI_ACTIVITY_KIND_KERNEL.parquet` or
`.arrow`. The file `StringIds` stands for the whole directory, as every export has it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from tracelib.sources.nsys.tables import Tables

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
