"""Traces of the PyTorch Profiler (Kineto), and the Chrome JSON traces of others.

README.md says what is in them, how to record them well, and what is lost at worst.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tracelib.sources.format import Format, InPerfetto

if TYPE_CHECKING:
    from tracelib.trace import Trace

_BARE_LIST = re.compile(rb'\[\s*\{[^{}]*?"ph"\s*:\s*"')
#: The beginning of a list of events, with the empty objects that some writers put first.
_BEGIN = re.compile(rb"\[\s*(?:\{\s*\}\s*,\s*)*(?=\{)")
_decoder = json.JSONDecoder(strict=False)
#: Keys that no other format has: the list of events may begin behind the part of the file that is looked at.
_KEYS = re.compile(
    rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|displayTimeUnit|distributedInfo|stackFrames'
    rb"|systemTraceEvents|otherData|record_shapes|with_stack|trace_id|cupti_version|cuda_runtime_version"
    rb'|hip_runtime_version)"\s*:|"source"\s*:\s*"DevTools"'
)


def sniff(head: bytes, name: str) -> bool:  # noqa: ARG001  (the content decides)
    """Say whether a file that starts with `head` is a Chrome trace: `{… "traceEvents"` or a list of events.

    >>> sniff(b'{"schemaVersion": 1, "traceEvents": [', "x"), sniff(b'[{"name": "a", "ph": "X"', "x")
    (True, True)
    >>> sniff(b'[{}, {"args": {"x": 1}, "ph": "X"}', "x")
    True
    >>> sniff(b'{"nodes": []}', "trace.json"), sniff(b"[[1, 2]]", "x.json"), sniff(b"", "trace.json")
    (False, False, False)
    """
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{"):
        return b'"traceEvents"' in text or (len(head) >= 1 << 16 and bool(_KEYS.search(text)))
    return bool(_BARE_LIST.match(text)) or _begins_with_event(text)


def _begins_with_event(text: bytes) -> bool:
    begin = _BEGIN.match(text)
    try:
        event = _decoder.raw_decode(text[begin.end() :].decode("utf-8", "replace"))[0] if begin else None
    except (ValueError, RecursionError):
        return False
    return isinstance(event, dict) and isinstance(event.get("ph"), str)


def read(path: Path) -> Trace:
    """Return the trace in the file at `path`: see :func:`tracelib.sources.torch_profiler.reader.read`."""
    from tracelib.sources.torch_profiler.reader import read as read_document

    return read_document(path)


def stream(path: Path, folder: Path) -> None:
    """Write the trace to `folder`: see :func:`tracelib.sources.torch_profiler.reader.stream`."""
    from tracelib.sources.torch_profiler.reader import stream as stream_document

    stream_document(path, folder)


def _base_ns(path: Path) -> int:
    from tracelib.sources.torch_profiler.document import base_ns

    return base_ns(path)


FORMAT = Format(
    name="torch_profiler",
    sniff=sniff,
    read=read,
    scope="process",
    thread_name_rank=3,
    calls_with_gpu=True,
    in_perfetto=InPerfetto(has_clock=False, base_ns=_base_ns),
    stream=stream,
)
