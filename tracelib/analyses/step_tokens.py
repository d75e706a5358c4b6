"""How many tokens each step of the model worked on, where the name of the step's range tells (`rules.toml`, ``[[step]]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.rules import TOKENS

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.rules import Rules, StepRule
    from tracelib.trace import Trace

__all__ = ["STEP_TOKENS", "step_tokens"]

STEP_TOKENS = pl.Schema(
    {
        "thread": pl.Int32(),
        "rank": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "prefill": pl.Int64(),
        "decode": pl.Int64(),
    }
)


def step_tokens(trace: Trace, window: Window, rules: Rules) -> pl.DataFrame:
    """Return the steps of the model of which most lies in the window, whole (not cut at its edges).

    Every worker has rows of its own: ranks that share a model (tensor parallelism) do the same steps, so that their rows
    must not be added up.

    One row per range that a ``[[step]]`` of the rules names (the outermost of its thread, where two recorders each put one
    around the same step): `thread` (Int32), `rank` (Int32, null = not known), `ts_ns`, `dur_ns` (Int64), `prefill`,
    `decode` (Int64: tokens of prompts, tokens of answers; both null = the name does not tell). Sorted by `ts_ns`, `thread`.
    """
    slices = trace.slices.filter((pl.col("category") == "annotation") & (pl.col("dur_ns") > 0))
    named = _named(slices.select("name").unique(), rules.steps)
    found = slices.join(named, on="name").sort("thread", "ts_ns", "dur_ns", descending=[False, False, True])
    ends = pl.col("ts_ns") + pl.col("dur_ns")
    inside = (ends <= ends.cum_max().shift(1).over("thread")).fill_null(value=False)
    middle = pl.col("ts_ns") + pl.col("dur_ns") // 2
    kept = found.filter(~inside).filter((middle >= window.start_ns) & (middle < window.end_ns))
    ranked = kept.join(trace.threads.select("thread", "rank"), on="thread", how="left")
    return ranked.select(list(STEP_TOKENS)).match_to_schema(STEP_TOKENS).sort("ts_ns", "thread")


def _named(names: pl.DataFrame, steps: tuple[StepRule, ...]) -> pl.DataFrame:
    """Return those of `names` that the first rule to match calls a step, with what they tell."""
    told, left = [], names.with_columns(text=pl.col("name").cast(pl.String))
    for rule in steps:
        matches = pl.col("text").str.contains(rule.name)
        hits = left.filter(matches)
        told.append(hits.select("name", **_tokens(rule.name)))
        left = left.filter(~matches.fill_null(value=False))
    empty = names.clear().with_columns(pl.lit(None, pl.Int64).alias(kind) for kind in TOKENS)
    return pl.concat([empty, *told])


def _tokens(pattern: str) -> dict[str, pl.Expr]:
    """Return what a pattern's groups tell; 0 where only the other kind is told."""
    held = [kind for kind in TOKENS if f"<{kind}>" in pattern]
    groups = pl.col("text").str.extract_groups(pattern).struct
    absent = pl.lit(0 if held else None, pl.Int64)
    return {kind: groups.field(kind).cast(pl.Int64) if kind in held else absent for kind in TOKENS}
