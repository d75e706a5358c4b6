"""ftrace: the text of tracefs, `trace-cmd report`, atrace and systrace; trace.dat by an installed trace-cmd.

README.md in this folder says what the format holds, how to record it, and what is lost at worst.
"""

import re
from pathlib import Path

from tracelib.sources.format import Format, InPerfetto
from tracelib.sources.ftrace.containers import (
    atrace_offset,
    converter,
    in_page,
    is_ring_buffers,
    is_trace_dat,
)
from tracelib.sources.ftrace.heads import HEAD, LATENCY
from tracelib.sources.ftrace.slices import BEFORE_CALL
from tracelib.trace import Trace

#: What systrace's pages have in their first part, where the data may not be yet.
PAGE_MARKS = re.compile(
    rb"trace-data|linuxPerfData|Android System Trace|# tracer:|BEGIN TRACE|normalizeException"
)
HEADERS = re.compile(
    r"^# tracer: \S|^#[ \t]+entries-in-buffer/entries-written:|^# \w+ latency trace v\d", re.MULTILINE
)
EVENT = re.compile(
    "|".join(re.sub(r"\(\?P<\w+>", "(?:", pattern) for pattern in (HEAD, LATENCY)), re.MULTILINE
)
GRAPH = re.compile(re.sub(r"\(\?P<\w+>", "(?:", BEFORE_CALL) + r"\S", re.MULTILINE)
#: What the tools print before a trace.
BEFORE = re.compile(r"version = \d|cpus=\d|CPU[ :]\d|capturing trace|TRACE:|# (?:clock|entries|_-)|trace-cmd")
LOOKED_AT = 1 << 15


def sniff(head: bytes, name: str) -> bool:  # noqa: ARG001  (the content decides)
    """Say whether a file that starts with `head` is an ftrace text, or a trace.dat."""
    if is_trace_dat(head) or is_ring_buffers(head) or atrace_offset(head) is not None:
        return True
    if in_page(head):
        return PAGE_MARKS.search(head) is not None
    if b"\0" in head[:LOOKED_AT] or head.lstrip()[:1] in (b"{", b"["):
        return False
    text = head[:LOOKED_AT].decode(errors="replace").replace("\r\n", "\n")
    lines = [line for line in text.split("\n") if line.strip()]
    if any(pattern.match("\n".join(lines)) for pattern in (HEADERS, EVENT, GRAPH, BEFORE)):
        return any(pattern.search(text) for pattern in (HEADERS, EVENT, GRAPH))
    # a document that quotes some lines is not a trace
    said = [line for line in lines if not line.startswith("#")]
    events = sum(any(pattern.match(line) for pattern in (EVENT, GRAPH)) for line in said)
    return events > 0 and events * 2 >= len(said)


def read(path: Path) -> Trace:
    """Return the trace in the file at `path`: see :func:`tracelib.sources.ftrace.reader.read`."""
    from tracelib.sources.ftrace.reader import read as read_text

    return read_text(path)


FORMAT = Format(
    name="ftrace",
    sniff=sniff,
    read=read,
    scope="machine",
    thread_name_rank=1,
    clock_from_user=True,
    in_perfetto=InPerfetto(has_clock=True),
    program=converter,
)
