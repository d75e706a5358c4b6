"""Traces of the PyTorch Profiler (Kineto), and the Chrome JSON traces of others.

README.md says what is in them, how to record them well, and what is lost at worst.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tracelib.sources.files import hashed
from tracelib.sources.torch_profiler.assembly import Assembly
from tracelib.sources.torch_profiler.events import NO_GPU, NO_SPANS
from tracelib.sources.torch_profiler.pairs import with_pairs
from tracelib.sources.torch_profiler.reader import content
from tracelib.sources.torch_profiler.streaming import stream
from tracelib.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

    from tracelib.sources.torch_profiler.reader import Content

__all__ = ["read", "sniff", "stream"]

_BARE_LIST = re.compile(rb'\[\s*\{[^{}]*?"ph"\s*:\s*"')
#: What stands before the first event of a list that holds something: empty objects, with which some writers begin.
_BEGIN = re.compile(rb"\[\s*(?:\{\s*\}\s*,\s*)*(?=\{)")
_decoder = json.JSONDecoder(strict=False)
#: Keys of the document that no other format has, of a trace whose list of events begins further on than was looked.
_KEYS = re.compile(
    rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|displayTimeUnit|distributedInfo|stackFrames|systemTraceEvents|'
    rb'otherData|record_shapes|with_stack|trace_id|cupti_version|cuda_runtime_version|hip_runtime_version)"\s*:|'
    rb'"source"\s*:\s*"DevTools"'
)


def sniff(head: bytes, name: str) -> bool:  # noqa: ARG001  (the content decides)
    """Say whether a file that starts with `head` is a Chrome JSON trace: `{… "traceEvents"` or a list of events.

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
    """Return the trace in the file at `path`: slices, gpu_ops, counters, threads, gpus, its source and its health.

    Times are ns since the epoch where the file has a time base or counts from the epoch (clock "realtime"), else of
    the file's own clock ("unknown").

    Raises
    ------
    BadTrace
        The file has no list of events, or not one event in it can be read.

    """
    found = content(path)
    with hashed(path):  # what follows leaves a core idle
        return _made(path, found)


def _made(path: Path, found: Content) -> Trace:
    spans, gpu = [with_pairs(found.batch)], [found.batch.gpu]
    whole = Assembly(path, found, spans, gpu)
    found.batch.spans, found.batch.gpu = NO_SPANS, NO_GPU  # each copy goes as soon as the next is made
    slices, gpu_ops = whole.slices(spans.pop()), whole.gpu_ops(gpu.pop())
    whole.look(slices, gpu_ops)
    return Trace.of({"slices": slices, "gpu_ops": gpu_ops, **whole.others()})
