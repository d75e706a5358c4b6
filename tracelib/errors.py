"""What can go wrong, as types a caller can catch.

::

    TraceError
    ├── UnknownFormat       none of the readers knows this file
    ├── BadTrace            the format is known, the content cannot be read
    ├── MissingEvents       the trace is fine but lacks what the question needs
    └── BadParameter        a parameter's name or value is wrong

Every message says what is wrong, where, and what to do about it, on one line: the command line prints it as
it is.
"""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from tracelib.words import plain

EXCERPT_CHARACTERS = 80


def with_extra(name: str) -> str:
    """Return how to install an extra of ours: by folder, as the name on the index is another project's."""
    return f"pip install '.[{name}]' in tracelib's own folder"


class TraceError(Exception):
    """The root: anything that tracelib raises on purpose."""


class UnknownFormat(TraceError):
    """No reader recognises the file at `path`; `looked_for` names the formats that were tried."""

    def __init__(self, path: Path, looked_for: Sequence[str], reason: str = "") -> None:
        self.path, self.looked_for, self.reason = path, tuple(looked_for), reason
        why = reason or f"the content is none of: {', '.join(looked_for)}"
        super().__init__(f"{path}: {why}. Give a trace file, or a directory that holds some.")


class BadTrace(TraceError):
    """The file at `path` is of `format`, but cannot be read.

    `where` is a position a person can go to ("byte 1234", "line 17", "table X"), `excerpt` what stands
    there.
    """

    def __init__(
        self,
        path: Path,
        format: str,  # noqa: A002  (the word for it)
        where: str,
        reason: str,
        excerpt: str = "",
        advice: str = "",
    ) -> None:
        self.path, self.format, self.where, self.reason, self.excerpt = path, format, where, reason, excerpt
        at = f" at {where}" if where else ""
        quoted = f": {plain(excerpt, EXCERPT_CHARACTERS)!r}" if excerpt else ""
        then = f" {advice}" if advice else ""
        super().__init__(f"{path}: not readable as {format}{at}: {reason}{quoted}.{then}")


class MissingEvents(TraceError):
    """The question needs events that no source holds; `how_to_record` is the command that would give them."""

    def __init__(self, needed: str, found: Sequence[str], how_to_record: str) -> None:
        self.needed, self.found, self.how_to_record = needed, tuple(found), how_to_record
        have = ", ".join(found) or "nothing"
        super().__init__(f"needs {needed}; these files hold {have}. Record it with: {how_to_record}")


class BadParameter(TraceError):
    """A parameter is unknown or has a value that is not allowed."""

    def __init__(self, name: str, value: object, allowed: Iterable[object]) -> None:
        self.name, self.value, self.allowed = name, value, tuple(str(a) for a in allowed)
        close = difflib.get_close_matches(str(value), self.allowed, n=1) or difflib.get_close_matches(
            name, self.allowed, n=1
        )
        self.did_you_mean = close[0] if close else None
        hint = f" Did you mean {self.did_you_mean!r}?" if self.did_you_mean else ""
        shown = repr(str(value) if isinstance(value, PurePath) else value)
        super().__init__(f"{name}={shown} is not allowed here.{hint} Allowed: {', '.join(self.allowed)}")
