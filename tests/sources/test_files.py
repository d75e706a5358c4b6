"""Streams of files' bytes: how far they have been read."""

import gzip
import io
import os

import pytest

from tracelib.sources.files import open_stream, watched


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
