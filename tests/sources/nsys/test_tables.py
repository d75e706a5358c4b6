"""Exports of one Parquet or Arrow file per table: the same tables as in SQLite must give the same trace."""

import random
import sqlite3

import polars as pl
import pytest

import tracelib
from tracelib.errors import UnknownFormat
from tracelib.sources import cache
from tracelib.sources.discovery import discover, recognised
from tracelib.sources.nsys import read


def converted(path, folder, kind):
    """Write each table of the SQLite export at `path` as `nsys export -t parquetdir` or `arrowdir` does."""
    folder.mkdir()
    connection = sqlite3.connect(path)
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        cursor = connection.execute(f'SELECT * FROM "{name}"')
        columns = [column[0] for column in cursor.description]
        frame = pl.DataFrame(cursor.fetchall(), schema=columns, orient="row", infer_schema_length=None)
        file = folder / f"{name}.{'parquet' if kind == 'parquet' else 'arrow'}"
        write = {"parquet": frame.write_parquet, "arrow": frame.write_ipc, "stream": frame.write_ipc_stream}
        write[kind](file)
    connection.close()
    return folder


@pytest.mark.corpus
@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
@pytest.mark.parametrize("name", ["cestwc__balinski-and-gomory-cuda__report16", "NVIDIA__Fuser__report1"])
def test_same_frames_as_from_sqlite(corpus, tmp_path, name, kind):
    path = corpus / "nsys" / f"{name}.sqlite"
    folder = converted(path, tmp_path / "export", kind)
    (file,), others, *_ = discover([folder])
    assert [file.path.stem] == ["StringIds"]
    assert others == []
    found, expected = file.read(), read(path)
    for frame, rows in expected.frames().items():
        if frame not in ("sources", "counters"):
            assert found.frames()[frame].equals(rows), frame
    assert found.sources["first_ns"].equals(expected.sources["first_ns"])
    assert found.sources["bytes"].item() == sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_the_cache_knows_a_changed_table_though_the_file_that_stands_for_all_is_the_same(
    export, process, tmp_path, monkeypatch, kind
):
    monkeypatch.setattr(cache, "SMALLEST", 0)
    rows = {"CUPTI_ACTIVITY_KIND_RUNTIME": [(10, 15, 0, process + 7, 1, 1)]}
    folder = converted(export(rows), tmp_path / "dir", kind)
    entry, kept = folder / f"StringIds.{kind}", cache.Cache(tmp_path / "cache")
    assert kept.read(recognised(entry)).slices["dur_ns"].to_list() == [5]
    table = folder / f"CUPTI_ACTIVITY_KIND_RUNTIME.{kind}"
    frame = pl.read_parquet(table) if kind == "parquet" else pl.read_ipc(table.read_bytes())
    longer = frame.with_columns(pl.col("end") + 4)
    longer.write_parquet(table) if kind == "parquet" else longer.write_ipc(table)
    assert kept.read(recognised(entry)).slices["dur_ns"].to_list() == [9]


def test_a_damaged_table_costs_itself(export, process, tmp_path):
    rows = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [(10, 15, 0, process + 7, 1, 1)],
        "OSRT_API": [(10, 15, process + 7, 7)],
    }
    folder = converted(export(rows), tmp_path / "dir", "parquet")
    (folder / "OSRT_API.parquet").write_bytes(b"PAR1 and nothing more")
    trace = read(folder / "StringIds.parquet")
    assert trace.slices["name"].to_list() == ["cudaLaunchKernel"]
    assert "damaged: table OSRT_API" in " ".join(trace.health["message"])
    assert trace.sources["skipped_bytes"].item() == 21


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
def test_bytes_changed_in_a_table_cost_that_table_at_most(export, process, tmp_path, kind):
    """Found by fuzzing: of some lengths in a damaged Arrow file Polars panics, which is no `Exception`."""
    rows = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [(10, 15, 0, process + 7, 1, 1)],
        "OSRT_API": [(n, n + 1, process + 7, 7) for n in range(50)],
    }
    folder = converted(export(rows), tmp_path / "dir", kind)
    table = next(folder.glob("OSRT_API.*"))
    whole, lost = table.read_bytes(), 0
    for seed in range(25):
        pick, data = random.Random(seed), bytearray(whole)
        for _ in range(3):
            data[pick.randrange(8, len(data))] = pick.choice((0, 44, 127, 255))
        table.write_bytes(data)
        trace = read(next(folder.glob("StringIds.*"))).check()
        assert trace.slices.filter(pl.col("category") == "runtime").height == 1
        if trace.slices.height == 1:
            lost += 1
            assert "table OSRT_API" in " ".join(trace.health["message"])
    assert lost > 2


def test_unsigned_ids_are_those_of_sqlite(export, tmp_path):
    """Hardware id 0xFE sets the uppermost bit, which SQLite stores as a sign."""
    number = 0xFE << 56 | 1 << 48 | 100 << 24 | 107
    path = export({"CUPTI_ACTIVITY_KIND_RUNTIME": [(10, 15, 0, number - (1 << 64), 1, 1)]})
    folder = converted(path, tmp_path / "dir", "parquet")
    table = folder / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet"
    unsigned = pl.Series("globalTid", [number], dtype=pl.UInt64)
    pl.read_parquet(table).with_columns(unsigned).write_parquet(table)
    trace = read(folder / "StringIds.parquet")
    assert trace.threads.select("pid", "tid").rows() == [(100, 107)]
    assert trace.slices.equals(read(path).slices)


@pytest.mark.parametrize(
    ("column", "values", "became"),
    [
        ("end", pl.Series([25], dtype=pl.Datetime("us")), 25_000),
        ("end", pl.Series([25], dtype=pl.Duration("ns")), 25),
        ("end", pl.Series([25.0]), 25),
        ("end", pl.Series(["25"]), 25),
        ("correlationId", pl.Series([[1, 2]]), None),
        ("correlationId", pl.Series(["a name"], dtype=pl.Categorical), None),
    ],
)
def test_a_column_of_another_kind_costs_itself_at_most(export, process, tmp_path, column, values, became):
    path = export({"CUPTI_ACTIVITY_KIND_RUNTIME": [(10, 15, 0, process + 7, 1, 1)]})
    folder = converted(path, tmp_path / "dir", "parquet")
    table = folder / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet"
    pl.read_parquet(table).with_columns(values.alias(column)).write_parquet(table)
    trace = read(folder / "StringIds.parquet")
    end, correlation = (became, 1) if column == "end" else (15, None)
    assert trace.slices.select("ts_ns", "dur_ns", "correlation").rows() == [(10, end - 10, correlation)]
    told = f"its column {column} holds" in " ".join(trace.health["message"])
    assert told is (became is None)


def test_a_damaged_table_that_is_asked_more_than_once_is_counted_once(export, process, tmp_path):
    path = export({"NVTX_EVENTS": [(1, 2, 59, "a", process + 1)]})
    folder = converted(path, tmp_path / "dir", "parquet")
    (folder / "NVTX_EVENTS.parquet").write_bytes(b"PAR1" + bytes(100))
    trace = read(folder / "StringIds.parquet")
    assert trace.sources["skipped_bytes"].item() == 104
    assert sum("table NVTX_EVENTS" in message for message in trace.health["message"]) == 1


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
def test_one_table_alone_names_the_folder_to_give(export, process, tmp_path, kind):
    rows = {"CUPTI_ACTIVITY_KIND_RUNTIME": [(10, 15, 0, process + 7, 1, 1)]}
    folder = converted(export(rows), tmp_path / "the export", kind)
    table = next(folder.glob("CUPTI_ACTIVITY_KIND_RUNTIME.*"))
    with pytest.raises(UnknownFormat, match=r"one table of an nsys export, .*: give its folder, the export"):
        recognised(table)
    next(folder.glob("StringIds.*")).unlink()
    absent = rf"StringIds\{table.suffix}, with the names, must lie among them"
    with pytest.raises(UnknownFormat, match=f"one table of an nsys export, .*{absent}"):
        recognised(table)
    with pytest.raises(
        UnknownFormat, match=rf"none of its 2 files is a trace; CUPTI_\w+\.\w+: one .*{absent}"
    ):
        discover([folder])


@pytest.mark.parametrize(
    ("name", "head"), [("NVTX_EVENTS.parquet", b"PAR0" + bytes(90)), ("trace.parquet", b"PAR1" + bytes(90))]
)
def test_what_is_no_table_of_an_export_is_not_taken_for_one(tmp_path, name, head):
    (tmp_path / name).write_bytes(head)
    with pytest.raises(UnknownFormat, match="the content is none of: nsys"):
        recognised(tmp_path / name)


def test_the_tables_of_a_directory_are_not_called_left_out(one_kernel, tmp_path):
    trace = tracelib.load(converted(one_kernel, tmp_path / "run_pqtdir", "parquet"))
    assert trace.gpu_ops.height == 1
    assert not trace.health["message"].str.contains("left out").any()


def test_two_forms_of_one_export_are_read_once(one_kernel, tmp_path):
    converted(one_kernel, tmp_path / "run_pqtdir", "parquet")
    trace = tracelib.load(tmp_path)
    assert (trace.sources.height, trace.gpus.height, trace.gpu_ops.height) == (1, 1, 1)
    assert trace.health["message"].str.contains("same recording").sum() == 1
