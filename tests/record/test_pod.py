"""A pod's processes are found by crictl, which here is a program that answers as crictl does."""

import os
import subprocess
import sys
import tomllib

import pytest

from tests.record import recording
from tracelib import cli
from tracelib.cli.flags import USAGE_ERROR
from tracelib.record.machine import pod_processes
from tracelib.record.processes import descendants

#: Answers, as crictl's manual says, for the pods of a file: NAMESPACE NAME POD CONTAINER PID.
CRICTL = """#!{python}
import re, sys
from pathlib import Path
asked = sys.argv[1:]
here = Path(__file__).parent
with (here / "asked").open("a") as file:
    print(*asked, file=file)
rows = [line.split() for line in (here / "pods").read_text().splitlines()]
after = lambda flag: asked[asked.index(flag) + 1] if flag in asked else ""
if asked[0] == "pods":
    fits = lambda space, name: re.search(after("--name"), name) and re.search(after("--namespace"), space)
    shown = [pod for space, name, pod, *_ in rows if fits(space, name)]
elif asked[0] == "ps":
    shown = [container for _, _, pod, container, _ in rows if pod == after("--pod")]
elif asked[:-1] == ["inspect", "--output", "go-template", "--template", "{{{{.info.pid}}}}"]:
    shown = [pid for *_, container, pid in rows if container == asked[-1]]
else:
    sys.exit("unknown: " + " ".join(asked))
print("\\n".join(dict.fromkeys(shown)))
"""


@pytest.fixture
def crictl(tmp_path, monkeypatch):
    """Give a function that sets what runs on this node; the questions lie beside it in `asked`."""
    folder = tmp_path / "node"
    folder.mkdir()
    program = folder / "crictl"
    program.write_text(CRICTL.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def runs(*rows):
        (folder / "pods").write_text("\n".join(rows))
        return folder

    return runs


def test_every_container_of_the_one_pod_of_that_name(crictl):
    folder = crictl(
        "inference llama-0 p1 c1 4117",
        "inference llama-0 p1 c2 4200",
        "inference llama-01 p2 c3 5000",
        "staging llama-0 p3 c4 6000",
    )
    assert pod_processes("inference/llama-0") == [4117, 4200]
    assert pod_processes("llama-01") == [5000]
    asked = (folder / "asked").read_text().splitlines()
    assert asked[0] == "pods --name ^llama-0$ --namespace ^inference$ --state ready -q --no-trunc"
    assert asked[1] == "ps -q --no-trunc --pod p1"


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        ("llama-0", "pods of several namespaces have this name"),
        ("other", "a pod that runs on this node"),
        ("a/b/c", "[NAMESPACE/]NAME"),
        ("$(id)", "[NAMESPACE/]NAME"),
        ("--help", "[NAMESPACE/]NAME"),
    ],
)
def test_what_is_not_one_pod_is_one_line_and_status_2(pod, said, crictl, tmp_path, capsys):
    crictl("inference llama-0 p1 c1 4117", "staging llama-0 p3 c4 6000")
    assert cli.main(["record", f"--pod={pod}", "--out", str(tmp_path / "out")]) == USAGE_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_without_crictl_it_says_where_to_go(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["record", "--pod", "a", "--out", str(tmp_path / "out")]) == USAGE_ERROR
    assert "crictl is not installed; run this on the pod's node" in capsys.readouterr().err


def test_the_commands_are_printed(crictl, tmp_path, capsys):
    recording.skip_unless_traceable(root=False)
    crictl(f"inference llama-0 p1 c1 {os.getpid()}")
    words = ["record", "--recipe", "vllm", "--pod", "inference/llama-0", "--server", "http://10.0.0.7:8000"]
    assert cli.main([*words, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    for line in (
        "crictl pods --name '^llama-0$' --namespace '^inference$' --state ready -q --no-trunc",
        "crictl inspect --output go-template --template '{{.info.pid}}' CONTAINER",
        "nsenter --target PID --net curl -X POST http://10.0.0.7:8000/start_profile",
        "grep NSpid /proc/PID/task/*/status",
    ):
        assert f"\n{line}\n" in shown
    assert " sleep 3" in shown  # a server's own profiler writes much: short, unless told otherwise


def test_the_ids_in_the_pod_and_here_are_written(crictl, tmp_path):
    recording.skip_unless_traceable(root=True)
    prefix = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets us make no namespace of process ids")
    inside = "import time; print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen([*prefix, sys.executable, "-c", inside], stdout=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()
        (first,) = (pid for pid in descendants([process.pid]) if pid != process.pid)
        crictl(f"inference llama-0 p1 c1 {first}")
        words = ["record", "--pod", "llama-0", "--seconds", "0.5", "--out", str(tmp_path / "out"), "--go"]
        assert cli.main(words) in (0, 3)  # 3: no GPU here, say
    finally:
        process.kill()
        process.communicate()
    written = tomllib.loads((tmp_path / "out" / "run.toml").read_text())
    assert written["pids"] == {"1": first}
