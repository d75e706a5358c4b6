"""Every file of the corpus: counts and sums equal to TRUTH.json, which independent code made, or a refusal."""

import json
import math
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from tests.conftest import SHARED
from tracelib.errors import UnknownFormat
from tracelib.sources.discovery import discover, recognised
from tracelib.sources.torch_profiler import read
from tracelib.sources.torch_profiler.events import gpu_kind, slice_category
from tracelib.sources.torch_profiler.reader import content

TRUTH_FILE = SHARED / "corpus" / "TRUTH.json"
TRUTH = json.loads(TRUTH_FILE.read_text()) if TRUTH_FILE.is_file() else {}
KEYS = sorted(key for key in TRUTH if key.startswith(("kineto/", "chrome_json/")))
#: Files without one event, and the lists of something else.
REFUSED = {
    key
    for key in KEYS
    if "not_kineto/" in key
    or key.endswith(("rebuilt__empty_array.json", "rebuilt__zero_bytes.json", "mock_events.json"))
}
ARCHIVES = {key for key in KEYS if key.endswith("dlrm_kineto.tar.gz")}
WHOLE = [key for key in KEYS if key not in REFUSED | ARCHIVES and "by_ph" in TRUTH[key]]
#: Invalid JSON: what a person counts in them. Intervals that must come out, and a word that health must have.
DAMAGED = {
    "rebuilt__issue_pytorch-130622_control_char_in_name.json": (2, "repaired"),
    "rebuilt__issue_pytorch-60187_windows_traceName.json": (1, ""),
    "rebuilt__issue_pytorch-98432_windows_backslash.json": (2, "repaired"),
    "rebuilt__nan_infinity_constants.json": (2, "repaired"),
    "rebuilt__truncated_gzip__HTA_alexnet.json.gz": (649, "compressed data ends early"),
    "rebuilt__truncated_mid_event__luatil_trace_05.json": (1674, "cut short"),
}

pytestmark = pytest.mark.corpus
needs_corpus = pytest.mark.skipif(not TRUTH, reason=f"{TRUTH_FILE} is absent: set TRACELIB_SHARED")


def path_of(key: str) -> Path:
    return SHARED / "corpus" / key


@needs_corpus
@pytest.mark.parametrize("key", WHOLE)
def test_every_event_is_counted_once(key, became):
    truth, batch = TRUTH[key], content(path_of(key)).batch
    phases, intervals = Counter(), Counter()
    for (phase, category), count in batch.tally.items():
        phases[phase] += count
        if phase == "X":
            intervals[category] += count
    assert phases == truth["by_ph"]
    assert intervals == truth["X_by_cat"]
    became(key.split("/")[0], "equal to the truth")


@needs_corpus
@pytest.mark.parametrize("key", WHOLE)
def test_frames_hold_what_the_file_holds(key):
    truth, trace = TRUTH[key], read(path_of(key))
    intervals = Counter(truth["X_by_cat"])
    kinds = Counter(dict.fromkeys(("kernel", "memcpy", "memset"), 0))
    categories = Counter()
    for name, count in intervals.items():
        category = None if name == "None" else name
        if gpu_kind(category):
            kinds[gpu_kind(category)] += count
        elif name != "Trace":
            categories[slice_category(category)] += count
    assert Counter(trace.gpu_ops["kind"].cast(pl.String)) == +kinds
    found = Counter(trace.slices["category"].cast(pl.String))
    found["other"] = categories["other"] = 0  # instants and pairs go there too: the other tests count them
    assert +found == +categories


@needs_corpus
@pytest.mark.parametrize("key", WHOLE)
def test_times_add_up_to_those_of_the_file(key):
    """Sums and extremes of TRUTH.json are floats of µs with three decimals: equal within their precision."""
    truth, batch = TRUTH[key], content(path_of(key)).batch
    found = pl.concat([batch.gpu.select("ts", "dur"), batch.spans.select("ts", "dur")])
    want = sum(value for name, value in truth["X_dur_sum_us_by_cat"].items() if name != "Trace")
    assert math.isclose(found["dur"].sum() / 1000, want, rel_tol=1e-9, abs_tol=0.002)


@needs_corpus
@pytest.mark.parametrize("key", sorted(REFUSED))
def test_what_is_no_trace_is_refused(key, became):
    with pytest.raises(UnknownFormat, match="Give a trace file"):
        recognised(path_of(key))
    with pytest.raises(UnknownFormat):
        discover([path_of(key)])
    became(key.split("/")[0], "refused as expected")


@needs_corpus
@pytest.mark.parametrize(("name", "expected"), DAMAGED.items())
def test_damaged_files_give_what_is_whole_and_say_so(name, expected, became):
    intervals, remark = expected
    trace = read(path_of(f"kineto/handmade/{name}"))
    assert trace.slices.height + trace.gpu_ops.height == intervals
    serious = trace.health.filter(pl.col("level") != "info")["message"]
    assert not remark or serious.str.contains(remark).any()
    became("kineto", "salvaged")


@needs_corpus
@pytest.mark.parametrize("key", sorted(ARCHIVES))
def test_an_archive_is_the_ranks_in_it(key, became):
    files = [file.path for file in discover([path_of(key)]).traces]
    ranks = {read(file).sources["rank"][0]: file for file in files}
    assert sorted(ranks) == list(range(8))
    for file in ranks.values():
        beside = path_of(f"kineto/facebookresearch__param__dlrm_8ranks/{file.name}")
        assert file.read_bytes() == beside.read_bytes()
    became("kineto", "equal to the truth")
