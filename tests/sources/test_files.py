"""Streams of files' bytes: how far they have been read."""

import gzip
import io
import os

import pytest

import tracelib
from tracelib.sources.discovery import discover
from tracelib.sources.files import open_stream, sha256, watched


@pytest.mark.parametrize("packed", [False, True])
def test_a_watcher_is_told_how_far_a_file_has_been_read(tmp_path, packed):
    data = os.urandom(5 << 20)
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    told = []
    with watched(lambda file, share: told.append((file, share))), open_stream(path) as stream:
        assert io.BufferedReader(stream, 1 << 20).read() == data
    assert {file for file, _ in told} == {path}
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert len(set(shares)) > 3
    assert shares[-1] == 1.0
    with open_stream(path) as stream:
        stream.read(10)
    assert len(told) == len(shares)  # nobody watches any more


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_grows_as_fast_as_it_is_read_is_read_up_to_where_it_ended_at_first(tmp_path, packed):
    data = gzip.compress(os.urandom(1 << 20), 1) if packed else os.urandom(1 << 20)
    path = tmp_path / "x"
    path.write_bytes(data)

    def grow(*_):
        with path.open("ab") as file:
            file.write(data)

    with watched(grow), open_stream(path) as stream:
        read = io.BufferedReader(stream, 1 << 16).read()
    assert read == (gzip.decompress(data) if packed else data)
    assert path.stat().st_size > 2 * len(data)


def test_a_trace_that_grows_while_it_is_read_gives_what_was_there_and_says_so(tmp_path):
    event = '{{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":{},"dur":2}}'
    path = tmp_path / "x.json"
    path.write_text('{"schemaVersion":1,"traceEvents":[' + ",\n".join(map(event.format, range(0, 9000, 10))))

    def grow(*_):
        with path.open("a") as file:
            file.write(",\n" + event.format(9999))

    found = discover([path])
    with watched(grow):
        trace = tracelib.load(found, cache=False)
    assert trace.slices.height == 900
    assert "it changed while it was read" in " ".join(trace.health["message"])


def test_the_digest_is_that_of_the_whole_file(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
