"""What goes onto a ticket, and what a system that takes it must be able to say."""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tracelib.errors import TraceError
from tracelib.report.bundle import FILES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["Parcel", "Ticket", "client", "fitting", "parcel", "refusals_told", "secret"]


@dataclass(frozen=True)
class Parcel:
    """A report's comment, in Markdown, and its files."""

    comment: str
    files: tuple[Path, ...]


class Ticket(Protocol):
    """One ticket of one system."""

    def uploads(self, sent: Parcel) -> Sequence[Path]:
        """Return the files that the system takes through its API."""

    def comment(self, sent: Parcel) -> str:
        """Return the comment in the system's markup."""

    def by_hand(self, sent: Parcel) -> Sequence[str]:
        """Return what the API does not take, and how to do it by hand."""

    def send(self, sent: Parcel) -> list[str]:
        """Send it and return what was done, a line each."""


def parcel(report: Path) -> Parcel:
    """Return what is to be sent of the report in the folder `report`: everything but the comment's own file.

    Raises
    ------
    TraceError
        The folder holds no report.

    """
    summary = report / "summary.md"
    if not summary.is_file() or not (report / "report.html").is_file():
        raise TraceError(
            f"{report}: holds no report (report.html, summary.md). Write one: tracelib report TRACES -o {report}."
        )
    files = tuple(report / name for name in FILES if name != "summary.md" and (report / name).is_file())
    return Parcel(summary.read_text(encoding="utf-8"), files)


def secret(*names: str) -> str:
    """Return the first of the environment's variables `names` that is set.

    Raises
    ------
    TraceError
        None is. Credentials are taken from nowhere else: a command line is seen by every user of the machine.

    """
    for name in names:
        if value := os.environ.get(name):
            return value
    raise TraceError(f"credentials: set {' or '.join(names)} in the environment.")


def client(module: str) -> Any:
    """Return the client library called `module`.

    Raises
    ------
    TraceError
        It is not installed.

    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise TraceError(
            f"the client library {error.name!r} is not installed: pip install 'tracelib-gpu[tickets]'."
        ) from None


def fitting(files: Sequence[Path], limit: int, whose: str) -> None:
    """Check every file against `limit` bytes.

    Raises
    ------
    TraceError
        One is larger: nothing was sent.

    """
    large = [f"{path.name} ({path.stat().st_size} bytes)" for path in files if path.stat().st_size > limit]
    if large:
        raise TraceError(f"{', '.join(large)}: larger than {whose} takes ({limit} bytes). Nothing was sent.")


@contextlib.contextmanager
def refusals_told(system: str, done: Sequence[str], *kinds: type[Exception]) -> Iterator[None]:
    """Turn the client's own errors `kinds` into one line that says what was `done` before."""
    refusals: tuple[type[Exception], ...] = (*kinds, OSError)
    try:
        yield
    except refusals as error:
        before = f" Sent before that: {'; '.join(done)}." if done else " Nothing was sent."
        said = " ".join(str(error).split())[:300]
        raise TraceError(f"{system}: {said}.{before}") from error
