"""The text of `perf script` as tables: heads cut by slices, every string that repeats turned into a code.

A recording repeats itself: a few thousand distinct call-chain lines, heads that differ only in the time's
fraction. So a line is cut into parts by fixed slices (checked, and given to a regular expression where they
do not fit), the parts are dictionary-encoded, and only distinct parts are ever parsed (`heads`,
`call_chains`). The text is cut between events into blocks; two are scanned at a time.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.errors import BadTrace
from tracelib.sources.files import open_stream
from tracelib.sources.kernel.sched import ends_whole
from tracelib.sources.kernel.texts import CHUNK, Texts, lines, pieces
from tracelib.sources.perf import call_chains, heads
from tracelib.sources.perf.heads import Header, of_lines

#: Bytes; a block without a place to cut is cut anywhere: memory stays bounded whatever the input.
LONGEST_BLOCK = 2 * CHUNK
LOOK_BACK = 1 << 16
#: A line end before a line that can only be the head of an event: neither blank nor indented like a frame.
BEFORE_HEAD = re.compile(rb"\n(?=[ ]{0,16}[^\s])(?![ ]*[0-9a-f]+ )")
THREADS = 2
EXCERPT = 200
#: Bytes; a longer line is neither a head nor a frame (the longest mangled names have some thousands of
#: characters).
LONGEST_LINE = 1 << 16
HEAD_COLUMNS = pl.Schema({"line": pl.UInt32, "base": pl.String, "fraction": pl.String, "says": pl.String})

Made = TypeVar("Made")


@dataclass
class Text:
    """A scanned file: its blocks joined, its distinct parts parsed.

    `events` has one row per accepted head, in the order of the file: `ts_ns`, `base`, `says` (codes), `kind`;
    `frames` one row per call-chain line: `event` (row of `events`), `frame` (row of `chain_lines`, which has
    what `call_chains.parse` says of each distinct line).
    """

    events: pl.DataFrame
    frames: pl.DataFrame
    bases: pl.DataFrame
    says: pl.DataFrame
    chain_lines: pl.DataFrame
    header: Header
    other: pl.DataFrame
    orphans: int
    damaged: int
    ending: Ending
    damage: str | None
    lost_bytes: int


def scanned(path: Path) -> Text:
    """Return the file scanned, its heads accepted or moved to the lines that were not understood."""
    tables, ending = Tables(), Ending()
    try:
        with open_stream(path) as stream:
            scans = list(overlapped(lambda block: scan(block, tables), ending.of(blocks(stream))))
            damage, lost_bytes = stream.damage, stream.lost_bytes
    except OSError as error:
        raise BadTrace(path, "perf script text", "", str(error)) from error
    base_texts, texts, frame_texts = (table.all() for table in (tables.base, tables.says, tables.frame))
    bases = heads.prefixes(base_texts)
    says = heads.events(texts)
    all_heads, all_frames = _laid_end_to_end(scans or [scan(b"", tables)])
    accepted = _accepted(all_heads, bases, says)
    refused = all_heads.filter(~accepted)
    owned = accepted.gather(all_frames["event"])
    place = (accepted.cum_sum().cast(pl.Int64) - 1).gather(all_frames["event"])
    chain_lines = call_chains.parse(frame_texts)
    is_frame = chain_lines["symbol"].is_not_null().gather(all_frames["frame"])
    stray = _as_other(frame_texts.gather(all_frames.filter(owned & ~is_frame)["frame"]))
    return Text(
        events=_events(all_heads.filter(accepted), bases, says),
        frames=all_frames.with_columns(place.alias("event")).filter(owned & is_frame),
        bases=bases,
        says=says,
        chain_lines=chain_lines,
        header=of_lines(line for part in scans for line in part.comments),
        other=pl.concat([*(part.other for part in scans), stray, _as_lines(refused, base_texts, texts)]),
        orphans=sum(part.orphans for part in scans) + int((~owned).sum()),
        damaged=sum(part.damaged for part in scans),
        ending=ending,
        damage=damage,
        lost_bytes=lost_bytes,
    )


def _laid_end_to_end(scans: list[Scan]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the heads of all blocks, and their frames, whose `event` now counts through the file."""
    first = np.cumsum([0, *(part.heads.height for part in scans)])
    frames = [
        part.frames.with_columns(pl.col("event") + int(at)) for part, at in zip(scans, first, strict=False)
    ]
    return pl.concat([part.heads for part in scans]), pl.concat(frames)


def _as_lines(refused: pl.DataFrame, base: pl.Series, says: pl.Series) -> pl.DataFrame:
    """Return refused heads as lines that were not understood, an ellipsis for their fraction."""
    line = pl.concat_str(base.gather(refused["base"]), pl.lit(".…: "), says.gather(refused["says"]))
    return _as_other(pl.select(line).to_series())


def _as_other(line: pl.Series) -> pl.DataFrame:
    """Return `line` as `other` has them, those without a visible character left out."""
    text = line.alias("text").to_frame().filter(pl.col("text").str.strip_chars() != "")
    return text.with_columns(pl.col("text").str.len_bytes().alias("bytes"))


def _accepted(all_heads: pl.DataFrame, bases: pl.DataFrame, says: pl.DataFrame) -> pl.Series:
    """Say for each head whether it is one.

    It has a time and a thread; where most have no thread (`-F time,event,…`) an event will do in its place.
    """
    timed = bases["seconds"].is_not_null().gather(all_heads["base"]) & all_heads["fraction_ns"].is_not_null()
    with_thread = bases["tid"].is_not_null().gather(all_heads["base"]) & timed
    with_event = says["event"].is_not_null().gather(all_heads["says"]) & timed
    return with_thread if with_thread.sum() * 2 > with_event.sum() else with_event


def _events(accepted: pl.DataFrame, bases: pl.DataFrame, says: pl.DataFrame) -> pl.DataFrame:
    seconds = bases["seconds"].gather(accepted["base"])
    return accepted.select(
        (seconds * 10**9 + accepted["fraction_ns"]).alias("ts_ns"),
        "base",
        "says",
        says["kind"].gather(accepted["says"]),
    )


def blocks(stream: io.RawIOBase, size: int = CHUNK) -> Iterator[bytes]:
    """Yield the stream's bytes in pieces of about `size` that end between two events, or with the file."""
    return pieces(stream, size, _between_events, LONGEST_BLOCK)


def _between_events(data: bytearray, filled: int) -> int:
    """Return how many of the `filled` bytes of `data` are whole events, 0 if no cut is found.

    Most recordings close each event with an empty line; those without call chains have one event a line.
    """
    for empty_line in (b"\n\n", b"\n\r\n"):
        if (at := data.rfind(empty_line, 0, filled)) >= 0:
            return at + len(empty_line)
    start = max(0, filled - LOOK_BACK)
    last = max((match.end() for match in BEFORE_HEAD.finditer(data, start, filled)), default=0)
    return last or data.rfind(b"\n", 0, filled) + 1 if filled >= LONGEST_BLOCK else last


def overlapped(work: Callable[[bytes], Made], pieces: Iterable[bytes]) -> Iterator[Made]:
    """Yield `work(piece)` of each piece in order, the next under way meanwhile (Polars has no GIL)."""
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        for piece in pieces:
            waiting.append(pool.submit(work, piece))
            if len(waiting) > THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclass
class Ending:
    """The end of a text that may have been cut; final once `of` is exhausted."""

    dropped_bytes: int = 0
    dropped: str = ""  # the line that is not whole
    open_chain: bool = False  # no empty line closes the last call chain: it may lack its outer frames

    def of(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield `pieces`, the last without an event that was cut."""
        held = None
        for piece in pieces:
            if held is not None:
                yield held
            held = piece
        if held is not None:
            yield self._whole(held)

    def _whole(self, piece: bytes) -> bytes:
        """Return `piece` without a cut event: a last line without an end whose right part is missing.

        A line that ends with the closing bracket of a library is whole even without a line end (an editor may
        have taken that away), and so is an event to which no call chain belongs.
        """
        if piece.endswith(b"\n"):
            self.open_chain = _in_chain(piece)
            return piece
        last = piece.rfind(b"\n") + 1
        if (piece.rstrip().endswith(b")") and b" (" in piece[last:]) or _is_event(piece, last):
            self.open_chain = _in_chain(piece)
            return piece
        start = last
        while start > 0 and piece[start : start + 1] == b"\t":
            start = piece.rfind(b"\n", 0, start - 1) + 1
        self.dropped_bytes = len(piece) - start
        self.dropped = piece[last : last + 200].decode(errors="replace")
        return piece[:start]


def _is_event(piece: bytes, start: int) -> bool:
    """Say whether the last line, which begins at `start`, is a whole event without a call chain."""
    head = re.match(heads.HEAD, piece[start:].decode(errors="replace").rstrip())
    event = re.match(heads.EVENT, (head and head["says"]) or "")
    if not event or not event["event"]:
        return False
    said = f"{event['event']}: {event['rest']}"
    chains = b"\n\t" in piece and not re.match(heads.TRACEPOINT, event["event"])
    return ends_whole(said) and not chains


def _in_chain(piece: bytes) -> bool:
    """Say whether the text ends behind a frame, in a recording that closes its chains with empty lines."""
    last = piece[piece.rfind(b"\n", 0, len(piece) - 1) + 1 :]
    return last.startswith(b"\t") and b"\n\n" in piece.replace(b"\r\n", b"\n")


@dataclass
class Tables:
    """The distinct strings of a file: before the time's point, behind the time, and of call-chain lines."""

    base: Texts = field(default_factory=Texts)
    says: Texts = field(default_factory=Texts)
    frame: Texts = field(default_factory=Texts)


@dataclass(frozen=True)
class Scan:
    """What a block holds, in the order of the file.

    `heads`: base and says (codes), fraction_ns. `frames`: event (place in `heads`), frame (code). `other`:
    lines that are neither: text (cut short), bytes. `comments`: header lines. `orphans`: call-chain lines
    without a head. `damaged`: places that are not UTF-8.
    """

    heads: pl.DataFrame
    frames: pl.DataFrame
    other: pl.DataFrame
    comments: pl.Series
    orphans: int
    damaged: int


def scan(block: bytes, tables: Tables) -> Scan:
    """Return the events of `block`, which must hold whole events."""
    line, damaged = lines(block)
    size = line.str.len_bytes()
    long = size > LONGEST_LINE
    indented = line.str.starts_with("\t") & ~long
    empty = size == 0
    blank = _blank(line, indented)
    indented = indented & ~blank
    comment = _comments(line)
    rest = (~(indented | blank | empty | comment | long)).arg_true()
    fast, careful = _cut(line, rest)
    if len(careful):
        slow, loose_frames, other = _cut_carefully(line, careful)
        fast = pl.concat([fast, slow]).sort("line")
        indented = indented | _mask(loose_frames, len(line))
        empty = empty | _mask(other.filter(line.gather(other).str.strip_chars() == ""), len(line))
        other = other.filter(line.gather(other).str.strip_chars() != "")
    else:
        other = careful
    if long.any():
        other = pl.concat([other, (long & ~comment).arg_true()]).sort()
    owner, owned = _owners(fast["line"].to_numpy(), indented.arg_true().to_numpy(), empty.to_numpy())
    return Scan(
        heads=fast.select(
            tables.base.codes(fast["base"]),
            _nanoseconds(pl.col("fraction")).alias("fraction_ns"),
            tables.says.codes(fast["says"]),
        ),
        frames=pl.DataFrame(
            {
                "event": pl.Series(owner[owned], dtype=pl.UInt32),
                "frame": tables.frame.codes(line.filter(indented).filter(pl.Series(owned))),
            }
        ),
        other=pl.DataFrame({"text": line.gather(other)}).select(
            pl.col("text").str.head(EXCERPT), pl.col("text").str.len_bytes().alias("bytes")
        ),
        comments=line.filter(comment),
        orphans=int((~owned).sum()),
        damaged=damaged,
    )


def _nanoseconds(fraction: pl.Expr) -> pl.Expr:
    """Perf prints six digits or nine; simpleperf's reports print microseconds without their leading zeros."""
    return fraction.str.pad_start(6, "0").str.pad_end(9, "0").cast(pl.Int32, strict=False)


def _blank(line: pl.Series, indented: pl.Series) -> pl.Series:
    """Say which of the indented lines are blank: not frames, and the call chain goes on behind them."""
    places = (indented & (line.str.ends_with("\t") | line.str.ends_with(" "))).arg_true()
    return _mask(places.filter(line.gather(places).str.strip_chars() == ""), len(line))


def _comments(line: pl.Series) -> pl.Series:
    """Say which lines are the header's: not the event of a thread whose name starts with "#"."""
    mask = line.str.starts_with("# ") | (line == "#")
    places = mask.arg_true()
    events = places.filter(line.gather(places).str.contains(heads.HEAD))
    return mask & ~_mask(events, len(line)) if len(events) else mask


def _cut(line: pl.Series, places: pl.Series) -> tuple[pl.DataFrame, pl.Series]:
    """Return the heads in the usual layout, cut, and the places of the lines that do not fit it.

    The time's fraction has one width throughout, so it is a slice off the end of all that stands before the
    first ": ".
    """
    cut = pl.DataFrame({"line": places, "text": line.gather(places)}).with_columns(
        pl.col("text").str.splitn(": ", 2).struct.rename_fields(["left", "says"]).struct.unnest()
    )
    width = _fraction_width(cut["left"])
    if width == 0:
        return pl.DataFrame(schema=HEAD_COLUMNS), places
    usual = cut.select(
        (
            pl.col("left").str.contains(heads.HEAD_TAIL)
            & (pl.col("left").str.tail(width + 1).str.head(1) == ".")
            & ~pl.col("says").str.contains(heads.NAME_HOLDS_HEAD)
        ).fill_null(value=False)
    ).to_series()
    usual_heads = cut.filter(usual).select(
        pl.col("line").cast(pl.UInt32),
        pl.col("left").str.head(-width - 1).alias("base"),
        pl.col("left").str.tail(width).alias("fraction"),
        "says",
    )
    return usual_heads, places.filter(~usual)


def _fraction_width(left: pl.Series) -> int:
    """Return how many digits the time's fraction has in the first usual head, 0 if there is none."""
    first = left.head(1000).str.extract(r"\.(\d{6,9})$").str.len_bytes().drop_nulls()
    return int(first[0]) if len(first) else 0


def _cut_carefully(line: pl.Series, places: pl.Series) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    """Return heads, places of call-chain lines and places of other lines, by regular expressions."""
    text = pl.DataFrame({"line": places.cast(pl.UInt32), "text": line.gather(places)})
    cut = []
    for pattern in (heads.HEAD, heads.LOOSE_HEAD):
        groups = text.with_columns(pl.col("text").str.extract_groups(pattern).struct.unnest())
        cut.append(groups.filter(pl.col("base").is_not_null()).select(HEAD_COLUMNS.names()))
        text = groups.filter(pl.col("base").is_null()).select("line", "text")
    frame = text.select(
        pl.col("text").str.extract_groups(call_chains.FRAME).struct.field("library").is_not_null()
        | (
            pl.col("text").str.contains(r"^\s+[0-9a-f]{6,16}(?:\s|$)")
            & ~pl.col("text").str.contains(call_chains.PHYSICAL)
        )
    ).to_series()
    careful_heads = pl.concat(cut).with_columns(pl.col("says").fill_null(""))
    return careful_heads, text["line"].filter(frame), text["line"].filter(~frame)


def _mask(places: pl.Series, length: int) -> pl.Series:
    mask = np.zeros(length, dtype=bool)
    mask[places.to_numpy()] = True
    return pl.Series(mask)


def _owners(
    head: NDArray[np.uint32], frame: NDArray[np.uint32], empty: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return for each frame the head above it, and whether it is that head's: no empty line lies between.

    A head that could not be read thus takes its frames with it, in place of leaving them to the event before.
    """
    is_head = np.zeros(len(empty), np.int64)
    is_head[head] = 1
    owner = np.cumsum(is_head)[frame] - 1
    if not len(frame) or not len(head):
        return owner, np.zeros(len(frame), dtype=bool)
    paragraph = np.cumsum(empty, dtype=np.uint32)
    return owner, (owner >= 0) & (paragraph[head][np.maximum(owner, 0)] == paragraph[frame])
