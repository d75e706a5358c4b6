"""`tracelib check` on a loaded, a throttled and an idle machine: processes of our own, watched alone.

Other load on the machine can only make busy processes wait longer, and cannot wake a sleeping one, so the verdicts hold on
a shared machine.
"""

import json
import os
import stat
import time
from pathlib import Path

import pytest

from tests.record import busy
from tracelib import cli
from tracelib.cli import flags
from tracelib.record.check import check

SPIN = "while True: pass"


def test_two_that_share_one_cpu_are_short_of_cpus():
    with busy.processes(SPIN, 2, cpus={min(os.sched_getaffinity(0))}) as pids:
        verdict = check(seconds=1.5, pids=pids)
    assert verdict.state == "cpu_shortage"
    shown = verdict.measured
    assert shown.cpus == 1
    assert shown.pressure >= 0.4  # one of the two always waits; others' load adds to it
    assert {use.pid for use in shown.busiest} == set(pids)
    for use in shown.busiest:  # either runs or waits, always
        assert use.running + use.waiting == pytest.approx(1, abs=0.15)


def test_sleepers_are_idle():
    with busy.processes("import time; time.sleep(60)", 2) as pids:
        verdict = check(seconds=1, pids=pids)
    assert verdict.state == "idle"
    assert verdict.measured.running < 0.05


def test_a_quota_is_told_from_a_shortage():
    with busy.processes(SPIN, 2) as pids, busy.quota(0.1, pids) as folder:
        verdict = check(seconds=2, pids=pids)
        counted = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
    assert verdict.state == "throttled"
    shown = verdict.measured
    assert shown.quota_cpus == pytest.approx(0.1)
    assert shown.throttled_periods > 0.5
    assert shown.running < 0.25  # twice the quota: a period's slice may lie at the window's edge
    assert int(counted["nr_throttled"]) >= 10


def test_descendants_are_watched_too():
    parent = f"import os\nif os.fork(): os.wait()\n{SPIN}"
    cpu = {min(os.sched_getaffinity(0))}
    with busy.processes(parent, 1, cpus=cpu) as pids, busy.processes(SPIN, 1, cpus=cpu):
        verdict = check(seconds=1.5, pids=pids)
        children = [use.pid for use in verdict.measured.busiest]
        for pid in set(children) - set(pids):
            os.kill(pid, 9)
    assert verdict.state == "cpu_shortage"
    assert not set(children) & set(pids)


def test_the_command_line_tells_it_in_words_json_and_status(capsys):
    with busy.processes(SPIN, 2, cpus={min(os.sched_getaffinity(0))}) as pids:
        flags = ["--seconds", "1", *(f"--pid={pid}" for pid in pids)]
        assert cli.main(["check", *flags]) == 1
        said = capsys.readouterr().out
        assert said.startswith("cpu_shortage: Too few CPUs")
        assert str(pids[0]) in said
        assert cli.main(["check", *flags, "--json", "--fail-on", "idle"]) == 0
        document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tracelib.check/1"
    assert document["state"] == "cpu_shortage"
    with busy.processes("import time; time.sleep(60)") as pids:
        counters = Path(f"/proc/{pids[0]}/schedstat")
        for _ in range(100):  # an interpreter that still starts wants a CPU: wait until it sleeps
            before = counters.read_text()
            time.sleep(0.3)
            if counters.read_text() == before:
                break
        assert cli.main(["check", "--seconds", "0.5", "--pid", str(pids[0])]) == 0


def test_a_process_that_ends_meanwhile_leaves_nothing_to_tell(capsys):
    with busy.processes("import time; time.sleep(0.5)") as pids:
        assert cli.main(["check", "--seconds", "2", "--pid", str(pids[0])]) == flags.PART_FAILED
    assert capsys.readouterr().out.startswith("not_measured: No thread was left")


@pytest.mark.parametrize(
    "flags", [("--pid", "4194305"), ("--seconds", "0"), ("--seconds", "nan"), ("--fail-on", "cpu-shortage")]
)
def test_bad_flags_are_one_line_and_status_2(flags, capsys):
    assert cli.main(["check", *flags]) == flags.USAGE_ERROR
    assert capsys.readouterr().err.startswith("tracelib: ")


def test_gpus_are_sampled_where_nvidia_smi_is(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text(
        '#!/bin/sh\necho "$*" > "$0.args"\nfor i in 1 2; do echo "0, 20"; echo "1, [N/A]"; echo "2, 100"; sleep 0.2; done; exec sleep 60\n'
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with busy.processes("import time; time.sleep(60)") as pids:
        verdict = check(seconds=1, pids=pids)
    assert verdict.measured.gpu_busy == {0: 0.2, 2: 1.0}
    assert "GPUs are 60% busy" in verdict.sentence
    assert "utilization.gpu" in (tmp_path / "nvidia-smi.args").read_text()
