"""Bytes changed at random: a trace or a typed error comes out, and what is untouched stays."""

import random

import pytest

from tracelib.errors import TraceError
from tracelib.sources.files import head
from tracelib.sources.ftrace import read, sniff

pytestmark = pytest.mark.corpus

#: One of each kind; the first 40 kB are enough to hold every kind of line.
SAMPLES = (
    "ftrace/ARM-software__lisa__tests__assets__trace_txt__trace.txt",
    "ftrace/PacktPublishing__Linux-Kernel-Debugging__ch9__ftrace__ping_ftrace_set_event_report.txt",
    "ftrace/catapult-project__catapult__systrace__systrace__test_data__compressed_atrace_data.txt",
    "ftrace/catapult-project__catapult__systrace__systrace__test_data__decompressed_atrace_data.txt",
    "ftrace/catapult-project__catapult__tracing__test_data__trivial_systrace.html",
    "ftrace/derived/lisa_sched_load__trace-cmd-report-l.txt",
    "ftrace/handmade/ARM-software__trappy__tests__trace_systrace.html",
)
INSERTS = (
    b"\n",
    b"\r",
    b"\0",
    b"\xff\xfe",
    b" [001] ",
    b"-7 ",
    b"99999999999999999999",
    b": ",
    b"B|1|x",
    b"E|",
    b"S|a|",
    b"CPU:0 [LOST 3 EVENTS]\n",
    b"\x1f\x8b",
    b"(-)",
    b"4294967296",
)


def mutated(data, pick):
    data = bytearray(data)
    for _ in range(pick.randrange(1, 30)):
        at = pick.randrange(len(data))
        match pick.randrange(4):
            case 0:
                data[at] = pick.randrange(256)
            case 1:
                del data[at : at + pick.randrange(1, 60)]
            case 2:
                data[at:at] = pick.choice(INSERTS)
            case 3:
                start = pick.randrange(len(data))
                data[at:at] = data[start : start + pick.randrange(300)]
        if not data:
            data = bytearray(b"x")
    return bytes(data[: pick.randrange(len(data)) + 1] if pick.random() < 0.2 else data)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sample", SAMPLES)
def test_changed_bytes(corpus, tmp_path, sample, seed):
    pick = random.Random(f"{sample} {seed}")
    path = tmp_path / "trace"
    path.write_bytes(mutated((corpus / sample).read_bytes()[:40_000], pick))
    sniff(head(path), path.name)
    try:
        trace = read(path).check()
    except TraceError as error:
        assert "\n" not in str(error)
        return
    assert trace.health.height > 0
    assert trace.sources["skipped_bytes"][0] >= 0


def test_the_first_head_is_the_line_s_where_two_writers_are_mixed(tmp_path):
    """The columns of the other lines fit the second head too, and would make all before it a name."""
    wide = "a-thread-of-a-long-name-so-that-heads-stand-far-to-the-right"
    usual = f"{wide}-7 [000]   8.00000{{}}: tracing_mark_write: B|1|x\n"
    start = "b-1 [001] 7.000001: tracing_mark_write: B|1|"
    mixed = f"{start}{'x' * (len(wide) - len(start))}-7 [003]   9.000009: tracing_mark_write: E|1\n"
    path = tmp_path / "trace"
    path.write_text("".join(usual.format(digit) for digit in range(5)) + mixed)
    slices = read(path).slices.sort("ts_ns")
    assert slices["ts_ns"][0] == 7_000_001_000
    assert slices["name"][0].startswith("xxx")
