"""A whole text scanned: its blocks joined, its distinct parts parsed, its heads accepted or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelib.errors import BadTrace
from tracelib.sources.files import open_stream
from tracelib.sources.perf import frames, heads
from tracelib.sources.perf.blocks import blocks, overlapped
from tracelib.sources.perf.ending import Ending
from tracelib.sources.perf.header import Header, of_lines
from tracelib.sources.perf.scan import Scan, Tables, scan

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Text", "joined"]


@dataclass
class Text:
    """A scanned file: its scans joined, its distinct parts parsed.

    `events` has one row per accepted head, in the order of the file: `ts_ns`, `base`, `says` (codes), `kind`; `frames`
    one row per call-chain line: `event` (row of `events`), `frame` (row of `chain_lines`, which has what `frames.parse`
    says of each distinct line).
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


def joined(path: Path) -> Text:
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
    chain_lines = frames.parse(frame_texts)
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
    """Return refused heads as lines that were not understood (their fraction, no longer at hand, as an ellipsis)."""
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
