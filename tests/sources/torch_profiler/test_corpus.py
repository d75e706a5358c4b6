"""Other people's traces: counts and sums equal to TRUTH.json, which independent code made, or a refusal."""

import gzip
import json
import math
import random
from collections import Counter
from decimal import Decimal
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
def test_every_event_is_counted_once_and_times_add_up(key, became):
    """Sums in TRUTH.json are floats of µs with three decimals: equal within their precision."""
    truth, batch = TRUTH[key], content(path_of(key)).batch
    phases, intervals = Counter(), Counter()
    for (phase, category), count in batch.tally.items():
        phases[phase] += count
        if phase == "X":
            intervals[category] += count
    assert phases == truth["by_ph"]
    assert intervals == truth["X_by_cat"]
    found = pl.concat([batch.gpu.select("ts", "dur"), batch.spans.select("ts", "dur")])
    want = sum(value for name, value in truth["X_dur_sum_us_by_cat"].items() if name != "Trace")
    assert math.isclose(found["dur"].sum() / 1000, want, rel_tol=1e-9, abs_tol=0.002)
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


@pytest.mark.parametrize(
    "name",
    [
        "rebuilt__issue_kineto-80_invalid_utf8_in_name.json",
        "rebuilt__issue_pytorch-130622_control_char_in_name.json",
        "rebuilt__issue_pytorch-60187_windows_traceName.json",
        "rebuilt__issue_pytorch-98432_windows_backslash.json",
        "rebuilt__nan_infinity_constants.json",
        "rebuilt__nan_infinity_python_style.json",
        "rebuilt__truncated_gzip__HTA_alexnet.json.gz",
        "rebuilt__truncated_mid_event__luatil_trace_05.json",
        "rebuilt__utf8_bom__kineto_docs.json",
        "rebuilt__plain_json_named_gz__kineto_docs.json.gz",
        "rebuilt__gz_named_json__HTA_alexnet.pt.trace.json",
        "rebuilt__gzip_two_members__HTA_alexnet.json.gz",
    ],
)
def test_damaged_files_are_read(corpus, name):
    path = corpus / "kineto" / "handmade" / name
    trace = recognised(path).read().check()
    assert trace.slices.height + trace.gpu_ops.height > 0
    if "truncated" in name:
        assert trace.health.filter(pl.col("level") != "info").height, "a cut file says so"


def test_times_are_exact_to_the_nanosecond(captures):
    """Integer ns of every kernel against Decimal arithmetic on the text of the file."""
    path = captures / "starved" / "worker_TP0.pt.trace.json.gz"
    data = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)
    base = int(data["baseTimeNanoseconds"])
    want = sorted(
        (base + int(Decimal(str(e["ts"])) * 1000), int(Decimal(str(e["dur"])) * 1000), e["name"])
        for e in data["traceEvents"]
        if e.get("cat") == "kernel"
    )
    trace = recognised(path).read()
    kernels = trace.gpu_ops.filter(pl.col("kind") == "kernel").select(
        "ts_ns", "dur_ns", pl.col("name").cast(pl.String)
    )
    assert sorted(kernels.rows()) == want


@pytest.mark.parametrize("folder", ["starved", "healthy", "throttled", "graph"])
def test_every_event_of_the_captures_is_counted_once(captures, folder):
    for path in sorted((captures / folder).glob("*.pt.trace.json.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        want = Counter(e.get("cat") for e in events if e["ph"] == "X")
        trace = recognised(path).read()
        kinds = Counter(trace.gpu_ops["kind"].cast(pl.String).to_list())
        assert (kinds["kernel"], kinds["memcpy"], kinds["memset"]) == (
            want["kernel"],
            want["gpu_memcpy"],
            want["gpu_memset"],
        )
        slices = Counter(trace.slices["category"].cast(pl.String).to_list())
        assert slices["op"] == want["cpu_op"]
        assert (slices["runtime"], slices["driver"]) == (want["cuda_runtime"], want["cuda_driver"])
        assert slices["overhead"] == want["overhead"]
        assert slices["gpu_annotation"] == want["gpu_user_annotation"]


def test_any_cut_gives_exactly_the_whole_events_before_it(captures, tmp_path):
    text = gzip.decompress((captures / "starved" / "engine_core.pt.trace.json.gz").read_bytes())
    first = text.index(b'"traceEvents"')
    random.seed(7)
    for cut in sorted(random.sample(range(first + 3000, len(text) - 2000), 25)):
        path = tmp_path / "cut.json"
        path.write_bytes(text[:cut])
        trace = recognised(path).read()
        # Whole events before the cut: an independent count by the closing braces at depth 1 that json
        # accepts.
        events, at = 0, text.index(b"[", first) + 1
        decoder = json.JSONDecoder()
        body = text[:cut].decode()
        while True:
            while at < len(body) and body[at] in " \n\r\t,":
                at += 1
            try:
                event, at = decoder.raw_decode(body, at)
            except ValueError:
                break
            events += event.get("cat") == "user_annotation"
        assert trace.slices.filter(pl.col("category") == "annotation").height == events
        assert trace.health.filter(pl.col("level") != "info").height
