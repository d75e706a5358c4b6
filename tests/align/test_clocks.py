"""A hidden offset up to 3 s and a drift of 20 ppm: recovered within 50 us by what two files saw, or refused.

The truth is where the file's own declared clock puts its events; it is taken away before the file is shifted.
"""

import random

import numpy as np
import polars as pl
import pytest

from tests.align.clocks import furthest, only, read, shifted
from tests.conftest import thorough
from tracelib.align import align
from tracelib.sources.discovery import discover

LIMIT_NS = 50_000
#: What messages and the rhythm of threads are good for; whatever is said is held.
ROUGH_NS = 3_000_000
#: What must be recovered, not refused: these share thousands of moments with another file of the run.
MUST = {
    "healthy": ("ftrace", "worker"),
    "starved": ("ftrace", "worker", "perf"),
    "throttled": ("ftrace", "worker"),
}
CASES = [
    (capture, file)
    for capture in MUST
    for file in ("api_server", "engine_core", "ftrace", "perf", "worker_TP0", "worker_TP1")
]


def hidden(*seed):
    """Return an offset in +-3 s and a drift of +-20 ppm or none, the same in every run of the test."""
    draw = random.Random(repr(seed))
    return draw.randint(-3_000_000_000, 3_000_000_000), draw.choice((-20, 0, 20))


def recovered(straight, traces, index, shift, ppm):
    """Return what tied a shifted source, "" if it was refused; it must be right, and as good as it says."""
    bent = align([shifted(t, shift, ppm) if i == index else t for i, t in enumerate(traces)])
    row = bent.sources.row(index, named=True)
    if row["tied_by"] == "untied":
        assert (
            bent.health.filter(pl.col("source") == index)["message"].str.contains("could not be tied").any()
        )
        return ""
    assert row["tied_by"] == "anchors"
    off = furthest(straight, bent, index)
    limit = LIMIT_NS if row["error_ns"] <= LIMIT_NS else ROUGH_NS
    assert off <= row["error_ns"] <= limit
    assert row["anchors"] >= 12
    assert row["residual_p50_ns"] <= row["residual_p99_ns"] <= row["error_ns"]
    return row["anchor_kind"]


SHIFTS = [(3_000_000_000, -20), (-3_000_000_000, 20), (3_000_000_000, 20), (-3_000_000_000, 0)]
PAIRS = [("perf", "ftrace"), ("perf", "worker_TP0"), ("worker_TP0", "worker_TP1"), ("worker_TP0", "perf")]


@pytest.mark.parametrize(
    ("capture", "file"), thorough(CASES, but=[c for c in CASES if c[0] in ("starved", "nsys_starved")])
)
def test_every_file_of_a_capture(captures, capture, file):
    paths = [file.path for file in discover([captures / capture]).traces]
    traces = [read(path) for path in paths]
    index = next(i for i, path in enumerate(paths) if path.name.startswith(file))
    found = recovered(align(traces), traces, index, *hidden(capture, file))
    assert found or not file.startswith(MUST[capture])


@pytest.mark.parametrize(("shift", "ppm"), thorough(SHIFTS, but=[s for s in SHIFTS if s[1] == 20]))
@pytest.mark.parametrize("pair", PAIRS)
def test_two_files_alone(captures, pair, ppm, shift):
    """Switches in perf and ftrace; threads' slices against absences; ends of collectives across ranks."""
    paths = [file.path for file in discover([captures / "starved"]).traces]
    traces = [next(read(path) for path in paths if path.name.startswith(name)) for name in pair]
    assert recovered(align(traces), traces, 1, shift, ppm)


@pytest.fixture(params=["nsys_healthy", "nsys_starved"])
def nsys(request, captures):
    path = captures / request.param / f"{request.param}.sqlite.gz"
    return read(path)


def _seen_again(trace, frame):
    """Return the trace with the times of a frame as a second recorder reads them: within a microsecond."""
    noise = np.random.default_rng(7).integers(-1_000, 1_000, getattr(trace, frame).height)
    return trace.replace(**{frame: getattr(trace, frame).with_columns(pl.col("ts_ns") + pl.Series(noise))})


@pytest.mark.parametrize(
    ("frame", "format_", "kind"),
    [
        ("sched", "perf", {"switches by thread", "activity"}),
        ("slices", "torch_profiler", {"named ranges"}),
        ("gpu_ops", "torch_profiler", {"ends of collectives"}),
    ],
)
def test_an_nsys_session(nsys, frame, format_, kind):
    """No capture has nsys beside another recorder: its own switches, ranges, collectives stand for those."""
    other = only(_seen_again(nsys, frame), "other", format_, frame)
    if frame == "gpu_ops":  # ends of collectives alone, as another host's recorder shares them
        nsys = only(nsys, "nsys", "nsys", "gpu_ops", "slices")
    traces = [other, nsys]
    straight = align(traces)
    for shift, ppm in ((3_000_000_000, 20), (-3_000_000_000, -20)):
        assert recovered(straight, traces, 1, shift, ppm) in kind


def test_collectives_of_ranks_on_hosts_of_their_own_tie_their_clocks(captures):
    """Thread ids mean nothing across hosts; the ends of collectives do."""
    one, two = (read(captures / "healthy" / f"worker_TP{rank}.pt.trace.json.gz").replace() for rank in (0, 1))
    one, two = (
        t.replace(sources=t.sources.with_columns(host=pl.lit(host))) for t, host in ((one, "a"), (two, "b"))
    )
    straight, bent = align([one, two]), align([one, shifted(two, 2_500_000_000, 20)])
    assert bent.sources["anchor_kind"][1] == "ends of collectives"
    assert furthest(straight, bent, 1) <= LIMIT_NS


def test_a_long_drift_moves_durations_and_keeps_nesting(captures):
    """A child still ends inside its parent after the rate was corrected."""
    one, two = (read(captures / "starved" / f"worker_TP{rank}.pt.trace.json.gz") for rank in (0, 1))
    bent = align([one, shifted(two, 0, 20)])
    assert abs(bent.sources["drift_ppb"][1] + 20_000) < 200
    mine = bent.slices.filter((pl.col("source") == 1) & pl.col("category").is_in(["op", "runtime"]))
    truth = align([one, two]).slices.filter(
        (pl.col("source") == 1) & pl.col("category").is_in(["op", "runtime"])
    )
    longest = (mine["dur_ns"].sort() - truth["dur_ns"].sort()).abs().max()
    assert longest < 10 + truth["dur_ns"].max() * 1e-6
