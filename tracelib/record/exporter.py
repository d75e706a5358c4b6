"""What `tracelib check` measured, for Prometheus: as text for a file, or served on a port.

Definitions: https://prometheus.io/docs/instrumenting/exposition_formats/ (0.0.4) and
https://prometheus.io/docs/specs/om/open_metrics_spec/; of gauges, the second is the first and an end mark.
"""

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from typing import Any

from tracelib.data import data
from tracelib.errors import BadParameter
from tracelib.record.check import STATES, Measured, Verdict

METRICS: dict[str, dict[str, str]] = data(__file__, "metrics.toml")
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def exposition(verdict: Verdict) -> str:
    """Return what was measured in Prometheus's text format; what the machine does not count is left out."""
    figures = _figures(verdict)
    return "".join(
        f"# HELP {name} {about['help']}\n# TYPE {name} gauge\n" + "".join(f"{name}{line}\n" for line in lines)
        for name, about in METRICS.items()
        if (lines := list(_lines(figures[about["of"]], about)))
    )


def _figures(verdict: Verdict) -> dict[str, Any]:
    shown = verdict.measured
    nobody = shown.running is None  # to be watched: then these are no zeros
    return vars(shown) | {
        "state": {state: int(state == verdict.state) for state in STATES},
        "pressure": {shown.pressure_from: shown.pressure} if shown.pressure_from else {},
        "run_queue_wait": _run_queue_wait(shown),
        "cpus": None if nobody else shown.cpus,
    }


def _run_queue_wait(shown: Measured) -> float | None:
    if shown.running is None or shown.waiting is None:
        return None
    wanted = shown.running + shown.waiting
    return shown.waiting / wanted if wanted else 0.0


def _lines(figure: Any, about: Mapping[str, str]) -> Iterator[str]:
    if not isinstance(figure, Mapping):
        yield from [] if figure is None else [f" {figure:.9g}"]
        return
    for key, value in figure.items():
        number = getattr(value, about["field"]) if "field" in about else value
        yield f'{{{about["label"]}="{key}"}} {number:.9g}'


# -------------------- on a port
def address(text: str) -> tuple[str, int]:
    """Return host and port of `[HOST:]PORT`; without a host this machine alone can ask.

    Raises BadParameter if it is written otherwise.
    """
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 0xFFFF or (":" in host and not host.startswith("[")):
        raise BadParameter("--serve", text, ["PORT", "HOST:PORT", "[IPv6]:PORT"])
    return host.strip("[]") or "127.0.0.1", int(port)


@dataclass
class Page:
    """What is served at the moment; empty until the first window has passed."""

    text: str = ""


def serve(at: tuple[str, int], measure: Callable[[], Verdict], said: Callable[[str], object] = print) -> None:
    """Serve what `measure` returns at /metrics, window after window, until SIGINT or SIGTERM.

    `said` is told where. Who asks under a name that is not this machine's is refused (:func:`allowed`).

    Raises OSError if the port cannot be had, or what `measure` raises.
    """
    page = Page()
    with _server(at, page) as server:
        host, port = server.server_address[:2]
        shown = f"[{host!s}]" if server.address_family == AF_INET6 else str(host)
        said(f"http://{shown}:{port}/metrics")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    page.text = exposition(measure())
        finally:
            server.shutdown()


def allowed(asked: str | None, listening: str) -> bool:
    """Say whether a request whose Host header is `asked` means this server, which listens on `listening`.

    A page in somebody's browser whose name was made to lead here (DNS rebinding) asks under that name.
    Whoever asks under an address or under this machine's name is not such a page.
    """
    host = (asked or "").strip().lower()
    name, _, port = host.rpartition(":")
    host = (name if port.isdigit() else host).strip("[]").removesuffix(".")
    given, own = _ip(host), _ip(listening)
    if host in ("localhost", listening.lower()) or (given and (given.is_loopback or given == own)):
        return True
    here = socket.gethostname().lower()
    return bool(own and own.is_unspecified and (given or host in (here, here.partition(".")[0])))


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _server(at: tuple[str, int], page: Page) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0  # a client that says nothing holds no thread
        server_version, sys_version = "tracelib", ""

        def do_GET(self) -> None:
            if not allowed(self.headers["Host"], at[0]):
                self.send_error(HTTPStatus.MISDIRECTED_REQUEST, explain="Ask by address.")
            elif self.path.partition("?")[0] != "/metrics":
                self.send_error(HTTPStatus.NOT_FOUND, explain="There is /metrics.")
            elif not page.text:
                self.send_error(
                    HTTPStatus.SERVICE_UNAVAILABLE, explain="The first window has not passed yet."
                )
            else:
                self._answer("application/openmetrics-text" in self.headers.get("Accept", ""))

        def _answer(self, open_metrics: bool) -> None:  # noqa: FBT001
            body = (page.text + ("# EOF\n" if open_metrics else "")).encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", OPEN_METRICS if open_metrics else TEXT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: it is asked every few seconds."""

    class Server(ThreadingHTTPServer):
        address_family = AF_INET6 if ":" in at[0] else AF_INET
        daemon_threads = True

    return Server(at, Handler)
