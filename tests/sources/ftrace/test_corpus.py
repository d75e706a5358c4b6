"""Other people's files: counts equal to those of independent code (TRUTH.json), or the expected refusal."""

import json

import polars as pl
import pytest

from tracelib.errors import BadTrace, UnknownFormat
from tracelib.sources.discovery import recognised
from tracelib.sources.files import head
from tracelib.sources.ftrace import read, sniff
from tracelib.sources.ftrace.reader import collect

pytestmark = pytest.mark.corpus

PERFETTO = "handmade/google__perfetto__test__trace_processor__diff_tests__parser"
TEXTS = (
    "ARM-software__lisa__tests__assets__trace_txt__trace.txt",
    "ARM-software__trappy__doc__trace_dynamic.txt",
    "catapult-project__catapult__systrace__systrace__test_data__atrace_data",
    "catapult-project__catapult__systrace__systrace__test_data__atrace_data_raw",
    "catapult-project__catapult__systrace__systrace__test_data__atrace_fixed_tgids",
    "catapult-project__catapult__systrace__systrace__test_data__decompressed_atrace_data.txt",
    "catapult-project__catapult__tracing__test_data__trivial_systrace.html",
    "derived/lisa_rtapp__trace-cmd-report.txt",
    "derived/lisa_sched_load__trace-cmd-report-l.txt",
    "handmade/ARM-software__trappy__tests__raw_trace.txt",
    "handmade/ARM-software__trappy__tests__trace_empty.txt",
    "handmade/ARM-software__trappy__tests__trace_equals.txt",
    "handmade/ARM-software__trappy__tests__trace_failed_to_parse.txt",
    "handmade/ARM-software__trappy__tests__trace_idle_unsorted.txt",
    "handmade/ARM-software__trappy__tests__trace_legacy_systrace.html",
    "handmade/ARM-software__trappy__tests__trace_sched.txt",
    "handmade/ARM-software__trappy__tests__trace_systrace.html",
    f"{PERFETTO}__parsing__sched_blocked_systrace.systrace",
    f"{PERFETTO}__process_tracking__unknown_thread_name.systrace",
)
PACKED = "catapult-project__catapult__systrace__systrace__test_data__compressed_atrace_data.txt"
UNPACKED = "catapult-project__catapult__systrace__systrace__test_data__decompressed_atrace_data.txt"
GRAPH = "PacktPublishing__Linux-Kernel-Debugging__ch9__ftrace__ping_ftrace_set_event_report.txt"
REFUSED = (
    "google__schedviz__server__testdata__test.tar.gz",
    "google__schedviz__server__testdata__test_no_metadata.tar.gz",
)
NONE_OF_OURS = (
    "not_ftrace/Gracker__SystraceAnalysis__example_demo__trace_pid.txt",
    "not_ftrace/catapult-project__catapult__systrace__systrace__test_data__atrace_extracted_tgids",
    "not_ftrace/catapult-project__catapult__systrace__systrace__test_data__atrace_extracted_threads",
)
DAT = "trace_dat/derived/ARM-software__trappy__tests__trace_idle.v7-zstd.dat"
#: Scheduler events in these handmade files that stop in the middle of their fields.
INCOMPLETE = {"handmade/ARM-software__trappy__tests__trace_idle_unsorted.txt": 1}
SCHED = ("sched_switch", "sched_wakeup", "sched_waking", "sched_wakeup_new")


@pytest.fixture(scope="module")
def truth(corpus):
    return json.loads((corpus / "TRUTH.json").read_text())


def ns(seconds):
    whole, part = seconds.split(".")
    return int(whole) * 10**9 + int(part.ljust(9, "0"))


def test_every_file_of_the_corpus_is_named_here(truth):
    named = {*TEXTS, PACKED, GRAPH, *REFUSED, *NONE_OF_OURS}
    assert {key.removeprefix("ftrace/") for key in truth if key.startswith("ftrace/")} == named


@pytest.mark.parametrize("name", TEXTS)
def test_counts_and_times(corpus, truth, name, became):
    path, expected = corpus / "ftrace" / name, truth[f"ftrace/{name}"]
    assert sniff(head(path), path.name)
    text = collect(path)
    assert text.events.counts == expected["by_event"]
    assert (text.events.unread, text.cut_line, text.damage) == (0, None, None)
    trace = read(path)
    source = trace.sources.row(0, named=True)
    assert source["first_ns"] == ns(expected["time_first"])
    assert source["last_ns"] == ns(expected["time_last"])
    assert source["cpus"] == expected.get("cpus_header", expected.get("P"))
    rows = sum(expected["by_event"].get(event, 0) for event in SCHED) - INCOMPLETE.get(name, 0)
    assert trace.sched.height == rows
    assert trace.sched["next"].null_count() == 0
    assert "other" not in trace.sched["prev_state"].cast(pl.String).drop_nulls()
    if not expected["lines_with_tgid"] and "tracing_mark_write" not in expected["by_event"]:
        assert trace.threads["pid"].null_count() == trace.threads.height
    became("ftrace", "equal to the truth")


def test_compressed_atrace_is_the_same_as_unpacked(corpus, became):
    packed, plain = (read(corpus / "ftrace" / name) for name in (PACKED, UNPACKED))
    for frame in ("slices", "counters", "threads", "sched", "health"):
        assert getattr(packed, frame).equals(getattr(plain, frame)), frame
    became("ftrace", "equal to the truth")


def test_marks_of_atrace(corpus):
    """22 of 1042 marks counted by hand below; the tie to wall time is the one in the file."""
    path = corpus / "ftrace" / UNPACKED
    text = path.read_text()
    trace = read(path)
    assert trace.counters.height == text.count("tracing_mark_write: C|")
    assert trace.slices.filter(pl.col("name") == "deliverInputEvent").height == text.count(
        "S|13580|deliverInputEvent|"
    ) + text.count("S|18926|deliverInputEvent|")
    first = trace.slices.filter(
        (pl.col("name") == "deliverInputEvent") & (pl.col("ts_ns") == 683202104223000)
    )
    assert 683202104606000 - 683202104223000 in first["dur_ns"].to_list()  # S|13580|…|263 to F|13580|…|263
    assert trace.sources["wall_offset_ns"][0] == 3720325137 * 10**6 - 683201354926000
    begun = sum(text.count(f"tracing_mark_write: {mark}|") for mark in "BS")
    plain = text.count("trace_event_clock_sync")
    assert trace.slices.height == begun + plain


def test_function_graph(corpus, truth, became):
    path, expected = corpus / "ftrace" / GRAPH, truth[f"ftrace/{GRAPH}"]
    text = collect(path)
    lines = path.read_text().splitlines()
    assert sum(text.events.counts.values()) == sum("|" in line for line in lines if not line.startswith("#"))
    separators = sum("=>" in line and ")" in line for line in lines if "|" not in line)
    assert sum(text.events.counts.values()) + separators == expected["funcgraph_lines"]
    trace = read(path)
    functions = trace.slices.filter(pl.col("category") == "other")
    assert (
        functions.filter(pl.col("name") == "e1000_clean [e1000]")["dur_ns"][0]
        == (9344122387 - 9344122354) * 1000
    )
    assert functions.filter(pl.col("ts_ns") == 9344122358000)["dur_ns"].to_list() == [1747]
    calls = trace.slices.filter(pl.col("category") == "os")
    assert calls.filter(pl.col("ts_ns") == 9344124666000).select("name", "dur_ns").rows() == [("brk", 2000)]
    became("ftrace", "equal to the truth")


@pytest.mark.parametrize("name", REFUSED)
def test_raw_ring_buffers_are_refused_with_the_way_out(corpus, name, became):
    path = corpus / "ftrace" / name
    assert sniff(head(path), path.name)
    with pytest.raises(BadTrace, match=r"raw per-CPU ring buffers.*trace-cmd record"):
        read(path)
    became("ftrace", "refused as expected")


@pytest.mark.parametrize("name", NONE_OF_OURS)
def test_what_is_no_trace_is_not_taken(corpus, name, became):
    path = corpus / "ftrace" / name
    assert not sniff(head(path), path.name)
    with pytest.raises(UnknownFormat):
        recognised(path)
    with pytest.raises(BadTrace):
        read(path)
    became("ftrace", "not taken for a trace")


def test_no_file_of_another_family_is_taken(corpus):
    taken = [
        str(path.relative_to(corpus))
        for folder in ("perf_script", "perf_data", "kineto", "nsys", "chrome_json")
        for path in sorted((corpus / folder).rglob("*"))
        if path.is_file() and sniff(head(path), path.name)
    ]
    assert taken == []


def test_trace_dat_through_trace_cmd(corpus, truth, became):
    import shutil

    if shutil.which("trace-cmd") is None:
        pytest.skip("trace-cmd is not installed")
    path, expected = corpus / DAT, truth[DAT]
    assert sniff(head(path), path.name)
    assert collect(path).events.counts == expected["by_event"]
    trace = read(path)
    assert trace.sources.select("recorder", "cpus", "first_ns", "last_ns").row(0) == (
        "trace-cmd",
        expected["cpus"],
        162534215741800,
        162534221019580,
    )
    assert trace.sched.height == expected["sched_switch"]
    became("trace_dat", "equal to the truth")


def test_trace_dat_without_trace_cmd(corpus, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadTrace, match=r"trace-cmd report -t -i \S+\.dat > trace\.txt"):
        read(corpus / DAT)


def test_a_broken_trace_dat_says_what_trace_cmd_said(corpus, tmp_path):
    import shutil

    if shutil.which("trace-cmd") is None:
        pytest.skip("trace-cmd is not installed")
    broken = tmp_path / "trace.dat"
    broken.write_bytes((corpus / DAT).read_bytes()[:300])
    with pytest.raises(BadTrace, match="trace-cmd"):
        read(broken)
