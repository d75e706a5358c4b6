"""Programs that readers run: none holds the reader up, none outlives it."""

import time
from pathlib import Path

import pytest

from tracelib.sources.programs import run


@pytest.fixture
def say(tmp_path):
    """Run a shell's script and return what `run` says and what the script printed."""

    def _run(script, seconds=30):
        with (tmp_path / "out").open("wb") as out, (tmp_path / "errors").open("wb") as errors:
            ended = run(["/bin/sh", "-c", script], out, errors, seconds)
        return *ended, (tmp_path / "out").read_text(), (tmp_path / "errors").read_text()

    return _run


def _ends(process):
    """Say whether the process ends within some seconds."""
    status = Path(f"/proc/{process}/stat")
    for _ in range(50):
        try:
            if ") Z " in status.read_text():
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


def test_status_and_words(say):
    assert say("echo words; echo trouble >&2; exit 3") == (3, "", "words\n", "trouble\n")


def test_one_that_hangs_is_ended_with_what_it_started(say):
    status, why, out, _ = say("sleep 300 & echo $!; wait", seconds=1)
    assert (status, why) == (124, "stopped after 1 s")
    assert _ends(int(out))


def test_what_one_leaves_behind_is_ended_and_not_waited_for(say):
    before = time.monotonic()
    status, why, out, _ = say("sleep 60 & echo $!")
    assert (status, why) == (0, "")
    assert time.monotonic() - before < 30
    assert _ends(int(out))


def test_it_gets_no_input(say):
    assert say("read line || echo none")[2] == "none\n"


@pytest.mark.parametrize("content", [b"\x7fELF of another machine", b"exit 0\n"])
def test_one_that_is_no_program(tmp_path, content):
    program = tmp_path / "program"
    program.write_bytes(content)
    program.chmod(0o755)
    with (tmp_path / "out").open("wb") as out:
        status, why = run([str(program)], out, out, 5)
    assert status == 126
    assert why.startswith("it cannot be started (")
