"""Perfetto's page can fetch a run once, and nothing else."""

import urllib.error
import urllib.request

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

import tracelib
from tracelib.errors import TraceError
from tracelib.export import serve


def test_the_page_can_fetch_a_run_once(results, monkeypatch, unused_port):
    monkeypatch.setattr(serve, "ADDRESS", ("127.0.0.1", unused_port))
    link = tracelib.open_in_perfetto(results.trace)
    address = f"http://127.0.0.1:{unused_port}/run.pftrace"
    assert link.url == f"https://ui.perfetto.dev/#!/?url={address}"
    with pytest.raises(TraceError, match="Open the link that is waiting there"):
        tracelib.open_in_perfetto(results.trace)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{unused_port}/etc/passwd")
    with urllib.request.urlopen(address) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
        trace = Trace()
        trace.ParseFromString(answer.read())
    assert len(trace.packet) > 1000
    link.waiting.join(timeout=10)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)
