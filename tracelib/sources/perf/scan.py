"""One pass over a block of `perf script` text: heads cut by slices, every string that repeats turned into a code.

A recording repeats itself: a few thousand distinct call-chain lines, heads that differ only in the time's fraction. So a
line is cut into parts by fixed slices (checked, and given to a regular expression where they do not fit), the parts are
dictionary-encoded, and only distinct parts are ever parsed (`heads`, `frames`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelib.sources.kernel.interning import Texts
from tracelib.sources.perf.patterns import FRAME, HEAD, HEAD_TAIL, LOOSE_HEAD, NAME_HOLDS_HEAD, PHYSICAL
from tracelib.sources.text import lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXCERPT = 200
#: Bytes; a longer line is neither a head nor a frame (the longest mangled names have some thousands of characters).
LONGEST_LINE = 1 << 16
HEAD_COLUMNS = pl.Schema({"line": pl.UInt32, "base": pl.String, "fraction": pl.String, "says": pl.String})


@dataclass
class Tables:
    """The distinct strings of a file: what stands before the time's point, behind the time, and in call-chain lines."""

    base: Texts = field(default_factory=Texts)
    says: Texts = field(default_factory=Texts)
    frame: Texts = field(default_factory=Texts)


@dataclass(frozen=True)
class Scan:
    """What a block holds, in the order of the file.

    `heads`: base and says (codes), fraction_ns. `frames`: event (place in `heads`), frame (code). `other`: lines that
    are neither: text (cut short), bytes. `comments`: header lines. `orphans`: call-chain lines without a head. `damaged`: places that
    are no UTF-8.
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
            (pl.col("fraction").str.pad_end(9, "0").cast(pl.Int32, strict=False)).alias("fraction_ns"),
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


def _blank(line: pl.Series, indented: pl.Series) -> pl.Series:
    """Say in which of the indented lines nothing stands: they are no frames, and the call chain goes on behind them."""
    places = (indented & (line.str.ends_with("\t") | line.str.ends_with(" "))).arg_true()
    return _mask(places.filter(line.gather(places).str.strip_chars() == ""), len(line))


def _comments(line: pl.Series) -> pl.Series:
    """Say which lines are the header's: not the event of a thread whose name starts with "#"."""
    mask = line.str.starts_with("# ") | (line == "#")
    places = mask.arg_true()
    events = places.filter(line.gather(places).str.contains(HEAD))
    return mask & ~_mask(events, len(line)) if len(events) else mask


def _cut(line: pl.Series, places: pl.Series) -> tuple[pl.DataFrame, pl.Series]:
    """Return the heads in the usual layout, cut, and the places of the lines that do not fit it.

    The time's fraction has one width throughout, so it is a slice off the end of all that stands before the first ": ".
    """
    cut = pl.DataFrame({"line": places, "text": line.gather(places)}).with_columns(
        pl.col("text").str.splitn(": ", 2).struct.rename_fields(["left", "says"]).struct.unnest()
    )
    width = _fraction_width(cut["left"])
    if width == 0:
        return pl.DataFrame(schema=HEAD_COLUMNS), places
    usual = cut.select(
        (
            pl.col("left").str.contains(HEAD_TAIL)
            & (pl.col("left").str.tail(width + 1).str.head(1) == ".")
            & ~pl.col("says").str.contains(NAME_HOLDS_HEAD)
        ).fill_null(value=False)
    ).to_series()
    heads = cut.filter(usual).select(
        pl.col("line").cast(pl.UInt32),
        pl.col("left").str.head(-width - 1).alias("base"),
        pl.col("left").str.tail(width).alias("fraction"),
        "says",
    )
    return heads, places.filter(~usual)


def _fraction_width(left: pl.Series) -> int:
    """Return how many digits the time's fraction has in the first usual head, 0 if there is none."""
    first = left.head(1000).str.extract(r"\.(\d{6,9})$").str.len_bytes().drop_nulls()
    return int(first[0]) if len(first) else 0


def _cut_carefully(line: pl.Series, places: pl.Series) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    """Return heads, places of call-chain lines and places of other lines, by regular expressions."""
    text = pl.DataFrame({"line": places.cast(pl.UInt32), "text": line.gather(places)})
    found = []
    for pattern in (HEAD, LOOSE_HEAD):
        groups = text.with_columns(pl.col("text").str.extract_groups(pattern).struct.unnest())
        found.append(groups.filter(pl.col("base").is_not_null()).select(HEAD_COLUMNS.names()))
        text = groups.filter(pl.col("base").is_null()).select("line", "text")
    frame = text.select(
        pl.col("text").str.extract_groups(FRAME).struct.field("library").is_not_null()
        | (
            pl.col("text").str.contains(r"^\s+[0-9a-f]{6,16}(?:\s|$)")
            & ~pl.col("text").str.contains(PHYSICAL)
        )
    ).to_series()
    heads = pl.concat(found).with_columns(pl.col("says").fill_null(""))
    return heads, text["line"].filter(frame), text["line"].filter(~frame)


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
    heads = np.zeros(len(empty), np.int64)
    heads[head] = 1
    owner = np.cumsum(heads)[frame] - 1
    if not len(frame) or not len(head):
        return owner, np.zeros(len(frame), dtype=bool)
    paragraph = np.cumsum(empty, dtype=np.uint32)
    return owner, (owner >= 0) & (paragraph[head][np.maximum(owner, 0)] == paragraph[frame])
