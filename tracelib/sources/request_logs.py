"""Request logs as servers and load generators write them, as one frame.

Records are lines of JSON, a JSON list, CSV or Parquet, with columns of many names; another form
(request_log_forms.py) is first taken apart into records. What a record must tell is its id, when it arrived
and when its first token came (or how long that took); all else is used where it is there.
"""

import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from tracelib.clocks import LONGEST_NS
from tracelib.errors import BadTrace
from tracelib.sources.request_log_forms import MISSHAPEN, REALTIME, Placed, Record, Unusable, reason, records
from tracelib.words import counted

#: What a log can tell, in the order of a request's life, and by which names.
TIMES = {
    "arrived": ("arrived", "arrival", "arrival_time", "arrived_at", "start_time", "start", "timestamp"),
    "tokenize_start": ("tokenize_start",),
    "tokenize_end": ("tokenize_end",),
    "scheduled": ("scheduled", "scheduled_ts", "first_scheduled_time"),
    "first_token": ("first_token", "first_token_ts", "first_token_time", "first_token_at"),
    "finished": ("finished", "finished_time", "finished_at", "end_time", "end"),
}
#: How much text, or how many rows of Parquet, a log may hold: they are in memory at once.
MOST_BYTES, MOST_ROWS = 256 << 20, 4_000_000
IDS = ("id", "request_id", "req_id", "rid")
LENGTHS = {"prompt_tokens": ("prompt_tokens", "input_tokens", "prompt_len", "input_len")}
COLUMNS = TIMES | LENGTHS
#: How long the first token took since the arrival, and in what.
TTFT = {"ttft_ns": 1, "ttft_us": 10**3, "ttft_ms": 10**6, "ttft_s": 10**9, "ttft": 10**9}
REQUEST_LOG = pl.Schema(
    {"id": pl.String(), **dict.fromkeys(TIMES, pl.Int64()), **dict.fromkeys(LENGTHS, pl.Int64())}
)
#: Every column that is read; of a table, others are not.
USED = {
    *(name for names in (*TIMES.values(), *LENGTHS.values(), IDS, TTFT) for name in names),
    *("duration_ns", "status", "error"),
}
NEEDED = "id, arrived and first_token (or ttft_ms)"
#: A number that is between these in ns, in one of these units, counts from the epoch (2017 to 2036).
EPOCH_NS, UNITS = (15 * 10**17, 21 * 10**17), (1, 10**3, 10**6, 10**9)


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

    Raises BadTrace if the file cannot be opened, holds more than MOST_BYTES of text, or not one request in it
    can be used; the message says why the first could not, and quotes no value.
    """
    data = _bytes(path)
    found: Iterable[Placed]
    if data[:4] == b"PAR1":
        found, form, clock = _parquet(path, data), "Parquet", REALTIME
    else:
        text = data.decode(errors="replace")
        held = records(text)
        if held is None:
            raise BadTrace(path, "request log", "line 1", "neither JSON nor CSV")
        found, form, clock = held
    rows: list[Record] = []
    bad: list[str] = []
    unanswered = failed = 0
    for where, record in found:
        try:
            row = _row(record, epoch=epoch)
        except MISSHAPEN as error:
            bad.append(f"{where}: {reason(error)}")
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
        with path.open("rb") as file:
            packed = file.peek(2)[:2] == b"\x1f\x8b"
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(MOST_BYTES + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadTrace(path, "request log", "", reason) from error
    if len(data) > MOST_BYTES:
        raise _too_much(path, f"{MOST_BYTES >> 20} MiB of text")
    return data


def _too_much(path: Path, most: str) -> BadTrace:
    advice = "Cut it to the requests of the recording."
    return BadTrace(path, "request log", "", f"it holds more than {most}", "", advice)


def _parquet(path: Path, data: bytes) -> Iterator[Placed]:
    """Return the rows; of the columns only those that are used, as others may hold long texts."""
    try:
        named = [name for name in pl.read_parquet_schema(io.BytesIO(data)) if name.strip().lower() in USED]
        height = pl.scan_parquet(io.BytesIO(data)).select(pl.len()).collect().item()
        if height > MOST_ROWS:
            raise _too_much(path, f"{MOST_ROWS:,} rows")
        rows = pl.read_parquet(io.BytesIO(data), columns=named).rows(named=True)
    except (*MISSHAPEN, pl.exceptions.PolarsError) as error:
        raise BadTrace(path, "request log", "", "not a Parquet file that can be read") from error
    return ((f"row {n}", row) for n, row in enumerate(rows, 1))


# -------------------- one record
def _row(record: object, *, epoch: bool) -> Record:
    if isinstance(record, Unusable):
        raise record
    if not isinstance(record, dict):
        raise Unusable("not a JSON object")
    named = {str(key).strip().lower(): value for key, value in record.items()}
    row: Record = {name: _told(named, name, lambda value: _time(value, epoch=epoch)) for name in TIMES}
    row |= {name: _told(named, name, lambda value: int(float(value))) for name in LENGTHS}
    row["id"] = str(_first(named, IDS, needed="id")).encode(errors="replace").decode()
    if row["arrived"] is None and row["finished"] is not None and "duration_ns" in named:
        row["arrived"] = row["finished"] - round(named["duration_ns"])
    if row["arrived"] is None:
        raise KeyError("arrived")
    if row["first_token"] is None:
        took = next(((named[name], unit) for name, unit in TTFT.items() if named.get(name)), None)
        row["first_token"] = None if took is None else row["arrived"] + round(float(took[0]) * took[1])
    told = [row[name] for name in TIMES if row[name] is not None]
    if max(map(abs, told)) > LONGEST_NS:
        raise Unusable("a time is beyond what 64 bits of ns hold")
    if told != sorted(told):
        raise Unusable(f"its times must be {' <= '.join(name for name in TIMES if row[name] is not None)}")
    return row


def _first(record: Mapping[str, Any], names: Iterable[str], needed: str = "") -> Any:
    value = next((record[name] for name in names if record.get(name) not in (None, "")), None)
    if needed and value is None:
        raise KeyError(needed)
    return value


def _told(named: Mapping[str, Any], name: str, convert: Callable[[Any], int]) -> int | None:
    """Return the column `name` as a number; an error names the column and what it should hold."""
    value = _first(named, COLUMNS[name])
    try:
        number = None if value is None else convert(value)
    except Unusable as error:
        raise Unusable(f"{name} {error}") from None
    except MISSHAPEN:
        kind = "a time with its time zone, or a number" if name in TIMES else "a number"
        raise Unusable(f"{name} is not {kind}") from None
    if number is not None and abs(number) > LONGEST_NS:
        raise Unusable(f"{name} is a number beyond what 64 bits hold")
    return number


def _time(value: Any, *, epoch: bool) -> int:
    """Return a time in ns: since the epoch in the unit that its size shows, else in ns or in seconds."""
    if isinstance(value, datetime):
        return _since_epoch(value)
    if isinstance(value, str):
        try:
            value = int(value) if value.strip().lstrip("-").isdigit() else float(value)
        except ValueError:
            return _since_epoch(datetime.fromisoformat(value.strip()))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a time")
    since = [unit for unit in UNITS if epoch and EPOCH_NS[0] <= value * unit < EPOCH_NS[1]]
    unit = since[0] if since else 1 if isinstance(value, int) else 10**9
    return value * unit if isinstance(value, int) else round(value * unit)


def _since_epoch(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise Unusable("names no time zone")
    whole = int(moment.timestamp() // 1)
    return whole * 10**9 + moment.microsecond * 1000


def _failed(record: object) -> bool:
    if not isinstance(record, dict):
        return False
    status = record.get("status")
    return bool(record.get("error")) or (isinstance(status, int) and status >= 400)
