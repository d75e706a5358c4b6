"""What lies beside a file in its folder: its own export, the other tables of a directory."""

import os

import pytest

import tracelib
from tests.sources.nsys.test_directory import converted
from tracelib.sources.nsys.report import MAGIC


@pytest.fixture
def run(export, process):
    """Return an export of one kernel and its launch call."""
    kernel, call = (20, 30, 0, 1, 7, 1, process, 4, 4), (10, 15, 0, process + 100, 1, 1)
    rows = {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel], "CUPTI_ACTIVITY_KIND_RUNTIME": [call]}
    return export(rows, name="run.sqlite")


def test_a_report_beside_its_own_export_is_not_read(run):
    """`nsys stats` leaves run.sqlite beside run.nsys-rep: no nsys is needed then, and nothing is counted twice."""
    report = run.with_suffix(".nsys-rep")
    report.write_bytes(MAGIC + bytes(100))
    os.utime(report, (1, 1))
    trace = tracelib.load(run.parent)
    assert (trace.gpus.height, trace.gpu_ops.height) == (1, 1)
    assert trace.health["message"].str.contains("run.nsys-rep holds the same recording as run.sqlite").any()
    assert "error" not in trace.health["level"].to_list()
    os.utime(run, (0, 0))  # older than the report: of another run
    errors = tracelib.load(run.parent).health.filter(level="error")["message"].to_list()
    assert any("run.nsys-rep" in message for message in errors)


def test_the_tables_of_a_directory_are_not_called_left_out(run, tmp_path):
    trace = tracelib.load(converted(run, tmp_path / "run_pqtdir", "parquet"))
    assert trace.gpu_ops.height == 1
    assert not trace.health["message"].str.contains("left out").any()


def test_two_forms_of_one_export_are_read_once(run, tmp_path):
    converted(run, tmp_path / "run_pqtdir", "parquet")
    trace = tracelib.load(tmp_path)
    assert (trace.sources.height, trace.gpus.height, trace.gpu_ops.height) == (1, 1, 1)
    assert trace.health["message"].str.contains("same recording").sum() == 1
