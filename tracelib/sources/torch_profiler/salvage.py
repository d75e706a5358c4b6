"""Reads a piece of a trace that is not valid JSON, losing as few events as possible.

What is seen in the wild: lone backslashes of Windows paths (pytorch#98432, kineto#336), unescaped quotes and
newlines in names (pytorch#113001; whole dictionaries, pytorch#146900), log lines between and in events,
control characters (pytorch#130622), bytes that are not UTF-8 (pytorch#136180), NaN and Infinity, files cut
short. The piece is halved at event boundaries until each part decodes or is a single event; a single event is
repaired if it can be (:mod:`repairs`), and else counted as lost.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from tracelib.sources.torch_profiler.chunks import TRAILING, event_boundaries
from tracelib.sources.torch_profiler.plain import Event, decode
from tracelib.sources.torch_profiler.repairs import UNDECODABLE, depth_of, guessed, repaired

#: Events, and the text after the list's end, None if it did not end.
Part = tuple[list[Event], bytes | None]

T = TypeVar("T")
_object = json.JSONDecoder(strict=False).raw_decode
_values = msgspec.json.Decoder(list[msgspec.Raw]).decode

#: The remark on events that are kept although their text had to be changed.
REPAIRED = "repaired: invalid JSON"
LOST = "lost: not readable"
#: The phase of another event in a name that a repair made up: two were glued.
_SWALLOWED = re.compile(r'\\"ph\\"\s*:')
#: The start of an event, wherever it stands.
_START = re.compile(r'\{\s*"(?:ph|name|cat|args|ts|pid|tid|dur|id|s)"\s*:')
_PHASE, _OBJECT = re.compile(rb'"ph"\s*:'), re.compile(rb'\{\s*"')
#: Valid JSON has no such place: an object ended, and a list begins without a comma.
_GLUED = re.compile(r"[}\]]\s*\[$")
#: What is nothing, as in valid JSON: some writers begin or end their list with it.
_EMPTY = re.compile(rb"\{\s*\}")
#: The beginning of an event at the end of a file: too short to be told from a key by `boundaries`.
_BEGUN = re.compile(rb"(?<=\})\s*,\s*\{[^{}]*$")
#: A damaged event has at most so many starts of others in it that are tried.
MOST_STARTS = 50
#: After so many damaged events in a row that could not be repaired no more is guessed.
MOST_VAIN = 100
#: And then only one of so many is looked at: such a file is bait, or of another kind.
LOOKED_AT = 32
#: Without a text as its phase no repair makes an event of anything.
_PHASE_TEXT = re.compile(rb'"ph"\s*:\s*"')
#: So many characters before an object tell whether it stands inside of something else.
NEAR = 100


@dataclass
class Salvaged:
    """What came out of a piece of text; `tail` is the text after the list's end, None if it did not end."""

    events: list[Event] = field(default_factory=list)
    tail: bytes | None = None
    remarks: Counter[str] = field(default_factory=Counter)
    skipped_bytes: int = 0
    #: Parts next to each other, up to the last one, that could not be read so far.
    unread: list[bytes] = field(default_factory=list)
    #: How many damaged events in a row could not be repaired.
    vain: int = 0

    def take(self, part: Part, remark: str = "") -> None:
        """Add events, and what follows the list if it has ended."""
        events, self.tail = part
        self.events += events
        if remark and events:
            self.remarks[remark] += len(events)

    def skip(self, text: bytes) -> None:
        """Count what is not part of an event."""
        self.remarks["text between events: skipped"] += 1
        self.skipped_bytes += len(text)

    def lose(self, text: bytes) -> None:
        """Count an event as lost."""
        self.remarks[LOST] += 1
        self.skipped_bytes += len(text)


def _listed(text: bytes, decoder: Callable[[bytes], list[T]]) -> tuple[list[T], bytes | None] | None:
    """Return the values in `text`, the inside of a list, and what follows its end; None if it is damaged."""
    listed = b"[" + text + b"]"
    try:
        return decoder(listed), None
    except UNDECODABLE as error:
        trailing = TRAILING.search(str(error))
        if not trailing:
            return None
        end = int(trailing[1]) - 1
    try:
        return decoder(listed[:end]), listed[end:-1]
    except UNDECODABLE:
        return None


def decoded(text: bytes) -> Part | None:
    """Return the events of `text` and what follows the list's end in it; None if the text is damaged."""
    return _listed(text, decode)


def _events(text: bytes) -> Part | None:
    """Return what `decoded` returns, without empty objects; None if another value in it is not an event."""
    part = decoded(text)
    if not part or all(isinstance(event.ph, str) for event in part[0]):
        return part
    values, _ = _listed(text, _values) or ([], None)
    events = [event for event, value in zip(part[0], values, strict=True) if not _EMPTY.fullmatch(value)]
    return (events, part[1]) if all(isinstance(event.ph, str) for event in events) else None


def _mixed(text: bytes, result: Salvaged) -> bool:
    """Add the events of a valid list that also holds other values; return False if `text` is not one."""
    values, tail = _listed(text, _values) or ([], None)
    events = [_events(bytes(value)) for value in values]
    if len(values) < 2 or not any(events):
        return False
    for value, part in zip(values, events, strict=True):
        if part:
            result.take(part)
        else:
            _repair(bytes(value), result)
    result.tail = tail
    return True


def _whole(text: str, at: int) -> tuple[int, int] | None:
    """Return where the next whole object stands that may be an event and is not inside of another."""
    for match in itertools.islice(_START.finditer(text, at), MOST_STARTS):
        before = text[max(0, match.start() - NEAR) : match.start()].rstrip()
        if not before.endswith(('"', ":", "[")) or _GLUED.search(before):
            try:
                return match.start(), _object(text, match.start())[1]
            except (ValueError, RecursionError):
                continue
    return None


def _behind_half(text: bytes) -> tuple[Part, int] | None:
    """Return the whole event that ends `text` and where it begins, behind a half one: nothing closes that."""
    for match in itertools.islice(_START.finditer(text.decode("latin-1"), 1), MOST_STARTS):
        part = _events(text[match.start() :])
        if part and len(part[0]) == 1 and _is_placed(part[0][0]):
            return part, match.start()
    return None


def _is_placed(event: Event) -> bool:
    return event.pid is not None and event.tid is not None and bool(bytes(event.ts))


def _one(text: bytes) -> Part | None:
    """Return the one event, with what it holds, that the smallest repair makes of `text`; else None."""
    part = _events(repaired(text)[0].encode("utf-8", "replace"))
    return part if part and len(part[0]) == 1 and not _PHASE.search(part[1] or b"") else None


def _hopeless(text: bytes, result: Salvaged) -> bool:
    """Say that no repair of an object is worth a try; the list's end may stand in it."""
    if not _OBJECT.search(text):
        return False
    passed_over = result.vain > MOST_VAIN and result.vain % LOOKED_AT > 0
    may_end = b"]" in text and result.vain < 10 * MOST_VAIN
    return (passed_over or not _PHASE_TEXT.search(text)) and not may_end


def _repair(text: bytes, result: Salvaged) -> None:
    """Add the whole events in a damaged part and what can be read of the rest, else count it as lost."""
    if _hopeless(text, result):
        result.vain += 1
        result.lose(text)
        return
    if _mixed(text, result):
        return
    if event := _one(text):
        result.take(event, REPAIRED)
        return
    characters = text.decode("latin-1")  # one character a byte
    begin = at = 0
    while place := _whole(characters, at):
        start, at = place
        if events := _events(text[start:at]):
            _mend(text[begin:start], result)
            result.take(events)
            begin = at
    _mend(text[begin:], result)


def _mend(text: bytes, result: Salvaged) -> None:
    """Add what a damaged event may have been, else count it as lost; skip what is not part of an event."""
    text = text.strip(b", \t\r\n")
    if not text:
        return
    guesses = guessed(text) if result.vain < MOST_VAIN else ()
    for candidate in itertools.chain(repaired(text), guesses) if b"{" in text else ():
        if not _SWALLOWED.search(candidate) and (part := _events(candidate.encode("utf-8", "replace"))):
            result.take(part, REPAIRED)
            result.vain = 0
            return
    if result.vain < MOST_VAIN and (behind := _behind_half(text)):
        result.take(behind[0])
        text = text[: behind[1]]
    result.vain += 1
    if _OBJECT.search(text) or _listed(text, _values):
        result.lose(text)
    else:
        result.skip(text)


def _grouped(parts: list[bytes]) -> Iterator[bytes]:
    """Yield each damaged event's parts together: its brackets close in the last, or a new phase follows."""
    event: list[bytes] = []
    depth, phased = 0, False
    for part in parts:
        phase = bool(_PHASE.search(part))
        if event and (depth <= 0 or (phased and phase)):
            yield b", ".join(event)
            event, depth, phased = [], 0, False
        event.append(part)
        depth, phased = depth + depth_of(part), phased or phase
    yield b", ".join(event)


def _give_up(result: Salvaged) -> None:
    """Repair or lose the parts that could not be read: events, and pieces of those that are damaged."""
    if len(result.unread) > 1 and (part := _one(b",".join(result.unread))):
        result.take(part, REPAIRED)
        result.unread = []
    for event in _grouped(result.unread):
        if result.tail is None:
            _repair(event, result)
    result.unread = []


def _halve(text: bytes, places: list[tuple[int, int]], start: int, stop: int, result: Salvaged) -> None:
    """Decode `text[start:stop]`, in halves while it cannot be, until the list ends."""
    if part := _events(text[start:stop]):
        _give_up(result)
        result.take(part)
        return
    inner = [place for place in places if start < place[0] and place[1] < stop]
    if inner:
        end, begin = inner[len(inner) // 2]
        _halve(text, inner, start, end, result)
        if result.tail is None:
            _halve(text, inner, begin, stop, result)
        else:
            result.tail += text[end:stop]  # with the comma between the halves
    else:
        result.unread.append(text[start:stop])


def salvage(text: bytes, *, last: bool) -> Salvaged:
    r"""Return the events in `text`, separated by commas; if it is the `last` piece, the list may end in it.

    >>> [event.name for event in salvage(b'{"ph": "X", "name": "C:\\w"}, {"ph": "X", "na', last=True).events]
    ['C:\\w']
    """
    result = Salvaged()
    body = text.rstrip()
    if last:
        body = body.removesuffix(b",")
        begun = _BEGUN.search(body)
        body = body[: begun.start()] if begun else body
    if body.strip():
        _halve(body, event_boundaries(body), 0, len(body), result)
        _give_up(result)
    rest = text[len(body) :]
    if result.tail is not None:
        result.tail += rest
    elif last:
        if begun:
            result.lose(rest.rstrip())
        result.remarks["cut short: the list of events does not end"] += 1
    return result
