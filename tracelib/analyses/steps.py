"""The model's steps as their names tell them: what each worked on, and which request's prompt it held.

vLLM and SGLang name each step's range after the prompts and tokens in it (`[[step]]` of the rules). Engines
fill each step up to a limit of tokens, in the order in which prompts came to them, and a prompt that does not
fit goes on in the next step. A log says how long each request's prompt is, when it came, and when its first
token did. So the prompts of a step are those that had come, whose first token came after it, soonest first,
and, among these, those whose lengths add up to its tokens.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import NamedTuple

import polars as pl

from tracelib.analyses.ipc import last_done, thread_processes
from tracelib.analyses.window import Window
from tracelib.intervals import outermost
from tracelib.slice_rules import TOKENS, Rules, StepRule
from tracelib.trace import Trace

PROMPT_STEPS = pl.Schema(
    {
        "row": pl.UInt32(),
        "begin_ns": pl.Int64(),
        "received_ns": pl.Int64(),
        "done_ns": pl.Int64(),
        "queue_ns": pl.Int64(),
        "reached_ns": pl.Int64(),
    }
)
#: Why a request waited in the engine's queue, as far as the steps in progress show it.
QUEUE_REASONS = ("full", "prefill", "decode")
#: A step that holds this share of the largest one's tokens has no room for another prompt.
FULL = 0.99
#: The limit of an engine's steps shows if so many of them are full.
OFTEN = 3
#: Requests of which those of a step are chosen by their lengths, beyond as many as it holds; more prompts in
#: one step than LARGE are taken in order.
SPARE, LARGE = 3, 6
#: A first token may come this much before its step's end, as far as the clocks are tied.
CLOCK_NS = 2_000_000


class Step(NamedTuple):
    """One step of all workers together."""

    begin_ns: int
    received_ns: int
    done_ns: int
    prompts: int
    prefill: int
    decode: int


class Asked(NamedTuple):
    """One request, in order of arrival."""

    row: int
    since_ns: int
    first_token_ns: int
    tokens: int | None


@dataclass
class _Begun:
    """A prompt that goes on in the next step: its request, its first step, its tokens left (or None)."""

    request: Asked
    first: int
    left: int | None


def prompt_steps(asked: pl.DataFrame, model_steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that held each request's prompt.

    Takes requests (`row`, `since`: when the prompt came to the engine at the earliest, `first_token`,
    `prompt_tokens`) and the frame `model_steps`.

    One row per request whose prompt is placed: `row` (UInt32), `begin_ns` (Int64: when the first of its steps
    began), `received_ns` (Int64: the same on the last worker), `done_ns` (Int64: when its last step's last
    operation ended), `queue_ns` (Int64: how long, up to `begin_ns`, earlier steps were in progress while it
    may have been in the engine), `reached_ns` (Int64: since when it may have been). It was not yet there when
    the last step began that had room and did not take it. No rows where workers do different steps
    (replicas), where names tell no prompts, or where the log lacks requests.
    """
    steps, requests = _steps(model_steps), _requests(asked)
    limit, shows = _limit(steps)
    placed: dict[Asked, tuple[int, int]] = {}
    doubtful: list[Asked] = []
    begun: _Begun | None = None
    come: list[Asked] = []
    seen = 0
    for number, step in enumerate(steps):
        arrived = bisect_right(requests, step.begin_ns, lo=seen, key=lambda each: each.since_ns)
        come, seen = come + requests[seen:arrived], arrived
        missed = [each for each in come if each.first_token_ns < step.done_ns - CLOCK_NS]
        come = [each for each in come if each.first_token_ns >= step.done_ns - CLOCK_NS]
        if missed and number and any(each.since_ns > steps[0].begin_ns for each in missed):
            for each in doubtful:
                del placed[each]
            doubtful = []
        if not step.prompts:
            continue
        full = step.prefill + step.decode >= limit
        done, begun, exact = _held(come, begun, step, number, full=full, shows=shows)
        placed |= {each.request: (each.first, number) for each in done}
        doubtful = [] if exact else doubtful + [each.request for each in done]
        taken = [each.request for each in done] + ([begun.request] if begun else [])
        come = [each for each in come if each not in taken]
    done_by = list(accumulate((step.done_ns for step in steps), max))
    rows = [
        _row(each, steps[bisect_right(done_by, each.since_ns) : first], steps[first], steps[last], limit)
        for each, (first, last) in placed.items()
    ]
    return pl.DataFrame(rows, schema=PROMPT_STEPS, orient="row")


def queue_reasons(waits: pl.DataFrame, model_steps: pl.DataFrame) -> pl.DataFrame:
    """Return what the steps in progress were while requests waited in the engine's queue.

    Takes waits (`row`, `from_ns`, `to_ns`) and the frame `model_steps`. Of steps that overlap the first
    counts.

    One row per wait: `row` (UInt32) and, in ns (Int64), `full` (steps with no room for another token),
    `prefill` (a step that held others' prompts had begun before the wait), `decode` (a step that only decoded
    had). The rest of a wait is not told: steps with room began without the request, or none was in progress.
    No rows where the steps' names do not tell what they held.
    """
    schema = {"row": pl.UInt32(), **dict.fromkeys(QUEUE_REASONS, pl.Int64())}
    steps = _steps(model_steps)
    if not steps:
        return pl.DataFrame(schema=schema)
    limit, shows = _limit(steps)
    done_by = list(accumulate((step.done_ns for step in steps), max))
    rows = []
    for row, start, end in waits.select("row", "from_ns", "to_ns").iter_rows():
        spent, reached = dict.fromkeys(QUEUE_REASONS, 0), start
        for step in steps[bisect_right(done_by, start) :]:
            if step.begin_ns >= end:
                break
            until = min(step.done_ns, end)
            why = _reason(step, start, limit if shows else None)
            if why:
                spent[why] += max(0, until - max(step.begin_ns, reached))
            reached = max(reached, until)
        rows.append({"row": row, **spent})
    return pl.DataFrame(rows, schema=schema)


def _reason(step: Step, since_ns: int, limit: float | None) -> str | None:
    """Return which of QUEUE_REASONS a step in progress is for a request that has waited since then."""
    if limit is not None and step.prefill + step.decode >= limit:
        return "full"
    if step.begin_ns > since_ns:
        return None
    return "prefill" if step.prefill else "decode"


def _limit(steps: Sequence[Step]) -> tuple[float, bool]:
    """Return from how many tokens on a step is full, and whether enough are to be the engine's limit."""
    limit = FULL * max((step.prefill + step.decode for step in steps), default=0)
    return limit, sum(step.prefill + step.decode >= limit for step in steps) >= OFTEN


def _steps(model_steps: pl.DataFrame) -> list[Step]:
    """Return the steps of all workers as one list; empty where they differ or do not tell their prompts.

    One worker's recording may have begun, or ended, some steps before another's.
    """
    told = model_steps.drop_nulls(["prompts", "prefill", "decode"]).sort("process", "step")
    if told.is_empty() or told.height < model_steps.height:
        return []
    workers = told.partition_by("process", maintain_order=True)
    shared = min(each.height for each in workers)
    for cut in (pl.DataFrame.tail, pl.DataFrame.head):
        parts = [cut(each, shared) for each in workers]
        names = [part.select("prompts", "prefill", "decode") for part in parts]
        if all(each.equals(names[0]) for each in names):
            return _together(parts)
    return []


def _together(parts: Sequence[pl.DataFrame]) -> list[Step]:
    """Return the k-th steps of all workers as one."""
    numbered = pl.concat([part.with_columns(step=pl.int_range(pl.len())) for part in parts])
    merged = numbered.group_by("step", maintain_order=True).agg(
        pl.col("begin_ns").min(),
        pl.col("begin_ns").max().alias("received_ns"),
        pl.col("done_ns").max(),
        pl.col("prompts", "prefill", "decode").first(),
    )
    return [Step(*row) for row in merged.sort("step").drop("step").iter_rows()]


def _requests(asked: pl.DataFrame) -> list[Asked]:
    rows = asked.sort("since", "row").select("row", "since", "first_token", "prompt_tokens")
    return [Asked(*row) for row in rows.iter_rows()]


def _held(
    come: Sequence[Asked], begun: _Begun | None, step: Step, number: int, *, full: bool, shows: bool
) -> tuple[list[_Begun], _Begun | None, bool]:
    """Return the prompts that `step` ends, the one that goes on after it, and whether lengths prove it."""
    before = [begun] if begun else []
    fresh = step.prompts - len(before)
    soonest = sorted(come, key=lambda each: (each.first_token_ns, each.row))
    inside = [_Begun(each, number, each.tokens) for each in soonest]
    for some in _choices(inside, fresh, full=full):
        held = before + some
        needs = [each.left for each in held]
        if len(held) < step.prompts or None in needs:
            continue
        known = [need for need in needs if need is not None]
        if sum(known) == step.prefill:
            return held, None, True
        rest = step.prefill - sum(known[:-1])
        if full and 0 < rest < known[-1]:
            last = held[-1]
            return held[:-1], _Begun(last.request, last.first, known[-1] - rest), True
    held = before + inside[:fresh]
    if full and shows and held:
        return held[:-1], _Begun(held[-1].request, held[-1].first, None), False
    return held, None, False


def _choices(inside: Sequence[_Begun], fresh: int, *, full: bool) -> Iterable[list[_Begun]]:
    """Return which of the prompts may be the step's, soonest first; of a full step each may be the last."""
    pool = inside[: fresh + SPARE]
    if fresh > LARGE:
        return [list(inside[:fresh])]
    if not full or not fresh:
        return map(list, combinations(pool, fresh))
    return ([*some, last] for some in combinations(pool, fresh - 1) for last in pool if last not in some)


def _row(asked: Asked, earlier: Sequence[Step], first: Step, last: Step, limit: float) -> tuple[int, ...]:
    """Return one row of PROMPT_STEPS; `earlier`: steps before the first that were not done when it came."""
    roomy = [step.begin_ns for step in earlier if step.prefill + step.decode < limit]
    since = reached = max([asked.since_ns, *roomy[-1:]])
    queue = 0
    for step in earlier:
        until = min(step.done_ns, first.begin_ns)
        queue += max(0, until - max(step.begin_ns, reached))
        reached = max(reached, until)
    return asked.row, first.begin_ns, first.received_ns, last.done_ns, queue, since


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
    steps = _ranges(trace, rules).filter(within)
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
    processes = thread_processes(trace)
    ranges = _ranges(trace, rules).join(processes, on="thread").rename({"ts_ns": "received_ns"})
    launched = launches.join(processes, left_on="call_thread", right_on="thread")
    done = last_done(launched, ranges.select("process", "received_ns"))
    steps = ranges.join(done, on=["process", "received_ns"]).rename({"received_ns": "begin_ns"})
    steps = steps.sort("process", "begin_ns")
    numbered = steps.with_columns(step=pl.int_range(pl.len(), dtype=pl.Int64).over("process"))
    return numbered.select(list(MODEL_STEPS)).match_to_schema(MODEL_STEPS)


def _ranges(trace: Trace, rules: Rules) -> pl.DataFrame:
    slices = trace.slices.filter((pl.col("category") == "annotation") & (pl.col("dur_ns") > 0))
    named = _named(slices.select("name").unique(), rules.steps)
    return outermost(slices.join(named, on="name"), "thread")


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


def decode_steps(
    step_tokens: pl.DataFrame, ipc: pl.DataFrame, launches: pl.DataFrame, window: Window
) -> pl.DataFrame:
    """Return the steps without a prompt in which no graph was launched: thread, ts_ns, dur_ns, step.

    Takes the frames of the analyses of those names. Where no range names steps, they are what lies between
    two dequeues of a worker, or all the window.
    """
    named = step_tokens.filter(pl.col("prefill") == 0).select(
        "thread", "ts_ns", until=pl.col("ts_ns") + pl.col("dur_ns")
    )
    taken = ipc.filter((pl.col("kind") == "dequeue") & (pl.col("role") == "worker"))
    between = taken.select(
        "thread",
        ts_ns=pl.col("ts_ns") + pl.col("dur_ns"),
        until=pl.col("ts_ns").shift(-1).over("thread", order_by="ts_ns").fill_null(window.end_ns),
    )
    whole = (
        launches.select(thread="call_thread")
        .drop_nulls()
        .unique()
        .with_columns(ts_ns=pl.lit(window.start_ns), until=pl.lit(window.end_ns))
    )
    steps = named if step_tokens.height else between if between.height else whole
    graphs = launches.filter(pl.col("graph").is_not_null()).select(thread="call_thread", ts_ns="call_ts_ns")
    numbered = steps.with_row_index("step").sort("ts_ns")
    by_graph = (
        graphs.drop_nulls()
        .sort("ts_ns")
        .join_asof(numbered, on="ts_ns", by="thread", check_sortedness=False)
        .filter(pl.col("ts_ns") < pl.col("until"))
    )
    left = numbered.join(by_graph, on="step", how="anti")
    return left.select("thread", "ts_ns", "step", dur_ns=pl.col("until") - pl.col("ts_ns")).filter(
        pl.col("dur_ns") > 0
    )
