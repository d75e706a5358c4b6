"""Ledger 4: where a request's time to first token went.

docs/numbers.md, "Ledger 4", defines the parts.

Requests are told apart by a request log, or not at all: a trace without ids cannot say which tokenization
belongs to which first token. The log says when a request was tokenized and when its first token came; which
step of the workers gave that token follows from the steps' own times: the last one whose GPU work was done by
then.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.gpu_time import USEFUL
from tracelib.errors import BadTrace
from tracelib.intervals import overlay

if TYPE_CHECKING:
    from pathlib import Path

    from tracelib.analyses.window import Window

REQUEST_LOG = ("id", "arrived", "tokenize_start", "tokenize_end", "first_token")
#: What a log may hold too: when the engine took the request into its first step (vLLM's `scheduled_ts`), its
#: input's length.
OPTIONAL = ("scheduled", "prompt_tokens")
ORDER = ("arrived", "tokenize_start", "tokenize_end", "scheduled", "first_token")

#: What the time to first token consists of, in this order, if nothing is unknown.
PARTS = (
    "before_tokenize_ns",
    "tokenize_ns",
    "queue_ns",
    "broadcast_ns",
    "gpu_useful_ns",
    "gpu_wait_ns",
    "gpu_idle_ns",
    "gpu_collective_ns",
    "back_ns",
    "unknown_ns",
)

REQUESTS = pl.Schema(
    {
        "id": pl.String(),
        "arrived_ns": pl.Int64(),
        "tokenized_ns": pl.Int64(),
        "first_token_ns": pl.Int64(),
        "ttft_ns": pl.Int64(),
        **dict.fromkeys(PARTS, pl.Int64()),
        "unknown_why": pl.String(),
        "prompt_tokens": pl.Int64(),
    }
)

REQUEST_CAUSES = pl.Schema({"row": pl.Int64(), "id": pl.String(), "cause": pl.String(), "ns": pl.Int64()})

#: Why a part of a request is not known.
NO_STEPS = (
    "no source recorded when the workers took their steps and what these launched "
    "(annotations such as shm_broadcast.dequeue)"
)
NO_STEP = "the workers' steps do not show which one gave the first token"
NOT_SENT = (
    "which of the engine's messages brought the step cannot be told, "
    "so its way from the tokenizer to the workers stays whole"
)
BEFORE = (
    "the engine sent other steps first: the request waited for them, "
    "or they held the first parts of its prompt "
    "(a column `scheduled` of the log, when the engine took it, tells)"
)


def request_log(path: Path, offset_ns: int = 0) -> pl.DataFrame:
    """Return a request log (JSON lines) with `offset_ns` added to its times; empty lines are skipped.

    One row per request: `id` (String), `arrived`, `tokenize_start`, `tokenize_end`, `first_token` (Int64,
    ns), `scheduled` (Int64, ns: when the engine took it into its first step; null = not logged),
    `prompt_tokens` (Int64: its input; null = not logged). As in the file.

    Raises
    ------
    BadTrace
        The file cannot be opened, a line is not JSON, a column is missing, or its times are not in that
        order; the message names the line.

    """
    rows: list[dict[str, object]] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            times = {name: int(record[name]) + offset_ns for name in REQUEST_LOG[1:]}
            scheduled, tokens = (None if record.get(name) is None else int(record[name]) for name in OPTIONAL)
            taken = None if scheduled is None else scheduled + offset_ns
            rows.append({"id": str(record["id"]), **times, "scheduled": taken, "prompt_tokens": tokens})
        except (ValueError, TypeError) as error:
            raise BadTrace(path, "request log", f"line {number}", str(error), line) from error
        except KeyError as error:
            columns = ", ".join(REQUEST_LOG)
            raise BadTrace(
                path,
                "request log",
                f"line {number}",
                f"no column {error}",
                line,
                f"It needs {columns}, in ns.",
            ) from error
        given = times if taken is None else {**times, "scheduled": taken}
        names = [name for name in ORDER if name in given]
        in_order = [given[name] for name in names]
        if in_order != sorted(in_order):
            order = " <= ".join(names)
            raise BadTrace(path, "request log", f"line {number}", f"its times must be {order}", line)
    integers = dict.fromkeys((*REQUEST_LOG[1:], *OPTIONAL), pl.Int64)
    return pl.DataFrame(rows, schema={"id": pl.String, **integers})


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BadTrace(path, "request log", "", error.strerror or str(error)) from error


def requests(
    requests_log: pl.DataFrame | None, window: Window, gpu_states: pl.DataFrame, worker_steps: pl.DataFrame
) -> pl.DataFrame:
    """Return the time to first token of each request in the window, split into parts that add up to it.

    Takes a log on the aligned timeline (None = there is none) and the frames `gpu_states` and
    :func:`tracelib.analyses.ipc.worker_steps`; of several GPUs the first stands for all, since they work in
    step.

    One row per request: `id` (String), `arrived_ns`, `tokenized_ns`, `first_token_ns`, `ttft_ns` (Int64),
    then the parts (Int64, ns; null = not known, its time is in `unknown_ns`):

    - `before_tokenize_ns` (arrival to tokenizer), `tokenize_ns`
    - `queue_ns`: from there until the engine takes the request: `scheduled`, where logged, else until it
      begins to send the next step
    - `broadcast_ns`: from there, or from the enqueue of the step that gave the first token, until the last
      worker has it
    - `gpu_useful_ns`, `gpu_wait_ns` (waiting in a collective), `gpu_idle_ns`, `gpu_collective_ns`
      (collectives whose waiting cannot be told): the GPU's time from then until the step's last operation
      ends, on any GPU
    - `back_ns`: from there to the first token
    - `unknown_ns`: what cannot be told; `unknown_why` (String) says why (null = nothing is unknown)

    and `prompt_tokens` (Int64: its input; null = not logged). Sorted by `arrived_ns`.
    """
    if requests_log is None or requests_log.is_empty():
        return pl.DataFrame(schema=REQUESTS)
    within = (pl.col("arrived") >= window.start_ns) & (pl.col("first_token") <= window.end_ns)
    inside = requests_log.filter(within).sort("arrived").with_row_index("row")  # a log may use an id again
    placed = inside.join(_step_of(inside, worker_steps), on="row", how="left")
    c, w, d = pl.col("tokenize_end"), pl.col("received_ns"), pl.col("done_ns")
    cut = placed.with_columns(
        queue_ns=pl.col("next_ns") - c,
        broadcast_ns=w - pl.col("sent_ns"),
        back_ns=pl.col("first_token") - d,
        unknown_ns=pl.coalesce(pl.col("sent_ns") - pl.col("next_ns"), w - c, pl.col("first_token") - c),
    )
    split = cut.join(_gpu_parts(placed, gpu_states), on="row", how="left").select(
        "id",
        arrived_ns="arrived",
        tokenized_ns="tokenize_end",
        first_token_ns=pl.col("first_token"),
        ttft_ns=pl.col("first_token") - pl.col("arrived"),
        before_tokenize_ns=pl.col("tokenize_start") - pl.col("arrived"),
        tokenize_ns=c - pl.col("tokenize_start"),
        **{part: pl.col(part) for part in PARTS[2:]},
        unknown_why=_why(worker_steps),
        prompt_tokens=pl.col("prompt_tokens"),
    )
    return split.match_to_schema(REQUESTS)


def _why(steps: pl.DataFrame) -> pl.Expr:
    unplaced = pl.lit(NO_STEPS if steps.is_empty() else NO_STEP)
    return (
        pl.when(pl.col("received_ns").is_null())
        .then(unplaced)
        .when(pl.col("sent_ns").is_null())
        .then(pl.lit(NOT_SENT))
        .when(pl.col("unknown_ns") > 0)
        .then(pl.lit(BEFORE))
    )


def _step_of(log: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that made each first token: row, next_ns, sent_ns, received_ns, done_ns.

    The one that gave it is on each worker the last that was done by then: `sent_ns`, and of the last worker
    `received_ns` and `done_ns`. `next_ns` = when the engine began to send the first step after the prompt was
    tokenized. Where the log has `scheduled`, `next_ns` and `sent_ns` are that, and `received_ns` is of the
    first step sent since. No row where some worker shows no step since; `sent_ns` and `next_ns` null where
    the workers' steps are not known to be of one message.
    """
    workers, sent = steps.select("process").unique(), pl.col("sent_ns")
    since = pl.coalesce("scheduled", "tokenize_end")
    asked = (
        log.select("row", "scheduled", "first_token", since=since)
        .join(workers, how="cross")
        .sort("first_token")
    )
    given = asked.join_asof(
        steps.sort("done_ns"),
        left_on="first_token",
        right_on="done_ns",
        by="process",
        strategy="backward",
        check_sortedness=False,
        coalesce=False,
    ).filter(pl.col("received_ns") >= pl.col("since"))
    one = (sent.null_count() == 0) & (sent.n_unique() == 1) & (sent.min() >= pl.col("since").first())
    answered = given.group_by("row", "since", "scheduled").agg(
        pl.len().alias("workers"),
        pl.col("received_ns", "done_ns").max(),
        sent_ns=pl.when(one).then(sent.min()),
    )
    placed = _first_since(answered.filter(pl.col("workers") == workers.height), steps)
    doubt = sent.is_null() | (pl.col("doubt_ns") < pl.col("received_ns")).fill_null(value=False)
    taken = ~doubt & pl.col("scheduled").is_not_null()
    return placed.select(
        "row",
        "done_ns",
        received_ns=pl.when(taken).then("first_ns").otherwise("received_ns"),
        **{name: pl.when(~doubt).then(pl.coalesce("scheduled", name)) for name in ("next_ns", "sent_ns")},
    )


def _first_since(placed: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Add the first step sent since `since`: next_ns, first_ns (when it was received).

    Also doubt_ns: when the first one since was received whose sending is not recorded.
    """
    sent = pl.col("sent_ns")
    sure = steps.filter(sent.is_not_null()).group_by(next_ns=sent).agg(first_ns=pl.col("received_ns").max())
    unsure = steps.filter(sent.is_null()).select(doubt_ns="received_ns").unique()
    for times in (sure, unsure):
        name = times.columns[0]
        placed = placed.sort("since").join_asof(
            times.sort(name), left_on="since", right_on=name, strategy="forward", coalesce=False
        )
    return placed


def _gpu_parts(placed: pl.DataFrame, gpu_states: pl.DataFrame) -> pl.DataFrame:
    """Return what the first GPU did while it had each request's step: row, and the GPU's parts."""
    first = gpu_states["gpu"].min()
    at_work = placed.drop_nulls("received_ns").select(
        "row",
        ts_ns="received_ns",
        dur_ns=pl.col("done_ns") - pl.col("received_ns"),
        gpu=pl.lit(first, gpu_states.schema["gpu"]),
    )
    spent = overlay(at_work, gpu_states.filter(pl.col("gpu") == first), "gpu")
    part = _part_of(pl.col("state").cast(pl.String))
    return spent.group_by("row").agg(
        pl.col("dur_ns").filter(part == name).sum().alias(name) for name in PARTS if name.startswith("gpu_")
    )


def _part_of(state: pl.Expr) -> pl.Expr:
    useful = state.is_in(USEFUL)
    return (
        pl.when(useful)
        .then(pl.lit("gpu_useful_ns"))
        .when(state == "collective_wait")
        .then(pl.lit("gpu_wait_ns"))
        .when(state == "idle")
        .then(pl.lit("gpu_idle_ns"))
        .otherwise(pl.lit("gpu_collective_ns"))
    )


def request_causes(requests: pl.DataFrame, lost: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return the causes of the GPU's lost time between each request's tokenization and its first token.

    Takes the frames `requests` and `lost`; of several GPUs the first stands for all, as in `requests`. They
    cover all of that time, on the way to the GPU and back too: per request they add up to what the GPU lost
    in it.

    One row per request and cause: `row` (Int64: the request's row in `requests`), `id`, `cause` (String),
    `ns` (Int64, > 0). Sorted by `row`, `cause`.
    """
    if requests.is_empty() or lost.is_empty():
        return pl.DataFrame(schema=REQUEST_CAUSES)
    first = lost["gpu"].min()
    begin = pl.col("tokenized_ns")
    waiting = requests.with_row_index("row").select(
        pl.col("row").cast(pl.Int64),
        "id",
        ts_ns=begin,
        dur_ns=pl.col("first_token_ns") - begin,
        gpu=pl.lit(first, lost.schema["gpu"]),
    )
    held = lost.filter(
        (pl.col("gpu") == first) & (pl.col("ts_ns") >= window.start_ns) & (pl.col("ts_ns") < window.end_ns)
    )
    cut = overlay(waiting, held.select("gpu", "ts_ns", "dur_ns", "cause"), "gpu").drop_nulls("cause")
    summed = cut.group_by("row", "id", "cause").agg(ns=pl.col("dur_ns").sum())
    return (
        summed.with_columns(pl.col("cause").cast(pl.String))
        .match_to_schema(REQUEST_CAUSES)
        .sort("row", "cause")
    )
