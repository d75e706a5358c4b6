"""A finished report onto a ticket: `tracelib attach`, through the maintained client of each system (extra `tickets`).

Each system's file has one function `ticket(address) -> Ticket`. Credentials come from the environment only, and nothing is
sent before every file was held against the system's limit.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from tracelib.errors import BadParameter
from tracelib.report.tickets.parcel import parcel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracelib.report.tickets.parcel import Ticket

__all__ = ["SYSTEMS", "attach", "planned", "ticket_of"]

#: system -> what its addresses look like
SYSTEMS = {
    "jira": "jira:OPS-42",
    "github": "github:owner/repository#7",
    "gitlab": "gitlab:group/project#7",
    "slack": "slack:#channel",
    "file": "file:DIRECTORY",
}


def ticket_of(address: str) -> Ticket:
    """Return the ticket at `address`, such as `jira:OPS-42`. Nothing is asked of any server yet.

    Raises
    ------
    BadParameter
        The address is none of :data:`SYSTEMS`.

    """
    system, colon, rest = address.partition(":")
    if not colon or system not in SYSTEMS:
        raise BadParameter("--to", address, SYSTEMS.values())
    module = importlib.import_module(f"tracelib.report.tickets.on_{system}")
    return cast("Callable[[str], Ticket]", module.ticket)(rest)


def planned(report: Path, address: str) -> Iterator[str]:
    """Yield, line by line, exactly what :func:`attach` would send; asks no server and needs no credentials.

    Raises
    ------
    BadParameter, TraceError
        The address is wrong, or `report` is no report's folder.

    """
    sent, to = parcel(report), ticket_of(address)
    yield f"to {address}"
    for path in to.uploads(sent):
        yield f"file {path.name}, {path.stat().st_size} bytes"
    yield "comment:"
    yield from (f"  {line}".rstrip() for line in to.comment(sent).splitlines())
    yield from to.by_hand(sent)


def attach(report: Path, address: str) -> list[str]:
    """Send the report in the folder `report` to the ticket and return what was done, and what is left to do by hand.

    Raises
    ------
    BadParameter
        The address is none of :data:`SYSTEMS`.
    TraceError
        The folder holds no report, a credential or the client is missing, a file is too large, or the server refuses; the
        message says what was sent before that.

    """
    sent, to = parcel(report), ticket_of(address)
    return [*to.send(sent), *to.by_hand(sent)]
