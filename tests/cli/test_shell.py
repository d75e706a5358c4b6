"""Completion, tried in the shells themselves, and the manual page, read by man."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

import pytest

from tracelib import cli
from tracelib.cli import shell

COMMANDS = [run.__name__ for run in cli.RUNS]


def printed(capsys, *words):
    assert cli.main(words) == 0
    return capsys.readouterr().out


def typed(script, keys, until, tmp_path):
    """Return what an interactive bash shows after `keys`, at the latest when `until` is shown."""
    rc = tmp_path / "rc"
    rc.write_text(f"PS1='$ '\nbind 'set bell-style none'\n{script}\n")
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execvp("bash", ["bash", "--noprofile", "--rcfile", str(rc), "-i"])
    shown, limit = b"", time.monotonic() + 30
    os.write(terminal, keys.encode())
    while until not in shown.decode(errors="replace") and time.monotonic() < limit:
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 4096)
    os.kill(child, 9)
    os.waitpid(child, 0)
    os.close(terminal)
    return shown.decode(errors="replace")


@pytest.mark.parametrize(
    ("keys", "until"),
    [
        ("tracelib rep\t", "tracelib report "),
        ("tracelib report --redact stri\t", "--redact strict "),
        ("tracelib report --mean\t", "--mean-input-tokens "),
        ("tracelib export --to spee\t", "--to speedscope "),
        ("tracelib inspect some_tr\t", "some_traces/"),
    ],
)
def test_bash_completes_commands_flags_their_values_and_files(keys, until, capsys, tmp_path):
    (tmp_path / "some_traces").mkdir()
    assert until in typed(printed(capsys, "completion", "bash"), keys, until, tmp_path)


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_take_their_script(name, capsys):
    script = printed(capsys, "completion", name)
    for command in COMMANDS:
        assert command in script
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed: its script was made, and no shell has read it")
    done = subprocess.run([name, "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_library_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 2
    assert "pip install '.[completion]'" in capsys.readouterr().err


def test_the_manual_has_every_command_and_flag(capsys):
    page = printed(capsys, "manual")
    sections = re.split(r"^\.SS ", page, flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections] == COMMANDS
    for section, command in zip(sections, COMMANDS, strict=True):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        flags = re.findall(r"^  (?:-\w, |-\w [A-Z]+, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE)
        assert len(flags) > 1, command
        for flag in flags:
            assert f"{flag.replace('-', chr(92) + '-')}" in section, (command, flag)


@pytest.mark.skipif(shutil.which("man") is None, reason="there is no man")
def test_man_shows_it_without_a_warning(capsys, tmp_path):
    path = tmp_path / "tracelib.1"
    path.write_text(printed(capsys, "manual"))
    done = subprocess.run(
        ["man", "--warnings=w", "-l", str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C"},
    )
    assert done.stderr == ""
    assert "tracelib report traces/ --role 'my_server.*=api_server'" in done.stdout


def test_text_is_shown_literally_and_never_a_request():
    assert shell._roff(".so /etc/passwd") == r"\&.so /etc/passwd"
    assert shell._roff("'br") == r"\(aqbr"
    assert shell._roff(r"a\nb --x") == r"a\enb \-\-x"
