"""Jira, through `jira` (pycontribs): files as attachments, the comment in wiki markup (the client speaks REST version 2)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from tracelib.errors import BadParameter, TraceError
from tracelib.report.tickets.markup import as_wiki
from tracelib.report.tickets.parcel import client, fitting, refusals_told, secret

if TYPE_CHECKING:
    from pathlib import Path

    from tracelib.report.tickets.parcel import Parcel

__all__ = ["ticket"]


class Issue:
    """One issue, `OPS-42`."""

    def __init__(self, key: str) -> None:
        self.key = key

    def uploads(self, sent: Parcel) -> tuple[Path, ...]:
        """Take all files."""
        return sent.files

    def comment(self, sent: Parcel) -> str:
        """Write wiki markup."""
        return as_wiki(sent.comment)

    def by_hand(self, sent: Parcel) -> list[str]:  # noqa: ARG002 (the protocol's signature)
        """Leave nothing to do."""
        return []

    def send(self, sent: Parcel) -> list[str]:
        """Ask for the server's limit, attach the files, then comment."""
        module = client("jira")
        done: list[str] = []
        with refusals_told("Jira", done, module.JIRAError):
            server = _server(module)
            limits = server.attachment_meta()
            if not limits.get("enabled", False):
                raise TraceError("Jira: attachments are switched off on this server. Nothing was sent.")
            fitting(sent.files, int(limits["uploadLimit"]), "this Jira")
            for path in sent.files:
                with path.open("rb") as file:
                    server.add_attachment(self.key, file, path.name)
                done.append(path.name)
            server.add_comment(self.key, self.comment(sent))
        return [*done, f"comment on {self.key}"]


def _server(module: Any) -> Any:
    url, token = secret("JIRA_URL"), secret("JIRA_TOKEN", "JIRA_API_TOKEN")
    user = os.environ.get("JIRA_USER")  # Cloud wants the account with its token; Data Center a token alone
    how = {"basic_auth": (user, token)} if user else {"token_auth": token}
    return module.JIRA(url, get_server_info=False, max_retries=1, **how)


def ticket(address: str) -> Issue:
    """Return the issue called `address`."""
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*-\d+", address):
        raise BadParameter("--to", f"jira:{address}", ["jira:OPS-42"])
    return Issue(address)
