"""Linux `perf`: the text of `perf script`, its JSON form, and `perf.data` by way of an installed perf."""

import codecs
import re
from pathlib import Path

from tracelib.sources.files import head
from tracelib.sources.format import Format, InPerfetto
from tracelib.sources.perf.heads import (
    DEPARTED,
    FTRACE_HEAD,
    FTRACE_HEADER,
    HEAD,
    NO_THREAD_HEAD,
    NO_TIME_EVENT,
    NO_TIME_HEAD,
    VIRTUAL,
)
from tracelib.trace import Trace

#: The first bytes of the format: version 2 (either byte order), version 1.
BINARY = (b"PERFILE2", b"2ELIFREP", b"PERFFILE")
#: How the JSON marks itself, within its first bytes.
MARK, MARKED = b'"linux-perf-json-version"', 1024
LOOKED_AT = 200


def sniff(head: bytes, name: str) -> bool:  # noqa: ARG001  (the content decides)
    """Say whether a file that starts with `head` is perf's: binary, JSON, or the text of `perf script`."""
    if head.startswith(BINARY) or is_json(head):
        return True
    text = head.decode(errors="replace")
    if re.search(FTRACE_HEADER, text):
        return False
    header = any(mark in text for mark in ("# perf version :", "# captured on    :"))
    if header and text.lstrip().startswith("# ===="):
        return True
    lines = [
        re.sub(VIRTUAL, "", line.rstrip("\r"))
        for line in text.split("\n")
        if line.strip() and not line.startswith(("#", "\t"))
    ]
    lines = lines[:LOOKED_AT]
    own = [line for line in lines if not _is_ftrace(line)]
    if len(own) * 2 < len(lines):
        return False
    timed = [bool(re.match(HEAD, line) or re.match(NO_THREAD_HEAD, line)) for line in own]
    if any(timed) or header:  # a document that quotes some lines is not a trace
        return timed[:1] == [True] or sum(timed) * 2 >= len(own)
    chain = re.search(r"(?m)^\t *[0-9a-f]+ .*\)\r?$", text)
    untimed = [bool(re.match(NO_TIME_HEAD if chain else NO_TIME_EVENT, line)) for line in lines]
    return any(untimed) and (untimed[0] or sum(untimed) * 2 >= len(lines))


def _is_ftrace(line: str) -> bool:
    """Say whether `line` is a head of ftrace's, even if perf's expression finds one in it."""
    by_perf_alone = re.match(DEPARTED, line) or re.match(NO_THREAD_HEAD, line)
    return re.match(FTRACE_HEAD, line) is not None and not by_perf_alone


def is_json(head: bytes) -> bool:
    """Say whether a file that starts with `head` is perf's JSON."""
    return head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{") and MARK in head[:MARKED]


def _program(head: bytes) -> str | None:
    return "perf" if head.startswith(BINARY) else None


def read(path: Path) -> Trace:
    """Return the trace in the file at `path`.

    Raises BadTrace if the file holds no event with a time; or it is a perf.data that no installed perf can
    read.
    """
    start = head(path, 1024)
    if start.startswith(BINARY):
        from tracelib.sources.perf.binary import read_binary as read_it
    elif is_json(start):
        from tracelib.sources.perf.json_export import read_json as read_it
    else:
        from tracelib.sources.perf.script import read_text as read_it
    return read_it(path)


FORMAT = Format(
    name="perf",
    sniff=sniff,
    read=read,
    scope="machine",
    thread_name_rank=0,
    in_perfetto=InPerfetto(has_clock=True),
    program=_program,
)
