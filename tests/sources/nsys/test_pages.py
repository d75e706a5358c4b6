"""The fast path against `sqlite3`, value by value; and what it leaves to `sqlite3`."""

import os
import sqlite3

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelib.sources.nsys.database import open_database
from tracelib.sources.nsys.pages import Pages, Unusual

WIDTHS = [
    0,
    1,
    127,
    128,
    -1,
    -128,
    32767,
    -32768,
    2**23 - 1,
    -(2**23),
    2**31 - 1,
    -(2**31),
    2**47 - 1,
    -(2**47),
    2**63 - 1,
    -(2**63),
]


NINE_INTEGERS = ", ".join(f"{letter} INTEGER" for letter in "abcdefghi")


def write(path, rows, definition=NINE_INTEGERS, page_size=4096):
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size = {page_size}")
    connection.execute(f"CREATE TABLE t ({definition})")
    connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * (definition.count(',') + 1))})", rows)
    connection.commit()
    connection.close()
    return path


def by_page(path, columns, table="t"):
    """Return the rows of the columns by the fast path, and the number of damaged pages."""
    with sqlite3.connect(path) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        frame, damaged = Pages.of(descriptor).read(root, [names.index(column) for column in columns], columns)
    finally:
        os.close(descriptor)
    return frame.rows(), damaged


VALUE = st.one_of(st.none(), st.sampled_from(WIDTHS), st.integers(-(2**63), 2**63 - 1))


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(*[VALUE] * 9), max_size=40), page_size=st.sampled_from([512, 4096, 65536]))
def test_every_width_and_null(tmp_path_factory, rows, page_size):
    path = write(tmp_path_factory.mktemp("pages") / "t.sqlite", rows, page_size=page_size)
    columns = ["i", "a", "d"]
    expected = [(row[8], row[0], row[3]) for row in rows]
    assert by_page(path, columns) == (expected, 0)


def test_many_pages_in_a_deep_tree_with_holes(tmp_path):
    """Rows deleted and others inserted between them: pages out of order, free blocks inside."""
    path = write(
        tmp_path / "t.sqlite",
        [(n, n * n, None, 0, 1, -n, n << 20, n << 40, n % 7) for n in range(60_000)],
        page_size=512,
    )
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM t WHERE rowid % 3 = 0")
        connection.executemany(
            "INSERT INTO t (rowid, a, i) VALUES (?, ?, ?)", [(n, n, -n) for n in range(3, 60_000, 6)]
        )
        expected = connection.execute("SELECT a, c, f, i FROM t ORDER BY rowid").fetchall()
    assert by_page(path, ["a", "c", "f", "i"]) == (expected, 0)


@pytest.mark.parametrize(
    ("rows", "definition", "statement"),
    [
        ([(1, 2.5)], "a INTEGER, b INTEGER", ""),  # a float
        ([(1, "x" * 10)], "a INTEGER, b INTEGER", ""),  # a text
        ([(1, b"\0\1")], "a INTEGER, b INTEGER", ""),  # a blob
        ([("x" * 9000, 1)], "a TEXT, b INTEGER", ""),  # a row that continues on other pages
        ([(1,)], "a INTEGER", "ALTER TABLE t ADD COLUMN b INTEGER DEFAULT 7"),  # rows older than the column
    ],
)
def test_the_unusual_is_left_to_sqlite(tmp_path, rows, definition, statement):
    path = write(tmp_path / "t.sqlite", rows, definition)
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    with pytest.raises(Unusual):
        by_page(path, ["b"])


def test_a_name_of_the_row_id_is_not_in_the_row(tmp_path):
    """SQLite stores NULL in an INTEGER PRIMARY KEY; an INT one is an ordinary column."""
    path = write(tmp_path / "t.sqlite", [(5, 6), (9, 8)], "a INTEGER PRIMARY KEY, b INTEGER")
    with open_database(path) as database:
        assert database.read("t", {"a": pl.Int64, "b": pl.Int64}).rows() == [(5, 6), (9, 8)]
    path = write(tmp_path / "t.sqlite", [(5, 6), (9, 8)], "a INT PRIMARY KEY, b INTEGER")
    with open_database(path) as database:
        assert database.read("t", {"a": pl.Int64, "b": pl.Int64}).rows() == [(5, 6), (9, 8)]


def test_values_of_the_wrong_type_are_null(tmp_path):
    path = write(tmp_path / "t.sqlite", [(1, "word"), (2, b"blob"), (3, 4)], "a INTEGER, b INTEGER")
    with open_database(path) as database:
        assert database.read("t", {"a": pl.Int64, "b": pl.Int64, "c": pl.Int64}).rows() == [
            (1, None, None),
            (2, None, None),
            (3, 4, None),
        ]


def test_a_table_without_row_ids(tmp_path):
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER) WITHOUT ROWID")
        connection.execute("INSERT INTO t VALUES (5, 6)")
    with open_database(path) as database:
        assert database.read("t", {"b": pl.Int64, "a": pl.Int64}).rows() == [(6, 5)]


@pytest.mark.corpus
def test_both_paths_agree_on_every_integer_column_of_every_file(corpus, monkeypatch):
    """All columns that are integers throughout, each table at once; most must take the fast path."""
    fast = slow = 0
    for path in sorted((corpus / "nsys").rglob("*.sqlite")):
        if "truncated" in path.name:
            continue
        with open_database(path) as database:
            for table, columns in database.tables.items():
                schema = dict.fromkeys(columns, pl.Int64)
                quick = database._by_page(table, schema)
                slow += quick is None
                if quick is not None:
                    fast += 1
                    assert quick.equals(database._by_query(table, schema)), (path.name, table)
            assert not database.damage
    assert fast > 100 < slow  # names and texts make up the rest


def test_a_page_of_zeros_costs_its_own_rows(tmp_path):
    rows = [(n, n, n, n, n, n, n, n, n) for n in range(5000)]
    path = write(tmp_path / "t.sqlite", rows)
    data = bytearray(path.read_bytes())
    data[10 * 4096 : 11 * 4096] = bytes(4096)
    path.write_bytes(data)
    found, damaged = by_page(path, ["a", "i"])
    assert damaged == 1
    kept = [row[0] for row in found]
    assert kept == sorted(kept)
    assert all(a == i for a, i in found)
    assert 4800 < len(found) < 5000


@settings(max_examples=60, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(4096, 40 * 4096 - 1), st.integers(0, 255)), min_size=1, max_size=20
    )
)
def test_flipped_bytes_never_break_out(damaged_table, changes):
    """Any byte behind the schema may be anything: the table still gives rows or says what is wrong."""
    path, data = damaged_table
    changed = bytearray(data)
    for at, byte in changes:
        changed[at % len(data)] = byte
    path.write_bytes(changed)
    with open_database(path) as database:
        frame = database.read("t", {"a": pl.Int64, "i": pl.Int64})
    assert frame.height <= 5400


@pytest.fixture(scope="module")
def damaged_table(tmp_path_factory):
    path = write(
        tmp_path_factory.mktemp("pages") / "t.sqlite", [(n, n, None, n, n, n, n, n, -n) for n in range(5000)]
    )
    return path, path.read_bytes()


@pytest.mark.parametrize("kind", ["INTEGER", "REAL", ""])
@pytest.mark.parametrize("others", [[], [0.5], ["a text"], [0.5, None, "b"]])
def test_floats_are_what_sqlite_gives_whichever_path_they_take(tmp_path, kind, others):
    """SQLite stores a float without a fraction as an integer where the column may hold either."""
    values = [1, None, -(2**40), 2**53 + 1, 3.0, *others]
    path = write(
        tmp_path / "t.sqlite", [(n, value) for n, value in enumerate(values)], f"n INTEGER, v {kind}"
    )
    expected = [None if isinstance(value, str) or value is None else float(value) for value in values]
    with open_database(path) as database:
        frame = database.read("t", {"n": pl.Int64, "v": pl.Float64})
    assert frame.schema == {"n": pl.Int64, "v": pl.Float64}
    assert frame["v"].to_list() == expected
