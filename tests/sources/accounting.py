"""Whether everything in a file is read or told of in `health`, and whether both ways of a reader agree.

Counts are made here by other means than the reader's: Python's lines, `json`, `sqlite3`.
"""

import contextlib
import json
import re
import sqlite3

import polars as pl

from tests.sources.torch_profiler.agreement import assert_same, chunks
from tracelib.errors import BadTrace
from tracelib.sources.files import head, open_stream
from tracelib.sources.ftrace.containers import in_page, open_text
from tracelib.sources.ftrace.events import SILENT
from tracelib.sources.ftrace.heads import Heads
from tracelib.sources.ftrace.reader import collect
from tracelib.sources.nsys.database import open_database
from tracelib.sources.nsys.tables import SQLITE
from tracelib.sources.perf import BINARY, is_json
from tracelib.sources.perf.scan import scanned
from tracelib.sources.torch_profiler.fast import fast_batch
from tracelib.sources.torch_profiler.native import Refused
from tracelib.sources.torch_profiler.reader import content, plain_batch
from tracelib.sources.torch_profiler.salvage import decoded

#: What `-F +srcline` prints below a frame: it belongs to the frame, nothing is lost with it.
SOURCE_POSITION = r"^\s+\S.*:\d+$"
#: What SQLite's names become in Python where their bytes are no text: no column can be asked for by such a
#: name.
NO_TEXT = "\ufffd"
#: The frames that hold what happened.
EVENTS = ("slices", "gpu_ops", "samples", "sched", "counters")


def sound(trace):
    """Assert what holds of every trace, whatever it was read from."""
    trace.check()
    source = trace.sources.row(0, named=True)
    assert trace.sources.height == 1
    for name in ("bytes", "lost_declared", "lost_detected", "skipped_bytes"):
        assert source[name] is not None, name
        assert source[name] >= 0, name
    if source["first_ns"] is not None:
        assert source["first_ns"] <= source["last_ns"]
    assert all(message and "\n" not in message for message in trace.health["message"])
    if not sum(getattr(trace, name).height for name in EVENTS):
        assert trace.health.height, "nothing in it, and nothing said of that"


def account_for(reader, path, trace):
    """Assert that nothing in the file at `path` is missing from `trace` in silence."""
    accounts = {"perf": _perf, "ftrace": _ftrace, "nsys": _nsys, "torch_profiler": _torch_profiler}
    assert reader in accounts, (
        f"the fuzzer needs to know what is in files of the format {reader}: see {__file__}"
    )
    accounts[reader](path, trace)


def _lines(data):
    return re.sub(rb"\r+\n", b"\n", data).decode(errors="replace").split("\n")


def _perf(path, trace):
    start = head(path, 1024)
    if start.startswith(BINARY) or is_json(start):
        return
    with open_stream(path) as stream:
        data = stream.readall()
    text = scanned(path)
    kept = [
        line.rstrip("\r") for line in _lines(data[: len(data) - text.ending.dropped_bytes]) if line.strip()
    ]
    comments = [line for line in kept if line.startswith("# ") or line == "#"]
    # such a line may be the event of a thread whose name starts with "#"
    either = sum(re.search(r"\d\.\d{1,9}:", line) is not None for line in comments)
    told = text.events.height + text.frames.height + text.orphans + text.other.height + len(comments)
    assert 0 <= told - len(kept) <= either
    strange = text.other.filter(~pl.col("text").str.contains(SOURCE_POSITION))
    if strange.height or text.ending.dropped_bytes or text.orphans:
        assert trace.health.height


def _ftrace(path, trace):
    if in_page(head(path, 1 << 10)):
        return
    with open_text(path) as stream:
        lines = pl.Series("line", _lines(stream.readall()), dtype=pl.String)
    text = collect(path)
    events = text.events
    lines = lines if text.cut_line is None else lines.head(-1)
    comments = int(lines.str.starts_with("#").sum())
    told = sum(events.counts.values()) + events.no_time + events.continued + events.unread
    silent = lines.len() - told - comments
    assert 0 <= silent <= int(lines.str.contains(SILENT).sum())
    if events.unread or events.no_time or events.continued or text.cut_line is not None:
        assert trace.health.filter(pl.col("message").str.contains("line")).height
    numbered = lines.filter(~lines.str.starts_with("#")).to_frame().with_row_index("index")
    quick, plain = Heads(), Heads()
    fast, slow = quick.split(numbered)[0], plain._by_expression(numbered)[0].sort("index")
    task = pl.col("task").cast(pl.String).str.strip_chars()
    assert fast.with_columns(task, rest=quick.rests.all()[fast["rest"]]).equals(
        slow.with_columns(task, rest=plain.rests.all()[slow["rest"]])
    )


def _nsys(path, _):
    if not head(path, 16).startswith(SQLITE):
        return
    with open_database(path) as database:
        for table, columns in database.tables.items():
            before = list(database.damage)
            schema = dict.fromkeys((name for name in columns if NO_TEXT not in name), pl.Int64)
            quick = database._by_page(table, schema) if schema else None
            if quick is None or database.damage != before:
                continue
            plain = database._by_query(table, schema)
            if database.damage == before:
                assert quick.equals(plain), table
        known = set(database.tables)
        if path.read_bytes()[:16] == SQLITE and not database.damage:
            assert _plain_tables(path) <= known


def _plain_tables(path):
    with contextlib.closing(
        sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    ) as db:
        rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'")
        return {name for (name,) in rows}


def _torch_profiler(path, trace):
    with open_stream(path) as stream:
        for chunk in chunks(stream):
            _both_ways(chunk, trace)
    with open_stream(path) as stream:
        data = stream.readall()
    try:
        document = json.loads(data, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return
    events = document if isinstance(document, list) else document.get("traceEvents")
    if data.count(b'"traceEvents"') > 1 or not isinstance(events, list):
        return
    try:
        batch = content(path).batch
    except BadTrace:
        return
    assert sum(batch.tally.values()) == len(events)


def _no_json(constant):
    """Python reads NaN and Infinity, which are no JSON: such a text is repaired event by event."""
    raise ValueError(constant)


def _both_ways(chunk, trace):
    """Assert that the fast decoder gives what the plain one gives; of invalid JSON it may read more."""
    try:
        fast, fast_tail = fast_batch(chunk)
    except Refused:
        return
    plain, plain_tail = plain_batch(chunk)
    if decoded(chunk.text.rstrip().removesuffix(b",")) is None:
        less = fast.tally.total() < plain.tally.total()
        assert not less or trace.health["message"].str.contains("lost").any()
        return
    assert_same(fast, plain)
    assert (fast_tail is None) == (plain_tail is None)
    assert (fast_tail or b"").strip(b", \t\r\n") == (plain_tail or b"").strip(b", \t\r\n")
