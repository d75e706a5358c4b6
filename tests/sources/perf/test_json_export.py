"""The JSON of `perf data convert --to-json`: hand-made, and made by perf beside its text."""

import json
import shutil
import subprocess

import polars as pl
import pytest

from tracelib.errors import BadTrace
from tracelib.sources.perf import read, sniff


def _sample(ns, **fields):
    return {
        "timestamp": ns,
        "pid": 7,
        "tid": 8,
        "cpu": 1,
        "comm": "x",
        "callchain": [{"ip": "0x1", "symbol": "f", "dso": "/a"}, {"ip": "0x2"}],
        **fields,
    }


def _write(tmp_path, samples, **more):
    headers = {
        "header-version": 1,
        "hostname": "h",
        "nrcpus-online": 4,
        "perf-version": "6.1",
        "cmdline": ["perf", "record", "-k", "mono"],
        **more,
    }
    path = tmp_path / "perf.json"
    # perf's own layout: tabs, one sample closed by "\t\t}"
    path.write_text(
        json.dumps({"linux-perf-json-version": 1, "headers": headers, "samples": samples}, indent="\t")
    )
    return path


def test_samples_switches_and_what_is_left_out(tmp_path, plain):
    switch = {
        "prev_comm": "x",
        "prev_pid": "8",
        "prev_prio": "120",
        "prev_state": "1",
        "next_comm": "y",
        "next_pid": "9",
        "next_prio": "120",
    }
    path = _write(
        tmp_path, [_sample(10), _sample(20, **switch), _sample(30, pid="12", target_cpu="0"), _sample(2**62)]
    )
    trace = read(path)
    assert sniff(path.read_bytes(), path.name)
    assert plain(trace) == {
        "samples": [(at, 8, 1, None, None, (("f", "/a"), ("[unknown]", None))) for at in (10, 2**62)],
        "sched": [(20, 1, "switch", 8, "S", 9)],
    }
    assert trace.threads.select("pid", "tid", "name").rows() == [(7, 8, "x"), (None, 9, "y")]
    assert trace.sources.select("host", "cpus", "recorder", "clock").row(0) == (
        "h",
        4,
        "perf 6.1",
        "monotonic",
    )
    assert "1 wake-ups are left out" in " ".join(trace.health["message"])


def _said(trace, level):
    return " ".join(trace.health.filter(pl.col("level") == level)["message"])


@pytest.mark.parametrize(
    "fields", [{"runtime": "1234"}, {"prio": "120"}, {"pid": "9", "child_pid": "4"}, {"pid": "9"}]
)
def test_a_sample_with_other_fields_is_a_tracepoint(tmp_path, fields):
    trace = read(_write(tmp_path, [_sample(10), _sample(20, **fields), _sample(30)]))
    assert trace.samples["ts_ns"].to_list() == [10, 30]
    assert "1 tracepoint event left out: this format does not name them" in _said(trace, "info")
    assert trace.sources["skipped_bytes"].item() == 0


def test_a_cut_file_knows_its_tracepoints_too(tmp_path):
    path = _write(tmp_path, [_sample(10), _sample(20, runtime="1234"), _sample(30), _sample(40)])
    path.write_bytes(path.read_bytes()[:-60])
    assert read(path).samples["ts_ns"].to_list() == [10, 30]


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["record", "-a", "-e", "sched:sched_switch", "-e", "cpu-clock/freq=49/"], "sched:sched_switch"),
        (["record", "-ecycles:u,syscalls:*:u", "--", "x"], "syscalls:*:u"),
        (["record", "--event={probe_libc:up,cycles}"], "probe_libc:up"),
        (["record", "-ae", "raw_syscalls:sys_enter"], "raw_syscalls:sys_enter"),
        (["sched", "record"], "sched"),
    ],
)
def test_tracepoints_that_look_like_samples_are_told(tmp_path, command, named):
    trace = read(_write(tmp_path, [_sample(10)], cmdline=["/usr/bin/perf", *command]))
    assert f"tracepoints were recorded ({named})" in _said(trace, "error")
    assert "perf script" in " ".join(trace.health["fix"])


@pytest.mark.parametrize(
    "command",
    [
        ["record", "-e", "cycles:u,cpu-clock/freq=49/", "--", "app", "-e", "a:b"],
        ["record", "sched"],
        ["record", "-g", "-F", "99"],
    ],
)
def test_without_tracepoints_nothing_is_told(tmp_path, command):
    assert _said(read(_write(tmp_path, [_sample(10)], cmdline=["perf", *command])), "error") == ""


def test_tracepoints_with_their_fields_are_told_apart(tmp_path):
    command = ["perf", "record", "-e", "sched:sched_stat_runtime,cycles"]
    trace = read(_write(tmp_path, [_sample(10), _sample(20, runtime="7")], cmdline=command))
    assert _said(trace, "error") == ""


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        (
            {"clockid": 1, "clock-time": 13_468_524_398_640, "real-time": 1_796_064_747_141_977_000},
            ("monotonic", 1_796_051_278_617_578_360),
        ),
        ({"clockid": 7, "clock-time": 5, "real-time": 8}, ("boottime", 3)),
        ({"clockid": 0, "clock-time": 5, "real-time": 8}, ("realtime", 0)),
        ({"clockid": 4, "clock-time": 5, "real-time": 8}, ("monotonic_raw", 3)),
        ({"clockid": 1}, ("monotonic", None)),
        ({"clockid": 1, "clock-time": -(2**62), "real-time": 2**62}, ("monotonic", None)),
    ],
)
def test_the_clock_is_tied_to_wall_time(tmp_path, clock, expected):
    trace = read(_write(tmp_path, [_sample(10)], cmdline=["perf", "record"], **clock))
    assert trace.sources.select("clock", "wall_offset_ns").row(0) == expected
    assert ("does not tie its clock" in _said(trace, "warning")) is (expected[1] is None)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.95])
def test_a_cut_file_gives_its_whole_samples(tmp_path, share):
    path = _write(tmp_path, [_sample(at) for at in range(1, 51)])
    data = path.read_bytes()
    part = data[: int(len(data) * share)]
    path.write_bytes(part)
    trace = read(path)
    assert trace.samples.height == part.count(b"\n\t\t}")
    assert 0 < trace.sources["skipped_bytes"][0] < 400
    assert "ends early" in " ".join(trace.health["message"])


@pytest.mark.parametrize(
    "text",
    [
        '{"linux-perf-json-version": 1, "samples": [{"timestamp": "x"}]}',
        '{"linux-perf-json-version": 1, "samples": []}',
        '{"linux-perf-json-version": 1',
        '{"linux-perf-json-version": 1, "samples": 3}',
    ],
)
def test_what_is_none_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(BadTrace):
        read(path)


@pytest.mark.parametrize(
    "damaged",
    [
        lambda text: text.replace('"timestamp": 20', f'"timestamp": {2**63}'),
        lambda text: text.replace('"timestamp": 20', '"timestamp": "20"'),
        lambda text: text.replace('"timestamp": 20', '"timestamp": 20,,'),
        lambda text: text.replace('"comm": "two"', '"comm": "two'),
        lambda text: text.replace('"comm": "two"', '"comm": ' + "[" * 100_000),
    ],
)
def test_a_sample_that_is_none_costs_itself(tmp_path, damaged):
    path = _write(tmp_path, [_sample(10), _sample(20, comm="two"), _sample(30)])
    path.write_text(damaged(path.read_text()))
    trace = read(path)
    assert trace.samples["ts_ns"].to_list() == [10, 30]
    assert trace.sources["host"].item() == "h"
    assert trace.sources["skipped_bytes"].item() > 100
    assert "1 part of it (" in " ".join(trace.health.filter(pl.col("level") == "error")["message"])


@pytest.mark.parametrize(
    "wrong", ["\x01", "\xff", '", "nrcpus-online": "many', '"}, "headers": null, "more": {"a": "']
)
def test_what_no_sample_needs_costs_no_sample(tmp_path, wrong):
    path = _write(tmp_path, [_sample(10, comm="two"), _sample(20)])
    data = path.read_bytes().replace(b'"hostname": "h', b'"hostname": "h' + wrong.encode("latin-1"), 1)
    path.write_bytes(data)
    trace = read(path)
    assert trace.samples["ts_ns"].to_list() == [10, 20]
    assert trace.sources["skipped_bytes"].item() == 0


def test_messages_behind_the_file_are_counted(tmp_path):
    path = _write(tmp_path, [_sample(10)])
    path.write_text("\ufeff" + path.read_text() + "\nwrote 1 sample")
    assert sniff(path.read_bytes(), path.name)
    trace = read(path)
    assert trace.samples["ts_ns"].to_list() == [10]
    assert trace.sources["skipped_bytes"].item() == len("wrote 1 sample")


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_text_and_json_of_one_recording_agree(corpus, tmp_path, plain):
    recording = next(corpus.glob("perf_data/*perf.data.callgraph.next"))
    made = tmp_path / "perf.json"
    subprocess.run(
        ["perf", "data", "convert", "-f", "-i", recording, "--to-json", made], check=True, capture_output=True
    )
    by_json, by_text = read(made), read(recording)
    keys = ["ts_ns", "tid", "pid"]
    named = [
        t.samples.join(t.threads, on="thread", how="left").select(keys).sort(keys) for t in (by_json, by_text)
    ]
    assert named[0].height == 1768
    assert named[0].equals(named[1])
    lengths = [
        t.samples.join(t.stacks.group_by("stack").len(), on="stack")["len"].cast(pl.Int64).sum()
        for t in (by_json, by_text)
    ]
    assert lengths[0] == lengths[1]
