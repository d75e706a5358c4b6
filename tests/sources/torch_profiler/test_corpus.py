"""Other people's traces: counts and times equal to those of independent code (TRUTH.json), or an expected refusal."""

import json
from collections import Counter
from decimal import Decimal

import polars as pl
import pytest

from tracelib.errors import UnknownFormat
from tracelib.sources.discovery import recognised

pytestmark = pytest.mark.corpus

KERNELS, COPIES, SETS = (
    ("kernel", "Kernel", "mtia_ccp_events"),
    ("gpu_memcpy", "Memcpy"),
    ("gpu_memset", "Memset"),
)
OPS = ("cpu_op", "Operator")
REFUSED = {
    "kineto/facebookresearch__param__et_replay__tests__inputs__dlrm_kineto.tar.gz",  # an archive of several files
    "kineto/handmade/intel__torch-xpu-ops__test__xpu__profiler__profiler_utils_mock_events.json",  # a bare object, no events
    "kineto/handmade/rebuilt__empty_array.json",
    "kineto/handmade/rebuilt__zero_bytes.json",
}


@pytest.fixture(scope="module")
def truth(corpus):
    return json.loads((corpus / "TRUTH.json").read_text())


def of(expected, names):
    return sum(expected["X_by_cat"].get(name, 0) for name in names)


def test_counts_per_category_equal_the_truth(corpus, truth, record_property):
    checked = []
    for key, expected in sorted(truth.items()):
        if not key.startswith("kineto/") or "not_kineto" in key or not expected.get("valid_json"):
            continue
        if key in REFUSED:
            with pytest.raises(UnknownFormat):
                recognised(corpus / key)
            continue
        trace = recognised(corpus / key).read()
        found = Counter(trace.gpu_ops["kind"].cast(pl.String).to_list())
        want = {"kernel": of(expected, KERNELS), "memcpy": of(expected, COPIES), "memset": of(expected, SETS)}
        quarantined = sum(want.values()) - trace.gpu_ops.height
        if quarantined:
            assert trace.health["message"].str.contains("time|duplicate|twice").any(), key
        else:
            assert {kind: found.get(kind, 0) for kind in want} == want, key
        assert trace.slices.filter(pl.col("category") == "op").height == of(expected, OPS), key
        checked.append(key)
    record_property("kineto files equal to the truth", len(checked))
    assert len(checked) >= 40


@pytest.mark.parametrize("folder", ["not_kineto"])
def test_files_that_only_look_like_traces_are_refused(corpus, folder):
    for path in sorted((corpus / "kineto" / folder).iterdir()):
        with pytest.raises(UnknownFormat, match="Give a trace file"):
            recognised(path)


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
def test_damaged_files_give_what_is_whole(corpus, name):
    path = corpus / "kineto" / "handmade" / name
    trace = recognised(path).read().check()
    assert trace.slices.height + trace.gpu_ops.height > 0
    if "truncated" in name:
        assert trace.health.filter(pl.col("level") != "info").height, "a cut file says so"


def test_times_are_exact_to_the_nanosecond(captures):
    """Integer ns of every kernel against Decimal arithmetic on the text of the file."""
    import gzip

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
    import gzip

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
        found = Counter(trace.slices["category"].cast(pl.String).to_list())
        assert found["op"] == want["cpu_op"]
        assert (found["runtime"], found["driver"]) == (want["cuda_runtime"], want["cuda_driver"])
        assert found["overhead"] == want["overhead"]
        assert found["gpu_annotation"] == want["gpu_user_annotation"]


def test_any_cut_gives_exactly_the_whole_events_before_it(captures, tmp_path):
    import gzip
    import random

    text = gzip.decompress((captures / "starved" / "engine_core.pt.trace.json.gz").read_bytes())
    first = text.index(b'"traceEvents"')
    random.seed(7)
    for cut in sorted(random.sample(range(first + 3000, len(text) - 2000), 25)):
        path = tmp_path / "cut.json"
        path.write_bytes(text[:cut])
        trace = recognised(path).read()
        # Whole events before the cut: an independent count by the closing braces at depth 1 that json accepts.
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
