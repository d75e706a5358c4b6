"""What the findings say of requests: the time to first token, its parts, the sentence on top of the page."""

import math

import polars as pl

from tracelib.analyses.requests import NO_STEPS, PARTS, WITHIN_QUEUE
from tracelib.analyses.results import NEEDS, Results
from tracelib.analyses.steps import FULL, OFTEN
from tracelib.findings import request_parts as doc
from tracelib.findings.finding import quantile, quantiles
from tracelib.words import counted, duration, request_part_name, share, slow_end

#: A part of the time to first token that is smaller is not in the sentence.
WORTH_A_WORD = 0.02
#: A part that is not known from which on the sentence says why.
MOSTLY = 0.5
#: Fewer requests have no correlation.
FEWEST = 10
#: So many of the slowest requests are shown each by itself.
SLOWEST = 10
NAMES_TELL_NOTHING = "the names of the steps do not tell what they held, or there are none"
NOT_SEEN = (
    "steps with room began without it, or none was in progress: it was still on its way, or the KV cache or "
    "the limit on sequences was full; no file tells which"
)


def requests_part(results: Results) -> doc.Requests | None:
    """Return the time to first token and what it consists of; None without a first token in the window."""
    rows, came = results.requests, results.first_tokens
    if came.is_empty():
        return None
    unknown = rows.drop_nulls("unknown_why").group_by(why="unknown_why")
    reasons = unknown.agg(requests=pl.len(), total_ns=pl.col("unknown_ns").sum())
    shares = _shares(rows)
    return doc.Requests(
        count=came.height,
        whole=rows.height,
        sentence=_sentence(came["ttft_ns"], rows, shares),
        detail=f"{_in_api_server(rows)}{_left_out(results)}".strip(),
        ttft_ns=quantiles(came["ttft_ns"]),
        parts=None
        if rows.is_empty()
        else [
            doc.RequestPart(
                part=part.removesuffix("_ns"),
                share=shares[part],
                p50=quantile(rows[part], 0.5),
                p95=quantile(rows[part], 0.95),
                correlation_with_ttft=_correlation(rows, part),
            )
            for part in PARTS
        ],
        api_server=_api_server(rows),
        queue=_queue(rows),
        grows=_grows(rows),
        slowest=_slowest(results),
        unknown=[
            doc.RequestUnknown(**row)
            for row in reasons.sort("total_ns", "why", descending=[True, False]).iter_rows(named=True)
        ],
        outside_window=sum(results.requests_outside.values()),
        lost_by_cause=_lost_by_cause(results),
    )


def _shares(rows: pl.DataFrame) -> dict[str, float]:
    """Return each part's share of all requests' time to first token."""
    total = int(rows["ttft_ns"].sum())
    return {part: int(rows[part].sum()) / total if total else 0.0 for part in PARTS}


def _api_server(rows: pl.DataFrame) -> doc.RequestApiServer | None:
    """Return what the API server was at, over the requests for which that was recorded."""
    known = rows.drop_nulls("api_no_cpu_ns")
    if known.is_empty():
        return None
    return doc.RequestApiServer(
        requests=known.height,
        total_ns=int(known["api_server_ns"].sum()),
        no_cpu_ns=int(known["api_no_cpu_ns"].sum()),
        tokenizing_ns=int(known["api_tokenizing_ns"].sum()) if known["api_tokenizing_ns"].count() else None,
    )


def _queue(rows: pl.DataFrame) -> doc.RequestQueue | None:
    """Return what was in progress while requests queued; None if none did."""
    queued = rows.filter(pl.col("queue_ns") > 0)
    if queued.is_empty():
        return None
    told = queued.drop_nulls(WITHIN_QUEUE[0])
    sums = {name.removeprefix("queue_"): int(told[name].sum()) for name in WITHIN_QUEUE}
    total = int(queued["queue_ns"].sum())
    unknown = total - sum(sums.values())
    why = NAMES_TELL_NOTHING if told.height < queued.height else NOT_SEEN
    return doc.RequestQueue(
        requests=queued.height,
        total_ns=total,
        **(sums if told.height else dict.fromkeys(sums)),
        unknown_ns=unknown,
        why=why if unknown else None,
    )


def _grows(rows: pl.DataFrame) -> str | None:
    """Say which part the slow half of the requests has more of than the fast half, and how much.

    The halves differ by what their parts differ by: the part with the largest difference is named.
    """
    if rows.height < FEWEST:
        return None
    ordered = rows.sort("ttft_ns")
    fast, slow = ordered.head(rows.height // 2), ordered.tail(rows.height // 2)
    more = {
        part: (int(slow[part].sum()) - int(fast[part].sum())) / fast.height for part in ("ttft_ns", *PARTS)
    }
    whole = more.pop("ttft_ns")
    part = max(more, key=lambda name: more[name])
    if whole <= 0 or more[part] <= 0:
        return None
    return (
        f"the slower half took {duration(whole)} longer on average than the faster half, "
        f"{duration(more[part])} of it {request_part_name(part.removesuffix('_ns'))}"
    )


def _slowest(results: Results) -> list[doc.SlowRequest]:
    rows = results.requests.sort("ttft_ns", "arrived_ns", descending=[True, False]).head(SLOWEST)
    return [
        doc.SlowRequest(
            id=row["id"],
            arrived_ns=row["arrived_ns"] - results.window.start_ns,
            ttft_ns=row["ttft_ns"],
            prompt_tokens=row["prompt_tokens"],
            parts={part.removesuffix("_ns"): row[part] for part in PARTS if row[part]},
        )
        for row in rows.iter_rows(named=True)
    ]


def _sentence(ttft: pl.Series, rows: pl.DataFrame, shares: dict[str, float]) -> str:
    """Return how long the first tokens took and where that time went, the parts in their order."""
    every, whole = counted(ttft.len(), "request"), rows.height
    if whole == ttft.len():
        lead, of = f"Time to first token of {every}: {_half_and_slow(ttft)}.", "On average"
    else:
        lead = f"Time to first token of the {every} that had it in the window: {_half_and_slow(ttft)}."
        of = f"On average of the {whole:,} that also arrived in it ({_half_and_slow(rows['ttft_ns'])})"
    if not whole:
        return f"{lead} None of them also arrived in it, so where their time went is not known."
    told = [
        f"{share(value)} {request_part_name(part.removesuffix('_ns'))}"
        for part, value in shares.items()
        if value >= WORTH_A_WORD
    ]
    return f"{lead} {of}: {', '.join(told)}.{_unknown(rows, shares)}"


def _half_and_slow(ttft: pl.Series) -> str:
    half, p95, longest = (quantile(ttft, q) for q in (0.5, 0.95, 1))
    return f"p50 {duration(half)}, {slow_end(ttft.len(), p95, longest)}"


def _unknown(rows: pl.DataFrame, shares: dict[str, float]) -> str:
    """Say why most of the time is not known, where it is, and what to record."""
    if shares["unknown_ns"] <= MOSTLY:
        return ""
    why = rows.group_by("unknown_why").agg(pl.col("unknown_ns").sum()).sort("unknown_ns")["unknown_why"][-1]
    record = f": record {NEEDS['ipc'].record_with}" if why == NO_STEPS else ""
    return f" Most of it is not known because {why}{record}." if why else ""


def _left_out(results: Results) -> str:
    """Say how many requests of the log are in no figure, and why."""
    named = ", ".join(f"{number:,} {why}" for why, number in results.requests_outside.items())
    return f" Not counted: {named}." if named else ""


def _in_api_server(rows: pl.DataFrame) -> str:
    api = _api_server(rows)
    if api is None or not api.total_ns:
        return ""
    where = (
        "F" if api.requests == rows.height else f"In the {counted(api.requests, 'request')} that show it, f"
    )
    tokenizing = ""
    if api.tokenizing_ns:
        part = share(api.tokenizing_ns / api.total_ns)
        tokenizing = f"; for {part} a prompt was being tokenized (the two may overlap)"
    return (
        f" {where}or {share(api.no_cpu_ns / api.total_ns)} of the API server's part one of its threads "
        f"was ready and had no CPU{tokenizing}."
    )


def _lost_by_cause(results: Results) -> list[doc.RequestLoss]:
    """Return what took the GPU time lost within the times to first token, the largest first."""
    every = results.requests.select(pl.int_range(pl.len(), dtype=pl.Int64).alias("row"), "ttft_ns")
    losses = []
    for (cause,), rows in results.request_causes.group_by("cause"):
        # A request that lost nothing to this cause counts as 0.
        spent = every.join(rows.select("row", "ns"), on="row", how="left").with_columns(
            pl.col("ns").fill_null(0)
        )
        losses.append(
            doc.RequestLoss(
                cause=str(cause),
                p50=quantile(spent["ns"], 0.5),
                p95=quantile(spent["ns"], 0.95),
                total_ns=int(spent["ns"].sum()),
                correlation_with_ttft=_correlation(spent, "ns"),
            )
        )
    return sorted(losses, key=lambda row: -row.total_ns)


def _correlation(rows: pl.DataFrame, part: str) -> float | None:
    if rows.height < FEWEST:
        return None
    value = rows.select(pl.corr(part, "ttft_ns")).item()
    return None if value is None or math.isnan(value) else float(value)  # NaN: the part never varies


# -------------------- without a log
def without_log(results: Results) -> list[str]:
    """Return what the trace itself shows of requests where no log tells them apart; else nothing."""
    if results.requests.height or results.first_tokens.height:
        return []
    head = "Without a request log nothing tells how long a request waited for its first token."
    told = [text for text in (_prompts(results), _depth(results), _tokenizer(results)) if text]
    nothing = "The names of the steps do not tell what they held either, and no tokenizer was seen at work."
    return [head, *(told or [nothing])]


def _steps_told(results: Results) -> pl.DataFrame:
    """Return the steps of one worker whose names tell what they held."""
    steps = results.step_tokens.drop_nulls(["prompts", "prefill", "decode"])
    return steps.filter(pl.col("thread") == pl.col("thread").min())


def _prompts(results: Results) -> str:
    steps = _steps_told(results)
    held = steps.filter(pl.col("prefill") > 0)
    if held.is_empty():
        return ""
    return (
        f"{held.height:,} of a worker's {counted(steps.height, 'step')} took in prompts: "
        f"{counted(int(held['prompts'].sum()), 'prompt')}, whole or in part, of "
        f"{counted(int(held['prefill'].sum()), 'token')}. At the median the host was in such a step for "
        f"{duration(quantile(held['dur_ns'], 0.5))}; a first token takes one or more of them."
    )


def _depth(results: Results) -> str:
    steps = _steps_told(results)
    if steps.is_empty():
        return ""
    half, most = (quantile(steps["decode"], q) for q in (0.5, 1.0))
    size = (steps["prefill"] + steps["decode"]).cast(pl.Float64).to_numpy()
    full = int((size >= FULL * size.max()).sum())
    queued = ""
    if full >= OFTEN and (steps["prefill"] > 0).any():
        queued = (
            f" {counted(full, 'step')} had as many tokens as the largest ({size.max():,.0f}): if that is the "
            "engine's limit, requests that came meanwhile queued."
        )
    return f"A step decoded {counted(half or 0, 'answer')} at the median, {most} at most.{queued}"


def _tokenizer(results: Results) -> str:
    rows = results.host_time.filter(pl.col("cause") == "tokenization")
    union, window = int(rows["union_ns"].sum()), results.window.duration_ns
    if not union:
        return ""
    return (
        f"Tokenizers were at work for {duration(union)}, {share(union / window)} of the window; that lost "
        f"the GPUs {duration(int(rows['exposed_ns'].sum()))}, summed over them."
    )
