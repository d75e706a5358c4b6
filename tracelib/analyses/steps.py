"""The model's steps as their names tell them: what each worked on, and whose prompts it held.

vLLM and SGLang name each step's range after the prompts and tokens in it (`[[step]]` of the rules). Engines
take prompts in the order in which they came and fill a step up to a limit, so that a log of requests and the
steps' names tell which steps held which prompt, without a word from the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.rules import TOKENS

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.rules import Rules, StepRule
    from tracelib.trace import Trace

STEP_TOKENS = pl.Schema(
    {
        "thread": pl.Int32(),
        "rank": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "prompts": pl.Int64(),
        "prefill": pl.Int64(),
        "decode": pl.Int64(),
    }
)
MODEL_STEPS = pl.Schema(
    {
        "process": pl.Int64(),
        "step": pl.Int64(),
        "begin_ns": pl.Int64(),
        "done_ns": pl.Int64(),
        **{kind: pl.Int64() for kind in TOKENS},
    }
)


def step_tokens(trace: Trace, window: Window, rules: Rules) -> pl.DataFrame:
    """Return the steps of the model of which most lies in the window, whole (not cut at its edges).

    Every worker has rows of its own: ranks that share a model (tensor parallelism) do the same steps, so that
    their rows must not be added up.

    One row per range that a ``[[step]]`` of the rules names (the outermost of its thread, where two recorders
    each put one around the same step): `thread` (Int32), `rank` (Int32, null = not known), `ts_ns`, `dur_ns`
    (Int64), `prompts`, `prefill`, `decode` (Int64: prompts in it, their tokens, tokens of answers; null = the
    name does not tell). Sorted by `ts_ns`, `thread`.
    """
    middle = pl.col("ts_ns") + pl.col("dur_ns") // 2
    within = (middle >= window.start_ns) & (middle < window.end_ns)
    steps = _outermost(trace, rules).filter(within)
    ranked = steps.join(trace.threads.select("thread", "rank"), on="thread", how="left")
    return ranked.select(list(STEP_TOKENS)).match_to_schema(STEP_TOKENS).sort("ts_ns", "thread")


def model_steps(
    trace: Trace, requests_log: pl.DataFrame | None, rules: Rules, launches: pl.DataFrame
) -> pl.DataFrame:
    """Return what each worker process did of each step of the model, in the window or not.

    Takes the frame `launches`. A step begins with its range and holds what the process launches until its
    next one.

    One row per process and step that put work on a GPU: `process` (Int64: a number of the process), `step`
    (Int64: its number among the process's), `begin_ns`, `done_ns` (Int64: begin of the range, end of the last
    GPU operation), `prompts`, `prefill`, `decode` (Int64, as in :func:`step_tokens`). Sorted by `process`,
    `step`. Empty without a request log.
    """
    if requests_log is None:
        return pl.DataFrame(schema=MODEL_STEPS)
    processes = trace.threads.select("thread", process=pl.struct("host", "pid").rank("dense").cast(pl.Int64))
    ranges = _outermost(trace, rules).join(processes, on="thread").rename({"ts_ns": "begin_ns"})
    ops = launches.join(processes, left_on="call_thread", right_on="thread").select(
        "process", "call_ts_ns", end=pl.col("ts_ns") + pl.col("dur_ns")
    )
    held = ops.sort("call_ts_ns").join_asof(
        ranges.select("process", "begin_ns").sort("begin_ns"),
        left_on="call_ts_ns",
        right_on="begin_ns",
        by="process",
        check_sortedness=False,
    )
    done = held.group_by("process", "begin_ns").agg(done_ns=pl.col("end").max())
    steps = ranges.join(done, on=["process", "begin_ns"]).sort("process", "begin_ns")
    numbered = steps.with_columns(step=pl.int_range(pl.len(), dtype=pl.Int64).over("process"))
    return numbered.select(list(MODEL_STEPS)).match_to_schema(MODEL_STEPS)


def _outermost(trace: Trace, rules: Rules) -> pl.DataFrame:
    slices = trace.slices.filter((pl.col("category") == "annotation") & (pl.col("dur_ns") > 0))
    named = _named(slices.select("name").unique(), rules.steps)
    steps = slices.join(named, on="name").sort("thread", "ts_ns", "dur_ns", descending=[False, False, True])
    ends = pl.col("ts_ns") + pl.col("dur_ns")
    inside = (ends <= ends.cum_max().shift(1).over("thread")).fill_null(value=False)
    return steps.filter(~inside)


def _named(names: pl.DataFrame, steps: tuple[StepRule, ...]) -> pl.DataFrame:
    """Return those of `names` that the first rule to match calls a step, with what they tell."""
    named, left = [], names.with_columns(text=pl.col("name").cast(pl.String))
    for rule in steps:
        matches = pl.col("text").str.contains(rule.name)
        hits = left.filter(matches)
        named.append(hits.select("name", **_tokens(rule.name)))
        left = left.filter(~matches.fill_null(value=False))
    empty = names.clear().with_columns(pl.lit(None, pl.Int64).alias(kind) for kind in TOKENS)
    return pl.concat([empty, *named])


def _tokens(pattern: str) -> dict[str, pl.Expr]:
    """Return what a pattern's groups tell; 0 where only the other kind of token is told."""
    held = [kind for kind in TOKENS if f"<{kind}>" in pattern]
    groups = pl.col("text").str.extract_groups(pattern).struct
    absent = {kind: pl.lit(0 if held and kind != "prompts" else None, pl.Int64) for kind in TOKENS}
    return {kind: groups.field(kind).cast(pl.Int64) if kind in held else absent[kind] for kind in TOKENS}
