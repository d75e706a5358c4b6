"""Request logs as servers and load generators write them, as one frame.

Records are lines of JSON, a JSON list, CSV or Parquet, with columns of many names; a load generator's or a
tracer's file is first taken apart into records. What a record must tell is its id, when it arrived and when
its first token came (or how long that took); all else is used where it is there. Sources of the forms:

- OpenTelemetry's OTLP/JSON, with vLLM's and SGLang's attributes `gen_ai.latency.*` (vLLM:
  vllm/tracing, SpanAttributes; in seconds, counted from the span's begin);
- `vllm bench serve --save-detailed` (vllm/benchmarks/serve.py: lists of equal length; `start_times` are
  time.perf_counter(), which is CLOCK_MONOTONIC on Linux);
- genai-perf's and perf_analyzer's profile export (`experiments`, `requests`, times in ns since the epoch).
"""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from tracelib.errors import BadTrace
from tracelib.words import counted

Record = dict[str, Any]

#: What a log can tell, in the order of a request's life, and by which names.
TIMES = {
    "arrived": ("arrived", "arrival", "arrival_time", "arrived_at", "start_time", "start", "timestamp"),
    "tokenize_start": ("tokenize_start",),
    "tokenize_end": ("tokenize_end",),
    "scheduled": ("scheduled", "scheduled_ts", "first_scheduled_time"),
    "first_token": ("first_token", "first_token_ts", "first_token_time", "first_token_at"),
    "finished": ("finished", "finished_time", "finished_at", "end_time", "end"),
}
IDS = ("id", "request_id", "req_id", "rid")
LENGTHS = {"prompt_tokens": ("prompt_tokens", "input_tokens", "prompt_len", "input_len")}
#: How long the first token took since the arrival, and in what.
TTFT = {"ttft_ns": 1, "ttft_us": 10**3, "ttft_ms": 10**6, "ttft_s": 10**9, "ttft": 10**9}
REQUEST_LOG = pl.Schema(
    {"id": pl.String(), **dict.fromkeys(TIMES, pl.Int64()), **dict.fromkeys(LENGTHS, pl.Int64())}
)
NEEDED = "id, arrived and first_token (or ttft_ms)"
#: A number that is between these in ns, in one of these units, counts from the epoch (2017 to 2036).
EPOCH_NS, UNITS = (15 * 10**17, 21 * 10**17), (1, 10**3, 10**6, 10**9)
MONOTONIC, REALTIME = "monotonic", "realtime"


@dataclass(frozen=True)
class RequestLog:
    """The requests of a log, what form and clock it is in, and what could not be used."""

    rows: pl.DataFrame
    form: str
    clock: str
    remarks: tuple[str, ...] = ()


def read_request_log(path: Path, *, epoch: bool = True) -> RequestLog:
    """Return the requests that have a first token.

    `epoch`: whether times may count from 1970, in a unit that their size shows; else whole numbers are ns.

    `rows`: one row per request, as in the file: `id` (String), `arrived`, `tokenize_start`, `tokenize_end`,
    `scheduled` (when the engine took it into its first step), `first_token`, `finished` (Int64, ns of
    `clock`), `prompt_tokens` (Int64); all but id, arrived and first_token may be null = not logged.

    Raises BadTrace if the file cannot be opened, or not one request in it can be used; the message says why
    the first could not.
    """
    data = _bytes(path)
    found: Iterable[tuple[str, Record]]
    if data[:4] == b"PAR1":
        found, form, clock = _parquet(path, data), "Parquet", REALTIME
    else:
        found, form, clock = _text_records(path, data.decode(errors="replace"))
    rows: list[Record] = []
    bad: list[str] = []
    unanswered = failed = 0
    for where, record in found:
        try:
            row = _row(record, epoch=epoch)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            bad.append(f"{where}: {_reason(error)}")
            continue
        if _failed(record):
            failed += 1
        elif row["first_token"] is None:
            unanswered += 1
        else:
            rows.append(row)
    if not rows:
        why = bad[0] if bad else f"{counted(unanswered + failed, 'request')}, none with a first token"
        raise BadTrace(path, "request log", "", why, "", f"It needs {NEEDED}, in ns or a unit that shows.")
    remarks = (
        [f"{counted(len(bad), 'line')} of the request log left out, the first at {bad[0]}"] if bad else []
    )
    remarks += [f"{counted(failed, 'request')} of the log failed"] if failed else []
    remarks += [f"{counted(unanswered, 'request')} of the log had no first token yet"] if unanswered else []
    return RequestLog(pl.DataFrame(rows, schema=REQUEST_LOG), form, clock, tuple(remarks))


# -------------------- forms
def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadTrace(path, "request log", "", reason) from error


def _parquet(path: Path, data: bytes) -> Iterator[tuple[str, Record]]:
    try:
        frame = pl.read_parquet(io.BytesIO(data))
    except pl.exceptions.PolarsError as error:
        raise BadTrace(path, "request log", "", "not a whole Parquet file") from error
    return ((f"row {n}", row) for n, row in enumerate(frame.iter_rows(named=True), 1))


def _text_records(path: Path, text: str) -> tuple[Iterable[tuple[str, Record]], str, str]:
    """Return what a text holds: records and where each stands, the form's name, the clock."""
    if text.lstrip()[:1] not in ("{", "["):
        if "," not in text.lstrip().split("\n", 1)[0]:
            raise BadTrace(path, "request log", "line 1", "neither JSON nor CSV", text[:80])
        lines = csv.DictReader(io.StringIO(text.lstrip()))
        return ((f"line {n}", dict(row)) for n, row in enumerate(lines, 2)), "CSV", REALTIME
    documents = list(_documents(text))
    for name, key, taken, clock in FORMS:
        held = [(where, d) for where, d in documents if isinstance(d, dict) and key in d]
        if held:
            return ((at, row) for where, d in held for at, row in taken(where, d)), name, clock
    return _flat(documents), "JSON", REALTIME


def _documents(text: str) -> Iterator[tuple[str, object]]:
    """Return the whole text as one JSON document, or each of its lines; a line that is none as text."""
    with suppress(ValueError):
        yield "", json.loads(text)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except ValueError:
                yield f"line {number}", line


def _flat(documents: Iterable[tuple[str, object]]) -> Iterator[tuple[str, Any]]:
    for where, document in documents:
        if isinstance(document, list):
            yield from ((f"{where} item {n}".strip(), item) for n, item in enumerate(document, 1))
        else:
            yield where or "line 1", document


def _spans(where: str, document: Mapping[str, Any]) -> Iterator[tuple[str, Record]]:
    """Return OTLP's spans that tell a time to first token, in seconds since the span's begin."""
    scopes = (s for r in document["resourceSpans"] for s in r.get("scopeSpans", ()))
    for n, span in enumerate((span for scope in scopes for span in scope.get("spans", ())), 1):
        told = {a["key"]: next(iter(a["value"].values()), None) for a in span.get("attributes", ())}
        took = told.get("gen_ai.latency.time_to_first_token")
        if took is None:
            continue
        begin = int(span["startTimeUnixNano"])
        queued = told.get("gen_ai.latency.time_in_queue")
        yield (
            f"{where} span {n}".strip(),
            {
                "id": told.get("gen_ai.request.id") or span.get("spanId"),
                "arrived": begin,
                "scheduled": None if queued is None else begin + round(float(queued) * 1e9),
                "first_token": begin + round(float(took) * 1e9),
                "finished": int(span["endTimeUnixNano"]),
                "prompt_tokens": told.get("gen_ai.usage.prompt_tokens"),
            },
        )


def _bench(where: str, document: Mapping[str, Any]) -> Iterator[tuple[str, Record]]:
    """Return the requests of `vllm bench serve --save-detailed`: lists of equal length."""
    errors, lengths = document.get("errors") or [], document.get("input_lens") or []
    for n, (start, ttft) in enumerate(zip(document["start_times"], document["ttfts"], strict=False)):
        yield (
            f"{where} request {n + 1}".strip(),
            {
                "id": str(n),
                "arrived": round(float(start) * 1e9),
                "first_token": round((float(start) + float(ttft)) * 1e9) if ttft else None,
                "prompt_tokens": lengths[n] if n < len(lengths) else None,
                "error": errors[n] if n < len(errors) else None,
            },
        )


def _bench_without_begin(where: str, document: Mapping[str, Any]) -> Iterator[tuple[str, Record]]:
    del document
    yield where or "the result", {"id": "", "arrived": "no start_times: when the requests came is not told"}


def _profile(where: str, document: Mapping[str, Any]) -> Iterator[tuple[str, Record]]:
    """Return the requests of genai-perf's profile export."""
    for n, request in enumerate((r for e in document["experiments"] for r in e.get("requests", ())), 1):
        answers = request.get("response_timestamps") or [None]
        yield (
            f"{where} request {n}".strip(),
            {
                "id": str(n),
                "arrived": request["timestamp"],
                "first_token": answers[0],
                "finished": answers[-1],
            },
        )


#: Name, the key by which it is known, what takes it apart, its clock.
FORMS: tuple[tuple[str, str, Callable[[str, Mapping[str, Any]], Iterator[tuple[str, Record]]], str], ...] = (
    ("OpenTelemetry spans", "resourceSpans", _spans, REALTIME),
    ("vllm bench serve", "start_times", _bench, MONOTONIC),
    ("a load generator's result", "ttfts", _bench_without_begin, MONOTONIC),
    ("genai-perf", "experiments", _profile, REALTIME),
)


# -------------------- one record
def _row(record: object, *, epoch: bool) -> Record:
    if not isinstance(record, dict):
        raise TypeError("not a JSON object")
    named = {str(key).strip().lower(): value for key, value in record.items()}
    row: Record = {name: _time(_first(named, names), epoch=epoch) for name, names in TIMES.items()}
    row |= {name: _whole(_first(named, names)) for name, names in LENGTHS.items()}
    row["id"] = str(_first(named, IDS, needed="id"))
    if row["arrived"] is None:
        raise KeyError("arrived")
    if row["first_token"] is None:
        took = next(((named[name], unit) for name, unit in TTFT.items() if named.get(name)), None)
        row["first_token"] = None if took is None else row["arrived"] + round(float(took[0]) * took[1])
    told = [row[name] for name in TIMES if row[name] is not None]
    if told != sorted(told):
        raise ValueError(f"its times must be {' <= '.join(name for name in TIMES if row[name] is not None)}")
    return row


def _first(record: Mapping[str, Any], names: Iterable[str], needed: str = "") -> Any:
    value = next((record[name] for name in names if record.get(name) not in (None, "")), None)
    if needed and value is None:
        raise KeyError(needed)
    return value


def _whole(value: Any) -> int | None:
    return None if value is None else int(float(value))


def _time(value: Any, *, epoch: bool) -> int | None:
    """Return a time in ns: since the epoch in the unit that its size shows, else in ns or in seconds."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return _since_epoch(value)
    if isinstance(value, str):
        try:
            value = int(value) if value.strip().lstrip("-").isdigit() else float(value)
        except ValueError:
            return _since_epoch(datetime.fromisoformat(value.strip()))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a time")
    since = [unit for unit in UNITS if epoch and EPOCH_NS[0] <= value * unit < EPOCH_NS[1]]
    unit = since[0] if since else 1 if isinstance(value, int) else 10**9
    return value * unit if isinstance(value, int) else round(value * unit)


def _since_epoch(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} names no time zone")
    whole = int(moment.timestamp() // 1)
    return whole * 10**9 + moment.microsecond * 1000


def _failed(record: object) -> bool:
    if not isinstance(record, dict):
        return False
    status = record.get("status")
    return bool(record.get("error")) or (isinstance(status, int) and status >= 400)


def _reason(error: Exception) -> str:
    return f"no column {error}" if isinstance(error, KeyError) else str(error)
