"""What a recording writes down."""

import os
import time

import pytest

from tracelib.manifest import manifest
from tracelib.record import folder
from tracelib.record.cgroups import CpuGroup
from tracelib.record.folder import Counters, read_clocks, take_log
from tracelib.record.profiler import Profiler


def test_limits_that_changed_meanwhile_are_both_kept(tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text("200000 100000")
    (tmp_path / "cpu.stat").write_text("usage_usec 1\n")
    monkeypatch.setattr(folder, "cpu_group", lambda _: CpuGroup(2, tmp_path))
    (tmp_path / "out").mkdir()
    counters = Counters(tmp_path / "out", 8, [os.getpid()], {})
    monkeypatch.setattr(folder, "allowed_cpus", lambda _: {0, 1, 2})
    counters.take("before")
    (tmp_path / "cpu.max").write_text("50000 100000")
    monkeypatch.setattr(folder, "allowed_cpus", lambda _: {0})
    counters.take("after")
    found = manifest(tmp_path / "out" / "run.toml")
    assert (found.cpu_max, found.allowed_cpus) == ("50000 100000", 1)
    assert found.changed == (
        "allowed_cpus was 3 when the recording began, 1 at its end",
        "cpu_max was 200000 100000 when the recording began, 50000 100000 at its end",
    )


def test_a_servers_files_replace_none_of_ours_and_links_are_not_followed(tmp_path):
    traces, out = tmp_path / "traces", tmp_path / "out"
    traces.mkdir()
    out.mkdir()
    (tmp_path / "shadow").write_text("secret")
    profiler = Profiler(out, "", "", str(traces))
    (out / "run.toml").write_text("ours")
    (traces / "run.toml").write_text("theirs")
    (traces / "worker.json").write_text("{}")
    (traces / "link.json").symlink_to(tmp_path / "shadow")
    profiler.save()
    assert {path.name for path in out.iterdir()} == {"run.toml", "server-run.toml", "worker.json"}
    assert (out / "run.toml").read_text() == "ours"
    with pytest.raises(OSError, match="symbolic"):
        profiler._copied(traces / "link.json")


def test_all_clocks_are_read_at_one_moment():
    reading = read_clocks()
    before, after = time.time_ns(), time.monotonic_ns()
    offset = before - after  # wall time less monotonic, here and now
    assert abs(reading.at["realtime"] - reading.at["monotonic"] - offset) < 5_000_000
    assert 0 < reading.error_ns < 1_000_000
    assert reading.at["tai"] - reading.at["realtime"] in range(
        -1_000_000, 60 * 10**9
    )  # 0 or the leap seconds


def test_a_log_that_grew_elsewhere_is_copied_and_named_in_run_toml(tmp_path):
    (out := tmp_path / "out").mkdir()
    log = tmp_path / "server.jsonl"
    about = {"requests": {"file": "request-log.jsonl", "grows_at": str(log), "clock": "monotonic"}}
    counters = Counters(out, 8, [os.getpid()], about)
    log.write_text("one\n")
    counters.take("before")
    assert manifest(out / "run.toml").requests is None  # it is not there yet
    log.write_text("one\ntwo\n")
    take_log(out, about)
    counters.write_run()
    said = manifest(out / "run.toml")
    assert said.requests.read_text() == "one\ntwo\n"
    assert said.requests_clock == "monotonic"
    assert take_log(out, {}) is None
