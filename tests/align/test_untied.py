"""Without common anchors a source stays apart, its joins are off, no figure holds it; the report says so."""

import polars as pl
import pytest

from tests.align.clocks import read, shifted
from tracelib.align import align
from tracelib.analyses.results import analyse
from tracelib.findings import diagnose, validate
from tracelib.words import duration


@pytest.fixture(scope="module")
def parts(captures):
    starved, healthy = captures / "starved", captures / "healthy"
    return {
        "tied": read(starved / "worker_TP0.pt.trace.json.gz"),
        "stranger": shifted(read(healthy / "worker_TP1.pt.trace.json.gz", "stranger.json.gz"), 777),
        "perf": read(starved / "perf.txt.gz"),
        "other_perf": shifted(read(healthy / "perf.txt.gz", "other_perf.txt.gz"), 777),
    }


@pytest.fixture(scope="module")
def alone(parts):
    return align([parts["tied"], parts["perf"]])


def _findings(trace):
    results = analyse(trace)
    findings = diagnose(results)
    assert validate(findings) == []
    return results, findings


def test_two_runs_with_nothing_in_common_refuse(parts):
    both = align([parts["perf"], parts["other_perf"]])
    assert both.sources["tied_by"].to_list() == ["declared", "untied"]
    assert both.sources.row(1, named=True)["anchors"] is None
    said = both.health.filter(pl.col("source") == 1)
    assert said["message"].str.contains("could not be tied").any()
    assert said["fix"].str.contains("--offset").any()
    mine, theirs = (set(both.sched.filter(pl.col("source") == s)["next"].drop_nulls()) - {-1} for s in (0, 1))
    assert not mine & theirs
    assert len(set(both.threads["host"])) == 2
    alone = parts["perf"].sources.row(0, named=True)
    assert f"span {duration(alone['last_ns'] - alone['first_ns'])}:" in str(both)  # no times are subtracted


def test_an_untied_gpu_recording_is_in_no_figure(parts, alone):
    """Window, ledgers and causes are those of the tied files alone, to the nanosecond."""
    mixed, found = _findings(align([parts["tied"], parts["perf"], parts["stranger"]]))
    plain, expected = _findings(alone)
    assert (mixed.window.start_ns, mixed.window.end_ns) == (plain.window.start_ns, plain.window.end_ns)
    for part in ("devices", "host_time", "launches", "scheduling", "cpu_time", "ipc", "capacity"):
        assert getattr(found, part) == getattr(expected, part), part
    source = next(s for s in found.sources if s.file == "stranger.json.gz")
    assert source.tied_by == "untied"
    assert source.rows.gpu_ops == parts["stranger"].gpu_ops.height
    left = [h for h in found.health if "left out of every figure" in h.message]
    assert [h.source for h in left] == ["stranger.json.gz"]
    assert f"{parts['stranger'].gpu_ops.height:,} gpu ops" in left[0].message
    assert any("1 of 3 sources could not be tied" in why for why in found.verdict.why)


def test_untied_scheduler_events_are_abstained_from_not_zero(parts):
    results, found = _findings(align([parts["tied"], parts["other_perf"]]))
    assert results.scheduling.is_empty()
    assert found.scheduling is None
    reasons = {a.id: a.reason for a in found.abstained}
    assert (
        "the clock of the files that hold the scheduler events is tied to no other" in reasons["scheduling"]
    )
    assert not any("kept apart" in h.message for h in found.health if h.source != "other_perf.txt.gz")


def test_the_only_gpu_recording_is_reported_alone_if_it_is_the_untied_one(parts):
    gpu = shifted(parts["tied"], 10**15)
    results, found = _findings(align([gpu, read_only_host(parts["perf"])]))
    assert found.window.duration_ns > 10**9
    assert len(found.devices) == 1
    assert found.scheduling is None
    assert any(h.source == "perf.txt.gz" and "left out of every figure" in h.message for h in found.health)
    assert results.trace.sched.is_empty()


def read_only_host(perf):
    """Return perf's samples without what could tie them: its threads are other machines'."""
    threads = perf.threads.with_columns(pl.col("tid") + 1_000_000, pl.col("pid") + 1_000_000)
    return perf.replace(threads=threads)
