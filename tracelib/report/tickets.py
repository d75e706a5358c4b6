"""`tracelib attach`: a finished report onto a ticket, by each system's maintained client (extra `tickets`).

Credentials come from the environment only, and nothing is sent before every file was held against the
system's limit.
"""

import contextlib
import importlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelib.errors import BadParameter, TraceError, with_extra
from tracelib.options import LEVELS, OPTIONS
from tracelib.report.bundle import FILES, as_written, whole_folder
from tracelib.report.ticket import as_plain, as_wiki

GITHUB_API = "https://api.github.com"
#: What GitHub's page takes: docs.github.com, "Attaching files".
GITHUB_BYTES, GITHUB_PICTURE_BYTES = 25_000_000, 10_000_000
#: GitLab's default; what an installation has set only its administrators can ask for.
GITLAB_BYTES = 100 * 1024 * 1024
SLACK_API = "https://slack.com/api/"
#: What Slack takes at most; it has no call that tells it.
SLACK_BYTES = 1_000_000_000


@dataclass(frozen=True)
class Parcel:
    """A report's comment, in Markdown, and its files."""

    comment: str
    files: tuple[Path, ...]


class Ticket:
    """One ticket of one system, which takes all files and Markdown unless it says otherwise."""

    #: What an address looks like.
    address: str

    def __init__(self, address: str) -> None:
        raise NotImplementedError

    def uploads(self, parcel: Parcel) -> Sequence[Path]:
        """Return the files that the system takes through its API."""
        return parcel.files

    def comment(self, parcel: Parcel) -> str:
        """Return the comment in the system's markup."""
        return parcel.comment

    def by_hand(self, parcel: Parcel) -> Sequence[str]:  # noqa: ARG002 (most take everything)
        """Return what the API does not take, and how to do it by hand."""
        return ()

    def send(self, parcel: Parcel) -> list[str]:
        """Send it and return what was done, a line each."""
        raise NotImplementedError


class JiraIssue(Ticket):
    """Jira, through `jira` (pycontribs): files as attachments, the comment in wiki markup (REST v2)."""

    address = "jira:OPS-42"

    def __init__(self, key: str) -> None:
        self.key = _matched(r"[A-Z][A-Z0-9_]*-\d+", key, "jira")[0]

    def comment(self, parcel: Parcel) -> str:
        return as_wiki(parcel.comment)

    def send(self, parcel: Parcel) -> list[str]:
        module = _client("jira")
        done: list[str] = []
        with _refusals("Jira", done, module.JIRAError):
            server = self._server(module)
            limits = server.attachment_meta()
            if not limits.get("enabled", False):
                raise TraceError("Jira: attachments are switched off on this server. Nothing was sent.")
            _check_sizes(parcel.files, int(limits["uploadLimit"]), "this Jira")
            for path in parcel.files:
                with path.open("rb") as file:
                    server.add_attachment(self.key, file, path.name)
                done.append(path.name)
            server.add_comment(self.key, self.comment(parcel))
        return [*done, f"comment on {self.key}"]

    @staticmethod
    def _server(module: Any) -> Any:
        url, token = _secret("JIRA_URL"), _secret("JIRA_TOKEN", "JIRA_API_TOKEN")
        # Cloud wants the account with its token; Data Center a token alone.
        user = os.environ.get("JIRA_USER")
        login = {"basic_auth": (user, token)} if user else {"token_auth": token}
        return module.JIRA(url, get_server_info=False, max_retries=1, **login)


class GitHubIssue(Ticket):
    """GitHub, through `PyGithub`: the comment. Its API takes no files for issues; the page does, by hand."""

    address = "github:owner/repository#7"

    def __init__(self, address: str) -> None:
        match = _matched(r"([\w.-]+/[\w.-]+)#(\d+)", address, "github")
        self.repository, self.number = match[1], int(match[2])

    def uploads(self, parcel: Parcel) -> Sequence[Path]:  # noqa: ARG002 (it takes none)
        return ()

    def by_hand(self, parcel: Parcel) -> Sequence[str]:
        issue = f"{self.repository}#{self.number}"
        lines = [
            f"GitHub's API takes no files. Edit the comment on {issue} in the browser and drag these into it:"
        ]
        for path in parcel.files:
            limit = GITHUB_PICTURE_BYTES if path.suffix == ".png" else GITHUB_BYTES
            size = path.stat().st_size
            lines.append(f"  {path} ({size} bytes{', more than the page takes' if size > limit else ''})")
        return lines

    def send(self, parcel: Parcel) -> list[str]:
        module = _client("github")
        with _refusals("GitHub", [], module.GithubException):
            login = module.Auth.Token(_secret("GITHUB_TOKEN", "GH_TOKEN"))
            url = os.environ.get("GITHUB_API_URL", GITHUB_API)
            server = module.Github(auth=login, base_url=url, retry=None, lazy=True)
            issue = server.get_repo(self.repository).get_issue(self.number)
            return [f"comment {issue.create_comment(parcel.comment).html_url}"]


class GitLabIssue(Ticket):
    """GitLab, through `python-gitlab`: files are uploaded to the project, the comment links to them."""

    address = "gitlab:group/project#7"

    def __init__(self, address: str) -> None:
        match = _matched(r"([\w.-]+(?:/[\w.-]+)+)#(\d+)", address, "gitlab")
        self.project, self.number = match[1], int(match[2])

    def send(self, parcel: Parcel) -> list[str]:
        module = _client("gitlab")
        _check_sizes(parcel.files, GITLAB_BYTES, "GitLab by default")
        done: list[str] = []
        with _refusals("GitLab", done, module.exceptions.GitlabError):
            url = os.environ.get("GITLAB_URL", "https://gitlab.com")
            server = module.Gitlab(url, private_token=_secret("GITLAB_TOKEN"))
            # Not lazy: the client escapes a path twice when it uploads to a project it knows by path alone.
            project = server.projects.get(self.project)
            links = []
            for path in parcel.files:
                links.append(project.upload(path.name, filepath=str(path))["markdown"])
                done.append(path.name)
            body = "\n\n".join([parcel.comment.rstrip(), *links])
            project.issues.get(self.number, lazy=True).notes.create({"body": body})
        return [*done, f"comment on {self.project}#{self.number}"]


class SlackChannel(Ticket):
    """Slack, through `slack_sdk`: a message of plain text, and the files in its thread."""

    address = "slack:#channel"

    def __init__(self, name: str) -> None:
        self.name = _matched(r"#[\w-]+|[CGD][A-Z0-9]{6,}", name, "slack")[0]

    def comment(self, parcel: Parcel) -> str:
        return as_plain(parcel.comment)

    def send(self, parcel: Parcel) -> list[str]:
        _check_sizes(parcel.files, SLACK_BYTES, "Slack")
        sdk, errors = _client("slack_sdk"), _client("slack_sdk.errors")
        done: list[str] = []
        with _refusals("Slack", done, errors.SlackClientError):
            url = os.environ.get("SLACK_API_URL", SLACK_API)
            server = sdk.WebClient(token=_secret("SLACK_BOT_TOKEN", "SLACK_TOKEN"), base_url=url)
            message = server.chat_postMessage(
                channel=self.name, text=self.comment(parcel), mrkdwn=False, unfurl_links=False
            )
            done.append(f"message in {self.name}")
            files = [{"file": str(path), "filename": path.name, "title": path.name} for path in parcel.files]
            server.files_upload_v2(
                channel=message["channel"],
                thread_ts=message["ts"],
                file_uploads=files,
                request_file_info=False,
            )
        return [*done, *(path.name for path in parcel.files)]


class Folder(Ticket):
    """A folder in the place of a ticket: what would be attached, and the comment beside it.

    An earlier parcel is replaced; a folder that holds anything else is refused.
    """

    address = "file:DIRECTORY"

    def __init__(self, path: str) -> None:
        _matched(r"(?s).+", path, "file")
        self.path = Path(path).expanduser()

    def send(self, parcel: Parcel) -> list[str]:
        done: list[str] = []
        with _refusals(str(self.path), done), whole_folder(self.path) as made:
            for path in parcel.files:
                shutil.copyfile(path, made / path.name)
            (made / "summary.md").write_text(parcel.comment, encoding="utf-8")
        return [str(self.path / name) for name in (*(path.name for path in parcel.files), "summary.md")]


_TICKETS: dict[str, type[Ticket]] = {
    kind.address.partition(":")[0]: kind
    for kind in (JiraIssue, GitHubIssue, GitLabIssue, SlackChannel, Folder)
}
#: System -> what its addresses look like.
SYSTEMS = {system: ticket.address for system, ticket in _TICKETS.items()}


def ticket_of(address: str) -> Ticket:
    """Return the ticket at `address`, such as `jira:OPS-42`. Nothing is asked of any server yet.

    Raises BadParameter if the address is none of :data:`SYSTEMS`.
    """
    system, colon, rest = address.partition(":")
    if not colon or system not in _TICKETS:
        raise BadParameter("--to", address, SYSTEMS.values())
    return _TICKETS[system](rest)


def planned(report: Path, address: str, level: str = "strict") -> Iterator[str]:
    """Yield, line by line, exactly what :func:`attach` would send; asks no server and needs no credentials.

    Raises BadParameter, TraceError if the address is wrong, or `report` is not a report's folder, or
    was redacted less than `level` says.
    """
    parcel, ticket = parcel_of(report, level), ticket_of(address)
    yield f"to {address}"
    for path in ticket.uploads(parcel):
        yield f"file {path.name}, {path.stat().st_size} bytes"
    yield "comment:"
    yield from (f"  {line}".rstrip() for line in ticket.comment(parcel).splitlines())
    yield from ticket.by_hand(parcel)


def attach(report: Path, address: str, level: str = "strict") -> list[str]:
    """Send the report in the folder `report` to the ticket; return what was done, and what is left to do.

    Raises BadParameter if the address is none of :data:`SYSTEMS`; TraceError if the folder holds no report or
    one that was redacted less than `level` says, a credential or the client is missing, a file is too large,
    a file of the report is a link or is not as it was written, or the server refuses; the message says what
    was sent before that.
    """
    parcel, ticket = parcel_of(report, level), ticket_of(address)
    return [*ticket.send(parcel), *ticket.by_hand(parcel)]


def parcel_of(report: Path, level: str = "off") -> Parcel:
    """Return what is sent of the report in the folder `report`: all but the comment's own file."""
    summary = report / "summary.md"
    if not summary.is_file() or not (report / "report.html").is_file():
        raise TraceError(
            f"{report}: holds no report (report.html, summary.md). "
            f"Write one: tracelib report TRACES -o {report}."
        )
    _refuse_what_was_changed(report, level)
    written = _level_of(report)
    if LEVELS.index(written) > LEVELS.index(level):
        raise TraceError(
            f"{report}: was written with --redact {written}. Write it again with --redact {level}, "
            f"or send it as it is with --level {written}. Nothing was sent."
        )
    files = tuple(report / name for name in FILES if name != "summary.md" and (report / name).is_file())
    return Parcel(summary.read_text(encoding="utf-8"), files)


def _refuse_what_was_changed(report: Path, level: str) -> None:
    """Raise TraceError for a link, and for a file that is not as it was written unless all may be sent."""
    again = f"Write the report again: tracelib report TRACES -o {report}-2"
    for path in (report / name for name in FILES):
        if path.is_symlink():
            raise TraceError(f"{path}: is a link, which may lead to anything. {again}. Nothing was sent.")
        if level != "off" and path.exists() and not as_written(path):
            raise TraceError(
                f"{path}: is not as tracelib wrote it, so nobody knows what it tells. {again}, "
                "or send it as it is with --level off. Nothing was sent."
            )


def _level_of(report: Path) -> str:
    """Return how the report in a folder was redacted; "off" if it does not say."""
    try:
        notebook = json.loads((report / "root_cause.ipynb").read_text(encoding="utf-8"))
        level = notebook["metadata"]["papermill"]["parameters"].get("redact", OPTIONS["redact"].default)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return "off"
    return level if level in LEVELS else "off"


def _matched(pattern: str, address: str, system: str) -> re.Match[str]:
    match = re.fullmatch(pattern, address)
    if not match:
        raise BadParameter("--to", f"{system}:{address}", [SYSTEMS[system]])
    return match


def _secret(*names: str) -> str:
    """Return the first of the environment's variables `names` that is set.

    Credentials are taken from nowhere else: a command line is seen by every user of the machine.
    """
    for name in names:
        if value := os.environ.get(name):
            return value
    raise TraceError(f"credentials: set {' or '.join(names)} in the environment.")


def _client(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise TraceError(
            f"the client library {error.name!r} is not installed: {with_extra('tickets')}."
        ) from None


def _check_sizes(files: Sequence[Path], limit: int, whose: str) -> None:
    large = [f"{path.name} ({path.stat().st_size} bytes)" for path in files if path.stat().st_size > limit]
    if large:
        raise TraceError(f"{', '.join(large)}: larger than {whose} takes ({limit} bytes). Nothing was sent.")


@contextlib.contextmanager
def _refusals(system: str, done: Sequence[str], *kinds: type[Exception]) -> Iterator[None]:
    """Turn the client's own errors `kinds` into one line that says what was `done` before."""
    refusals: tuple[type[Exception], ...] = (*kinds, OSError)
    try:
        yield
    except refusals as error:
        before = f" Sent before that: {'; '.join(done)}." if done else " Nothing was sent."
        reason = " ".join(str(error).split())[:300]
        raise TraceError(f"{system}: {reason}.{before}") from error
