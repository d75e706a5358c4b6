"""The forms in which servers and load generators write down requests, each taken apart into records.

Sources of the forms:

- OpenTelemetry's OTLP/JSON, with vLLM's and SGLang's attributes `gen_ai.latency.*` (vLLM:
  vllm/tracing, SpanAttributes; in seconds, counted from the span's begin);
- `vllm bench serve --save-detailed` (vllm/benchmarks/serve.py: lists of equal length; `start_times` are
  time.perf_counter(), which is CLOCK_MONOTONIC on Linux); SGLang's bench_serving has no such times;
- genai-perf's and perf_analyzer's profile export (`experiments`, `requests`, times in ns since the epoch);
- AIPerf's `profile_export.jsonl` (a record a line: `metadata` in ns since the epoch, `metrics` with units);
- SGLang's request log (srt/utils/request_logger.py: text or JSON among the server's other lines) and its
  metrics file (srt/observability/request_metrics_exporter.py); times only with `--enable-metrics`;
- access logs: a quoted request line and its status, with `ttft=` and a time that is finer than a second.
"""

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn


class Unusable(ValueError):
    """Why a record cannot be used. The words name its columns and no value: a value may be private."""


Record = dict[str, Any]
#: Where a record stands, and the record, or why there is none.
Placed = tuple[str, Record | Unusable]

#: What reading a record of an unexpected shape may raise.
MISSHAPEN = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
MONOTONIC, REALTIME = "monotonic", "realtime"


class Form(NamedTuple):
    """A form of JSON documents: `keys`, each in the one before, tell it; each of `items` is a request."""

    name: str
    keys: tuple[str, ...]
    items: Callable[[Mapping[str, Any]], Iterable[Any]]
    record: Callable[[Any], Record | None]
    clock: str = REALTIME


class Lines(NamedTuple):
    """A form of lines among other lines: `line` matches one; `record` takes it apart."""

    name: str
    line: re.Pattern[str]
    record: Callable[[re.Match[str]], Record | None]


def records(text: str) -> tuple[Iterable[Placed], str, str] | None:
    """Return what a text holds, the form's name and its clock; None if it is of no known form."""
    for lines in SERVER_LINES:
        if lines.line.search(text):
            return _of_lines(lines, text), lines.name, REALTIME
    start = text.lstrip()
    if start[:1] not in ("{", "["):
        if "," not in start.split("\n", 1)[0]:
            return None
        return _of_csv(start), "CSV", REALTIME
    documents = list(_documents(text))
    for form in FORMS:
        if any(_holds(document, form.keys) for _, document in documents):
            return _of_documents(form, documents), form.name, form.clock
    return _flat(documents), "JSON", REALTIME


def reason(error: Exception) -> str:
    """Return why a record could not be used; what Python says of a value would quote it."""
    if isinstance(error, KeyError):
        return f"no column {error}"
    return str(error) if isinstance(error, Unusable) else "a value is of another kind than this form has"


def _of_csv(text: str) -> Iterator[Placed]:
    rows = csv.DictReader(io.StringIO(text))
    for number in itertools.count(2):
        try:
            yield f"line {number}", dict(next(rows))
        except StopIteration:
            return
        except csv.Error as error:
            yield f"line {number}", Unusable(str(error))


def _of_lines(form: Lines, text: str) -> Iterator[Placed]:
    for number, line in enumerate(text.split("\n"), 1):
        found = form.line.search(line)
        record = _tried(form.record, found) if found else None
        if record is not None:
            yield f"line {number}", record


def _of_documents(form: Form, documents: Iterable[tuple[str, object]]) -> Iterator[Placed]:
    for where, document in documents:
        if not isinstance(document, dict):
            yield where, Unusable("not a JSON object")
        elif _holds(document, form.keys):
            try:
                items = list(form.items(document))
            except MISSHAPEN as error:
                yield where, Unusable(reason(error))
                continue
            for number, item in enumerate(items, 1):
                record = _tried(form.record, item)
                if record is not None:
                    yield f"{where} request {number}".strip() if len(items) > 1 else where, record


def _holds(document: object, keys: Iterable[str]) -> bool:
    for key in keys:
        if not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return True


def _tried(take: Callable[[Any], Record | None], item: Any) -> Record | Unusable | None:
    try:
        return take(item)
    except MISSHAPEN as error:
        return Unusable(reason(error))


def _documents(text: str) -> Iterator[tuple[str, object]]:
    """Return the whole text as one JSON document, or each of its lines; a line that is none as text."""
    with suppress(ValueError, RecursionError):
        yield "the log", json.loads(text)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError):
                yield f"line {number}", line


def _flat(documents: Iterable[tuple[str, object]]) -> Iterator[tuple[str, Any]]:
    for where, document in documents:
        if isinstance(document, list):
            yield from ((f"{where} item {n}", item) for n, item in enumerate(document, 1))
        else:
            yield where, document


# -------------------- documents
def _spans(document: Mapping[str, Any]) -> list[Any]:
    scopes = [scope for resource in document["resourceSpans"] for scope in resource.get("scopeSpans", ())]
    return [span for scope in scopes for span in scope.get("spans", ())]


def _span(span: Mapping[str, Any]) -> Record | None:
    """Return the request of a span that tells a time to first token, in seconds since the span's begin."""
    told = {a["key"]: next(iter(a["value"].values()), None) for a in span.get("attributes", ())}
    took, queued = (told.get(f"gen_ai.latency.{name}") for name in ("time_to_first_token", "time_in_queue"))
    if took is None:
        return None
    begin = int(span["startTimeUnixNano"])
    return {
        "id": told.get("gen_ai.request.id") or span.get("spanId"),
        "arrived": begin,
        "scheduled": None if queued is None else begin + round(float(queued) * 1e9),
        "first_token": begin + round(float(took) * 1e9),
        "finished": int(span["endTimeUnixNano"]),
        "prompt_tokens": told.get("gen_ai.usage.prompt_tokens"),
    }


def _benched(document: Mapping[str, Any]) -> list[Record]:
    """Return the requests of `vllm bench serve --save-detailed`: lists of equal length."""
    errors, lengths = document.get("errors") or [], document.get("input_lens") or []
    timed = enumerate(zip(document["start_times"], document["ttfts"], strict=False))
    return [
        {
            "id": str(n),
            "start": start,
            "ttft": ttft,
            "prompt_tokens": lengths[n] if n < len(lengths) else None,
            "error": errors[n] if n < len(errors) else None,
        }
        for n, (start, ttft) in timed
    ]


def _bench(item: Record) -> Record:
    began, took = float(item["start"]), float(item["ttft"] or 0)
    first = round((began + took) * 1e9) if took else None
    return {**item, "start": None, "ttft": None, "arrived": round(began * 1e9), "first_token": first}


def _bench_without_begin(document: Mapping[str, Any]) -> NoReturn:
    del document
    raise Unusable("no start_times: when the requests came is not told (SGLang's server log tells it)")


def _exported(document: Mapping[str, Any]) -> list[tuple[int, Any]]:
    held = (request for experiment in document["experiments"] for request in experiment.get("requests", ()))
    return list(enumerate(held, 1))


def _profile(item: tuple[int, Mapping[str, Any]]) -> Record:
    number, request = item
    answers = request.get("response_timestamps") or [None]
    return {
        "id": str(number),
        "arrived": request["timestamp"],
        "first_token": answers[0],
        "finished": answers[-1],
    }


def _aiperf(document: Mapping[str, Any]) -> Record:
    about, metrics = document["metadata"], document.get("metrics") or {}
    names = ("time_to_first_token", "usage_prompt_tokens", "input_sequence_length")
    first, counted, own_count = (metrics.get(name) or {} for name in names)
    return {
        "id": about.get("x_request_id") or about.get("session_num"),
        "arrived": about["request_start_ns"],
        f"ttft_{first.get('unit', 'ms')}": first.get("value"),
        "finished": about.get("request_end_ns"),
        "prompt_tokens": counted.get("value", own_count.get("value")),  # the server's count, else its own
        "error": document.get("error"),
    }


def _sglang(meta: Mapping[str, Any]) -> Record:
    """Return a finished request of SGLang's by its `meta_info`, whose times are seconds since the epoch.

    Releases that do not tell the first token's latency tell when the scheduler had done the prompt.
    """
    began, latency = meta.get("request_received_ts"), meta.get("first_token_latency")
    if began is None:
        raise Unusable("no request_received_ts: SGLang tells times only with --enable-metrics")
    taken, sent = meta.get("forward_entry_time"), meta.get("api_server_dispatch_finish_ts")
    return {
        "id": meta.get("id"),
        "arrived": began,
        # The scheduler may note that it has the prompt before the sender notes that it has sent it.
        "tokenize_end": min(filter(None, (sent, taken)), default=None),
        "scheduled": taken,
        "first_token": meta.get("prefill_finished_time") if latency is None else None,
        "ttft_s": latency,
        "finished": meta.get("request_finished_ts"),
        "prompt_tokens": meta.get("prompt_tokens"),
    }


#: In the order in which they are asked.
FORMS = (
    Form("OpenTelemetry spans", ("resourceSpans",), _spans, _span),
    Form("vllm bench serve", ("start_times",), _benched, _bench, MONOTONIC),
    Form("a load generator's result", ("ttfts",), lambda whole: [whole], _bench_without_begin, MONOTONIC),
    Form("genai-perf", ("experiments",), _exported, _profile),
    Form("AIPerf", ("metadata", "request_start_ns"), lambda whole: [whole], _aiperf),
    Form("SGLang's metrics file", ("request_received_ts",), lambda whole: [whole], _sglang),
)


# -------------------- lines
#: A pair in Python's notation whose value is a text or a number.
META = re.compile(r"'(\w+)': (?:'([^']*)'|(-?\d+(?:\.\d+)?))(?=[,}])")
PAIR = re.compile(r'\b(\w+)="?([\w.:+-]*\w)"?')
MOMENT = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d+(?:Z|[+-]\d\d:?\d\d)")


def _sglang_line(found: re.Match[str]) -> Record | None:
    """Return the finished request of a line of SGLang's server log, in JSON or Python's notation.

    In the latter a long list is cut short, and only `meta_info`, which comes last, holds no text of a user's.
    """
    said = found.string[found.start("said") :]
    if found["event"]:
        return _sglang(json.loads(said)["out"]["meta_info"]) if found["event"] == "finished" else None
    pairs = META.findall(said.rpartition("'meta_info': {")[2])
    return _sglang({name: text or float(number) for name, text, number in pairs if text or number})


def _access_line(found: re.Match[str]) -> Record:
    """Return the request of a line of an access log, which is written when the answer has ended."""
    told = dict(PAIR.findall(found.string))
    precise = MOMENT.search(found.string)
    ended = next((float(told[name]) for name in ("msec", "ts") if name in told), None)
    took = _in_ns(told, "request_time", "rt", "duration")
    first = _in_ns(told, "ttft", "time_to_first_token")
    if first is None:
        raise Unusable("no ttft=: how long the answer took does not tell when its first token came")
    if took is None or (ended is None and precise is None):
        raise Unusable("no time finer than a second (msec=), or no duration (request_time=)")
    return {
        "id": told.get("request_id") or told.get("id") or f"at {told.get('msec', '')}",
        "finished": precise[0] if ended is None and precise else ended,
        "duration_ns": took,
        "ttft_ns": first,
        "prompt_tokens": told.get("prompt_tokens"),
        "status": int(found["status"]),
    }


def _in_ns(told: Mapping[str, str], *names: str) -> int | None:
    """Return the first of these durations that is told, in seconds or, where its name says so, in ms."""
    keys = ((name + end, unit) for name in names for end, unit in (("", 1e9), ("_ms", 1e6), ("_s", 1e9)))
    return next((round(float(told[key]) * unit) for key, unit in keys if key in told), None)


SERVER_LINES = (
    Lines(
        "SGLang's request log",
        re.compile(
            r'^(?:\[[^]\n]*\] )?(?P<said>\{"timestamp": "[^"]*", "event": "request\.(?P<event>\w+)"'
            r"|Finish: obj=)",
            re.MULTILINE,
        ),
        _sglang_line,
    ),
    Lines(
        "access log",
        re.compile(r'^[^{\n]*"(?:GET|POST|PUT) \S+ HTTP/[\d.]+" (?P<status>\d{3})\b', re.MULTILINE),
        _access_line,
    ),
)
