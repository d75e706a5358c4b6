"""An ftrace text to a trace: lines to events, events to frames, and what is wrong with them to `health`."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from tracelib.clocks import clock_named
from tracelib.errors import BadTrace
from tracelib.sources.files import Stream, head, sha256
from tracelib.sources.ftrace.containers import Atrace, in_page, is_trace_dat, open_text
from tracelib.sources.ftrace.events import SILENT, UNPRINTED, Events
from tracelib.sources.ftrace.frames import Frames
from tracelib.sources.ftrace.heads import HEAD, LATENCY, Heads, Piece
from tracelib.sources.ftrace.slices import DRAWN
from tracelib.sources.health import Remarks, source_frame
from tracelib.sources.kernel.sched import ends_whole
from tracelib.sources.kernel.texts import CHUNK, ahead, chunks, lines
from tracelib.trace import Trace
from tracelib.words import counted, plain

#: In the JavaScript string of old systrace pages, every line ends so.
IN_SCRIPT = b"\\n\\\n"
#: A last line without a line end is whole but where it shows that it is not: a number of a system call that
#: may go on, a word that is not an event.
SHOWS_CUT = re.compile(r"NR -?\d+$|^[^\s:(]+$|:$")
EXCERPT, LISTED = 80, 40
NO_EVENT = (
    "If ftrace wrote it: echo 1 > options/context-info; echo 0 > options/{raw,hex,bin,verbose}; "
    "and record again."
)


@dataclass
class Text:
    """The events of a file, and how whole it was."""

    events: Events
    heads: Heads = field(default_factory=Heads)
    damage: str | None = None  # of the compressed data
    skipped_bytes: int = 0
    cut_line: str | None = None
    unended: bool = False  # the last line has no line end, and was taken as it is
    not_utf8: int = 0


def collect(path: Path, chunk_size: int = CHUNK) -> Text:
    """Read the lines of the file at `path`."""
    page = in_page(head(path, 1 << 10))
    text = Text(Events(markup=page))
    with open_text(path) as stream:
        for piece in ahead(_pieces(stream, text, chunk_size)):
            text.events.add(piece)
        text.damage = stream.damage
        text.skipped_bytes += stream.lost_bytes
    text.skipped_bytes += text.events.unread_bytes + text.heads.long_bytes
    return text


def _pieces(stream: Stream | Atrace, text: Text, chunk_size: int) -> Iterator[Piece]:
    """Yield the lines of the stream sorted out, piece by piece, each while the next is read.

    Runs in a thread of its own: it alone touches `text.heads`.
    """
    for series, not_utf8 in ahead(_lines(stream, text, chunk_size)):
        text.not_utf8 += not_utf8
        yield text.heads.piece(series)


def _lines(stream: Stream | Atrace, text: Text, chunk_size: int) -> Iterator[tuple[pl.Series, int]]:
    """Yield the lines of the stream, the last without one that is cut, and how many places are not UTF-8."""
    page = text.events.markup
    for block in chunks(stream, chunk_size):
        chunk = block.replace(IN_SCRIPT, b"\n") if page else block
        if not page and not chunk.endswith(b"\n"):
            chunk = _without_cut_line(chunk, text)
        if chunk:
            yield lines(chunk)


def _without_cut_line(chunk: bytes, text: Text) -> bytes:
    start = chunk.rfind(b"\n") + 1
    last = chunk[start:]
    if _is_whole(last.decode(errors="replace").rstrip("\r")):
        text.unended = True
        return chunk
    text.cut_line = last[:200].decode(errors="replace")
    text.skipped_bytes += len(last)
    return chunk[:start]


def _is_whole(line: str) -> bool:
    head = next((head for pattern in (HEAD, LATENCY) if (head := re.match(pattern, line))), None)
    if head is None:
        return bool(line.strip()) and any(re.search(pattern, line) for pattern in (SILENT, DRAWN))
    return ends_whole(head["rest"]) and not SHOWS_CUT.search(head["rest"])


def read(path: Path) -> Trace:
    """Read the ftrace text (or trace.dat) at `path`.

    Raises BadTrace if it holds no event although it is not empty, it is a trace.dat that cannot be unpacked
    here, or it cannot be opened.
    """
    try:
        with ThreadPoolExecutor(1) as worker:
            digest = worker.submit(sha256, path)
            text = collect(path)
    except OSError as error:
        raise BadTrace(path, "ftrace", "", f"cannot be opened ({error.strerror or error})") from error
    events = text.events
    if not events.counts and not events.no_time and (events.unread or text.cut_line or text.damage):
        at, example = events.unread_example or (1, text.cut_line or text.damage or "")
        raise BadTrace(path, "ftrace", f"line {at}", "no line is an event", example, NO_EVENT)
    remarks = Remarks()
    _remark_on_file(text, remarks)
    _remark_on_lines(events, text.heads, remarks)
    frames = Frames(events, text.heads, remarks)
    made = frames.made()
    source = source_frame(
        path,
        "ftrace",
        sha256=digest.result(),
        recorder=_recorder(path, events),
        cpus=events.cpus,
        clock=clock_named(events.clock or ""),
        wall_offset_ns=frames.wall_offset_ns,
        first_ns=events.first_ns,
        last_ns=events.last_ns,
        lost_declared=frames.lost_declared,
        lost_detected=frames.lost_detected,
        skipped_bytes=text.skipped_bytes,
    )
    return Trace.of({**made, "sources": source, "health": remarks.frame()})


def _recorder(path: Path, events: Events) -> str | None:
    if is_trace_dat(head(path, 16)):
        return "trace-cmd"
    return f"ftrace, tracer {events.tracer}" if events.tracer else None


def _remark_on_file(text: Text, remarks: Remarks) -> None:
    if text.damage:
        damaged = f"the file is damaged: {text.damage}; events after that are missing"
        remarks.add("error", damaged, "Copy or record it again.")
    if text.cut_line is not None:
        cut = f"the last line is cut and was left out: '{plain(text.cut_line, EXCERPT)}'"
        remarks.add("warning", cut, "Copy the whole file.")
    if text.unended:
        remarks.add("info", "the last line has no line end, and was taken to be whole")
    if text.not_utf8:
        remarks.add("info", f"{counted(text.not_utf8, 'place')} not UTF-8, shown as U+FFFD")
    if not text.events.counts:
        on = "Switch events on before recording: trace-cmd record -e sched"
        remarks.add("error", "no event with a time and a task", on)


def _remark_on_lines(events: Events, heads: Heads, remarks: Remarks) -> None:
    """Add what the lines themselves show: which events there are, what could not be read, and the clock."""
    by_name = sorted(events.counts.items(), key=lambda item: (-item[1], item[0]))
    if by_name:
        listed = ", ".join(f"{plain(name, EXCERPT)} {count:,}" for name, count in by_name[:LISTED])
        more = f", and {len(by_name) - LISTED} more" if len(by_name) > LISTED else ""
        remarks.add("info", f"{counted(sum(events.counts.values()), 'event')}: {listed}{more}")
    if events.unread:
        at, text = events.unread_example or (0, "")
        example = f"first at line {at}: '{plain(text, EXCERPT)}'"
        remarks.add("warning", f"{counted(events.unread, 'line')} not understood, {example}")
    if events.continued:
        continued = counted(events.continued, "line")
        remarks.add("info", f"{continued} continue the text of a marker; only its first line is kept")
    if events.no_time:
        remarks.say("unplaced_graph_lines", lines=counted(events.no_time, "line"))
    if unprinted := events.counts.get(UNPRINTED):
        remarks.say("unprinted_texts", events=counted(unprinted, "event"))
    if heads.counting:
        remarks.say("bare_numbers")
    if heads.since_start:
        remarks.say("since_start")
