"""Files of any structure that their format allows, made by hypothesis: what is put in comes out.

`test_fuzz.py` damages bytes; here the bytes are whole and what they say is odd. `FUZZ_EXAMPLES=2000` looks
further.
"""

import json
import os
import sqlite3
from contextlib import closing

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sources.accounting import account_for, sound
from tracelib.errors import BadTrace
from tracelib.sources import ftrace, nsys, perf, torch_profiler

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "12"))
looked_at = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,  # with the tests, the same few in every run
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

#: A name has up to 15 bytes of anything; it may not end so that the head's own columns could begin in it.
NAME = st.text("ab:/[]()-=_ .#<>é", min_size=1, max_size=12).map(lambda text: f"n{text}n")
NUMBER = st.integers(1, 4_194_304)
TIME = st.integers(10**9, 10**15)


def seconds(ns, digits=9):
    return f"{ns // 10**9}.{ns % 10**9 // 10 ** (9 - digits):0{digits}d}"


SYMBOL = st.text("abc:<>~*&(), _", min_size=1, max_size=20).map(lambda text: f"f{' '.join(text.split())}f")
FRAME = st.tuples(
    SYMBOL, st.sampled_from(["/lib/a b.so", "[kernel.kallsyms]", "/memfd:x (deleted)", "[unknown]"])
)
SAMPLE = st.tuples(
    NAME,
    NUMBER,
    NUMBER,
    st.none() | st.integers(0, 999),
    TIME,
    st.none() | st.integers(0, 2**62),
    st.sampled_from(["cycles:u", "cpu-clock/freq=499/", "cpu_core/cycles/P", "instructions"]),
    st.lists(FRAME, max_size=4),
)


@looked_at
@given(samples=st.lists(SAMPLE, min_size=1, max_size=12))
def test_perf_samples_come_out_as_they_went_in(tmp_path, samples):
    text = ""
    for name, pid, tid, cpu, ns, period, event, chain in samples:
        place = "" if cpu is None else f"[{cpu:03d}] "
        counted = "" if period is None else f"{period:>10} "
        text += f"{name:>16} {pid:5d}/{tid:<5d} {place}{seconds(ns)}: {counted}{event}: \n"
        text += (
            "".join(
                f"\t{at:16x} {symbol}+0x{at:x} ({library})\n" for at, (symbol, library) in enumerate(chain)
            )
            + "\n"
        )
    path = tmp_path / "perf.txt"
    path.write_text(text)
    trace = perf.read(path)
    sound(trace)
    account_for("perf", path, trace)
    chains: dict[int, list[tuple[str, str]]] = {}
    for stack, _, symbol, library in trace.stacks.iter_rows():
        chains.setdefault(stack, []).append((symbol, library))
    tids = dict(trace.threads.select("thread", "tid").iter_rows())
    found = [
        (
            tids[row["thread"]],
            row["cpu"],
            row["ts_ns"],
            row["period"],
            row["event"],
            chains.get(row["stack"], []),
        )
        for row in trace.samples.iter_rows(named=True)
    ]
    want = [(tid, cpu, ns, period, event, chain) for _, _, tid, cpu, ns, period, event, chain in samples]
    assert sorted(found, key=repr) == sorted(want, key=repr)


HEADS = (
    "{name:>16}-{tid:<7} [{cpu:03d}] d..2. {time}: ",
    "{name:>16}-{tid:<7} ({tid:7d}) [{cpu:03d}] d..2. {time}: ",
    "{name:>16}-{tid:<7} [{cpu:03d}]   {time}: ",
    "{name:>8}-{tid:<5} {cpu:>3}d..2. {time}: ",
)
SWITCHES = (
    (
        "sched_switch: prev_comm={name} prev_pid={tid} prev_prio=120 prev_state=S ==> "
        "next_comm={other} next_pid={to} next_prio=120"
    ),
    "sched_switch:         {name}:{tid} [120] S ==> {other}:{to} [120]",
    (
        "sched_switch: prev_comm={name} prev_pid={tid} prev_prio=120 prev_state=0x1 "
        "next_comm={other} next_pid={to} next_prio=120"
    ),
)
SWITCH = st.tuples(NAME, NUMBER, NAME, NUMBER, st.integers(0, 999), TIME)


@looked_at
@given(
    switches=st.lists(SWITCH, min_size=1, max_size=20),
    head=st.sampled_from(HEADS),
    form=st.sampled_from(SWITCHES),
    digits=st.sampled_from([6, 9]),
)
def test_ftrace_switches_come_out_as_they_went_in(tmp_path, switches, head, form, digits):
    text, want = "# tracer: nop\n", []
    for name, tid, other, to, cpu, ns in switches:
        time = seconds(ns, digits)
        line = head.format(name=name, tid=tid, cpu=cpu, time=time)
        text += line + form.format(name=name, tid=tid, other=other, to=to) + "\n"
        want.append((ns if digits == 9 else ns // 1000 * 1000, cpu, tid, "S", to))
    path = tmp_path / "trace.txt"
    path.write_text(text)
    trace = ftrace.read(path)
    sound(trace)
    account_for("ftrace", path, trace)
    tids = dict(trace.threads.select("thread", "tid").iter_rows())
    rows = trace.sched.select("ts_ns", "cpu", "prev", "prev_state", "next").iter_rows()
    assert sorted((ns, cpu, tids[prev], state, tids[to]) for ns, cpu, prev, state, to in rows) == sorted(want)


VALUE = st.one_of(
    st.none(),
    st.integers(-5, 100),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
)
TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start",
        "end",
        "deviceId",
        "streamId",
        "correlationId",
        "globalPid",
        "demangledName",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "globalTid", "textId", "binaryData"),
    "SCHED_EVENTS": ("start", "cpu", "isSchedIn", "globalTid", "threadState"),
    "COMPOSITE_EVENTS": ("id", "start", "cpu", "globalTid"),
    "SAMPLING_CALLCHAINS": ("id", "symbol", "module", "unresolved", "stackDepth"),
    "StringIds": ("id", "value"),
    "GPU_METRICS": ("timestamp", "typeId", "metricId", "value"),
}


@st.composite
def exports(draw):
    """Return tables of any columns that they may have, with rows of any values."""
    made = {}
    for table in draw(st.lists(st.sampled_from(sorted(TABLES)), min_size=1, unique=True)):
        columns = draw(st.lists(st.sampled_from(TABLES[table]), min_size=1, unique=True))
        made[table] = columns, draw(st.lists(st.tuples(*[VALUE] * len(columns)), max_size=8))
    return made


@looked_at
@given(tables=exports())
def test_nsys_exports_of_any_columns_and_values(tmp_path, tables):
    path = tmp_path / "x.sqlite"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        for table, (columns, rows) in tables.items():
            connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", rows)
        connection.commit()
    trace = nsys.read(path)
    sound(trace)
    account_for("nsys", path, trace)
    _, kernels = tables.get("CUPTI_ACTIVITY_KIND_KERNEL", ([], []))
    left_out = trace.health.filter(pl.col("message").str.contains("^[0-9]+ GPU operations left out"))[
        "message"
    ]
    lost = sum(int(message.split()[0]) for message in left_out)
    assert trace.gpu_ops.height + lost == len(kernels)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
FINE = {
    "ph": st.sampled_from(list("XXXBEMCisfbe")),
    "cat": st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "Trace", ""]),
    "name": st.text(max_size=8),
    "pid": st.integers(0, 9),
    "tid": st.integers(0, 9) | st.just("stream 7"),
    "ts": st.integers(0, 10**13) | st.decimals(0, 10**10, places=3).map(float),
    "dur": st.integers(0, 10**6),
    "id": st.integers(0, 5),
    "args": st.dictionaries(
        st.sampled_from(["correlation", "stream", "device", "name", "value", "bytes"]), st.integers(0, 99)
    ),
}
EVENT = st.fixed_dictionaries({}, optional={key: value | value | value | ODD for key, value in FINE.items()})


@looked_at
@given(
    events=st.lists(EVENT, max_size=25),
    indent=st.sampled_from([None, 1]),
    bare=st.booleans(),
    escaped=st.booleans(),
)
def test_chrome_events_of_any_types(tmp_path, events, indent, bare, escaped):
    document = events if bare else {"traceEvents": events, "baseTimeNanoseconds": 10**18}
    text = json.dumps(document, indent=indent, ensure_ascii=escaped)
    path = tmp_path / "trace.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        trace = torch_profiler.read(path)
    except BadTrace:
        # but for NaN and Infinity, which are no JSON, an event that has a phase is enough
        assert (
            "NaN" in text
            or "Infinity" in text
            or not any(event.get("ph") for event in events if isinstance(event.get("ph"), str))
        )
        return
    sound(trace)
    account_for("torch_profiler", path, trace)


@pytest.mark.parametrize("bare", [True, False])
def test_an_event_of_each_phase_is_counted(tmp_path, bare):
    """Hand-worked: what the property above is about, once."""
    events = [
        {"ph": ph, "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": 5, "dur": 1} for ph in "XBEi"
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events if bare else {"traceEvents": events}))
    trace = torch_profiler.read(path)
    assert trace.slices.height == 3
