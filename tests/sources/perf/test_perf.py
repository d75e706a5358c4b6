"""perf script texts against independent regular expressions and TRUTH.json."""

import gzip
import json
import re
from collections import Counter

import polars as pl
import pytest

from tracelib.errors import TraceError
from tracelib.sources.discovery import recognised

HEAD = re.compile(
    r"^\s*(?P<comm>\S.*?)\s+(?:(?P<pid>-?\d+)/)?(?P<tid>-?\d+)\s+\[(?P<cpu>\d+)\]\s+(?P<sec>\d+)\.(?P<frac>\d+):\s+(?P<period>\d+)\s+(?P<event>\S+?):?\s(?P<rest>.*)$"
)
SWITCH = re.compile(
    r"prev_comm=.*? prev_pid=(\d+) prev_prio=\d+ prev_state=(\S+) ==> next_comm=.*? next_pid=(\d+)"
)


@pytest.fixture(scope="module", params=["starved", "healthy", "throttled"])
def capture(request, captures):
    path = captures / request.param / "perf.txt.gz"
    heads = []
    for block in gzip.decompress(path.read_bytes()).decode(errors="replace").split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith("#")]
        if lines:
            found = HEAD.match(lines[0] + " ")
            assert found, lines[0]
            heads.append((found, len(lines) - 1))
    return recognised(path).read(), heads


def test_every_sample_switch_and_wakeup_is_read_once(capture):
    trace, heads = capture
    events = Counter(found["event"].split("/")[0] for found, _ in heads)
    assert trace.samples.height == events["cpu-clock"]
    kinds = Counter(trace.sched["event"].cast(pl.String).to_list())
    assert kinds["switch"] == events["sched:sched_switch"]
    assert kinds["wakeup"] == events["sched:sched_wakeup"]


def test_times_periods_cpus_and_threads_equal_a_second_parser(capture):
    trace, heads = capture
    tids = dict(trace.threads.select("thread", "tid").iter_rows())
    want = sorted(
        (int(f["sec"]) * 10**9 + int(f["frac"].ljust(9, "0")), int(f["tid"]), int(f["cpu"]), int(f["period"]))
        for f, _ in heads
        if f["event"].startswith("cpu-clock")
    )
    found = sorted(
        (ts, tids[thread], cpu, period)
        for ts, thread, cpu, period in trace.samples.select("ts_ns", "thread", "cpu", "period").iter_rows()
    )
    assert found == want


def test_switches_equal_a_second_parser(capture):
    trace, heads = capture
    tids = {-1: 0, **dict(trace.threads.select("thread", "tid").iter_rows())}
    want = []
    for f, _ in heads:
        if f["event"] == "sched:sched_switch":
            prev, state, nxt = SWITCH.search(f["rest"]).groups()
            want.append(
                (
                    int(f["sec"]) * 10**9 + int(f["frac"].ljust(9, "0")),
                    int(f["cpu"]),
                    int(prev),
                    state.rstrip("+"),
                    int(nxt),
                )
            )
    rows = trace.sched.filter(pl.col("event") == "switch").select(
        "ts_ns", "cpu", "prev", pl.col("prev_state").cast(pl.String), "next"
    )
    assert sorted((ts, cpu, tids[p], s, tids[n]) for ts, cpu, p, s, n in rows.iter_rows()) == sorted(want)


def test_call_chains_keep_every_frame(capture):
    trace, heads = capture
    depth = dict(trace.stacks.group_by("stack").len().iter_rows())
    found = Counter(depth[stack] if stack is not None else 0 for stack in trace.samples["stack"])
    assert found == Counter(frames for f, frames in heads if f["event"].startswith("cpu-clock"))


def test_the_header_ties_the_clock_exactly(capture):
    trace, _ = capture
    source = trace.sources.row(0, named=True)
    assert source["clock"] == "monotonic"
    assert source["wall_offset_ns"] == 1796006341777879000 - 27169973552 or source["wall_offset_ns"] > 10**18
    assert source["cpus"] == 32


@pytest.mark.corpus
def test_the_corpus_has_the_truth_s_samples(corpus):
    truth = json.loads((corpus / "TRUTH.json").read_text())
    checked = 0
    for key, expected in sorted(truth.items()):
        if not key.startswith("perf_script/"):
            continue
        trace = recognised(corpus / key).read()
        samples = sum(
            n
            for event, n in expected["by_event"].items()
            if not event.startswith(("sched:", "syscalls:", "raw_syscalls:"))
        )
        timeless = expected.get("samples_without_time", 0)
        assert trace.samples.height + timeless >= samples > 0 or samples == 0, key
        assert trace.samples.height <= samples, key
        if not timeless and expected.get("total_period"):
            assert trace.samples["period"].sum() == expected["total_period"], key
        checked += 1
    assert checked >= 15


@pytest.mark.corpus
def test_binary_recordings_are_read_by_perf_or_refused_in_a_line(corpus):
    for path in sorted((corpus / "perf_data").iterdir())[:6]:
        said, samples = "", 0
        try:
            samples = recognised(path).read().samples.height
        except TraceError as error:
            said = str(error)
        assert samples or "perf script" in said
        assert "\n" not in said


def test_a_cut_loses_nothing_but_the_cut_event(captures, tmp_path):
    text = gzip.decompress((captures / "starved" / "perf.txt.gz").read_bytes())
    for cut in (200_000, 400_001, 777_777):
        path = tmp_path / "cut.txt"
        path.write_bytes(text[:cut])
        trace = recognised(path).read()
        whole = text[:cut].rsplit(b"\n\n", 1)[0]
        blocks = [
            b
            for b in whole.decode(errors="replace").split("\n\n")
            if "cpu-clock" in b.split("\n")[0] or "cpu-clock/freq=499/:" in b
        ]
        assert len(blocks) - 2 <= trace.samples.height <= len(blocks) + 1
