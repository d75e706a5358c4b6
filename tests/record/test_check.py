"""`tracelib check` on a loaded, a throttled and an idle machine, and on hand-worked numbers.

On the machine it watches processes of our own alone.

Other load on the machine can only make busy processes wait longer, and cannot wake a sleeping one, so the
verdicts hold on a shared machine.
"""

import json
import os
import stat
import time
from pathlib import Path

import pytest

from tests.record import busy
from tracelib import cli
from tracelib.cli.flags import PART_FAILED, USAGE_ERROR
from tracelib.record.check import STATES, Snapshot, check, judged, lines, measured
from tracelib.record.processes import Thread

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


def _cpu_time(pid):
    return Path(f"/proc/{pid}/schedstat").read_text().split()[:2]


def test_sleepers_are_idle():
    with busy.processes("import time; time.sleep(60)", 2) as pids:
        limit, used = time.monotonic() + 30, None
        while time.monotonic() < limit and used != (used := [_cpu_time(pid) for pid in pids]):
            time.sleep(0.5)  # on a busy machine they take a while to come to their sleep
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
        assert cli.main(["check", "--seconds", "2", "--pid", str(pids[0])]) == PART_FAILED
    assert capsys.readouterr().out.startswith("not_measured: No thread was left")


@pytest.mark.parametrize(
    "flags", [("--pid", "4194305"), ("--seconds", "0"), ("--seconds", "nan"), ("--fail-on", "cpu-shortage")]
)
def test_bad_flags_are_one_line_and_status_2(flags, capsys):
    assert cli.main(["check", *flags]) == USAGE_ERROR
    assert capsys.readouterr().err.startswith("tracelib: ")


def test_gpus_are_sampled_where_nvidia_smi_is(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text(
        '#!/bin/sh\necho "$*" > "$0.args"\n'
        'for i in 1 2; do echo "0, 20"; echo "1, [N/A]"; echo "2, 100"; sleep 0.2; done; exec sleep 60\n'
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with busy.processes("import time; time.sleep(60)") as pids:
        verdict = check(seconds=1, pids=pids)
    assert verdict.measured.gpu_busy == {0: 0.2, 2: 1.0}
    assert "GPUs are 60 % busy" in verdict.sentence
    assert "utilization.gpu" in (tmp_path / "nvidia-smi.args").read_text()


SECOND = 1_000_000_000


def thread(tid, run_s, wait_s, *, pid=None, start=7, name="python", yields=None):
    return Thread(pid or tid, tid, name, start, int(run_s * SECOND), int(wait_s * SECOND), yields)


def shot(at_s, *threads, pressure_us=None, delay_s=None, quota=None):
    delay_ns = None if delay_s is None else int(delay_s * SECOND)
    return Snapshot(at_s * SECOND, {each.tid: each for each in threads}, pressure_us, delay_ns, quota or {})


def between(before, after, *, cpus=4, quota_cpus=None, whole=False, gpu_busy=None):
    return measured(before, after, cpus=cpus, quota_cpus=quota_cpus, whole=whole, gpu_busy=gpu_busy)


def test_running_and_waiting_are_what_the_counters_grew_by():
    before = shot(100, thread(1, 5, 1), thread(2, 50, 0))
    after = shot(110, thread(1, 9, 7), thread(2, 51, 0))
    shown = between(before, after)
    assert shown.seconds == 10
    assert shown.running == pytest.approx(0.5)  # (4 s + 1 s) / 10 s
    assert shown.waiting == pytest.approx(0.6)  # 6 s / 10 s
    assert shown.pressure == pytest.approx(6 / 11)  # of the 11 s that they wanted
    assert shown.pressure_from == "threads"
    assert [(use.tid, use.running, use.waiting) for use in shown.busiest] == [(1, 0.4, 0.6), (2, 0.1, 0.0)]
    assert [use.tid for use in shown.most_waiting] == [1]


def test_a_thread_that_got_the_id_of_another_counts_from_its_own_beginning():
    shown = between(shot(0, thread(1, 100, 100, start=7)), shot(10, thread(1, 2, 0, start=900)))
    assert (shown.running, shown.waiting) == (0.2, 0)


def test_a_wait_that_has_not_ended_counts():
    """A starved thread's run delay is counted only when it gets a CPU again; until then it stands still."""
    before = shot(
        0, thread(1, 3, 1, yields=4), thread(2, 3, 1, yields=4), thread(3, 3, 1, yields=4), thread(4, 3, 1)
    )
    after = shot(
        10,
        thread(1, 3, 1, yields=4),
        thread(2, 5, 2, yields=4),
        thread(3, 3, 1, yields=5),
        thread(4, 3, 1, yields=5),
    )
    uses = {use.tid: (use.running, use.waiting) for use in between(before, after).most_waiting}
    assert uses == {
        1: (0, 1),
        2: (0.2, 0.8),
    }  # 3 slept in between, 4 at the beginning: nothing more is known of them


def test_a_whole_machine_is_judged_by_psi_then_by_its_run_delay():
    threads = shot(0, thread(1, 0, 0)), shot(10, thread(1, 8, 1))
    with_psi = between(
        shot(0, thread(1, 0, 0), pressure_us=1_000_000),
        shot(10, thread(1, 8, 1), pressure_us=4_000_000),
        whole=True,
    )
    assert (with_psi.pressure, with_psi.pressure_from) == (0.3, "psi")
    counted = between(shot(0, thread(1, 0, 0), delay_s=5), shot(10, thread(1, 8, 1), delay_s=7), whole=True)
    assert (counted.pressure, counted.pressure_from) == (pytest.approx(0.2 / 1.0), "schedstat")
    assert between(*threads, whole=True).pressure_from == "threads"


def quota(periods, throttled, us):
    return {"/g": {"nr_periods": periods, "nr_throttled": throttled, "throttled_usec": us}}


CASES = {
    "throttled": (
        shot(0, thread(1, 0, 0), quota=quota(50, 5, 100)),
        shot(10, thread(1, 2, 8), quota=quota(150, 85, 7_000_100)),
    ),
    "cpu_shortage": (shot(0, thread(1, 0, 0), thread(2, 0, 0)), shot(10, thread(1, 5, 5), thread(2, 5, 5))),
    "idle": (shot(0, thread(1, 0, 0)), shot(10, thread(1, 0.1, 0.3))),
    "thread_saturated": (shot(0, thread(1, 0, 0)), shot(10, thread(1, 9.8, 0.1))),
    "enough_cpu": (shot(0, thread(1, 0, 0), thread(2, 0, 0)), shot(10, thread(1, 5, 0.1), thread(2, 6, 0.1))),
    "not_measured": (shot(0), shot(10)),
}


def test_every_state_has_a_case():
    assert set(CASES) == set(STATES)


@pytest.mark.parametrize("state", STATES)
def test_state(state):
    verdict = judged(between(*CASES[state], quota_cpus=2.0 if state == "throttled" else None))
    assert verdict.state == state
    assert next(lines(verdict)).startswith(f"{state}: {verdict.sentence[:20]}")


def test_the_sentence_carries_the_numbers():
    said = judged(between(*CASES["throttled"], quota_cpus=2.0)).sentence
    assert "quota of 2 CPUs" in said
    assert "80 %" in said  # 80 of 100 periods
    assert "7.0 s" in said
    said = judged(between(*CASES["cpu_shortage"], cpus=1)).sentence
    assert "1.0 of 1 CPU in use" in said
    assert "1.0 threads ready without one" in said
    assert "50 %" in said


def test_a_process_that_wants_next_to_nothing_is_not_short_of_cpus():
    """It waited for three quarters of what it wanted, which was 0.4 % of a CPU: the load of others."""
    verdict = judged(between(shot(0, thread(1, 0, 0)), shot(10, thread(1, 0.01, 0.03))))
    assert verdict.state == "idle"


@pytest.mark.parametrize(
    ("state", "busy", "words"),
    [
        ("cpu_shortage", 0.2, "they wait for it"),
        ("cpu_shortage", 0.99, "count as busy"),
        ("enough_cpu", 0.2, "the number of CPUs is not the reason"),
        ("enough_cpu", 0.9, "GPUs are 90 % busy."),
    ],
)
def test_gpus_are_named_but_do_not_decide(state, busy, words):
    verdict = judged(between(*CASES[state], gpu_busy={0: busy, 1: busy}))
    assert verdict.state == state
    assert words in verdict.sentence


def test_a_threshold_of_ones_own():
    shown = between(shot(0, thread(1, 0, 0)), shot(10, thread(1, 8, 2)))  # pressure 0.2
    assert judged(shown).state == "cpu_shortage"
    assert judged(shown, shortage=0.3).state == "enough_cpu"


def test_numbers_that_the_machine_does_not_tell_are_null():
    shown = between(*CASES["not_measured"])
    assert shown.running is shown.waiting is shown.pressure is shown.throttled_periods is None
    assert judged(shown).as_json()["measured"]["pressure"] is None
