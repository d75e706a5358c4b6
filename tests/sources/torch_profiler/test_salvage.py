"""Damage that people met, kind by kind: what is whole comes out, what is lost is counted, nothing crashes."""

import gzip
import json
import random

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracelib.errors import BadTrace, TraceError
from tracelib.sources.discovery import recognised
from tracelib.sources.torch_profiler import read, reader
from tracelib.sources.torch_profiler import salvage as salvage_module
from tracelib.sources.torch_profiler.chunks import LONGEST, Cutter
from tracelib.sources.torch_profiler.repairs import repaired
from tracelib.sources.torch_profiler.salvage import salvage

BASE = 1_700_000_000_000_000_000


def event(number, **changed):
    base = {
        "ph": "X",
        "cat": "cpu_op",
        "name": f"op{number}",
        "pid": 7,
        "tid": 8,
        "ts": number * 10 + 0.5,
        "dur": 3,
    }
    return json.dumps({**base, **changed})


def wrapped(*events, tail=', "traceName": "x"}'):
    return f'{{"baseTimeNanoseconds": {BASE}, "traceEvents": [' + ",\n".join(events) + "]" + tail


@pytest.fixture
def trace_of(tmp_path):
    def load(text):
        path = tmp_path / "rank3.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return recognised(path).read().check()

    return load


def names(trace):
    return trace.slices["name"].cast(pl.String).to_list()


def remarks(trace):
    return " | ".join(trace.health.filter(pl.col("level") != "info")["message"])


GOOD = [event(number) for number in range(5)]
REST = '"pid": 7, "tid": 8, "ts": 20.5, "dur": 3'
ODD = {
    "lone backslash": (
        r'{"ph": "X", "cat": "cpu_op", "name": "C:\work\x.py", "pid": 7, "tid": 8, "ts": 20.5, "dur": 3}',
        r"C:\work\x.py",
    ),
    "raw newline": (
        '{"ph": "X", "cat": "cpu_op", "name": "a\nb", "pid": 7, "tid": 8, "ts": 20.5, "dur": 3}',
        "a b",
    ),
    "control character": (
        '{"ph": "X", "cat": "cpu_op", "name": "a\x01b", "pid": 7, "tid": 8, "ts": 20.5, "dur": 3}',
        "a b",
    ),
    "one unescaped quote": (
        '{"ph": "X", "cat": "cpu_op", "name": "a"b", "pid": 7, "tid": 8, "ts": 20.5, "dur": 3}',
        'a"b',
    ),
    "a dictionary": (
        '{"ph": "X", "cat": "cpu_op", "name": "x.py(3): f {"device": "cpu", "id": 3}", ' + REST + "}",
        'x.py(3): f {"device": "cpu", "id": 3}',
    ),
    "a list of dictionaries": (
        '{"ph": "X", "cat": "cpu_op", "name": "[{"a": "b"}, {"c": "d"}]", ' + REST + "}",
        '[{"a": "b"}, {"c": "d"}]',
    ),
    "a path that ends with a backslash": (
        '{"ph": "X", "cat": "cpu_op", "name": "C:\\work\\", "pid": 7, "tid": 8, "ts": 20.5, "dur": 3}',
        "C:\\work\\",
    ),
    "a log line inside": (
        '{"ph": "X", "cat": "cpu_op", "name": "a",\nERROR: "x" failed {y}\n ' + REST + "}",
        "a",
    ),
    "two unescaped quotes": (
        '{"ph": "X", "cat": "cpu_op", "name": "say "hi" now", "pid": 7, "tid": 8, "ts": 20.5, "dur": 3}',
        'say "hi" now',
    ),
    "lone surrogate": (
        r'{"ph": "X", "cat": "cpu_op", "name": "a\ud800b", "pid": 7, "tid": 8, "ts": 20.5, "dur": 3}',
        "a\ufffdb",
    ),
    "NaN in args": ('{"ph": "X", "cat": "cuda_runtime", "name": "a", ' + REST + ', "args": {"x": NaN}}', "a"),
    "trailing comma": (
        '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 7, "tid": "8", "ts": 20.5, "dur": 3,}',
        "a",
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_damaged_event_is_repaired_and_its_neighbours_are_untouched(trace_of, kind):
    text, name = ODD[kind]
    trace = trace_of(wrapped(*GOOD[:2], text, *GOOD[3:]))
    assert names(trace) == ["op0", "op1", name, "op3", "op4"]
    assert trace.slices["ts_ns"].to_list() == [BASE + n * 10_000 + 500 for n in range(5)]


def test_bytes_that_are_no_utf8_are_replaced(trace_of):
    trace = trace_of(wrapped(*GOOD).encode().replace(b"op2", b"op\xb02"))
    assert names(trace) == ["op0", "op1", "op\ufffd2", "op3", "op4"]
    assert "repaired" in remarks(trace)


def test_a_missing_comma_joins_no_events(trace_of):
    trace = trace_of(wrapped(GOOD[0], GOOD[1] + GOOD[2], GOOD[3]))
    assert names(trace) == ["op0", "op1", "op2", "op3"]


def test_garbage_between_events_costs_only_what_it_touches(trace_of):
    trace = trace_of(wrapped(GOOD[0], GOOD[1], '{"ph": "X", "ca@@@@', GOOD[3], GOOD[4]))
    assert set(names(trace)) >= {"op0", "op1", "op4"}
    assert trace.sources["skipped_bytes"][0] > 0
    assert "lost" in remarks(trace)


@pytest.mark.parametrize(
    "stray", ["WARNING:2024-01-01 12:00:00 1234:1234 init.cpp:155] {x} failed", "}", "@@", "}}"]
)
def test_text_between_events_costs_none(trace_of, stray):
    trace = trace_of(wrapped(GOOD[0], f"{GOOD[1]}\n{stray}", f"\n{GOOD[2]}", f"{stray}\n{GOOD[3]}", GOOD[4]))
    assert names(trace) == [f"op{n}" for n in range(5)]
    assert "text between events: skipped" in remarks(trace)
    assert trace.sources["skipped_bytes"][0] >= 2 * len(stray)


def test_numbers_out_of_every_range_cost_their_event_only_themselves(trace_of):
    odd = ["1e400", "-1e999999", "9" * 5000, "0x7f", "-1.-500"]
    texts = [event(n + 1).replace('"pid": 7', f'"pid": {number}') for n, number in enumerate(odd)]
    trace = trace_of(wrapped(GOOD[0], *texts, event(9)))
    assert sorted(names(trace)) == ["op0", "op1", "op2", "op3", "op4", "op5", "op9"]
    assert "5 events: repaired: invalid JSON" in remarks(trace)


def test_many_begins_without_an_end_take_no_more_than_their_share_of_time(trace_of):
    """Found by hand: each of 30,000 values was looked for up to the end of the text, for minutes."""
    trace = trace_of(wrapped(*GOOD) + '{"ph":"X", ' * 30_000)
    assert names(trace) == [f"op{n}" for n in range(5)]


def test_things_that_are_no_events_are_counted(trace_of):
    trace = trace_of(wrapped(GOOD[0], "5", "null", '"text"', "[1, 2]", GOOD[1]))
    assert names(trace) == ["op0", "op1"]
    assert trace.sources["lost_detected"][0] > 0


def test_durations_that_cannot_be(trace_of):
    odd = [event(1, dur=-3), event(2, dur=None), event(3, dur="x"), event(4, dur=1e30)]
    trace = trace_of(wrapped(GOOD[0], *odd))
    assert trace.slices["dur_ns"].to_list() == [3000, 0, 0, 0, 0]
    assert "1 events: negative duration" in remarks(trace)
    assert "no duration" in remarks(trace)


def test_events_without_a_time_are_left_out_and_counted(trace_of):
    trace = trace_of(wrapped(GOOD[0], event(1, ts=None), event(2, ts="soon"), event(3, ts=10**30)))
    assert names(trace) == ["op0"]
    assert trace.sources["lost_detected"][0] == 3


def test_gpu_work_at_time_zero_is_left_out_and_counted(trace_of):
    kernels = [
        event(n, cat="kernel", pid=0, tid=7, ts=ts, args={"device": 0, "stream": 7})
        for n, ts in enumerate([0, 0, 55])
    ]
    trace = trace_of(wrapped(GOOD[0], *kernels))
    assert trace.gpu_ops.height == 1
    assert "2 events: GPU work at time 0" in remarks(trace)
    assert trace.sources["first_ns"][0] == BASE + 500


def test_repeated_gpu_work_is_kept_and_said(trace_of):
    kernel = event(1, cat="kernel", pid=0, tid=7, args={"device": 0, "stream": 7, "correlation": 5})
    trace = trace_of(wrapped(GOOD[0], kernel, kernel, kernel))
    assert trace.gpu_ops.height == 3
    assert "2 GPU ops are repetitions" in remarks(trace)


def test_ids_above_2_to_the_63_still_join(trace_of):
    big = 10159970886766084423
    call = event(1, cat="cuda_runtime", name="cudaGraphLaunch", pid=7, args={"correlation": big})
    kernel = event(2, cat="kernel", pid=0, tid=7, args={"device": 0, "stream": 7, "correlation": big})
    trace = trace_of(wrapped(call, kernel))
    assert trace.gpu_ops["correlation"][0] == trace.slices["correlation"][0] == big - 2**64
    assert (trace.gpu_ops["pid"][0], trace.gpu_ops["graph"][0]) == (7, 0)


def test_deep_nesting_is_no_crash(trace_of):
    deep = (
        '{"ph": "X", "name": "deep", "ts": 1, "dur": 1, "args": '
        + '{"a":' * 100_000
        + "1"
        + "}" * 100_000
        + "}"
    )
    trace = trace_of(wrapped(GOOD[0], deep, GOOD[1]))
    assert set(names(trace)) >= {"op0", "op1"}


def test_a_gigantic_name_is_read(trace_of):
    trace = trace_of(wrapped(GOOD[0], event(1, name="x" * (9 << 20)), GOOD[2]))
    assert trace.slices["name"].cast(pl.String).str.len_bytes().to_list() == [3, 9 << 20, 3]


def test_an_endless_event_costs_bounded_memory(tmp_path):
    path = tmp_path / "endless.json"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(wrapped(*GOOD, tail="").encode()[:-1] + b', {"name": "')
        for _ in range(2 * LONGEST >> 20):
            file.write(b"x" * (1 << 20))
        file.write(('"}, ' + ", ".join(event(n) for n in range(10, 40)) + "]}").encode())
    trace = read(path)
    assert {"op0", "op1", "op2", "op3", "op39"} <= set(names(trace))
    assert trace.sources["skipped_bytes"][0] > LONGEST


def test_an_empty_list_is_refused(tmp_path):
    path = tmp_path / "empty.json"
    path.write_text('{"traceEvents": []}')
    with pytest.raises(BadTrace, match="empty"):
        recognised(path).read()


def test_a_list_of_garbage_is_refused_with_its_size(tmp_path):
    path = tmp_path / "garbage.json"
    path.write_text('{"traceEvents": [@@@@@@@@@@@@@@@@')
    with pytest.raises(BadTrace, match="none of its events can be read"):
        recognised(path).read()


def test_text_after_the_list_is_no_event(trace_of):
    tail = ', "samples": [{"ph": "X", "name": "no", "ts": 1}, {"name": "no", "ph": "X", "ts": 2}]'
    tail += ', "distributedInfo": {"rank": 5}}'
    trace = trace_of(wrapped(*GOOD, tail=tail))
    assert names(trace) == [f"op{n}" for n in range(5)]
    assert trace.sources["rank"][0] == 5


def test_damaged_fields_after_the_list_still_give_the_rank(trace_of):
    trace = trace_of(
        wrapped(
            *GOOD, tail=', "traceName": "C:\\\\x"y", @@, "distributedInfo": {"backend": "nccl", "rank": 5}, '
        )
    )
    assert trace.sources["rank"][0] == 5
    assert names(trace) == [f"op{n}" for n in range(5)]


def test_the_rank_comes_from_the_name_where_the_file_has_none(trace_of):
    trace = trace_of(wrapped(*GOOD))
    assert trace.sources["rank"][0] == 3
    assert trace.health["message"].str.contains("rank by the file's name").any()


def test_every_cut_gives_the_whole_events_before_it(tmp_path):
    events = [event(n, args={"list": [{"name": "a"}, {"name": "b"}], "External id": n}) for n in range(40)]
    text = wrapped(*events)
    ends, at = [], text.index("[") + 1
    for one in events:
        at = text.index(one, at) + len(one)
        ends.append(at)
    path = tmp_path / "cut.json"
    draw = random.Random(1)
    for cut in [
        *ends[:3],
        *(end + 1 for end in ends[:3]),
        *draw.sample(range(text.index("[") + 1, ends[-1]), 60),
    ]:
        whole = sum(end <= cut for end in ends)
        path.write_text(text[:cut])
        if not whole:
            with pytest.raises(BadTrace):
                read(path)
            continue
        trace = read(path)
        assert names(trace) == [f"op{n}" for n in range(whole)], cut
        assert "cut short" in remarks(trace)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_change_of_bytes_gives_a_trace_or_a_typed_error(tmp_path, data):
    text = bytearray(wrapped(*[event(n, args={"External id": n}) for n in range(12)]).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        size = data.draw(st.sampled_from([0, 1, 1, 2, 20]))
        text[at : at + size] = data.draw(
            st.one_of(
                st.binary(max_size=4), st.sampled_from([b'"', b"{", b"}", b"[", b"]", b",", b"\\", b":"])
            )
        )
    path = tmp_path / "changed.json"
    path.write_bytes(bytes(text))
    try:
        trace = read(path).check()
    except TraceError:
        return
    intact = sum(names(trace).count(f"op{n}") for n in range(12))
    if intact < 8:
        assert remarks(trace), "a loss is never silent"


def test_a_piece_cut_inside_of_a_nested_list_is_put_together_again():
    whole = event(1, args={"list": [{"name": "a"}, {"name": "b"}]})
    found = salvage(f"{event(0)}, {whole}, {{@@, {event(2)}".encode(), last=False)
    assert [e.name for e in found.events][:1] == ["op0"]
    assert "op2" in [e.name for e in found.events]


@pytest.mark.parametrize("start", ["{}", "[]"])
def test_a_stray_bracket_costs_no_event(trace_of, start):
    """A bracket behind an event closes the list; an event that follows cannot be the document's."""
    text = (
        wrapped(*GOOD[:2], GOOD[2] + "]", GOOD[3] + "]", *GOOD[4:])
        if start == "{}"
        else f"[{', '.join(GOOD[:3])}], {', '.join(GOOD[3:])}]"
    )
    trace = trace_of(text)
    assert names(trace) == ["op0", "op1", "op2", "op3", "op4"]
    assert "events: behind a stray bracket in the list" in remarks(trace)
    assert trace.sources["lost_detected"][0] == 0


def test_of_many_stray_brackets_the_rest_is_told(trace_of):
    many = [event(number) + "]" for number in range(60)]
    trace = trace_of(wrapped(*many)[: -len('], "traceName": "x"}')])
    assert names(trace) == [f"op{n}" for n in range(17)]
    assert "43 events: lost: behind the end of the list" in remarks(trace)
    assert trace.sources["skipped_bytes"][0] > 43 * len(GOOD[0])


def test_events_far_behind_the_end_of_the_list_are_told_as_well(trace_of, monkeypatch):
    monkeypatch.setattr(reader, "LONGEST_TAIL", 1)
    monkeypatch.setattr(Cutter.__init__, "__defaults__", (200,))
    trace = trace_of(wrapped(*GOOD) + wrapped(*GOOD * 20))
    assert names(trace) == [f"op{n}" for n in range(5)]
    assert "100 events: lost: behind the end of the list" in remarks(trace)


def test_events_of_a_second_document_are_told(trace_of):
    trace = trace_of(wrapped(*GOOD[:3]) + wrapped(*GOOD[3:]))
    assert names(trace) == ["op0", "op1", "op2"]
    assert "2 events: lost: behind the end of the list" in remarks(trace)
    assert trace.sources["skipped_bytes"][0] > 2 * len(GOOD[3])
    assert trace.sources["lost_detected"][0] == 2


def test_a_list_of_flows_and_names_alone_says_so(trace_of):
    """Found by hypothesis: an empty trace of which nothing was said."""
    trace = trace_of(
        wrapped(
            '{"ph": "s", "id": 1, "ts": 5}',
            '{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}',
        )
    )
    assert trace.slices.is_empty()
    assert "none of its events is an interval, an instant or a counter" in remarks(trace)


def test_bait_costs_a_bounded_time_for_each_object(trace_of, monkeypatch):
    """Repairs are tried of what can become an event, and of a few of many that do not."""
    tried = []
    monkeypatch.setattr(salvage_module, "repaired", lambda text: tried.append(text) or repaired(text))
    begun = '}, {"ph": ' * 4000
    trace = trace_of(wrapped(*GOOD)[: -len('], "traceName": "x"}')] + begun)
    assert names(trace) == [f"op{n}" for n in range(5)]
    assert len(tried) < 500
    tried.clear()
    odd = ", ".join(['{"ph": "X" oops "ts" {'] * 4000)
    trace_of(wrapped(GOOD[0], odd, *GOOD[1:]))
    assert len(tried) < 2000


def test_what_follows_the_list_keeps_its_commas():
    """A file that was cut and joined again: more events stand behind the list's end."""
    behind = ', "traceName": "a"}, ' + ", ".join(GOOD)
    text = ", ".join([event(7)[:-1] + ', "x": NaN}', *GOOD[:2]]) + "]" + behind
    for end in ("", ",", ",\n", ', {"ph":'):  # the last is not an event of the list, which has ended
        salvaged = salvage((text + end).encode(), last=True)
        assert salvaged.tail == (behind + end).encode()
        assert not salvaged.skipped_bytes
