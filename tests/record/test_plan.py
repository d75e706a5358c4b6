"""What a machine permits becomes a plan; what it does not permit is named."""

import dataclasses
from pathlib import Path

import pytest

from tracelib.cli import main
from tracelib.errors import MissingEvents
from tracelib.record.machine import Machine
from tracelib.record.plan import STEPS, lines, plan, recipe_names

NOTHING = Machine(
    kernel="6.1",
    host="h",
    root=False,
    cpus_online=8,
    cpus_allowed=8,
    paranoid=4,
    tracefs=None,
    tracefs_writable=False,
    tools={"perf": None, "trace-cmd": None, "nsys": None, "nvidia-smi": None},
    group=None,
    clock_source="tsc",
    pressure=True,
    available_kb=1 << 24,
    mounts_tracefs=False,
)


def test_a_machine_that_permits_nothing_is_told_why(tmp_path):
    with pytest.raises(MissingEvents) as told:
        plan(NOTHING, folder=tmp_path / "out", seconds=1, recipe_name="generic")
    assert "perf is not installed" in str(told.value)
    assert "no tracefs is mounted" in str(told.value)


def test_a_servers_profiler_alone_is_worth_recording(tmp_path):
    made = plan(
        NOTHING, folder=tmp_path / "out", seconds=1, recipe_name="vllm", server="http://localhost:8000/"
    )
    assert (made.start_url, made.stop_url) == (
        "http://localhost:8000/start_profile",
        "http://localhost:8000/stop_profile",
    )
    said = "\n".join(lines(made))
    assert "curl -X POST http://localhost:8000/start_profile" in said
    assert "--profiler-config" in said
    assert "without perf: perf is not installed" in said


def test_tracefs_that_is_not_writable_is_left_out_and_named(tmp_path):
    found = dataclasses.replace(NOTHING, tracefs=Path("/sys/kernel/tracing"))
    made = plan(found, folder=tmp_path / "out", seconds=1, recipe_name="vllm", server="http://localhost:8000")
    assert not made.tracefs
    assert "needs root" in made.left_out["ftrace"]


def test_the_help_names_every_recipe_and_everything_that_can_be_left_out(capsys):
    with pytest.raises(SystemExit):
        main(["record", "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*recipe_names(), *STEPS))
