"""GitHub, through `PyGithub`: the comment. Its API takes no files for issues; the page does, by hand."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from tracelib.errors import BadParameter
from tracelib.report.tickets.parcel import client, refusals_told, secret

if TYPE_CHECKING:
    from pathlib import Path

    from tracelib.report.tickets.parcel import Parcel

__all__ = ["ticket"]

API = "https://api.github.com"
#: What the page takes: docs.github.com, "Attaching files".
MEGABYTES, PICTURE_MEGABYTES = 25, 10


class Issue:
    """One issue or pull request, `owner/repository#7`."""

    def __init__(self, repository: str, number: int) -> None:
        self.repository, self.number = repository, number

    def uploads(self, sent: Parcel) -> list[Path]:  # noqa: ARG002 (the protocol's signature)
        """Take none."""
        return []

    def comment(self, sent: Parcel) -> str:
        """Keep Markdown."""
        return sent.comment

    def by_hand(self, sent: Parcel) -> list[str]:
        """Say which files to drag into the comment's box."""
        lines = [
            f"GitHub's API takes no files. Edit the comment on {self.repository}#{self.number} in the browser and drag these into it:"
        ]
        for path in sent.files:
            limit = (PICTURE_MEGABYTES if path.suffix == ".png" else MEGABYTES) * 1_000_000
            size = path.stat().st_size
            lines.append(f"  {path} ({size} bytes{', more than the page takes' if size > limit else ''})")
        return lines

    def send(self, sent: Parcel) -> list[str]:
        """Comment."""
        module = client("github")
        with refusals_told("GitHub", [], module.GithubException):
            login = module.Auth.Token(secret("GITHUB_TOKEN", "GH_TOKEN"))
            server = module.Github(
                auth=login, base_url=os.environ.get("GITHUB_API_URL", API), retry=None, lazy=True
            )
            made = server.get_repo(self.repository).get_issue(self.number).create_comment(sent.comment)
        return [f"comment {made.html_url}"]


def ticket(address: str) -> Issue:
    """Return the issue at `address`."""
    found = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", address)
    if not found:
        raise BadParameter("--to", f"github:{address}", ["github:owner/repository#7"])
    return Issue(found[1], int(found[2]))
