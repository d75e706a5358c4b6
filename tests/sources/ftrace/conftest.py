"""Reads texts given by tests."""

import pytest

from tracelib.sources.ftrace import read


@pytest.fixture
def trace_of(tmp_path):
    def make(text):
        path = tmp_path / "trace.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read(path)

    return make
