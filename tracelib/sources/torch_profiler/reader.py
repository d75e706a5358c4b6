"""From a file to one :class:`Batch` of all its events and the :class:`Document` around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelib.errors import BadTrace
from tracelib.sources.files import open_stream
from tracelib.sources.torch_profiler import plain
from tracelib.sources.torch_profiler.chunks import Chunk, Cutter
from tracelib.sources.torch_profiler.document import Document, document
from tracelib.sources.torch_profiler.events import Batch, joined
from tracelib.sources.torch_profiler.salvage import decoded, salvage

if TYPE_CHECKING:
    from pathlib import Path

    from tracelib.sources.files import Stream

__all__ = ["Content", "content"]

#: More text than this after the list of events is not looked at: it is other tools' data.
LONGEST_TAIL = 16 << 20


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


def _batches(cutter: Cutter) -> tuple[list[Batch], bytes | None]:
    batches: list[Batch] = []
    tail: bytes | None = None
    for chunk in cutter:
        if tail is not None:  # the list has ended: what follows belongs to the document
            tail = tail + b"," + chunk.text if len(tail) < LONGEST_TAIL else tail
            continue
        batch, tail = plain_batch(chunk)
        batches.append(batch)
    return batches, tail


def _open(path: Path) -> Stream:
    try:
        return open_stream(path)
    except OSError as error:
        raise BadTrace(path, "torch_profiler", "", str(error.strerror or error)) from error


def content(path: Path) -> Content:
    """Return all that the file at `path` holds.

    Raises
    ------
    BadTrace
        It cannot be opened, or has no list of events.

    """
    with _open(path) as stream:
        cutter = Cutter(stream)
        batches, tail = _batches(cutter)
        if cutter.head is None:
            raise BadTrace(
                path, "torch_profiler", "byte 0", stream.damage or "it has no list of traceEvents",
                advice="Export it with torch.profiler's export_chrome_trace.",
            )  # fmt: skip
        whole = joined(batches)
        whole.skipped_bytes += cutter.skipped_bytes
        return Content(whole, document(cutter.head, tail), stream.damage, stream.lost_bytes)
