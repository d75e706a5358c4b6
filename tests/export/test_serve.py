"""Perfetto's page can fetch a run once, and nothing else."""

import re
import socket
import time
import urllib.error
import urllib.request
from threading import Thread

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

import tracelib
from tracelib.errors import TraceError
from tracelib.export import serve


def test_the_page_can_fetch_a_run_once(results, monkeypatch, unused_port):
    monkeypatch.setattr(serve, "ADDRESS", ("127.0.0.1", unused_port))
    link = tracelib.open_in_perfetto(results.trace)
    page, _, address = link.url.partition("=")
    assert page == "https://ui.perfetto.dev/#!/?url"
    assert re.fullmatch(rf"http://127\.0\.0\.1:{unused_port}/[\w-]{{22}}/run\.pftrace", address)
    with pytest.raises(TraceError, match="Open the link that is waiting there"):
        tracelib.open_in_perfetto(results.trace)
    for path, host in (
        ("/etc/passwd", f"127.0.0.1:{unused_port}"),
        ("/run.pftrace", f"127.0.0.1:{unused_port}"),
        (address.partition(str(unused_port))[2], f"evil.example:{unused_port}"),
    ):
        asked = urllib.request.Request(f"http://127.0.0.1:{unused_port}{path}", headers={"Host": host})
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(asked)
    with urllib.request.urlopen(address) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
        trace = Trace()
        trace.ParseFromString(answer.read())
    assert len(trace.packet) > 1000
    link.waiting.join(timeout=10)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)


def test_idle_connections_hold_up_neither_the_page_nor_the_end(monkeypatch, unused_port):
    monkeypatch.setattr(serve, "ADDRESS", ("127.0.0.1", unused_port))
    server = serve._Once(1.5)
    server.content = b"trace"
    waiting = Thread(target=server.once, daemon=True)
    waiting.start()
    with (
        socket.create_connection(("127.0.0.1", unused_port)),
        socket.create_connection(("127.0.0.1", unused_port)),
    ):
        begin = time.monotonic()
        asked = urllib.request.Request(f"http://127.0.0.1:{unused_port}{server.path}", method="GET")
        monkeypatch.setattr(server, "path", "/other")
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(asked)
        waiting.join(timeout=20)
        assert not waiting.is_alive()
        assert time.monotonic() - begin < 15
