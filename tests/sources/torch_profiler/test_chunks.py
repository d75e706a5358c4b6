"""Lists of objects in args and empty objects among the events: neither is taken for a piece of the list."""

import json

import polars as pl
import pytest

from tests.sources.torch_profiler.agreement import chunks_of, compared, plain_whole
from tracelib.sources.discovery import recognised
from tracelib.sources.torch_profiler.chunks import Cutter

BASE = 1_700_000_000_000_000_000
TAIL = f'], "baseTimeNanoseconds": {BASE}, "distributedInfo": {{"rank": 3}}}}'


def event(number, objects=0, *, args_first=False, damage=""):
    listed = ",".join(f'{{"rid":{n}}}' for n in range(objects))
    args = f'"args":{{"l":[{listed}]}}'
    rest = f'"ph":"X","name":"op{number}","pid":7,"tid":8,"ts":{number},"dur":3{damage}'
    return f"{{{args},{rest}}}" if args_first else f"{{{rest},{args}}}"


@pytest.fixture
def read(tmp_path):
    def load(*events, tail=TAIL):
        path = tmp_path / "trace.json"
        path.write_text('{"traceEvents": [' + ",".join(events) + tail)
        return recognised(path).read().check()

    return load


def rows(trace):
    return sorted(
        trace.slices.select(pl.col("ts_ns") - BASE, "dur_ns", pl.col("name").cast(pl.String)).rows()
    )


def expected(count):
    return [(n * 1000, 3000, f"op{n}") for n in range(count)]


def warnings(trace):
    return trace.health.filter(pl.col("level") != "info")["message"].to_list()


@pytest.mark.parametrize("args_first", [False, True])
@pytest.mark.parametrize("size", [500, 1777, 9000])
def test_no_piece_ends_inside_of_a_sound_event(read, monkeypatch, args_first, size):
    monkeypatch.setattr(Cutter.__init__, "__defaults__", (size,))
    trace = read(*(event(n, 16, args_first=args_first) for n in range(200)))
    assert rows(trace) == expected(200)
    assert (warnings(trace), trace.sources["rank"][0]) == ([], 3)


@pytest.mark.parametrize("damage", ["", ',"x":NaN'])
def test_an_event_longer_than_a_piece_is_one(read, monkeypatch, damage):
    monkeypatch.setattr(Cutter.__init__, "__defaults__", (1000,))
    events = [event(n) for n in range(41)]
    events[20] = event(20, 2000, damage=damage)
    trace = read(*events)
    assert rows(trace) == expected(41)
    assert warnings(trace) == (["1 events: repaired: invalid JSON"] if damage else [])


@pytest.mark.parametrize("damage", [r',"x":"\q"', ',"x":1 2', ',"x":"say "q" now"'])
@pytest.mark.parametrize("objects", [0, 16])
def test_where_all_events_are_damaged_none_is_cut(damage, objects):
    events = (event(n, objects, damage=damage) for n in range(200))
    pieces = chunks_of(f"[{','.join(events)}]".encode(), 2000)
    assert len(pieces) > 5
    assert sum(piece.text.count(b'"ph"') for piece in pieces) == 200
    assert all(piece.text.lstrip().startswith(b'{"ph"') for piece in pieces)
    assert plain_whole(pieces).remarks == {"repaired: invalid JSON": 200}


def test_both_decoders_agree_on_pieces_of_nested_objects():
    events = [event(n, 12 * (n % 3), args_first=n % 2 > 0) for n in range(100)]
    pieces = chunks_of(f"[{','.join(events)}]".encode(), 1000)
    assert compared(pieces) == len(pieces) > 10
    assert plain_whole(pieces).spans["ts"].to_list() == [n * 1000 for n in range(100)]


@pytest.mark.parametrize("args_first", [False, True])
@pytest.mark.parametrize("objects", [2, 8, 9, 30])
@pytest.mark.parametrize("damage", [r',"x":"\q"', ',"x":"say "q" now"', ',"x":tru'])
@pytest.mark.parametrize("own", [False, True])
def test_a_damaged_event_leaves_its_neighbours_alone(read, args_first, objects, damage, own):
    """Sound events of many objects were cut into them, and lost or called repaired."""
    events = [event(n, objects, args_first=args_first) for n in range(40)]
    events[20] = event(20, objects if own else 0, args_first=args_first, damage=damage)
    trace = read(*events)
    assert rows(trace) == expected(40)
    assert warnings(trace) == ["1 events: repaired: invalid JSON"]


def test_two_damaged_events_in_a_row_are_two(read):
    events = [
        event(n, 12, args_first=True, damage=',"x":"a "q" b"' if n in (5, 6) else "") for n in range(12)
    ]
    trace = read(*events)
    assert rows(trace) == expected(12)
    assert warnings(trace) == ["2 events: repaired: invalid JSON"]


@pytest.mark.parametrize("damage", [',"x":NaN', ',"x":0x7f', ',"x":"say "q" now"', r',"x":"\q"'])
@pytest.mark.parametrize("place", [(0,), (2,), (3,), (4,), (0, 2, 3, 3, 3, 4)])
def test_empty_objects_are_nothing_beside_a_damaged_event_too(read, damage, place):
    events = [event(0), event(1), event(2, damage=damage), event(3)]
    for at in reversed(place):
        events.insert(at, "{ }" if at == 3 else "{}")
    trace = read(*events)
    assert rows(trace) == expected(4)
    assert (warnings(trace), trace.sources["rank"][0]) == (["1 events: repaired: invalid JSON"], 3)


@pytest.mark.parametrize("damage", [',"x":NaN', ',"x":"say "q" now"'])
def test_a_damaged_last_event_before_an_empty_object_keeps_the_fields_behind_the_list(read, damage):
    trace = read(event(0), event(1), event(2, damage=damage), "{}")
    assert rows(trace) == expected(3)
    assert (warnings(trace), trace.sources["rank"][0]) == (["1 events: repaired: invalid JSON"], 3)


def test_a_comma_behind_an_empty_object_keeps_the_fields_behind_the_list(read):
    trace = read(event(0), event(1), "{}", tail=",\n" + TAIL)
    assert rows(trace) == expected(2)
    assert trace.sources["rank"][0] == 3
    assert trace.sources["lost_detected"][0] == 0


def test_an_object_that_is_no_event_is_told_of_beside_a_damaged_one(read):
    trace = read(event(0), json.dumps({"rid": 1}), event(1, damage=',"x":"say "q" now"'), event(2))
    assert rows(trace) == expected(3)
    assert trace.sources["lost_detected"][0] == 1


def test_much_metadata_may_stand_before_the_events(tmp_path):
    """As newer Chrome DevTools write it: source maps of many KiB come first."""
    path = tmp_path / "trace.json"
    metadata = {"source": "DevTools", "startTime": "2026-01-01", "sourceMaps": ["x" * (70 << 10)]}
    path.write_text(json.dumps({"metadata": metadata, "traceEvents": [json.loads(event(5))]}))
    assert recognised(path).read().slices["ts_ns"].to_list() == [5000]


@pytest.mark.parametrize("behind", [1, 3])
@pytest.mark.parametrize(
    "cut", ['"args":', '"args":{"l":[', '"args":{"k":"v', '"args":{"l":[1,', '"args":{"k":[[1],[2,', '"na']
)
def test_an_event_that_is_glued_to_a_damaged_one_is_read_and_the_damaged_one_counted(read, cut, behind):
    half = '{"ph":"X","cat":"cpu_op","name":"half","pid":7,"tid":8,"ts":1,"dur":3,'
    events = [event(n) for n in range(2, 2 + behind)]
    trace = read(event(0), f"{half}{cut}{events[0]}", *events[1:])
    assert rows(trace) == [row for row in expected(2 + behind) if row[0] != 1000]
    assert trace.sources["lost_detected"][0] == 1


@pytest.mark.parametrize("glue", ["[", "{", "}", "xx", " "])
def test_what_stands_between_two_events_takes_none_along(read, glue):
    assert rows(read(event(0), f"{event(1)}{glue}{event(2)}", event(3))) == expected(4)
