"""Ledger 4: where a request's time to first token went.

docs/numbers.md, "Ledger 4", defines the parts.

Requests are told apart by a request log, or not at all: a trace without ids cannot say which tokenization
belongs to which first token. The log says when a request was tokenized and when its first token came; which
step of the workers gave that token follows from the steps' own times: the last one whose GPU work was done by
then.
"""

import polars as pl

from tracelib.analyses.gpu_time import USEFUL
from tracelib.analyses.ipc import answering_steps
from tracelib.analyses.scheduling import WAITS_FOR_CPU
from tracelib.analyses.steps import QUEUE_REASONS, prompt_steps, queue_reasons
from tracelib.analyses.window import Window
from tracelib.intervals import overlay, union
from tracelib.trace import Trace

#: What the time to first token consists of, in this order, if nothing is unknown.
PARTS = (
    "before_tokenize_ns",
    "tokenize_ns",
    "api_server_ns",
    "queue_ns",
    "broadcast_ns",
    "gpu_useful_ns",
    "gpu_wait_ns",
    "gpu_idle_ns",
    "gpu_collective_ns",
    "back_ns",
    "unknown_ns",
)

#: What the API server was at in `api_server_ns`; they may overlap.
WITHIN_API = ("api_no_cpu_ns", "api_tokenizing_ns")
#: Which steps were in progress in `queue_ns`; what is left of it is not told.
WITHIN_QUEUE = tuple(f"queue_{why}_ns" for why in QUEUE_REASONS)
#: So much of a wait must have been recorded for these to be known of it.
KNOWN = 0.9

REQUESTS = pl.Schema(
    {
        "id": pl.String(),
        "arrived_ns": pl.Int64(),
        "tokenized_ns": pl.Int64(),
        "first_token_ns": pl.Int64(),
        "ttft_ns": pl.Int64(),
        **dict.fromkeys(PARTS, pl.Int64()),
        "unknown_why": pl.String(),
        **dict.fromkeys((*WITHIN_API, *WITHIN_QUEUE), pl.Int64()),
        "prompt_tokens": pl.Int64(),
    }
)

FIRST_TOKENS = pl.Schema({"arrived_ns": pl.Int64(), "first_token_ns": pl.Int64(), "ttft_ns": pl.Int64()})

REQUEST_CAUSES = pl.Schema({"row": pl.Int64(), "id": pl.String(), "cause": pl.String(), "ns": pl.Int64()})

#: Why a part of a request is not known.
NO_STEPS = (
    "no source recorded when the workers took their steps and what these launched "
    "(annotations such as shm_broadcast.dequeue)"
)
NO_STEP = "the workers' steps do not show which one gave the first token"
NOT_SENT = (
    "nothing tells which of the engine's messages brought the step, "
    "so the time from the tokenizer to the workers is not split"
)
NOT_LOGGED = (
    "the log does not say when the prompt was tokenized, "
    "and the steps' names do not show which of them held it"
)
BEFORE = (
    "the engine sent other steps first: the request waited for them, "
    "or they held the first parts of its prompt "
    "(a column `scheduled` of the log, when the engine took it, tells)"
)


def first_tokens(requests_log: pl.DataFrame | None, window: Window) -> pl.DataFrame:
    """Return the requests whose first token came in the window, whenever they had arrived.

    Quantiles of the time to first token are of these: each request has one first token, so that the slow are
    counted like the quick. Among those that lie in the window whole (:func:`requests`) the slow ones are
    rarer than among all, because an edge of the window cuts them off sooner.

    Takes what :func:`requests` takes. One row per request: `arrived_ns`, `first_token_ns`, `ttft_ns` (Int64).
    Sorted by `arrived_ns`.
    """
    if requests_log is None:
        return pl.DataFrame(schema=FIRST_TOKENS)
    return (
        requests_log.filter(_came(window))
        .select(
            arrived_ns="arrived",
            first_token_ns=pl.col("first_token"),
            ttft_ns=pl.col("first_token") - pl.col("arrived"),
        )
        .match_to_schema(FIRST_TOKENS)
        .sort("arrived_ns", "first_token_ns")
    )


def left_out(requests_log: pl.DataFrame | None, window: Window) -> dict[str, int]:
    """Return how many requests of a log are not in :func:`first_tokens`, by the reason in words."""
    if requests_log is None:
        return {}
    whys = (
        pl.when(pl.col("first_token").is_null())
        .then(pl.lit("without a first token"))
        .when((pl.col("arrived") < window.end_ns) & (pl.col("first_token") > window.end_ns))
        .then(pl.lit("whose first token came after the window"))
        .otherwise(pl.lit("before or after the window"))
    )
    outside = requests_log.filter(~_came(window))
    counts = outside.group_by(why=whys).len().sort("len", "why", descending=[True, False])
    return dict(counts.iter_rows())


def _came(window: Window) -> pl.Expr:
    return pl.col("first_token").is_between(window.start_ns, window.end_ns).fill_null(value=False)


def _within(window: Window) -> pl.Expr:
    return (pl.col("arrived") >= window.start_ns) & (pl.col("first_token") <= window.end_ns)


def requests(
    requests_log: pl.DataFrame | None,
    window: Window,
    gpu_states: pl.DataFrame,
    worker_steps: pl.DataFrame,
    model_steps: pl.DataFrame,
    api_server: pl.DataFrame,
) -> pl.DataFrame:
    """Return the time to first token of each request in the window, split into parts that add up to it.

    Takes the rows of a log (:mod:`tracelib.sources.request_logs`) on the aligned timeline (None = there is
    none) and the frames `gpu_states`,
    :func:`tracelib.analyses.ipc.worker_steps`, :func:`tracelib.analyses.steps.model_steps` and
    :func:`api_server`; of several GPUs the first stands for all, since they work in step.

    One row per request: `id` (String), `arrived_ns`, `tokenized_ns` (null = not logged), `first_token_ns`,
    `ttft_ns` (Int64), then the parts (Int64, ns; null = not known, its time is in another part):

    - `before_tokenize_ns` (arrival to tokenizer), `tokenize_ns`
    - `api_server_ns`: from there, or from the arrival, as long as the engine would have begun with the prompt
      if it had had it (:mod:`tracelib.analyses.steps`)
    - `queue_ns`: until the engine takes the request: `scheduled`, where logged, else until it begins to send
      the next step, or the time in which earlier steps were in progress
    - `broadcast_ns`: from there, or from the enqueue of the step that gave the first token, until the last
      worker has it
    - `gpu_useful_ns`, `gpu_wait_ns` (waiting in a collective), `gpu_idle_ns`, `gpu_collective_ns`
      (collectives whose waiting cannot be told): the GPU's time from then until the step's last operation
      ends, on any GPU
    - `back_ns`: from there to the first token
    - `unknown_ns`: what cannot be told; `unknown_why` (String) says why (null = nothing is unknown)

    then, of `api_server_ns`, `api_no_cpu_ns` (a thread of the API server was ready and had no CPU) and
    `api_tokenizing_ns` (one tokenized, for this request or another); both Int64, null = not recorded; of
    `queue_ns`, `queue_full_ns` (steps with no room for another token were in progress), `queue_prefill_ns` (a
    step that held others' prompts was, begun before this one came), `queue_decode_ns` (one that only decoded
    was); all Int64, null = the steps' names do not tell, and the rest of `queue_ns` is not told; and
    `prompt_tokens` (Int64: its input; null = not logged). Sorted by `arrived_ns`.
    """
    if requests_log is None or requests_log.is_empty():
        return pl.DataFrame(schema=REQUESTS)
    log = requests_log.sort("arrived").with_row_index("row")  # a log may use an id again
    log = log.with_columns(since=pl.coalesce("tokenize_end", "arrived"))
    within = _within(window)
    by_prompt = prompt_steps(log, model_steps)
    inside = _scheduled(log.filter(within), by_prompt, worker_steps)
    placed = inside.join(answering_steps(inside, worker_steps), on="row", how="left")
    cut = _with_prompts(_between_messages(placed), by_prompt)
    queued = _within_queue(cut, model_steps)
    cut = _with_untimed_tokenizer(cut).join(queued, on="row", how="left")
    parts = cut.join(_gpu_parts(cut, gpu_states), on="row", how="left")
    split = parts.join(_within_api(cut, api_server), on="row", how="left")
    return _told(split.with_columns(unknown_why=_why(worker_steps, model_steps)))


def _told(split: pl.DataFrame) -> pl.DataFrame:
    """Return the requests in the columns that are published, the log's own times counted from each other."""
    return split.select(
        "id",
        arrived_ns="arrived",
        tokenized_ns="tokenize_end",
        first_token_ns=pl.col("first_token"),
        ttft_ns=pl.col("first_token") - pl.col("arrived"),
        before_tokenize_ns=pl.col("tokenize_start") - pl.col("arrived"),
        tokenize_ns=pl.col("tokenize_end") - pl.col("tokenize_start"),
        **{name: name for name in (*PARTS[2:], "unknown_why", *WITHIN_API, *WITHIN_QUEUE, "prompt_tokens")},
    ).match_to_schema(REQUESTS)


def api_server(trace: Trace, thread_states: pl.DataFrame, host_activity: pl.DataFrame) -> pl.DataFrame:
    """Return when the API server lacked a CPU and when it tokenized, and when that was recorded.

    One row per stretch: `kind` (Int32: the place in WITHIN_API of what it tells; below it, counted from -1
    down, when that would have been recorded), `ts_ns`, `dur_ns` (Int64); those of one kind do not overlap.
    Sorted by `kind`, `ts_ns`.
    """
    own = pl.col("thread").is_in(trace.threads.filter(pl.col("role") == "api_server")["thread"].implode())
    states = thread_states.filter(own).with_columns(pl.col("state").cast(pl.String))
    does = host_activity.filter(own)
    end = pl.col("ts_ns") + pl.col("dur_ns")
    sampled = trace.samples.select(
        pl.col("ts_ns").min(), dur_ns=pl.col("ts_ns").max() - pl.col("ts_ns").min()
    )
    sliced = trace.slices.filter(own).select(pl.col("ts_ns").min(), dur_ns=end.max() - pl.col("ts_ns").min())
    kinds = {
        0: states.filter(pl.col("state").is_in(WAITS_FOR_CPU)),
        1: does.filter(pl.col("cause") == "tokenization"),
        -1: states.filter(pl.col("state") != "unknown"),
        -2: pl.concat([sampled, sliced]).drop_nulls(),
    }
    spans = [rows.select("ts_ns", "dur_ns", kind=pl.lit(kind, pl.Int32)) for kind, rows in kinds.items()]
    return union(pl.concat(spans), "kind").sort("kind", "ts_ns")


def _within_api(cut: pl.DataFrame, api_server: pl.DataFrame) -> pl.DataFrame:
    """Return what the API server was at: row, and the columns of WITHIN_API; null = not recorded."""
    waits = cut.filter(pl.col("api_server_ns") > 0).select("row", "api_server_ns", ts_ns="since")
    found = waits.select("row", "api_server_ns")
    for kind, name in enumerate(WITHIN_API):
        known = _during(waits, api_server, -1 - kind) >= KNOWN * pl.col("api_server_ns")
        found = found.with_columns(pl.when(known).then(_during(waits, api_server, kind)).alias(name))
    return found.drop("api_server_ns")


def _during(waits: pl.DataFrame, api_server: pl.DataFrame, kind: int) -> pl.Series:
    """Return how much of each wait lies in the stretches of `kind`."""
    spans = api_server.filter(pl.col("kind") == kind).with_columns(seen=pl.lit(value=True))
    asked = waits.select("row", "ts_ns", dur_ns="api_server_ns", kind=pl.lit(kind, pl.Int32))
    inside = overlay(asked, spans, "kind").filter(pl.col("seen").fill_null(value=False))
    sums = inside.group_by("row").agg(pl.col("dur_ns").sum())
    return waits.select("row").join(sums, on="row", how="left", maintain_order="left")["dur_ns"].fill_null(0)


def _scheduled(inside: pl.DataFrame, by_prompt: pl.DataFrame, worker_steps: pl.DataFrame) -> pl.DataFrame:
    """Fill `scheduled` with when the engine sent the first step that held the prompt, where that is known."""
    sent = worker_steps.drop_nulls("sent_ns").select(sent=pl.col("sent_ns").unique()).sort("sent")
    first = by_prompt.select("row", "begin_ns").sort("begin_ns")
    taken = first.join_asof(sent, left_on="begin_ns", right_on="sent", coalesce=False)
    known = inside.join(taken.select("row", "sent"), on="row", how="left")
    late = pl.col("sent") >= pl.col("since")
    return known.with_columns(scheduled=pl.coalesce("scheduled", pl.when(late).then("sent"))).drop("sent")


def _between_messages(placed: pl.DataFrame) -> pl.DataFrame:
    """Add the parts that the engine's messages tell."""
    c, w, d = pl.col("since"), pl.col("received_ns"), pl.col("done_ns")
    told = pl.coalesce("tokenize_end", "scheduled").is_not_null()
    placed = placed.with_columns(pl.when(told).then(pl.col("next_ns", "sent_ns")))
    return placed.with_columns(
        api_server_ns=pl.lit(None, pl.Int64),
        queue_ns=pl.col("next_ns") - c,
        broadcast_ns=w - pl.col("sent_ns"),
        back_ns=pl.col("first_token") - d,
        unknown_ns=pl.coalesce(pl.col("sent_ns") - pl.col("next_ns"), w - c, pl.col("first_token") - c),
    )


def _with_prompts(cut: pl.DataFrame, by_prompt: pl.DataFrame) -> pl.DataFrame:
    """Replace what the messages leave open by what the steps' names tell, where they place the prompt."""
    begin = pl.col("begin_ns")
    told = cut.join(by_prompt, on="row", how="left", suffix="_prompt")
    better = begin.is_not_null() & ((pl.col("unknown_ns") > 0) | pl.col("received_ns").is_null())
    logged = pl.col("scheduled").is_not_null()
    queue = pl.when(logged).then(pl.col("scheduled") - pl.col("since")).otherwise("queue_ns_prompt")
    sent = pl.when(logged).then("scheduled").otherwise(begin)
    parts = {
        "api_server_ns": pl.when(~logged).then(begin - pl.col("since") - pl.col("queue_ns_prompt")),
        "queue_ns": queue,
        "broadcast_ns": pl.col("received_ns_prompt") - sent,
        "back_ns": pl.col("first_token") - pl.min_horizontal("done_ns_prompt", "first_token"),
        "unknown_ns": pl.lit(0, pl.Int64),
        "received_ns": pl.col("received_ns_prompt"),
        "done_ns": pl.min_horizontal("done_ns_prompt", "first_token"),
        "sent_ns": sent,
        "from_ns": pl.when(~logged).then("reached_ns").otherwise("since"),
        "to_ns": pl.when(~logged).then(begin),
    }
    told = told.with_columns(from_ns="since", to_ns=pl.lit(None, pl.Int64))
    return told.with_columns(
        pl.when(better).then(value).otherwise(pl.col(name)).alias(name) for name, value in parts.items()
    )


def _within_queue(cut: pl.DataFrame, model_steps: pl.DataFrame) -> pl.DataFrame:
    """Return which steps were in progress while each request queued: row, and the columns of WITHIN_QUEUE."""
    end = pl.coalesce("to_ns", pl.col("from_ns") + pl.col("queue_ns"))
    waits = cut.filter(pl.col("queue_ns") > 0).with_columns(to_ns=end)
    found = queue_reasons(waits, model_steps)
    return found.rename(dict(zip(QUEUE_REASONS, WITHIN_QUEUE, strict=True)))


def _with_untimed_tokenizer(cut: pl.DataFrame) -> pl.DataFrame:
    """Begin the API server's part at the arrival where the log says only when the tokenizer had ended."""
    untimed = pl.col("tokenize_end").is_not_null() & pl.col("tokenize_start").is_null()
    whole = pl.col("tokenize_end") - pl.col("arrived") + pl.col("api_server_ns").fill_null(0)
    return cut.with_columns(
        api_server_ns=pl.when(untimed).then(whole).otherwise("api_server_ns"),
        since=pl.when(untimed).then("arrived").otherwise("since"),
    )


def _why(worker_steps: pl.DataFrame, model_steps: pl.DataFrame) -> pl.Expr:
    unplaced = pl.lit(NO_STEPS if worker_steps.is_empty() and model_steps.is_empty() else NO_STEP)
    return (
        pl.when(pl.col("received_ns").is_null())
        .then(unplaced)
        .when(pl.coalesce("tokenize_end", "scheduled", "begin_ns").is_null())
        .then(pl.lit(NOT_LOGGED))
        .when(pl.col("sent_ns").is_null())
        .then(pl.lit(NOT_SENT))
        .when(pl.col("unknown_ns") > 0)
        .then(pl.lit(BEFORE))
    )


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
    """Return the causes of the GPU's lost time from a request's tokenization, or arrival, to its first token.

    Takes the frames `requests` and `lost`; of several GPUs the first stands for all, as in `requests`. They
    cover all of that time, on the way to the GPU and back too: per request they add up to what the GPU lost
    in it.

    One row per request and cause: `row` (Int64: the request's row in `requests`), `id`, `cause` (String),
    `ns` (Int64, > 0). Sorted by `row`, `cause`.
    """
    if requests.is_empty() or lost.is_empty():
        return pl.DataFrame(schema=REQUEST_CAUSES)
    first = lost["gpu"].min()
    begin = pl.coalesce("tokenized_ns", "arrived_ns")
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
