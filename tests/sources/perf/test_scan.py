"""Texts that are cut, damaged, mixed with messages, or read in blocks of another size."""

import functools
import gzip
import random

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracelib.errors import BadTrace
from tracelib.sources.perf import read, scan
from tracelib.sources.perf.scan import blocks as cut_blocks


@pytest.fixture(scope="module")
def text(captures):
    """The header and the first 300 events of a capture."""
    whole = gzip.decompress((captures / "starved" / "perf.txt.gz").read_bytes()).decode()
    return "\n\n".join(whole.split("\n\n")[:300]) + "\n\n"


def _rows(plain, trace):
    rows = plain(trace)
    return sorted([("s", *r) for r in rows["samples"]] + [("e", *map(str, r)) for r in rows["sched"]])


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_loses_no_more_than_the_event_it_cuts(seed, text, load, plain):
    at = random.Random(seed).randrange(text.index("\n#\n") + 200, len(text))
    part = text[:at]
    whole_events = part.rsplit("\n\n", 1)[0] + "\n\n"
    expected = _rows(plain, load(whole_events))
    found = _rows(plain, load(part))
    times = {str(row[1]) for row in expected}
    extra = [row for row in found if str(row[1]) not in times]
    assert [row for row in found if str(row[1]) in times] == expected
    assert len(extra) <= 1  # the cut event itself, when its head is whole


@pytest.mark.parametrize("seed", range(10))
def test_the_cut_is_told(seed, text, load):
    part = text[: random.Random(seed).randrange(2000, len(text))]
    if part.endswith("\n\n") or (part.endswith("\n") and not part.rsplit("\n", 2)[1].startswith("\t")):
        pytest.skip("cut between events")
    trace = load(part)
    said = " ".join(trace.health["message"])
    assert "ends inside an event" in said or "may lack its outer frames" in said


def test_a_cut_event_is_left_out_and_its_bytes_counted(load):
    event = "x 1/1 [000] {}.000001: 1 cycles: \n\t 7f00 foo ([k])\n\n"
    trace = load(event.format(1) + event.format(2)[:-8])
    assert trace.samples.height == 1
    assert trace.sources["skipped_bytes"][0] == len(event.format(2)) - 8
    switch = (
        "x 1/1 [000] 3.000001: sched:sched_switch: prev_comm=x prev_pid=1 prev_prio=120 "
        "prev_state=S ==> next_comm=y next_pid=12"
    )
    assert load(event.format(1) + switch).sched.is_empty()  # next_pid may have been 123


def test_a_last_event_without_its_line_end_is_whole(load):
    switch = (
        "x 1/1 [000] {}.000001: sched:sched_switch: prev_comm=x prev_pid=1 prev_prio=120 "
        "prev_state=S ==> next_comm=y next_pid=12 next_prio=120"
    )
    trace = load(f"{switch.format(1)}\n{switch.format(2)}")
    assert trace.sched["ts_ns"].to_list() == [1_000_001_000, 2_000_001_000]
    assert trace.sources["skipped_bytes"][0] == 0
    assert load("x 1 [000] 1.000001: 5 cycles:\nx 1 [000] 2.000001: 5 cycles:").samples.height == 2


def test_a_document_that_quotes_events_is_no_recording(load):
    event = "x 1/1 [000] 1.000001: 1 cycles: \n\t 7f00 foo ([k])\n\n"
    notes = "Notes of Monday\n\nThe server hung again, see:\n\n"
    with pytest.raises(BadTrace):
        load(f"{notes}# captured on    : Monday\nNothing else.\n", sniffed=False)
    load(f"{notes}{event}and then it was fine.\n", sniffed=False)
    load(f"Warning: 3 events lost\n{event * 2}")


@pytest.mark.parametrize("seed", range(6))
def test_the_size_of_blocks_changes_nothing(seed, text, tmp_path, plain, monkeypatch):
    path = tmp_path / "perf.txt"
    path.write_text(text)
    expected = read(path)
    size = random.Random(seed).randrange(50, 20_000)
    monkeypatch.setattr(scan, "blocks", functools.partial(cut_blocks, size=size))
    found = read(path)
    assert plain(found) == plain(expected)
    assert found.threads.equals(expected.threads)
    assert found.stacks.equals(expected.stacks)
    assert found.sources.equals(expected.sources)
    assert found.health.equals(expected.health)


@pytest.mark.parametrize(
    "form",
    [
        "x 1/1 [000] {}.000001: 1 cycles: \n\t 7f00 f{} ([k])\n",
        "{:>16} 12 [000] 5.000001: 1 cycles:  7f00 f{} ([k])\n",
        "x 1/1 [000] {}.000001: 1 cycles: \r\n\t 7f00 f{} ([k])\r\n\r\n",
    ],
)
@pytest.mark.parametrize("size", [40, 100, 1000])
def test_blocks_without_empty_lines_hold_whole_events(form, size, tmp_path, plain, monkeypatch):
    path = tmp_path / "perf.txt"
    path.write_bytes("".join(form.format(at, at) for at in range(100, 200)).encode())
    monkeypatch.setattr(scan, "blocks", functools.partial(cut_blocks, size=size))
    samples = plain(read(path))["samples"]
    assert [row[-1] for row in samples] == [((f"f{at}", "[k]"),) for at in range(100, 200)]


@pytest.mark.parametrize("seed", range(4))
def test_two_halves_hold_the_whole(seed, text, load, plain):
    events = text.split("\n#\n", 1)[1].split("\n\n")[:-1]
    at = random.Random(seed).randrange(1, len(events))
    whole = _rows(plain, load(text))
    halves = [_rows(plain, load("\n\n".join(part) + "\n\n")) for part in (events[:at], events[at:])]
    assert sorted(halves[0] + halves[1]) == whole


def test_crlf_changes_nothing(text, load, plain):
    for twice in ("\r\n", "\r\r\n"):  # a file that was converted twice
        assert plain(load(text.replace("\n", twice))) == plain(load(text))


def test_a_missing_header_changes_no_event(text, load, plain):
    assert plain(load(text.split("\n#\n", 1)[1])) == plain(load(text))


def test_interleaved_messages_change_no_event(text, load, plain):
    lines = text.split("\n")
    noise = "Warning: something on stderr 12 [x] here"
    for at in sorted(random.Random(1).sample(range(60, len(lines)), 30), reverse=True):
        lines.insert(at, noise)
    trace = load("\n".join(lines))
    assert plain(trace) == plain(load(text))
    assert trace.sources["skipped_bytes"][0] == 30 * len(noise)


def test_bytes_that_are_no_text(load):
    trace = load(b"x\xff\xfe 12/12 [000] 6.000001: 1 cycles: \n\t 7f00 f\xffoo\x02 ([k])\n\n")
    assert trace.threads["name"][0] == "x\ufffd\ufffd"
    assert trace.stacks["symbol"].cast(pl.String).to_list() == ["f\ufffdoo\x02"]
    assert "3 places are not UTF-8" in " ".join(trace.health["message"])


def test_a_cut_gzip_gives_what_came_out(captures, tmp_path):
    packed = (captures / "starved" / "perf.txt.gz").read_bytes()
    path = tmp_path / "cut.gz"
    path.write_bytes(packed[: len(packed) // 2])
    trace = read(path)
    whole = read(captures / "starved" / "perf.txt.gz")
    assert 500 < trace.samples.height < whole.samples.height
    # the last event that came out may be the cut one
    assert (
        trace.samples["ts_ns"].to_list()[:-1] == whole.samples["ts_ns"].to_list()[: trace.samples.height - 1]
    )
    assert "compressed data ends early" in " ".join(trace.health["message"])


def test_endless_lines_stay_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "LONGEST_BLOCK", 4096)
    path = tmp_path / "perf.txt"
    path.write_bytes(
        b"x 1/1 [000] 1.000001: 1 cycles: \n\n" + b"y" * 100_000 + b"\nx 1/1 [000] 2.000001: 1 cycles: \n\n"
    )
    with path.open("rb", buffering=0) as file:
        assert max(map(len, scan.blocks(file, 1024))) <= 4096 + 1024
    assert read(path).samples.height == 2


LINE = st.sampled_from(
    [
        "x 1/2 [000] 1.000001: 1 cycles: ",
        "a: b 3 [1] 5 6.123456: cycles:u: ",
        "\t 7f00 foo+0x1 (/a (b))",
        "\t",
        " ",
        "",
        "#",
        "# x : y",
        (
            "x 1/2 [000] 1.000001: sched:sched_switch: prev_comm=a prev_pid=1 prev_prio=1 "
            "prev_state=S ==> next_comm=b next_pid=2 next_prio=1"
        ),
        "x 1/2 [000] 1.000001: sched:sched_wakeup: comm=a pid=99999999999999999999 prio=1 target_cpu=1",
        "x 1/2 [000] 1.000001: raw_syscalls:sys_enter: NR 99999999999999999999 (",
        "x 1/2 [000] 0.0: PERF_RECORD_LOST lost 99999999999999999999",
        "# reference time: x = 99999999999999999999999.1 (TOD) = 1.1 (x)",
        "# clockid: x",
        "# nrcpus online : 99999999999999999999",
        "# hostname : h",
        "x -9223372036854775809 9223372036.999999999: 1 e: ",
        "9: 9 9.999999: 9: 9",
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(LINE | st.text(max_size=40), max_size=12),
    ending=st.sampled_from(["", "\n", "\n\n", "\r\n"]),
)
def test_any_lines_give_a_sound_trace_or_a_typed_refusal(tmp_path, lines, ending):
    path = tmp_path / "perf.txt"
    path.write_bytes(("\n".join(lines) + ending).encode(errors="surrogatepass"))
    try:
        read(path).check()
    except BadTrace as error:
        assert str(path) in str(error)


@pytest.mark.parametrize("seed", range(25))
def test_any_bytes_changed_give_a_sound_trace_or_a_typed_refusal(seed, text, tmp_path):
    dice = random.Random(seed)
    data = bytearray(text[:60_000].encode())
    for _ in range(dice.randrange(1, 200)):
        at = dice.randrange(len(data))
        data[at : at + dice.randrange(3)] = bytes(dice.randrange(256) for _ in range(dice.randrange(4)))
    path = tmp_path / "perf.txt"
    path.write_bytes(data)
    try:
        read(path).check()
    except BadTrace as error:
        assert str(path) in str(error)


def test_a_chain_line_that_is_no_frame_is_told(load, messages):
    """Found by fuzzing: what begins with a tab was taken for a frame, and left out in silence."""
    text = "x 1/1 [000] 1.000001: 1 cycles: \n\t 7f00 foo ([k])\n\t7g00 bar ([k])\n\t\n\t 7f01 main ([k])\n\n"
    trace = load(text)
    assert trace.stacks["symbol"].cast(pl.String).to_list() == ["foo", "main"]
    assert trace.sources["skipped_bytes"][0] == len("\t7g00 bar ([k])")
    assert "1 line (15 bytes) not understood" in messages(trace)


@pytest.mark.parametrize("start", ["", "\t 7f00 "])
def test_a_line_that_is_too_long_for_a_head_or_a_frame_is_told(load, messages, start):
    """A file of one endless line costs no expression: 600 MB of it come in 3 MB of gzip."""
    event = "x 1/1 [000] {}.000001: 1 cycles: \n\t 7f00 foo ([k])\n"
    trace = load(event.format(1) + start + "x" * 300_000 + "\n\n" + event.format(2))
    assert trace.samples.height == 2
    assert trace.stacks.height == 1
    assert trace.sources["skipped_bytes"][0] == 300_000 + len(start)
    assert "1 line" in messages(trace)


@pytest.mark.parametrize("blank", ["\t", "\t \t", "\t    "])
def test_a_line_of_blanks_is_no_frame(load, plain, blank):
    """Found by fuzzing: it was taken for a frame without a text."""
    text = (
        "x 1/1 [000] 5.000001: 1 cycles: \n\t 7f00 f ([k])\n{}\n"
        "y 2/2 [000] 5.000002: 1 cycles: \n\t 7f01 g ([k])\n{}\n"
    )
    assert plain(load(text.format(blank, blank))) == plain(load(text.format("", "")))
