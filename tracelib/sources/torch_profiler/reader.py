"""From a file to one :class:`Batch` of all its events and the :class:`Document` around them."""

from __future__ import annotations

import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelib.errors import BadTrace
from tracelib.sources.files import keep_freed_memory, open_stream
from tracelib.sources.torch_profiler import plain
from tracelib.sources.torch_profiler.chunks import PAD, Chunk, Cutter
from tracelib.sources.torch_profiler.document import Document, document
from tracelib.sources.torch_profiler.events import Batch, joined
from tracelib.sources.torch_profiler.fast import fast_batch
from tracelib.sources.torch_profiler.native import Refused
from tracelib.sources.torch_profiler.salvage import decoded, salvage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from tracelib.sources.files import Stream

#: More text than this after the list of events is not kept: events in it are counted.
LONGEST_TAIL = 16 << 20
BEHIND = "lost: behind the end of the list"
#: Only events have this key; in a text inside of a string its quotes are escaped.
PHASE = re.compile(rb'(?<!\\)"ph"\s*:')
#: An event where the list has ended.
EVENT_BEHIND = re.compile(rb"\s*,\s*\{")
#: So many stray brackets are passed over in a piece: each means to look at the rest once more.
MOST_BRACKETS = 16
THREADS = 2


@dataclass
class Content:
    """All that is in a trace file; `damage` says why it ended early, if it did."""

    batch: Batch
    document: Document
    damage: str | None
    lost_bytes: int


def plain_batch(chunk: Chunk) -> tuple[Batch, bytes | None]:
    """Return the events of `chunk`, and the text after the list's end if it ends in there."""
    text = chunk.text
    body = text.rstrip().removesuffix(b",") if chunk.last else text
    found = decoded(body)
    if found and (found[1] is not None or not chunk.last):
        return plain.batch(found[0]), found[1]
    salvaged = salvage(text, last=chunk.last)
    batch = plain.batch(salvaged.events)
    batch.remarks.update(salvaged.remarks)
    batch.skipped_bytes = salvaged.skipped_bytes
    return batch, salvaged.tail


def decoded_batch(chunk: Chunk) -> tuple[Batch, bytes | None]:
    """Return the same as `plain_batch`, by the fast decoder if that one takes the chunk."""
    try:
        return fast_batch(chunk)
    except Refused:
        return plain_batch(chunk)


def _decoded(cutter: Cutter) -> Iterator[tuple[Chunk, Batch, bytes | None]]:
    """Decode chunks on two threads while this one reads on; numpy and Polars let go of the interpreter's lock."""
    waiting: deque[tuple[Chunk, Future[tuple[Batch, bytes | None]]]] = deque()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="decode") as pool:
        for chunk in cutter:
            waiting.append((chunk, pool.submit(decoded_batch, chunk)))
            if len(waiting) > THREADS:
                first, future = waiting.popleft()
                yield first, *future.result()
        for first, future in waiting:
            yield first, *future.result()


def _behind_brackets(chunk: Chunk, batch: Batch, behind: bytes | None) -> tuple[list[Batch], bytes | None]:
    """Return also the events behind stray brackets, which close the list although an event follows, where a key must."""
    batches = [batch]
    while behind is not None and len(batches) <= MOST_BRACKETS and (event := EVENT_BEHIND.match(behind)):
        text = behind[event.end() - 1 :]
        batch, behind = plain_batch(Chunk(bytearray(text) + bytes(PAD), len(text), chunk.last))
        batch.remarks["behind a stray bracket in the list"] += batch.tally.total()
        batches.append(batch)
    return batches, behind


def _batches(cutter: Cutter, take: Callable[[Batch], None]) -> tuple[list[Batch], bytes | None]:
    batches: list[Batch] = []
    tail: bytes | None = None
    for chunk, batch, behind in _decoded(cutter):
        if tail is None:
            found, tail = _behind_brackets(chunk, batch, behind)
            for each in found:
                take(each)
            batches += found
        elif len(tail) < LONGEST_TAIL:  # the list has ended: this text belongs to the document
            tail += b"," + chunk.text
        else:
            lost = joined([])
            lost.remarks[BEHIND], lost.skipped_bytes = batch.tally.total(), chunk.stop
            batches.append(lost)
    return batches, tail


def _open(path: Path) -> Stream:
    try:
        return open_stream(path)
    except OSError as error:
        raise BadTrace(path, "torch_profiler", "", str(error.strerror or error)) from error


def content(path: Path, take: Callable[[Batch], None] = lambda _: None) -> Content:
    """Return all that the file at `path` holds; each batch is shown to `take` first, which may move rows elsewhere.

    Raises
    ------
    BadTrace
        It cannot be opened, or has no list of events.

    """
    keep_freed_memory()
    with _open(path) as stream:
        cutter = Cutter(stream)
        batches, tail = _batches(cutter, take)
        if cutter.head is None:
            raise BadTrace(
                path,
                "torch_profiler",
                "byte 0",
                stream.damage or "it has no list of traceEvents",
                advice="Export it with torch.profiler's export_chrome_trace.",
            )
        whole = joined(batches)
        whole.skipped_bytes += cutter.skipped_bytes
        if behind := len(
            PHASE.findall(tail or b"")
        ):  # a stray bracket closed the list, or two files were joined
            whole.remarks[BEHIND] += behind
            whole.skipped_bytes += len(tail or b"")
        return Content(whole, document(cutter.head, tail), stream.damage, stream.lost_bytes)
