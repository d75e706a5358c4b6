"""Which files are exports of nsys."""

import sqlite3

import pytest

from tracelib.errors import BadTrace
from tracelib.sources.nsys import read, sniff
from tracelib.sources.nsys.tables import SQLITE


def test_an_export_is_recognised_by_its_enumerations_too():
    """The first pages of a large export need not hold the definitions of its other tables."""
    head = (
        SQLITE.ljust(100)
        + b"\x05"
        + b"CREATE TABLE ENUM_NSYS_EVENT_TYPE (id); CREATE TABLE ENUM_CUDA_MEM_KIND (id)"
    )
    assert sniff(head, "any")
    assert not sniff(head.replace(b"ENUM_NSYS", b"ENUM_X"), "any")


def test_an_sqlite_file_of_others_is_refused(tmp_path):

    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE events (id)")
    with pytest.raises(BadTrace, match="it holds 1 table, none of Nsight Systems: 'events'"):
        read(path)
