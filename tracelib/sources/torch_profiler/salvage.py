"""Reads a piece of a trace that is not valid JSON, losing as few events as possible.

What is seen in the wild: lone backslashes of Windows paths (pytorch#98432, kineto#336), unescaped quotes and newlines in
names (pytorch#113001), control characters (pytorch#130622), bytes that are no UTF-8 (pytorch#136180), NaN and Infinity,
files cut short. The piece is halved at event boundaries until each part decodes or is a single event; a single event is
repaired if it can be, and else counted as lost.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from tracelib.sources.torch_profiler.chunks import boundaries
from tracelib.sources.torch_profiler.plain import Event, decode

__all__ = ["UNDECODABLE", "Salvaged", "decoded", "repaired", "salvage"]

UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrtu]|$)|\\u(?![0-9a-fA-F]{4})')
_SURROGATES = re.compile(r"(\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w)|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CONTROL = re.compile(r"[\x00-\x1f]")
_NOT_FINITE = re.compile(r"(?<=[:\[,\s])-?(?:NaN|nan|Infinity|inf|N/A)(?=\s*[,}\]])")
#: A string value up to the next key or the end of its object: what it would be if its quotes were escaped.
_VALUE = re.compile(r'("\w[\w .%/()-]*"\s*:\s*")(.*?)("(?=\s*(?:,\s*"\w[\w .%/()-]*"\s*:|\}|\])))', re.DOTALL)
_MISSING_COMMA = re.compile(r'\}(\s*)\{(?=\s*"\w)')
_EXTRA_COMMA = re.compile(r",(?=\s*[}\]])")


@dataclass
class Salvaged:
    """What came out of a piece of text; `tail` is the text after the list's closing bracket, None if it did not close."""

    events: list[Event] = field(default_factory=list)
    tail: bytes | None = None
    remarks: Counter[str] = field(default_factory=Counter)
    skipped_bytes: int = 0


def _in_string(match: re.Match[str]) -> str:
    text = _CONTROL.sub(" ", match[0])
    text = _BAD_ESCAPE.sub(lambda m: "\\" + m[0], text)
    return _SURROGATES.sub(lambda m: m[1] or "\\ufffd", text)


def _outside(text: str) -> str:
    text = _NOT_FINITE.sub("null", text)
    return _EXTRA_COMMA.sub("", _MISSING_COMMA.sub(r"},\1{", text))


def _quotes_escaped(text: str) -> str:
    """Escape the quotes inside of string values: a value ends where the next key follows, or its object ends."""
    return _VALUE.sub(lambda m: m[1] + re.sub(r'(?<!\\)"', r'\\"', m[2]) + m[3], text)


def repaired(text: bytes) -> list[str]:
    """Return texts that may be what the writer of the invalid JSON `text` meant, the smallest change first."""
    readable = text.decode("utf-8", "replace")
    fixed = []
    for candidate in (readable, _quotes_escaped(readable)):
        out, position = [], 0
        for found in _STRING.finditer(candidate):
            out += [_outside(candidate[position : found.start()]), _in_string(found)]
            position = found.end()
        fixed.append("".join([*out, _CONTROL.sub(" ", _outside(candidate[position:]))]))
    return fixed


def decoded(text: bytes) -> tuple[list[Event], bytes | None] | None:
    """Return the events of `text` and what follows the list's end in it; None if the text is damaged."""
    listed = b"[" + text + b"]"
    try:
        return decode(listed), None
    except UNDECODABLE as error:
        found = _TRAILING.search(str(error))
        if not found:
            return None
        end = int(found[1]) - 1  # msgspec names the byte after the first one that is too much
    try:
        return decode(listed[:end]), listed[end:-1]
    except UNDECODABLE:
        return None


def _single(text: bytes, result: Salvaged) -> bool:
    """Add the one event that `text` holds, repaired if need be; return False if it cannot be read."""
    for candidate in repaired(text):
        found = decoded(candidate.encode("utf-8", "replace"))
        if found:
            result.events += found[0]
            result.tail = found[1]
            result.remarks["repaired: invalid JSON"] += len(found[0])
            return True
    return False


def _halve(text: bytes, places: list[tuple[int, int]], start: int, stop: int, result: Salvaged) -> None:
    """Decode `text[start:stop]`, in halves while it cannot be, until the list ends."""
    if result.tail is not None:
        result.tail += text[start:stop]
        return
    found = decoded(text[start:stop])
    if found:
        result.events += found[0]
        result.tail = found[1]
        return
    inner = [place for place in places if start < place[0] and place[1] < stop]
    if inner:
        end, begin = inner[len(inner) // 2]
        _halve(text, inner, start, end, result)
        _halve(text, inner, begin, stop, result)
    elif not _single(text[start:stop], result):
        result.remarks["lost: not readable"] += 1
        result.skipped_bytes += stop - start


def salvage(text: bytes, *, last: bool) -> Salvaged:
    r"""Return the events in `text`, events separated by commas; if it is the `last` piece, the list may close in it.

    >>> [event.name for event in salvage(b'{"ph": "X", "name": "C:\\w"}, {"ph": "X", "na', last=True).events]
    ['C:\\w']
    """
    result = Salvaged()
    body = text.rstrip()
    if last and body.endswith(b","):
        body = body[:-1]
    if body.strip():
        _halve(body, boundaries(body), 0, len(body), result)
    if last and result.tail is None:
        result.remarks["cut short: the list of events does not end"] += 1
    return result
