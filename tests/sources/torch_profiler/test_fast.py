"""The fast and the plain decoder give the same rows: on real files, on every layout, on generated events."""

import copy
import gzip
import json
import random
from collections import Counter
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import SHARED
from tests.sources.torch_profiler.agreement import assert_same, chunks, chunks_of, compared, plain_whole
from tracelib.sources.files import open_stream
from tracelib.sources.torch_profiler.fast import fast_batch
from tracelib.sources.torch_profiler.plain import nanoseconds
from tracelib.sources.torch_profiler.reader import decoded_batch

FOLDERS = (
    "kineto",
    "kineto/handmade",
    "chrome_json",
    "chrome_json/handmade",
    "kineto/facebookresearch__param__dlrm_8ranks",
)
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (SHARED / "corpus" / folder).glob("*")
    if path.is_file() and not path.name.endswith("tar.gz")
)
CAPTURES = sorted((SHARED / "captures").glob("*/*.pt.trace.json.gz"))
SMALL = 1 << 16


@pytest.mark.corpus
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[-60:])
def test_both_agree_on_every_file_of_the_corpus(path):
    if path.stat().st_size < 400_000:
        compared(chunks(open_stream(path), SMALL))
    compared(chunks(open_stream(path)))


@pytest.mark.corpus
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_fast_one_takes_all_of_a_capture(path):
    pieces = chunks(open_stream(path))
    large = len(pieces) > 1  # the small ones are metadata for the most part, which is the plain decoder's
    assert compared(pieces) == len(pieces) or not large


EVENTS = [
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::add",
        "pid": 7,
        "tid": 8,
        "ts": 1234.567,
        "dur": 2.5,
        "args": {"External id": 1},
    },
    {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 7,
        "tid": 8,
        "ts": 1235,
        "dur": 1,
        "args": {"cbid": 1, "correlation": 9},
    },
    {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm<4>(float*)",
        "pid": 0,
        "tid": 7,
        "ts": 1240.001,
        "dur": 0.25,
        "args": {"device": 0, "stream": 7, "correlation": 9, "grid": [1, 2, 3], "graph id": 0},
    },
    {
        "ph": "X",
        "cat": "kernel",
        "name": "ncclDevKernel_AllReduce_Sum(x)",
        "pid": 0,
        "tid": 7,
        "ts": 1250,
        "dur": 3,
        "args": {
            "device": 0,
            "stream": 7,
            "correlation": 10,
            "Collective name": "allreduce",
            "Process Group Name": "tp",
            "Group size": 2,
            "In msg nelems": 64,
            "Out msg nelems": 128,
        },
    },
    {
        "ph": "X",
        "cat": "gpu_memcpy",
        "name": "Memcpy HtoD",
        "pid": 0,
        "tid": 7,
        "ts": 1260,
        "dur": 3,
        "args": {"device": 0, "stream": 7, "bytes": 4096},
    },
    {
        "ph": "X",
        "cat": "python_function",
        "name": "a.py(3): run",
        "pid": 7,
        "tid": 8,
        "ts": 1200,
        "dur": 100,
        "args": {"Python id": 1},
    },
    {"ph": "s", "id": 9, "pid": 7, "tid": 8, "ts": 1235, "cat": "ac2g", "name": "ac2g"},
    {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": 7,
        "tid": 8,
        "ts": 1236,
        "args": {"Bytes": 1},
    },
    {"name": "thread_name", "ph": "M", "ts": 0, "pid": 7, "tid": 8, "args": {"name": "thread 8 (main)"}},
    {"ph": "X", "cat": "overhead", "name": "Buffer", "pid": -1, "tid": 0, "ts": 1230, "dur": 4},
    {
        "ph": "X",
        "cat": "Trace",
        "name": "PyTorch Profiler (0)",
        "pid": "Spans",
        "tid": "PyTorch Profiler",
        "ts": 1200,
        "dur": 99,
        "args": {},
    },
]


def many(count=60):
    events = [copy.deepcopy(event) for event in EVENTS * count]
    for number, event in enumerate(events):
        event["ts"] += number * 10
    return events


def dumped(events, **layout) -> bytes:
    return json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "x"}, **layout).encode()


LAYOUTS = {
    "one line": {},
    "minified": {"separators": (",", ":")},
    "indented": {"indent": 2},
    "tabs": {"indent": "\t"},
    "sorted": {"indent": 1, "sort_keys": True},
    "a blank before the colon": {"separators": (", ", " : ")},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_rows(layout):
    pieces = chunks_of(dumped(many(), **LAYOUTS[layout]), 1 << 12)
    assert len(pieces) > 5
    assert compared(pieces) == len(pieces)
    assert_same(plain_whole(pieces), plain_whole(chunks_of(dumped(many()))))


def test_windows_lines_and_a_bare_list():
    text = dumped(many(), indent=2).replace(b"\n", b"\r\n")
    assert compared(chunks_of(text, 1 << 12)) > 5
    bare = json.dumps(many()).encode()
    assert_same(plain_whole(chunks_of(bare)), plain_whole(chunks_of(dumped(many()))))


NASTY = [
    'a "quoted" {"device": "cpu"} name',
    "back\\slash",
    "}{",
    "{",
    "}",
    "[]{}",
    'x\\"',
    "new\nline",
    "é中",
    "tab\t",
    '"},{"ph":"X"',
    "\\\\",
    '":',
    '"ts": 5',
    "",
    " ",
    "\u2028",
    "😀",
    "x" * 5000,
    "|",
    "}, {",
]


@pytest.mark.parametrize("ascii_only", [True, False])
def test_names_may_hold_anything(ascii_only):
    events = many(10)
    for number, event in enumerate(events):
        event["name"] = NASTY[number % len(NASTY)]
        if "cat" in event and number % 3 == 0 and event["cat"] == "cpu_op":
            event["cat"] = ["é", 'a"b', "a category that is longer than 24 characters", "}"][number % 4]
    pieces = chunks_of(dumped(events, ensure_ascii=ascii_only), 1 << 12)
    assert compared(pieces) == len(pieces)
    names = plain_whole(pieces).spans["name"].cast(str).to_list()
    assert set(NASTY) <= set(names)


def test_objects_inside_args_are_not_taken_for_the_event():
    events = many(10)
    for number, event in enumerate(events):
        if event.get("cat") == "cuda_runtime":
            event["args"] = {
                "name": "inner",
                "ts": 5,
                "correlation": number,
                "nested": {"ph": "Q", "correlation": 7},
                "list": [{"ph": "X", "name": "n"}, {"name": "m", "cat": "kernel"}],
            }
        if event.get("cat") == "python_function":
            event["args"] = [{"correlation": 5}]
            event["other"] = {"correlation": 6}
    pieces = chunks_of(dumped(events))
    assert compared(pieces) == len(pieces)
    calls = plain_whole(pieces).spans.filter(plain_whole(pieces).spans["category"] == "runtime")
    assert set(calls["correlation"]) == {
        n or None for n, event in enumerate(events) if event.get("cat") == "cuda_runtime"
    }


NUMBERS = [
    "0",
    "7",
    "12.5",
    "1719230400123456.789",
    "1.719230400123456789E15",
    "12.3456789",
    '"1736405443863674.400"',
    "1e3",
    "-5.25",
    "null",
    "1234567890123456",
    "0.001",
    "99999999.999",
    "NaN",
    "true",
    '"x"',
    "1E400",
    "1E999999",
    "-1E999999",
    "1E-999999",
    "123456789012345678901234567890",
]


@pytest.mark.parametrize("number", NUMBERS)
def test_times_of_any_spelling(number):
    event = '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": %s, "dur": 1}'
    text = '{"traceEvents": [' + ",".join([event % n for n in ("1.5", number, "2")]) + "]}"
    pieces = chunks_of(text.encode())
    compared(pieces)
    batch = plain_whole(pieces)
    try:
        exact = Decimal(number.strip('"')) * 1000
        usable = exact.is_finite() and abs(exact) < 2**61 - 1
    except ArithmeticError:
        usable = False
    assert batch.spans["ts"].to_list() == [1500, *([int(exact.to_integral_value())] if usable else []), 2000]
    assert batch.remarks["no usable time: left out"] == (not usable)


def test_nanoseconds_are_those_of_decimal_arithmetic():
    draw = random.Random(3)
    for _ in range(2000):
        text = (
            f"{draw.randrange(10 ** draw.randrange(1, 16))}.{draw.randrange(10**6):0{draw.randrange(1, 7)}d}"
        )
        assert nanoseconds(text.encode()) == int((Decimal(text) * 1000).to_integral_value()), text


ids = st.one_of(
    st.integers(-3, 2**64 - 1),
    st.sampled_from(["", "Spans", "stream 7", "12"]),
    st.none(),
    st.floats(0, 9).map(float),
)
times = st.one_of(
    st.integers(-5, 10**16), st.decimals(0, 10**13, places=3).map(float), st.none(), st.just("4.5")
)
event_strategy = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(
            ["X", "X", "X", "i", "s", "f", "M", "C", "B", "E", "b", "e", "", "XX", None, 5]
        ),
        "cat": st.sampled_from(
            [
                "cpu_op",
                "kernel",
                "gpu_memcpy",
                "cuda_runtime",
                "cuda_sync",
                "Trace",
                "",
                'odd, \\ "one"',
                None,
                3,
            ]
        ),
        "name": st.one_of(
            st.text(max_size=12), st.sampled_from(["ncclKernel_AllReduce_x", "thread_name", None, 4])
        ),
        "pid": ids,
        "tid": ids,
        "ts": times,
        "dur": times,
        "id": ids,
        "args": st.one_of(
            st.none(),
            st.just([]),
            st.just({}),
            st.dictionaries(
                st.sampled_from(
                    [
                        "correlation",
                        "stream",
                        "device",
                        "bytes",
                        "graph id",
                        "Collective name",
                        "name",
                        "ts",
                        "x",
                    ]
                ),
                st.one_of(ids, st.just({"correlation": 1}), st.just([{"ph": "X", "name": "y"}])),
            ),
        ),
    },
)


@settings(max_examples=60, deadline=None)
@given(st.lists(event_strategy, max_size=12), st.sampled_from([None, 1]), st.booleans())
def test_both_agree_on_generated_events(generated, indent, ascii_only):
    text = dumped([*EVENTS[:3], *generated, *EVENTS[:3]] * 2, indent=indent, ensure_ascii=ascii_only)
    try:
        compared(chunks_of(text))
    except UnicodeEncodeError:
        pytest.skip("a lone surrogate cannot be written as UTF-8")


def test_an_empty_category_counts_as_none():
    flow = {"ph": "s", "id": 1, "pid": 1, "tid": 2, "ts": 3}
    (chunk,) = chunks_of(dumped([*EVENTS[:3], flow, {**flow, "cat": ""}]))
    assert fast_batch(chunk)[0].tally["s", "None"] == 2
    assert compared([chunk]) == 1


def test_an_ordinary_chunk_is_taken_whole():
    chunk = chunks_of(dumped(many()))[0]
    batch, tail = fast_batch(chunk)
    assert tail == b', "traceName": "x"}'
    assert batch.tally == Counter((e["ph"], e.get("cat", "None")) for e in many())


@pytest.mark.corpus
def test_gzip_members_make_no_difference(captures, tmp_path):
    text = gzip.decompress((captures / "healthy" / "engine_core.pt.trace.json.gz").read_bytes())
    path = tmp_path / "members.json"
    path.write_bytes(b"".join(gzip.compress(text[k : k + 10_000]) for k in range(0, len(text), 10_000)))
    assert_same(plain_whole(chunks(open_stream(path))), plain_whole(chunks_of(text)))


#: Damage at the end of an event: faults that writers make all the time, and others.
FAULTS = (
    ', "args": {"x": NaN}',
    ', "args": {"x": -Infinity}',
    ', "args": {"x": N/A, "y": [nan, -inf]}',
    ', "args": {"x": 1,}',
    ",",
    r', "args": {"x": "\q"}',
    r', "args": {"C:\q": 1}',
    ', "args": {"x": "a\x01b"}',
    r', "args": {"x": "\ud800"}',
    r', "args": {"x": "\udc00\ud800"}',
    r', "args": {"x": "\u12"}',
    ', "y": [1,]',
)
#: What only the plain decoder repairs: values that are none, and commas too many.
RARE = (
    ', "args": {"x": 012}',
    ', "args": {"x": }',
    ', "args": {"x": abc}',
    ', "y": 1 2',
    ', , "args": {"x": 1}',
    ', "y": tru',
    ', "y": 1.',
    ', "y": 1e',
    ', "y": .5',
    ', "y": +1',
    ', "y": -',
    ', "args": {"x": -1.-500, "y": [0x7f, None]}',
    ', "args": {, "x": 1}',
)
LOST = (
    ', "args": {"x": 1} stray',
    ' "args": {"x": 1}',
    ', "args": {"x": [1, 2}',
    ', "args": {stray "x": 1}',
    ", y: 1",
    ', "y" 1',
)


@pytest.mark.parametrize("damage", [*FAULTS, *RARE, *LOST])
def test_faults_are_repaired_and_what_cannot_be_is_refused_and_counted(damage):
    event = '{"ph": "X", "cat": "cpu_op", "name": "%s", "pid": 7, "tid": 8, "ts": %d.5, "dur": 3%s}'
    events = [event % (f"op{n}", 10 * n, damage if n == 4 else "") for n in range(9)]
    pieces = chunks_of(('{"traceEvents": [' + ", ".join(events) + "]}").encode())
    assert compared(pieces) == (damage in FAULTS)
    batch, _ = decoded_batch(pieces[0])
    kept = [(f"op{n}", 10_000 * n + 500, 3000) for n in range(9) if n != 4 or damage not in LOST]
    assert sorted(batch.spans.select(pl.col("name").cast(pl.String), "ts", "dur").rows()) == kept
    assert batch.remarks == {"lost: not readable" if damage in LOST else "repaired: invalid JSON": 1}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"C:\q\w", r"C:\q\w"),
        ("a\x01b", "a b"),
        (r"\ud800", "\ufffd"),
        (r"\ud83d\ude00", "😀"),
        (r"\u00e9\\q", r"é\q"),
    ],
)
def test_names_with_faults_mean_the_same_to_both(written, meant):
    events = [{**EVENTS[0], "name": "@"}, EVENTS[1], EVENTS[2]]
    pieces = chunks_of(dumped(events * 3).replace(b"@", written.encode()))
    assert compared(pieces) == len(pieces) == 1
    batch, _ = decoded_batch(pieces[0])
    assert batch.spans["name"].cast(pl.String).to_list() == [meant, EVENTS[1]["name"]] * 3
    assert batch.remarks["repaired: invalid JSON"] == (0 if json_reads(f'"{written}"') else 3)


def test_repairing_an_event_leaves_its_good_escapes_alone():
    name = r"a\\q\u00e9\ud83d\ude00\""
    event = '{"ph": "X", "cat": "cpu_op", "name": "@", "pid": 7, "tid": 8, "ts": 5.5, "dur": 3, @}'
    event = event.replace("@", name, 1).replace("@", '"args": {"x": NaN}')
    pieces = chunks_of(f'{{"traceEvents": [{event}, {event}]}}'.encode())
    assert compared(pieces) == 1
    assert plain_whole(pieces).spans["name"].cast(pl.String).to_list() == ['a\\qé😀"'] * 2


@pytest.mark.parametrize("number", ["1e400", "-1e999", "1" * 400, "1e-400", "5e99", "1.5E+08"])
def test_numbers_out_of_range_in_args_make_no_difference(number):
    rest = '"tid": 7, "ts": 5, "dur": 3, "args": {'
    event = (
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, ' + rest + '"device": 0, "stream": 7, "x": %s}}'
    )
    calls = (
        '{"ph": "X", "cat": "cuda_runtime", "name": "c", "pid": 1, ' + rest + '"correlation": 7, "x": %s}}'
    )
    text = ", ".join([event % 1, event % number, calls % number, calls % 1, calls % 1])
    assert compared(chunks_of(f'{{"traceEvents": [{text}]}}'.encode())) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"Process Group ID": 3},
        {"Process Group ID": "3"},
        {"In msg size": 9},
        {"Out msg size": 9, "In msg nelems": 4},
    ],
)
def test_older_spellings_of_a_collective_mean_the_same_to_both(more):
    args = {"device": 0, "stream": 7, "Collective name": "allreduce", "Group size": 2, **more}
    pieces = chunks_of(dumped([*EVENTS[:3], {**EVENTS[3], "args": args}]))
    assert compared(pieces) == 1


#: Faults in events that hold lists of objects: each is one event, repaired.
NESTED = (
    r'"args":{"stack":[{"file":"a"},{"file":"C:\q"}]},"cat":"cpu_op","ph":"X"',
    r'"ph":"X","cat":"cpu_op","args":{"x":"\q","l":[1,{"ph":"X"}]}',
    '"ph":"X","cat":"cpu_op","args":{"l":[{"ph":"A"},{"ph":"Y","x":NaN}]}',
)


@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_objects_inside_of_an_event_with_a_fault_are_no_events(nested, place):
    events = [json.dumps(event) for event in EVENTS[:2]]
    events.insert(place, f'{{{nested},"name":"odd","pid":1,"tid":2,"ts":1,"dur":3}}')
    pieces = chunks_of(f"[{', '.join(events)}]".encode())
    assert compared(pieces) == 1
    batch = plain_whole(pieces)
    assert sorted(batch.spans["name"].cast(pl.String)) == ["aten::add", "cudaLaunchKernel", "odd"]
    assert batch.remarks == {"repaired: invalid JSON": 1}


def json_reads(text):
    try:
        return "\ud800" not in json.loads(text)
    except ValueError:
        return False
