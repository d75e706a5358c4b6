"""GitLab, through `python-gitlab`: files are uploaded to the project, the comment links to them."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from tracelib.errors import BadParameter
from tracelib.report.tickets.parcel import client, fitting, refusals_told, secret

if TYPE_CHECKING:
    from pathlib import Path

    from tracelib.report.tickets.parcel import Parcel

__all__ = ["ticket"]

#: GitLab's default; what an installation has set only its administrators can ask for.
LIMIT = 100 * 1024 * 1024


class Issue:
    """One issue, `group/project#7`."""

    def __init__(self, project: str, number: int) -> None:
        self.project, self.number = project, number

    def uploads(self, sent: Parcel) -> tuple[Path, ...]:
        """Take all files."""
        return sent.files

    def comment(self, sent: Parcel) -> str:
        """Keep Markdown; links to the files come below it."""
        return sent.comment

    def by_hand(self, sent: Parcel) -> list[str]:  # noqa: ARG002 (the protocol's signature)
        """Leave nothing to do."""
        return []

    def send(self, sent: Parcel) -> list[str]:
        """Upload the files, then comment with the links that the server gave."""
        module = client("gitlab")
        fitting(sent.files, LIMIT, "GitLab by default")
        done: list[str] = []
        with refusals_told("GitLab", done, module.exceptions.GitlabError):
            url = os.environ.get("GITLAB_URL", "https://gitlab.com")
            server = module.Gitlab(url, private_token=secret("GITLAB_TOKEN"))
            # Not lazy: of a project known by its path alone, the client escapes the path twice when it uploads.
            project = server.projects.get(self.project)
            links = []
            for path in sent.files:
                links.append(project.upload(path.name, filepath=str(path))["markdown"])
                done.append(path.name)
            body = "\n\n".join([self.comment(sent).rstrip(), *links])
            project.issues.get(self.number, lazy=True).notes.create({"body": body})
        return [*done, f"comment on {self.project}#{self.number}"]


def ticket(address: str) -> Issue:
    """Return the issue at `address`."""
    found = re.fullmatch(r"([\w.-]+(?:/[\w.-]+)+)#(\d+)", address)
    if not found:
        raise BadParameter("--to", f"gitlab:{address}", ["gitlab:group/project#7"])
    return Issue(found[1], int(found[2]))
