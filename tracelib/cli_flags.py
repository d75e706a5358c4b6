"""What the commands share: exit statuses, the values of flags, text that a terminal may be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelib.errors import BadParameter

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BROKEN_PIPE", "PART_FAILED", "USAGE_ERROR", "listed", "offsets", "one_line", "pair"]

USAGE_ERROR = 2
#: As a shell says it of a program that wrote into a closed pipe (128 + SIGPIPE).
BROKEN_PIPE = 141
PART_FAILED = 3


def pair(text: str, flag: str, form: str = "NAME=VALUE") -> tuple[str, str]:
    """Return the two sides of a flag's value; what it must look like is said by `form`."""
    name, equals, value = text.rpartition("=")
    if not (name and equals and value):
        raise BadParameter(flag, text, [form])
    return name, value


def offsets(texts: Sequence[str]) -> dict[str, int]:
    """Return what the `--offset` flags say: ns by file name or pattern."""
    pairs = dict(pair(text, "--offset") for text in texts)
    try:
        return {name: int(value) for name, value in pairs.items()}
    except ValueError:
        raise BadParameter("--offset", " ".join(texts), ["FILE=NS with NS a whole number"]) from None


def listed(text: str, flag: str, allowed: Sequence[str]) -> list[str]:
    """Return the comma-separated names of a flag, all of which must be allowed."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in allowed:
            raise BadParameter(flag, name, allowed)
    return names


def one_line(text: str) -> str:
    """Return text fit for a terminal: one line, no control characters (they come from untrusted files)."""
    return "".join(c if c.isprintable() else " " for c in text)
