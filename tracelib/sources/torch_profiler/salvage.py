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
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tracelib.sources.torch_profiler.chunks import boundaries
from tracelib.sources.torch_profiler.plain import Event, decode

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["REPAIRED", "UNDECODABLE", "Salvaged", "decoded", "repaired", "salvage"]

T = TypeVar("T")
_values = msgspec.json.Decoder(list[msgspec.Raw]).decode

#: The remark on events that are kept although their text had to be changed.
REPAIRED = "repaired: invalid JSON"
UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrtu]|$)|\\u(?![0-9a-fA-F]{4})')
_SURROGATES = re.compile(r"(\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w)|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CONTROL = re.compile(r"[\x00-\x1f]")
_NOT_FINITE = re.compile(r"(?<=[:\[,\s])-?(?:NaN|nan|Infinity|inf|N/A)(?=\s*[,}\]])")
#: A string value up to the next key or the end of its object: what it would be if its quotes were escaped.
_VALUE = re.compile(r'("\w[\w .%/()-]*"\s*:\s*")(.*?)("(?=\s*(?:,\s*"\w[\w .%/()-]*"\s*:|\}|\])))', re.DOTALL)
_MISSING_COMMA = re.compile(r"\}(\s*)\{")
#: The start of an event, wherever it stands.
_START = re.compile(rb'\{\s*"(?:ph|name|cat|args|ts|pid|tid|dur|id|s)"\s*:')
_EXTRA_COMMA = re.compile(r",(?=\s*[}\]])")


#: The beginning of an event at the end of a file: too short to be told from a key by `boundaries`.
_BEGUN = re.compile(rb"(?<=\})\s*,\s*\{[^{}]*$")
#: An event that a wrong boundary has cut has at most so many parts; a damaged one has so many starts that are tried.
MOST_PARTS, MOST_STARTS = 8, 50


@dataclass
class Salvaged:
    """What came out of a piece of text; `tail` is the text after the list's closing bracket, None if it did not close."""

    events: list[Event] = field(default_factory=list)
    tail: bytes | None = None
    remarks: Counter[str] = field(default_factory=Counter)
    skipped_bytes: int = 0
    #: Parts next to each other, up to the last one, that could not be read so far.
    unread: list[bytes] = field(default_factory=list)

    def take(self, found: tuple[list[Event], bytes | None], remark: str = "") -> None:
        """Add events, and what follows the list if it has ended."""
        self.events += found[0]
        self.tail = found[1]
        if remark:
            self.remarks[remark] += len(found[0])

    def lose(self, text: bytes) -> None:
        """Count an event as lost."""
        self.remarks["lost: not readable"] += 1
        self.skipped_bytes += len(text)


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


def _listed(text: bytes, decoder: Callable[[bytes], list[T]]) -> tuple[list[T], bytes | None] | None:
    """Return the values in `text`, the inside of a list, and what follows the list's end in it; None if it is damaged."""
    listed = b"[" + text + b"]"
    try:
        return decoder(listed), None
    except UNDECODABLE as error:
        found = _TRAILING.search(str(error))
        if not found:
            return None
        end = int(found[1]) - 1  # msgspec names the byte after the first one that is too much
    try:
        return decoder(listed[:end]), listed[end:-1]
    except UNDECODABLE:
        return None


def decoded(text: bytes) -> tuple[list[Event], bytes | None] | None:
    """Return the events of `text` and what follows the list's end in it; None if the text is damaged."""
    return _listed(text, decode)


def _events(text: bytes) -> tuple[list[Event], bytes | None] | None:
    """Return what `decoded` returns, but None if something in it is no event: a part of one, cut where it must not be."""
    found = decoded(text)
    return found if found and all(isinstance(event.ph, str) for event in found[0]) else None


def _mixed(text: bytes, result: Salvaged) -> bool:
    """Add the events of a valid list that also holds other values; return False if `text` is something else."""
    values, tail = _listed(text, _values) or ([], None)
    events = [_events(bytes(value)) for value in values]
    if len(values) < 2 or not any(events):
        return False
    for value, found in zip(values, events, strict=True):
        if found:
            result.take(found)
        else:
            _repair(bytes(value), result)
    result.tail = tail
    return True


def _repair(text: bytes, result: Salvaged) -> None:
    """Add what can be read of a damaged part, else count it as lost."""
    if _mixed(text, result):
        return
    for start in [match.start() for match in _START.finditer(text, 1)][:MOST_STARTS]:
        if found := _events(text[start:]):  # whole events behind an unfinished one
            _repair(text[:start].rstrip(b", \t\r\n"), result)
            result.take(found)
            return
    for candidate in repaired(text):
        if found := _events(candidate.encode("utf-8", "replace")):
            result.take(found, REPAIRED)
            return
    if text.strip():
        result.lose(text)


def _give_up(result: Salvaged) -> None:
    """Repair or lose the parts that could not be read."""
    for part in result.unread:
        if result.tail is None:
            _repair(part, result)
    result.unread = []


def _retry(part: bytes, result: Salvaged) -> None:
    """Try the unreadable `part` together with those before it: a boundary inside of an event may have cut it."""
    result.unread.append(part)
    for count in range(2, min(len(result.unread), MOST_PARTS) + 1):
        if found := _events(b",".join(result.unread[-count:])):
            del result.unread[-count:]
            _give_up(result)
            result.take(found)
            return


def _halve(text: bytes, places: list[tuple[int, int]], start: int, stop: int, result: Salvaged) -> None:
    """Decode `text[start:stop]`, in halves while it cannot be, until the list ends."""
    if result.tail is not None:
        result.tail += text[start:stop]
        return
    if found := _events(text[start:stop]):
        _give_up(result)
        result.take(found)
        return
    inner = [place for place in places if start < place[0] and place[1] < stop]
    if inner:
        end, begin = inner[len(inner) // 2]
        _halve(text, inner, start, end, result)
        _halve(text, inner, begin, stop, result)
    else:
        _retry(text[start:stop], result)


def salvage(text: bytes, *, last: bool) -> Salvaged:
    r"""Return the events in `text`, events separated by commas; if it is the `last` piece, the list may close in it.

    >>> [event.name for event in salvage(b'{"ph": "X", "name": "C:\\w"}, {"ph": "X", "na', last=True).events]
    ['C:\\w']
    """
    result = Salvaged()
    body = text.rstrip()
    if last and body.endswith(b","):
        body = body[:-1]
    if last and (begun := _BEGUN.search(body)):
        result.lose(body[begun.start() :])
        body = body[: begun.start()]
    if body.strip():
        _halve(body, boundaries(body), 0, len(body), result)
        _give_up(result)
    if last and result.tail is None:
        result.remarks["cut short: the list of events does not end"] += 1
    return result
