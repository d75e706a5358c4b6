"""An export as tables: damage costs what it hit, hostile schemas run nothing, odd columns shift no other."""

import gzip
import shutil
import sqlite3

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.nsys.conftest import KERNELS, RUNTIME, messages
from tracelib.errors import BadTrace
from tracelib.sources.nsys import read, sniff
from tracelib.sources.nsys.database import Database, open_database


def _with_column(path, definition, at):
    """Rewrite the kernels' table with one more column before its column `at`."""
    with sqlite3.connect(path) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({KERNELS})")]
        place = columns.index(at)
        wanted = [
            *(f"{name} INTEGER" for name in columns[:place]),
            definition,
            *(f"{name} INTEGER" for name in columns[place:]),
        ]
        connection.execute(f"ALTER TABLE {KERNELS} RENAME TO old")
        connection.execute(f"CREATE TABLE {KERNELS} ({', '.join(wanted)})")
        names = ", ".join(columns)
        connection.execute(f"INSERT INTO {KERNELS} ({names}) SELECT {names} FROM old")
        connection.execute("DROP TABLE old")
    connection.close()
    return path


def errors(trace):
    return " | ".join(trace.health.filter(pl.col("level") == "error")["message"])


@pytest.fixture
def large(export, process):
    """An export of some hundred pages: kernels first, calls behind."""
    kernels = [(n * 10, n * 10 + 5, 0, 1, 7, n, process, 4, 4, None, None) for n in range(1, 6000)]
    calls = [(n * 10 - 5, n * 10 - 3, 0, process + 100, n, 1) for n in range(1, 6000)]
    return export({KERNELS: kernels, RUNTIME: calls})


def _leaves(path, table):
    """Return the number and the rows of each leaf page of a table, found by hand: a table of two levels."""
    with sqlite3.connect(path) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        root = connection.execute(query, (table,)).fetchone()[0]
    connection.close()
    data = path.read_bytes()
    page = data[(root - 1) * 4096 : root * 4096]
    cells = [
        int.from_bytes(page[12 + 2 * at : 14 + 2 * at], "big")
        for at in range(int.from_bytes(page[3:5], "big"))
    ]
    numbers = [int.from_bytes(page[at : at + 4], "big") for at in [*cells, 8]]
    return [(number, int.from_bytes(data[(number - 1) * 4096 + 3 :][:2], "big")) for number in numbers]


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A small export as bytes, and a place for its damaged copies."""
    path = tmp_path_factory.mktemp("nsys") / "sample.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA page_size = 512")
        connection.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", [(n, f"name {n}") for n in range(60)])
        connection.execute(
            f"CREATE TABLE {RUNTIME} "
            "(start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER)"
        )
        connection.executemany(
            f"INSERT INTO {RUNTIME} VALUES (?, ?, ?, ?, ?)",
            [(n, n + 1, 1 << 24 | n, n, n) for n in range(60)],
        )
        connection.execute(
            "CREATE TABLE NVTX_EVENTS "
            "(start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER)"
        )
        connection.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?)", [(n, n + 1, "t", 1 << 24) for n in range(60)]
        )
    connection.close()
    return path, path.read_bytes()


@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_a_generated_column_shifts_no_other(export, kernels, kind):
    path = _with_column(export({KERNELS: kernels}), f"length INTEGER AS (end - start) {kind}", "end")
    ops = read(path).gpu_ops
    assert ops.select("ts_ns", "dur_ns", "stream", "correlation").rows() == [(10, 10, 7, 1), (30, 10, 7, 2)]


@pytest.mark.parametrize("kind", ["REAL", "TEXT", "BIGINT", ""])
def test_columns_of_other_types(export, kernels, kind):
    """As programs leave them that write a database anew."""
    path = export({KERNELS: kernels})
    with sqlite3.connect(path) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({KERNELS})")]
        connection.execute(f"ALTER TABLE {KERNELS} RENAME TO old")
        connection.execute(f"CREATE TABLE {KERNELS} ({', '.join(f'{name} {kind}' for name in columns)})")
        connection.execute(f"INSERT INTO {KERNELS} SELECT * FROM old")
    connection.close()
    ops = read(path).gpu_ops
    assert ops.select("ts_ns", "dur_ns", "stream", "correlation", "pid", "name").rows() == [
        (10, 10, 7, 1, 100, "my_kernel(int)"),
        (30, 10, 7, 2, 100, "my_kernel(int)"),
    ]


def test_a_view_is_not_read_but_told(export, kernels):
    path = export(
        {KERNELS: kernels},
        statements=[f"CREATE VIEW OSRT_API AS SELECT * FROM {KERNELS}", 'CREATE VIEW "a\nb" AS SELECT 1'],
    )
    trace = read(path)
    assert trace.slices.is_empty()
    assert "OSRT_API is a view, which is never read" in messages(trace)
    assert "\n" not in messages(trace)


@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_changes_that_are_not_merged_are_told(export, kernels, tmp_path, ending):
    path = export({KERNELS: []})
    mode = "WAL" if ending == "-wal" else "DELETE"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA cache_size = 5")  # so that a long transaction reaches the file
    connection.execute("BEGIN")
    connection.executemany(f"INSERT INTO {KERNELS} VALUES ({', '.join('?' * 11)})", kernels * 2000)
    if ending == "-wal":
        connection.commit()
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    shutil.copy(f"{path}{ending}", f"{copy}{ending}")
    connection.close()
    (copy.parent / f"{path.name}{ending}").chmod(0o444)
    assert f"{path.name}{ending} beside it holds changes that are not read" in messages(read(copy))
    assert sorted(file.name for file in copy.parent.iterdir()) == [path.name, f"{path.name}{ending}"]


@pytest.mark.parametrize("content", [b"", bytes(5000), b"\x37\x7f\x06\x82"])
def test_a_log_that_is_done_with_is_no_damage(export, kernels, content):
    path = export({KERNELS: kernels})
    path.with_name(path.name + "-wal").write_bytes(content)
    assert "beside it" not in messages(read(path))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.95])
def test_a_file_that_ends_early(large, share):
    data = large.read_bytes()
    large.write_bytes(data[: int(len(data) * share)])
    trace = read(large)
    whole = trace.gpu_ops.height + trace.slices.height
    assert 0.8 * share * 11998 < whole < 11998
    assert "the file ends after" in errors(trace)
    assert trace.sources["skipped_bytes"].item() == pytest.approx(len(data) * (1 - share), abs=4096)


def test_a_gzip_that_ends_early(large, tmp_path):
    packed = tmp_path / "cut.sqlite.gz"
    data = gzip.compress(large.read_bytes())
    packed.write_bytes(data[: len(data) // 2])
    trace = read(packed)
    assert 1000 < trace.gpu_ops.height + trace.slices.height < 11998
    assert "compressed data ends early" in errors(trace)


def test_a_broken_page_costs_its_rows(large):
    data = bytearray(large.read_bytes())
    data[4096 * 30 : 4096 * 31] = b"\xff" * 4096
    large.write_bytes(data)
    trace = read(large)
    assert 11800 < trace.gpu_ops.height + trace.slices.height < 11998
    assert "pages of 4096 bytes cannot be read" in errors(trace)
    assert trace.sources["skipped_bytes"].item() == 4096


@pytest.mark.parametrize("broken", [(0,), (10,), (-1,), (5, 20, 21, 40), tuple(range(0, 46, 2))])
@pytest.mark.parametrize("filling", [b"\xff", b"\0"])
def test_broken_pages_of_texts_cost_their_own_rows(export, process, broken, filling):
    """Texts are read by SQLite, which ends at the first page that it cannot read."""
    ranges = [(n, n + 1, 59, f"range {n}", process + 1, None, 0) for n in range(5000)]
    path = export({"NVTX_EVENTS": ranges})
    leaves = _leaves(path, "NVTX_EVENTS")
    assert len(leaves) > 45
    lost = [leaves[at] for at in broken]
    data = bytearray(path.read_bytes())
    for number, _ in lost:
        data[(number - 1) * 4096 : number * 4096] = filling * 4096
    path.write_bytes(data)
    trace = read(path)
    assert trace.slices.height == 5000 - sum(rows for _, rows in lost)
    assert trace.slices["ts_ns"].is_sorted()
    assert trace.sources["skipped_bytes"].item() == 4096 * len(lost)
    assert "rows before and behind that were read" in errors(trace)


def test_a_text_whose_further_page_is_broken_costs_its_row(export, process):
    """A text longer than a page goes on in others, which a table's tree does not name."""
    texts = [f"range {n}" if n != 1000 else "z" * 20_000 for n in range(2000)]
    path = export(
        {"NVTX_EVENTS": [(n, n + 1, 59, text, process + 1, None, 0) for n, text in enumerate(texts)]}
    )
    data = bytearray(path.read_bytes())
    further = data.index(b"z" * 4000) // 4096 * 4096
    data[further : further + 4] = b"\xff" * 4  # where the text goes on
    path.write_bytes(data)
    assert sorted(set(range(2000)) - set(read(path).slices["ts_ns"])) == [1000]


def test_only_a_header(tmp_path, large):
    path = tmp_path / "stub.sqlite"
    path.write_bytes(large.read_bytes()[:100])
    with pytest.raises(BadTrace):
        read(path)


@pytest.mark.parametrize("size", [0, 10, 90, 3000])
def test_less_than_a_page(tmp_path, large, size):
    path = tmp_path / "stub.sqlite"
    path.write_bytes(large.read_bytes()[:size])
    with pytest.raises(BadTrace):
        read(path)


@pytest.mark.parametrize(
    "statement",
    [
        (
            f"CREATE VIEW {KERNELS} AS "
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x AS start FROM n"
        ),
        f"CREATE VIEW {KERNELS} AS SELECT * FROM {RUNTIME}",
        f"CREATE TABLE {KERNELS} (start INTEGER, end INTEGER AS (length(zeroblob(900000000))))",
        (
            f"CREATE TABLE {KERNELS} "
            "(start TEXT, end BLOB, deviceId REAL, streamId, correlationId, globalPid, demangledName)"
        ),
        f"CREATE TABLE {KERNELS} (irrelevant)",
        'CREATE TABLE "CUPTI_ACTIVITY_KIND_""; DROP TABLE x; --" (start, "e""nd")',
    ],
)
def test_a_hostile_schema(export, process, statement):
    path = export({RUNTIME: [(10, 15, 0, process + 7, 1, 1)]}, statements=[statement])
    trace = read(path)
    assert trace.gpu_ops.is_empty()
    assert trace.slices.height == 1


@pytest.mark.parametrize("garbage", [b"[h     INT", b"\xdb\xff\xfe    "])
def test_a_damaged_definition_costs_its_table(export, process, garbage):
    """Found by fuzzing: SQLite quotes the whole definition, on many lines and in bytes that are no text."""
    path = export({RUNTIME: [(10, 15, 0, process + 7, 1, 1)], "OSRT_API": [(10, 15, process + 7, 7)]})
    data = path.read_bytes()
    definition = b"CREATE TABLE OSRT_API (start INTEGER"
    assert data.count(definition) == 1
    broken = definition[: -len(garbage)] + garbage
    path.write_bytes(data.replace(definition, broken))
    trace = read(path)
    assert trace.slices.filter(pl.col("category") == "runtime").height == 1
    if b"[" in garbage:
        assert "tables with a damaged definition are left out" in errors(trace)


def test_virtual_tables_are_not_touched(export):
    path = export()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "INSERT INTO sqlite_master VALUES ('table', 'OSRT_API', 'OSRT_API', 0, "
            "'CREATE VIRTUAL TABLE OSRT_API USING absent(x)')"
        )
    assert read(path).slices.is_empty()


def test_values_that_make_no_sense(export, process):
    kernels = [
        (100, 50, 0, 1, 7, 1, process, 4, 4, None, None),  # ends before it starts
        (None, 50, 0, 1, 7, 2, process, 4, 4, None, None),  # no start
        (200, None, 0, 1, 7, 3, process, 4, 4, None, None),  # no end
        (300, 310, -5, 1, 7, 4, process, 4, 4, None, None),  # no such GPU
        (
            400,
            410,
            0,
            1,
            None,
            2**63 - 1,
            process,
            999,
            999,
            None,
            None,
        ),  # no stream, no name, the largest id
        ("text", 410, 0, 1, 7, 6, process, 4, 4, None, None),
        (-(2**63), 2**63 - 1, 0, 1, 7, 7, process, 4, 4, None, None),  # longer than 64 bits can tell
    ]
    trace = read(export({KERNELS: kernels}))
    kept = trace.gpu_ops.select("ts_ns", "dur_ns", "correlation").rows()
    assert kept == [(-(2**63), 0, 7), (100, 0, 1), (200, 0, 3), (400, 10, 2**63 - 1)]
    said = " | ".join(trace.health["message"])
    assert "2 GPU operations left out: they have no start" in said
    assert "3 GPU operations have an end before their start, or none" in said
    assert "1 GPU operations left out: their device number makes no sense" in said


def test_gigantic_and_malformed_names(export, process):
    calls = [(10, 15, 0, process + 7, 1, 1), (20, 25, 0, process + 7, 2, 2)]
    path = export(
        {RUNTIME: calls},
        strings={1: "x" * 5_000_000},
        statements=["INSERT INTO StringIds VALUES (2, CAST(x'ff41' AS TEXT))"],
    )
    names = read(path).slices["name"].cast(pl.String).to_list()
    assert names == ["x" * (1 << 16), "�A"]


def test_strings_missing_altogether(export, process):
    path = export({RUNTIME: [(10, 15, 0, process + 7, 1, 1)]}, statements=["DROP TABLE StringIds"])
    assert read(path).slices["name"].to_list() == ["[unknown]"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_damage_gives_a_trace_or_a_typed_refusal(sample, data):
    path, whole = sample
    changed = bytearray(whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole)
    for _ in range(data.draw(st.integers(0, 12))):
        if changed:
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(changed)
    sniff(bytes(changed[: 1 << 16]), path.name)
    try:
        said = " | ".join(read(path).health["message"])
    except BadTrace as error:
        said = str(error)
    assert "\n" not in said


def test_a_value_that_sqlite_cannot_hold_in_memory_is_damage(export, process, monkeypatch):
    """Found by fuzzing: of some damaged lengths SQLite runs out of memory (MemoryError)."""

    class OutOfMemory:
        def execute(self, *_):
            raise MemoryError

    with open_database(export({"OSRT_API": [(10, 15, process + 7, 7)]})) as database:
        monkeypatch.setattr(database, "_connection", OutOfMemory())
        assert database._by_query("OSRT_API", {"start": pl.Int64}).is_empty()
        assert "a value of a damaged length is larger than memory" in database.damage[0]


def test_tables_of_millions_of_rows_take_the_fast_path_and_texts_are_read_once(export, process, monkeypatch):
    queried, query = [], Database._by_query
    monkeypatch.setattr(Database, "_by_query", lambda *given: queried.append(given[1]) or query(*given))
    rows = {
        "GPU_METRICS": [(10, 256 + 3, 1, 42)],
        "NVTX_EVENTS": [(1, None, 39, "loader", process + 3, None, 0), (2, 4, 59, "a", process + 3, None, 0)],
    }
    trace = read(export(rows))
    assert (trace.counters["value"].to_list(), trace.threads["name"].to_list()) == ([42.0], ["loader"])
    assert [queried.count(table) for table in rows] == [0, 1]
