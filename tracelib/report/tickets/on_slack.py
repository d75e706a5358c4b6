"""Slack, through `slack_sdk`: a message of plain text, and the files in its thread."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from tracelib.errors import BadParameter
from tracelib.report.tickets.markup import as_plain
from tracelib.report.tickets.parcel import client, fitting, refusals_told, secret

if TYPE_CHECKING:
    from pathlib import Path

    from tracelib.report.tickets.parcel import Parcel

__all__ = ["ticket"]

API = "https://slack.com/api/"
#: What Slack takes at most; it has no call that tells it.
LIMIT = 1_000_000_000


class Channel:
    """One channel, `#incidents` or its id."""

    def __init__(self, name: str) -> None:
        self.name = name

    def uploads(self, sent: Parcel) -> tuple[Path, ...]:
        """Take all files."""
        return sent.files

    def comment(self, sent: Parcel) -> str:
        """Write plain text: names out of traces can then format nothing."""
        return as_plain(sent.comment)

    def by_hand(self, sent: Parcel) -> list[str]:  # noqa: ARG002 (the protocol's signature)
        """Leave nothing to do."""
        return []

    def send(self, sent: Parcel) -> list[str]:
        """Post the message, then the files below it: uploading wants the channel's id, which the answer tells."""
        fitting(sent.files, LIMIT, "Slack")
        sdk, errors = client("slack_sdk"), client("slack_sdk.errors")
        done: list[str] = []
        with refusals_told("Slack", done, errors.SlackClientError):
            server = sdk.WebClient(
                token=secret("SLACK_BOT_TOKEN", "SLACK_TOKEN"), base_url=os.environ.get("SLACK_API_URL", API)
            )
            said = server.chat_postMessage(
                channel=self.name, text=self.comment(sent), mrkdwn=False, unfurl_links=False
            )
            done.append(f"message in {self.name}")
            files = [{"file": str(path), "filename": path.name, "title": path.name} for path in sent.files]
            server.files_upload_v2(
                channel=said["channel"], thread_ts=said["ts"], file_uploads=files, request_file_info=False
            )
        return [*done, *(path.name for path in sent.files)]


def ticket(address: str) -> Channel:
    """Return the channel called `address`."""
    if not re.fullmatch(r"#[\w-]+|[CGD][A-Z0-9]{6,}", address):
        raise BadParameter("--to", f"slack:{address}", ["slack:#channel"])
    return Channel(address)
