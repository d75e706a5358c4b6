"""Reports (.nsys-rep, .qdrep): by way of `nsys export`, which a script stands in for here."""

import functools
import os
from pathlib import Path

import pytest

import tracelib
from tracelib.errors import BadTrace
from tracelib.sources.nsys import MAGIC, read, sniff

REPORT = b"NVIDIA Tegra Profiler Report 2025@5@1@12\n" + bytes(100)


@pytest.fixture
def report(tmp_path, stand_in):
    """A report, in a place where only the `nsys` that a test writes is found."""
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(REPORT)
    return path, functools.partial(stand_in, "nsys")


def test_reports_are_recognised_by_content():
    assert sniff(REPORT, "anything")
    assert not sniff(b"NVIDIA", "run.nsys-rep")


def test_without_nsys_the_command_is_told(report):
    path, _ = report
    with pytest.raises(
        BadTrace, match=r"no `nsys` is installed.*nsys export --type=sqlite --output=run.sqlite run.nsys-rep"
    ):
        read(path)


def test_through_nsys_export(report, export, process, tmp_path):
    path, install = report
    export({"CUPTI_ACTIVITY_KIND_RUNTIME": [(10, 15, 0, process + 7, 1, 1)]}, name="exported.sqlite")
    install(
        f'for a; do case "$a" in --output=*) cp {tmp_path}/exported.sqlite "${{a#--output=}}";; esac; done; '
        f'echo "$@" > {tmp_path}/said'
    )
    trace = read(path)
    assert trace.slices["name"].to_list() == ["cudaLaunchKernel"]
    assert trace.sources.select("file", "bytes").row(0) == ("run.nsys-rep", len(REPORT))
    said = (tmp_path / "said").read_text().split()
    assert said[:3] == ["export", "--type=sqlite", "--force-overwrite=true"]
    assert said[-1] == str(path)
    assert not Path(said[3].removeprefix("--output=")).exists()


@pytest.mark.parametrize("script", ["echo 'unsupported report version' >&2; exit 3", "exit 0"])
def test_what_nsys_cannot_export_is_refused_with_its_words(report, script):
    path, install = report
    install(script)
    with pytest.raises(
        BadTrace, match="failed with status 3: 'unsupported report version'" if "3" in script else "status 0"
    ):
        read(path)


def test_an_nsys_that_hangs_is_ended(report, monkeypatch):
    path, install = report
    install("echo working; sleep 300")
    monkeypatch.setattr("tracelib.sources.nsys.SECONDS", 1)
    with pytest.raises(BadTrace, match="stopped after 1 s: 'working'"):
        read(path)


def test_an_nsys_that_is_no_program_is_refused(report, tmp_path):
    path, install = report
    install("")
    (tmp_path / "bin" / "nsys").write_bytes(b"\x7fELF of another machine")
    with pytest.raises(BadTrace, match="cannot be started"):
        read(path)


def test_an_nsys_that_writes_something_else_is_refused(report):
    path, install = report
    install('for a; do case "$a" in --output=*) echo no database > "${a#--output=}";; esac; done')
    with pytest.raises(BadTrace, match=r"run\.nsys-rep: .*wrote no database"):
        read(path)


def test_a_report_beside_its_own_export_is_not_read(one_kernel):
    """`nsys stats` leaves run.sqlite beside run.nsys-rep: it alone is read, without nsys."""
    report = one_kernel.with_suffix(".nsys-rep")
    report.write_bytes(MAGIC + bytes(100))
    os.utime(report, (1, 1))
    trace = tracelib.load(one_kernel.parent)
    assert (trace.gpus.height, trace.gpu_ops.height) == (1, 1)
    assert trace.health["message"].str.contains("run.nsys-rep holds the same recording as run.sqlite").any()
    assert "error" not in trace.health["level"].to_list()
    os.utime(one_kernel, (0, 0))  # older than the report: of another run
    errors = tracelib.load(one_kernel.parent).health.filter(level="error")["message"].to_list()
    assert any("run.nsys-rep" in message for message in errors)
