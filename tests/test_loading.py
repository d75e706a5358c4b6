"""`tracelib.load` and the timeline: clocks, threads, roles, and what happens to files that are no traces."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import tracelib
from tests.conftest import ROOT
from tracelib.align import align
from tracelib.errors import BadParameter, UnknownFormat
from tracelib.sources.discovery import recognised

SAMPLE = ROOT / "sample_traces" / "starved"


@pytest.fixture(scope="module")
def run():
    return tracelib.load(SAMPLE)


def test_import_is_light():
    heavy = ("plotly", "papermill", "nbconvert", "IPython")
    code = f"import sys, tracelib; tracelib.load; sys.exit(any(m in sys.modules for m in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_what_runs_a_notebook_builds_no_grammars_before_somebody_asks_for_them():
    code = (
        "import sys, tracelib.report.pipeline; early = 'lark' in sys.modules; import jsonschema; "
        "check = jsonschema.FormatChecker().conforms; "
        "print(early, check('http://x.org/ä', 'iri'), check('::', 'iri'), 'lark' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert said.stdout.split() == ["False", "True", "False", "True"]


def test_public_names_exist_and_are_sorted():
    assert tracelib.__all__ == sorted(tracelib.__all__)
    for name in tracelib.__all__:
        assert getattr(tracelib, name) is not None


def test_every_source_of_the_sample_is_tied(run):
    tied = dict(run.sources.select("file", "tied_by").iter_rows())
    assert tied.pop("ftrace.txt.gz") == "anchors"
    assert set(tied.values()) == {"declared"}
    error = run.sources.filter(pl.col("tied_by") == "anchors")["error_ns"].item()
    assert 0 < error < 50_000


def test_roles_and_ranks_are_those_of_the_run(run, captures):
    pids = json.loads((captures / "starved" / "pids.json").read_text())["pids"]
    main = {
        row["pid"]: (row["role"], row["rank"])
        for row in run.threads.filter(pl.col("pid") == pl.col("tid")).iter_rows(named=True)
    }
    assert main[pids["api"]] == ("api_server", None)
    assert main[pids["engine"]] == ("engine", None)
    assert [main[pid] for pid in pids["workers"]] == [("worker", 0), ("worker", 1)]


def test_one_thread_seen_by_three_recorders_is_one_thread(run):
    worker = run.threads.filter(
        (pl.col("tid") == pl.col("pid")) & (pl.col("rank") == 0) & (pl.col("role") == "worker")
    )
    assert worker.height == 1
    thread = worker["thread"].item()
    for frame, column in (("slices", "thread"), ("samples", "thread"), ("sched", "next")):
        assert getattr(run, frame).filter(pl.col(column) == thread).height > 100


def test_a_hidden_shift_is_recovered_through_anchors(captures):
    perf, ftrace = (
        recognised(p).read()
        for p in (captures / "healthy" / "perf.txt.gz", captures / "healthy" / "ftrace.txt.gz")
    )
    straight = align([perf, ftrace]).sources["offset_ns"].to_list()
    for shift in (3_000_000_000, -2_718_281_828):
        moved = ftrace.replace(sched=ftrace.sched.with_columns(pl.col("ts_ns") + shift))
        found = align([perf, moved]).sources
        assert found["tied_by"].to_list() == ["declared", "anchors"]
        assert abs(found["offset_ns"][1] + shift - straight[1]) < 50_000


def test_a_drifting_clock_is_recovered_within_its_error(captures):
    perf, ftrace = (
        recognised(p).read()
        for p in (captures / "healthy" / "perf.txt.gz", captures / "healthy" / "ftrace.txt.gz")
    )
    start = ftrace.sched["ts_ns"].min()
    drift = (pl.col("ts_ns") - start) * 20 // 1_000_000  # 20 ppm
    moved = ftrace.replace(sched=ftrace.sched.with_columns(pl.col("ts_ns") + drift + 1_234_567_890))
    straight, bent = align([perf, ftrace]), align([perf, moved])
    off = (
        straight.sched.filter(pl.col("source") == 1)["ts_ns"]
        - bent.sched.filter(pl.col("source") == 1)["ts_ns"]
    ).abs()
    assert off.max() < 50_000


def test_without_common_anchors_a_source_stays_apart_and_joins_nothing(captures):
    perf = recognised(captures / "healthy" / "perf.txt.gz").read()
    other = recognised(captures / "throttled" / "ftrace.txt.gz").read()
    found = align([perf, other])
    assert found.sources["tied_by"].to_list() == ["declared", "untied"]
    assert found.health["message"].str.contains("could not be tied").any()
    mine = set(found.sched.filter(pl.col("source") == 0)["next"].drop_nulls())
    theirs = set(found.sched.filter(pl.col("source") == 1)["next"].drop_nulls())
    assert mine & theirs <= {-1}


def test_the_user_s_offset_goes_first_and_a_wrong_name_is_told(captures):
    path = captures / "healthy" / "ftrace.txt.gz"
    assert tracelib.load(path, offsets={"ftrace*": 5}).sources["tied_by"].item() == "user"
    with pytest.raises(BadParameter, match=r"ftrace\.txt\.gz"):
        tracelib.load(path, offsets={"ftrase.txt": 5})


def test_paths_that_cannot_be_used(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "zero.json").touch()
    (tmp_path / "prose.txt").write_text("Dear diary,\nno trace here.\n")
    for path, said in (
        (tmp_path / "missing", "no such file"),
        (tmp_path / "empty", "it holds no files"),
        (tmp_path / "zero.json", "empty"),
        (tmp_path / "prose.txt", "none of"),
    ):
        with pytest.raises(UnknownFormat, match=said):
            tracelib.load(path)


def test_a_pipe_is_told_from_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(UnknownFormat, match="a pipe or a device, not a file"):
        tracelib.load(tmp_path / "pipe.json")


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A folder of two traces, one of which nobody may open (chmod would not stop root)."""
    for name in ("worker_TP0.pt.trace.json.gz", "perf.txt.gz"):
        shutil.copy(SAMPLE / name, tmp_path)
    opened = Path.open

    def refuse(self, *rest, **named):
        if self.name.startswith("worker"):
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *rest, **named)

    monkeypatch.setattr(Path, "open", refuse)
    return tmp_path


def test_a_file_that_cannot_be_opened_is_an_error_in_health(closed):
    found = tracelib.load(closed)
    errors = found.health.filter(pl.col("level") == "error")["message"].to_list()
    assert errors == [
        (
            "worker_TP0.pt.trace.json.gz cannot be opened (Permission denied): "
            "if it is a trace, what it recorded is missing"
        )
    ]
    with pytest.raises(UnknownFormat, match=r"worker_TP0.*: cannot be opened \(Permission denied\)"):
        tracelib.load(closed / "worker_TP0.pt.trace.json.gz")
    (closed / "perf.txt.gz").unlink()
    with pytest.raises(UnknownFormat, match=r"its only file is not a trace; worker_TP0.* cannot be opened"):
        tracelib.load(closed)


def test_a_cut_gzip_is_used_as_far_as_it_goes_and_named(tmp_path):
    for name in ("worker_TP0.pt.trace.json.gz", "perf.txt.gz", "ftrace.txt.gz"):
        shutil.copy(SAMPLE / name, tmp_path)
        data = (SAMPLE / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) * 2 // 3])
    cut = tracelib.load(tmp_path)
    assert cut.gpu_ops.height > 1000
    assert cut.samples.height > 100
    assert cut.sched.height > 1000
    for file in cut.sources.iter_rows(named=True):
        remarks = cut.health.filter((pl.col("source") == file["source"]) & (pl.col("level") != "info"))
        assert remarks["message"].str.contains("(?i)end|cut|trunc|damage").any(), file["file"]


def test_detection_is_by_content_not_by_name(tmp_path):
    (tmp_path / "a.dat").write_bytes((SAMPLE / "perf.txt.gz").read_bytes())
    (tmp_path / "b.json").write_bytes(gzip.decompress((SAMPLE / "ftrace.txt.gz").read_bytes()))
    (tmp_path / "c.txt").write_bytes((SAMPLE / "engine_core.pt.trace.json.gz").read_bytes())
    assert sorted(tracelib.load(tmp_path).sources["format"]) == ["ftrace", "perf", "torch_profiler"]


def test_a_run_shows_itself(run):
    text = repr(run)
    assert "worker_TP0" in text or "worker" in text
    html = run._repr_html_()
    assert "<script" not in html
    assert "perf.txt.gz" in html


def test_files_of_one_run_are_not_taken_for_another_run(run, captures, tmp_path):
    """All of the sample's files cover the same seconds; a file of another run is named."""
    assert not run.health["message"].str.contains("covers none").any()
    shutil.copy(SAMPLE / "worker_TP0.pt.trace.json.gz", tmp_path)
    shutil.copy(captures / "healthy" / "api_server.pt.trace.json.gz", tmp_path)
    assert tracelib.load(tmp_path).health["message"].str.contains("covers none").any()


def test_one_recording_in_several_files_is_read_once(tmp_path):
    """Packed and unpacked, a link, and a copy in a hidden folder: one GPU, as many rows as in one of them."""
    packed = SAMPLE / "worker_TP0.pt.trace.json.gz"
    alone = tracelib.load(packed)
    shutil.copy(packed, tmp_path)
    (tmp_path / "worker_TP0.pt.trace.json").write_bytes(gzip.decompress(packed.read_bytes()))
    (tmp_path / "latest.json").symlink_to(tmp_path / "worker_TP0.pt.trace.json")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    shutil.copy(packed, tmp_path / ".ipynb_checkpoints" / "worker_TP0-checkpoint.json.gz")
    for _ in range(2):  # the second time some come from the cache
        both = tracelib.load(tmp_path)
        assert (both.gpus.height, both.sources.height) == (1, 1)
        assert both.gpu_ops.height == alone.gpu_ops.height
        assert both.slices.height == alone.slices.height
        assert both.health["message"].str.contains("holds the same recording as").sum() == 2
        assert not both.health["message"].str.contains("one id").any()


def test_two_ranks_are_not_taken_for_one_recording(tmp_path):
    for rank in (0, 1):
        shutil.copy(SAMPLE / f"worker_TP{rank}.pt.trace.json.gz", tmp_path)
    both = tracelib.load(tmp_path)
    assert both.gpus.height == both.sources.height == 2
    assert not both.health["message"].str.contains("same recording").any()
