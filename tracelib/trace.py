"""The one thing that readers make and analyses take: a frozen bundle of frames."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import FRAMES, SORT, empty

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Trace"]


@dataclass(frozen=True)
class Trace:
    """Frames of one or more trace files on one timeline; :mod:`tracelib.schema` lists each frame's columns."""

    slices: pl.DataFrame
    gpu_ops: pl.DataFrame
    samples: pl.DataFrame
    stacks: pl.DataFrame
    sched: pl.DataFrame
    counters: pl.DataFrame
    threads: pl.DataFrame
    gpus: pl.DataFrame
    sources: pl.DataFrame
    health: pl.DataFrame

    @classmethod
    def of(cls, frames: Mapping[str, pl.DataFrame]) -> Trace:
        """Return a checked and sorted trace of `frames`; a frame that is not named is empty.

        Raises
        ------
        polars.exceptions.SchemaError
            A frame's columns or dtypes differ from :mod:`tracelib.schema` (a defect of the reader).

        """
        made = {name: frames.get(name, empty(name)).match_to_schema(FRAMES[name]) for name in FRAMES}
        return cls(**{name: _sorted(name, frame) for name, frame in made.items()}).check()

    def frames(self) -> dict[str, pl.DataFrame]:
        """Return the frames by name."""
        return {name: getattr(self, name) for name in FRAMES}

    def replace(self, **frames: pl.DataFrame) -> Trace:
        """Return a copy with some frames replaced."""
        return dataclasses.replace(self, **frames)

    def check(self) -> Trace:
        """Return self if the frames are sound: schemas match, keys point to rows that exist, no negative duration.

        Raises
        ------
        AssertionError
            A reader broke the contract; the message names the frame and column.

        """
        for name, frame in self.frames().items():
            frame.match_to_schema(FRAMES[name])
        for frame, column, target in (
            ("slices", "thread", "threads"), ("samples", "thread", "threads"), ("sched", "prev", "threads"),
            ("sched", "next", "threads"), ("gpu_ops", "gpu", "gpus"), ("samples", "stack", "stacks"),
        ):  # fmt: skip
            known = getattr(self, target)[target[:-1]].unique()
            used = getattr(self, frame)[column].drop_nulls().unique()
            stray = used.filter((used >= 0) & ~used.is_in(known.implode()))
            assert stray.is_empty(), f"{frame}.{column} points to no row of {target}: {stray.head(3).to_list()}"
        for name in ("slices", "gpu_ops"):
            shortest = getattr(self, name)["dur_ns"].min()
            assert shortest is None or shortest >= 0, f"{name}.dur_ns holds {shortest}"
        return self


def _sorted(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    descending = [name == "slices" and column == "dur_ns" for column in SORT[name]]
    return frame.sort(SORT[name], descending=descending, maintain_order=True)
