"""What `findings.json` says of requests, type by type: a part of the document (document.py)."""

from typing import Annotated

from msgspec import Meta

from tracelib.findings.finding import Natural, Part, Quantiles, Share

Correlation = Annotated[float, Meta(extra_json_schema={"minimum": -1, "maximum": 1})]


class RequestPart(Part, frozen=True, kw_only=True):
    """A part of the time to first token."""

    part: str
    share: Annotated[Share, Meta(description="Of all requests' time to first token.")]
    p50: int | None
    p95: int | None
    correlation_with_ttft: Correlation | None


class RequestApiServer(Part, frozen=True, kw_only=True):
    """What the API server was at while requests were in it, of those requests for which that was recorded."""

    requests: Natural
    total_ns: Natural
    no_cpu_ns: Annotated[Natural, Meta(description="A thread of it was ready and had no CPU.")]
    tokenizing_ns: Annotated[Natural, Meta(description="It tokenized, for them or others.")] | None


class RequestQueue(Part, frozen=True, kw_only=True):
    """What was in progress while requests were in the engine's queue."""

    requests: Annotated[Natural, Meta(description="Requests that queued.")]
    total_ns: Natural
    full_ns: Annotated[Natural, Meta(description="Steps had no room: others' prompts filled them.")] | None
    prefill_ns: Annotated[Natural, Meta(description="A step with others' prompts had begun before.")] | None
    decode_ns: Annotated[Natural, Meta(description="A step that only decoded had begun before.")] | None
    unknown_ns: Natural
    why: str | None


class SlowRequest(Part, frozen=True, kw_only=True):
    """One of the requests with the longest time to first token."""

    id: str
    arrived_ns: Annotated[int, Meta(description="Since the window's start.")]
    ttft_ns: Natural
    prompt_tokens: int | None
    parts: Annotated[dict[str, int], Meta(description="In ns, in their order; they add up to ttft_ns.")]


class RequestUnknown(Part, frozen=True, kw_only=True):
    """Why a part of the time to first token is not known."""

    why: str
    requests: Annotated[int, Meta(extra_json_schema={"minimum": 1})]
    total_ns: Natural


class RequestLoss(Part, frozen=True, kw_only=True):
    """GPU time lost between the end of tokenization and the first token, per request."""

    cause: str
    p50: int | None
    p95: int | None
    total_ns: Natural
    correlation_with_ttft: Correlation | None


class Requests(Part, frozen=True, kw_only=True):
    """What the time to first token consists of."""

    count: Annotated[Natural, Meta(description="Requests whose first token came in the window.")]
    whole: Annotated[
        Natural, Meta(description="Those of them that also arrived in it; all but ttft_ns is of these.")
    ]
    sentence: Annotated[str, Meta(description="How long first tokens took, and where that time went.")]
    detail: Annotated[str, Meta(description="What the API server was at, and who is not counted.")]
    ttft_ns: Quantiles | None
    parts: list[RequestPart] | None
    api_server: RequestApiServer | None
    queue: RequestQueue | None
    grows: Annotated[str, Meta(description="Which part grows with the time to first token.")] | None
    slowest: list[SlowRequest]
    unknown: list[RequestUnknown]
    outside_window: Annotated[Natural, Meta(description="Requests of the log that are in no figure.")]
    lost_by_cause: list[RequestLoss]
