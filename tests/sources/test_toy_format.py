"""A new format is a package and its name in `FORMATS`: nothing else knows the formats by name."""

import ast
from pathlib import Path

import polars as pl
import pytest

import tracelib
from tests.conftest import ROOT
from tests.sources.accounting import account_for
from tests.sources.samples import samples_of
from tracelib import sources
from tracelib.analyses.results import analyse
from tracelib.errors import TraceError, UnknownFormat
from tracelib.export.archive import write_archive
from tracelib.findings import diagnose
from tracelib.report.sections.tables import health
from tracelib.schema import FRAMES
from tracelib.sources.format import Format, InPerfetto
from tracelib.trace import Trace

SAMPLE = ROOT / "sample_traces" / "starved"
TOY = """\
toy ranges
1000 500 tokenize
2000 500 schedule
"""


def _read(path):
    """Return the trace of a text: a first line, then begin, length and name of each range of one thread."""
    rows = [line.split() for line in path.read_text().splitlines()[1:]]
    slices = {"source": 0, "thread": 0, "category": "annotation"}
    slices |= {"ts_ns": [int(at) for at, _, _ in rows], "dur_ns": [int(length) for _, length, _ in rows]}
    thread = {"thread": 0, "pid": 70, "tid": 70, "name": "toy"}
    source = {"source": 0, "format": "toy", "clock": "realtime", "wall_offset_ns": 0}
    made = {
        "slices": pl.DataFrame({**slices, "name": [name for _, _, name in rows]}),
        "threads": pl.DataFrame([thread]),
        "sources": pl.DataFrame([source]),
    }
    return Trace.of(
        {
            name: frame.select(
                (pl.col(column) if column in frame.columns else pl.lit(None))
                .cast(dtype, strict=False)
                .alias(column)
                for column, dtype in FRAMES[name].items()
            )
            for name, frame in made.items()
        }
    )


@pytest.fixture
def toy(monkeypatch):
    made = Format(
        name="toy",
        sniff=lambda head, _: head.startswith(b"toy ranges\n"),
        read=_read,
        scope="process",
        thread_name_rank=9,
        in_perfetto=InPerfetto(has_clock=False),
    )
    monkeypatch.setattr(sources, "FORMATS", (*sources.FORMATS, made))
    return made


@pytest.fixture
def toy_file(tmp_path):
    path = tmp_path / "run.toy"
    path.write_text(TOY)
    return path


def test_without_it_the_file_is_of_no_format(toy_file):
    with pytest.raises(UnknownFormat, match="the content is none of: nsys, torch_profiler, perf, ftrace"):
        tracelib.load(toy_file)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("cache", [False, True])
def test_it_is_read_and_shown(toy_file, tmp_path, monkeypatch, cache):
    monkeypatch.setenv("TRACELIB_CACHE", str(tmp_path / "cache"))
    run = tracelib.load(toy_file, cache=cache)
    assert run.sources.select("file", "format", "tied_by").rows() == [("run.toy", "toy", "declared")]
    assert run.slices["name"].to_list() == ["tokenize", "schedule"]
    assert "run.toy" in run._repr_html_()


@pytest.mark.usefixtures("toy")
def test_it_joins_the_others_from_reading_to_findings_and_exports(toy_file, tmp_path):
    files = [toy_file, SAMPLE / "worker_TP0.pt.trace.json.gz", SAMPLE / "perf.txt.gz"]
    run = tracelib.load(files, offsets={"run.toy": 0})  # of another time: only the user's word keeps it
    findings = diagnose(analyse(run))
    assert [source.format for source in findings.sources] == ["toy", "torch_profiler", "perf"]
    assert "run.toy" in health(findings).html
    files = [file.path for file in sources.discovery.discover([toy_file, SAMPLE / "perf.txt.gz"]).traces]
    left = write_archive(run, files, tmp_path / "run.tar")
    assert not any("run.toy" in reason for reason in left)


@pytest.mark.usefixtures("toy")
def test_ids_in_its_containers_are_mapped(toy_file, tmp_path):
    (tmp_path / "pids.txt").write_text("70 4070\n")
    run = tracelib.load(toy_file, pid_map=tmp_path / "pids.txt")
    assert run.threads["pid"].to_list() == [4070]


@pytest.mark.usefixtures("toy")
def test_the_fuzzer_refuses_to_leave_it_out(toy_file, tmp_path):
    with pytest.raises(AssertionError, match="the fuzzer needs samples of the format toy"):
        samples_of("toy", Path("absent"), tmp_path)
    with pytest.raises(AssertionError, match="the fuzzer needs to know what is in files of the format toy"):
        account_for("toy", toy_file, None)


def test_a_trace_of_no_known_format_is_refused():
    with pytest.raises(TraceError, match="Allowed: nsys, torch_profiler, perf, ftrace"):
        sources.format_named("toy")


def test_nothing_else_lists_the_formats():
    """Nothing in tracelib outside the formats' packages compares with a format's name or lists several."""
    names = {each.name for each in sources.FORMATS}
    programs = {"record", "cli_record.py"}  # there, perf, ftrace and nsys are programs
    listing = []
    for path in (ROOT / "tracelib").rglob("*.py"):
        place = path.relative_to(ROOT / "tracelib")
        if place.parts[0] in programs or set(place.parts[1:2]) & names:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            parts = list(ast.iter_child_nodes(node))
            held = [each.value for each in parts if isinstance(each, ast.Constant) and each.value in names]
            compared = isinstance(node, ast.Compare) and held
            # one alone may be a clock or a key of run.toml
            listed = isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict) and len(held) > 1
            listing += [f"{place}:{node.lineno}"] if compared or listed else []
    assert listing == []
