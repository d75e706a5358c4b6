"""Lines of spans, sorted and disjoint, of which the second implementation is made."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

Span = tuple[int, int, Any]


class Doing(NamedTuple):
    """What a thread was at."""

    cause: str
    sub: str | None
    waits_for: str | None
    which: int  # the slice; of a sample, a negative number


def cut(line: list[Span], a: int, b: int) -> Iterator[Span]:
    """Yield [a, b) in parts, each with what the sorted, disjoint `line` says there (None = nothing)."""
    if a >= b:
        return
    at = a
    first = max(0, bisect_right(line, a, key=lambda span: span[0]) - 1)
    for n in range(first, len(line)):
        start, stop, what = line[n]
        if start >= b:
            break
        if stop > at:
            if start > at:
                yield at, start, None
            yield max(start, at), min(stop, b), what
            at = min(stop, b)
    if at < b:
        yield at, b, None


def merged(spans: list[Span]) -> list[Span]:
    """Join neighbours that touch and say the same."""
    out: list[Span] = []
    for a, b, what in sorted(spans, key=lambda span: span[:2]):
        if out and out[-1][1] == a and out[-1][2] == what:
            out[-1] = (out[-1][0], b, what)
        else:
            out.append((a, b, what))
    return out


def covered(spans: list[Span]) -> list[Span]:
    """Return the time that they cover together; those that touch are one."""
    out: list[Span] = []
    for a, b, what in sorted(spans, key=lambda span: span[:2]):
        if out and a <= out[-1][1]:
            out[-1] = (out[-1][0], max(b, out[-1][1]), what)
        else:
            out.append((a, b, what))
    return out
