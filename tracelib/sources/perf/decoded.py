"""The JSON of `perf data convert --to-json`, decoded: whole in one go, or, where that fails, one sample at a time.

A sample that is no sample (cut, of other types, a number beyond 64 bits) costs itself: the next one starts at the next
brace followed by a timestamp, which perf writes first (tools/perf/util/data-convert-json.c).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Frame", "Headers", "Recording", "Sample", "Tracepoint", "decoded"]

Int64 = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
Int32 = Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]
UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
START = re.compile(r'\{\s*"timestamp"')
SAMPLES = re.compile(r'"samples"\s*:\s*\[')
HEADERS = re.compile(r'"headers"\s*:\s*(?=\{)')
GAP = re.compile(r"[\s,]*")
#: Takes raw control characters inside texts, and NaN, which the format forbids.
_READER = json.JSONDecoder(strict=False)
#: What closes the file behind the list of samples.
CLOSING = " \t\r\n}]"


class Frame(msgspec.Struct):
    """One frame of a call chain, innermost first."""

    ip: str = ""
    symbol: str | None = None
    dso: str | None = None


class Sample(msgspec.Struct, forbid_unknown_fields=True):
    """One sample; the kernel fields of a switch or a wake-up where there are any."""

    timestamp: Int64 | None = None
    pid: Int64 | str | None = None
    tid: Int64 | None = None
    cpu: Int32 | None = None
    comm: str | None = None
    callchain: list[Frame] = []
    prev_pid: str | None = None
    next_pid: str | None = None
    prev_state: str | None = None
    prev_comm: str | None = None
    next_comm: str | None = None
    target_cpu: str | None = None
    prev_prio: str | None = None
    next_prio: str | None = None
    prio: str | None = None
    success: str | None = None


class Tracepoint(Sample, forbid_unknown_fields=False):
    """A sample with other fields than those: perf writes what a tracepoint says beside what samples have."""


FIELDS = frozenset(Sample.__struct_fields__)


class Headers(msgspec.Struct, rename="kebab"):
    """What the recording says of itself."""

    hostname: str | None = None
    nrcpus_online: Int32 | None = None
    clockid: Int32 | None = None
    clock_time: Int64 | None = None
    real_time: Int64 | None = None
    perf_version: str | None = None
    cmdline: list[str] = []


class Recording(msgspec.Struct):
    """The whole file."""

    headers: Headers = msgspec.field(default_factory=Headers)
    samples: list[Sample] = []


class _Values(msgspec.Struct):
    """The whole file, its samples not looked at yet."""

    headers: Headers = msgspec.field(default_factory=Headers)
    samples: list[dict[str, Any]] = []


def decoded(data: bytes) -> tuple[Recording, list[str], bool]:
    """Return the recording in `data`, each stretch of text that could not be read, and whether its end is there."""
    try:
        return _whole(data), [], True
    except UNREADABLE:
        text = data.decode("utf-8-sig", errors="replace")
    recording, lost = Recording(headers=_headers(text)), list[str]()
    found = SAMPLES.search(text)
    at = found.end() if found else len(text)
    for sample, end in _samples(text, at):
        at = end
        if isinstance(sample, Sample):
            recording.samples.append(sample)
        else:
            lost.append(sample)
    behind = text[at:].strip(CLOSING)
    if behind and not HEADERS.search(behind):
        lost.append(behind)
    return recording, lost, _next(text, at) < len(text)


def _whole(data: bytes) -> Recording:
    """Return the recording in `data`; samples with other fields cost a second look at all of them."""
    try:
        return msgspec.json.decode(data, type=Recording)
    except msgspec.ValidationError:
        values = msgspec.json.decode(data, type=_Values)
        return Recording(values.headers, [_sample(value) for value in values.samples])


def _sample(value: object) -> Sample:
    others = isinstance(value, dict) and not value.keys() <= FIELDS
    return msgspec.convert(value, Tracepoint if others else Sample)


def _headers(text: str) -> Headers:
    """Return what of the headers is readable, each field by itself."""
    found = HEADERS.search(text)
    try:
        fields = _READER.raw_decode(text, found.end())[0] if found else {}
    except UNREADABLE:
        fields = {}
    headers = Headers()
    for name, written in zip(Headers.__struct_fields__, Headers.__struct_encode_fields__, strict=True):
        try:
            setattr(headers, name, getattr(msgspec.convert({written: fields[written]}, Headers), name))
        except (KeyError, *UNREADABLE):
            continue
    return headers


def _samples(text: str, at: int) -> Iterator[tuple[Sample | str, int]]:
    """Yield each sample in the list that begins at `at`, or in its place the text that is none; and where it ends."""
    while (at := _next(text, at)) < len(text) and text[at] != "]":
        try:
            value, end = _READER.raw_decode(text, at)
            found: Sample | str = _sample(value)
        except msgspec.ValidationError:
            found = text[at:end]
        except UNREADABLE:
            following = START.search(text, at + 1)
            end = following.start() if following else len(text)
            found = text[at:end]
        yield found, end
        at = end


def _next(text: str, at: int) -> int:
    """Return where the next value begins."""
    gap = GAP.match(text, at)
    return gap.end() if gap else at
