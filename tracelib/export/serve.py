"""Opens a run in Perfetto's own page, which fetches it once from this machine: nothing is uploaded.

Any page and any user of this machine can ask this address: whoever does not know the link's random path, or
came by another name of this machine (DNS rebinding), gets nothing.
"""

from __future__ import annotations

import http.server
import secrets
import threading
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelib.errors import TraceError
from tracelib.sources.programs import Scratch

if TYPE_CHECKING:
    from tracelib.trace import Trace

ORIGIN = "https://ui.perfetto.dev"
#: The one address but HTTPS from which that page's policy lets it fetch a trace.
ADDRESS = ("127.0.0.1", 9001)
TIMEOUT_S = 120
#: A connection that says nothing for so long is closed, and so often is looked whether the time is over.
IDLE_S, POLL_S = 5, 0.2


class PerfettoLink:
    """The link under which Perfetto's page opens the trace; Jupyter shows it to be clicked."""

    def __init__(self, url: str, waiting: threading.Thread) -> None:
        self.url = url
        #: Ends when the page has fetched the trace, or after two minutes.
        self.waiting = waiting

    def __repr__(self) -> str:
        return f"{self.url} (fetched once, within {TIMEOUT_S} s)"

    def _repr_html_(self) -> str:
        link = f'<a href="{self.url}" target="_blank" rel="noopener">Open in Perfetto</a>'
        return f"{link} (fetched once, within {TIMEOUT_S} s)"


def open_in_perfetto(run: Trace, *, browser: bool = False, timeout_s: float = TIMEOUT_S) -> PerfettoLink:
    """Serve `run` once on 127.0.0.1:9001 and return the link that opens it; `browser` opens it at once.

    The file is written to a temporary folder and removed when it was fetched, or after `timeout_s`.

    Raises TraceError if something else uses the port, most often a link that was not clicked yet.
    """
    from tracelib.analyses.results import analyse  # noqa: PLC0415 (takes seconds: only when asked)
    from tracelib.export.perfetto import write_perfetto  # noqa: PLC0415
    from tracelib.findings import diagnose  # noqa: PLC0415

    server = _server(timeout_s)
    results = analyse(run)
    with Scratch() as folder:
        path = Path(folder) / "run.pftrace"
        write_perfetto(results, diagnose(results), path)
        server.content = path.read_bytes()
    waiting = threading.Thread(target=server.once, daemon=True)
    waiting.start()
    link = PerfettoLink(f"{ORIGIN}/#!/?url=http://{ADDRESS[0]}:{ADDRESS[1]}{server.path}", waiting)
    if browser:
        webbrowser.open(link.url)
    return link


def _server(timeout_s: float) -> _Once:
    try:
        return _Once(timeout_s)
    except OSError as error:
        where = f"{ADDRESS[0]}:{ADDRESS[1]}"
        raise TraceError(
            f"{where}: {error.strerror}. Open the link that is waiting there, or wait for it to end."
        ) from None


class _Once(http.server.ThreadingHTTPServer):
    """Answers until the trace was fetched whole or the time is over, then closes."""

    allow_reuse_address = True
    block_on_close = False
    timeout = POLL_S

    def __init__(self, timeout_s: float) -> None:
        super().__init__(ADDRESS, _Answer)
        self.seconds = timeout_s
        self.content = b""
        self.path = f"/{secrets.token_urlsafe(16)}/run.pftrace"
        self.done = False

    def once(self) -> None:
        end = time.monotonic() + self.seconds
        while not self.done and time.monotonic() < end:
            self.handle_request()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


class _Answer(http.server.BaseHTTPRequestHandler):
    server: _Once
    timeout = IDLE_S

    def end_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", ORIGIN)
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def do_GET(self) -> None:
        host, port = self.server.server_address[:2]
        if self.headers["Host"] != f"{host!s}:{port}" or not secrets.compare_digest(
            self.path.encode(), self.server.path.encode()
        ):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        self.wfile.write(self.server.content)
        self.server.done = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (its name in the base class)
        """Say nothing: a notebook's output is not a server's log."""
