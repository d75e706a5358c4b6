"""Other people's recordings: counts equal to the truth, or a refusal that names the reason."""

import json
import shutil

import polars as pl
import pytest

from tracelib.errors import BadTrace
from tracelib.sources.files import head
from tracelib.sources.perf import read, sniff

#: perf.data that perf 6.1 cannot read: newer recorders (attribute entries of 152 bytes, compression of the
#: second kind), and one damaged on purpose. A newer perf may read the first three kinds.
MAY_BE_REFUSED = (
    "SeanTater__copyforward",
    "githedgehog__dataplane",
    "fibo.compressed2",
    "sleep.compressed",
    "zero_size_sample",
)


def _truth(corpus, folder):
    truth = json.loads((corpus / "TRUTH.json").read_text())
    return {
        name: counts
        for name, counts in truth.items()
        if name.startswith(folder) and (corpus / name).is_file()
    }


def _ns(text):
    seconds, fraction = text.split(".")
    return int(seconds) * 10**9 + int(fraction.ljust(9, "0"))


def test_texts_hold_what_the_truth_counts(corpus, became):
    files = _truth(corpus, "perf_script/")
    assert len(files) >= 17
    for name, truth in files.items():
        path = corpus / name
        assert sniff(head(path), path.name), name
        trace = read(path)
        events = dict(trace.samples["event"].cast(pl.String).value_counts().iter_rows())
        chained = trace.samples.join(trace.stacks.group_by("stack").len(), on="stack", how="left")
        if truth["frame_lines"]:
            assert chained["len"].sum() == truth["frame_lines"], name
        found = {
            "by_event": events,
            "total_period": trace.samples["period"].sum(),
            "samples_with_cpu": trace.samples["cpu"].count(),
            "samples_with_period": trace.samples["period"].count(),
            "distinct_tid": trace.samples["thread"].n_unique(),
            "first": trace.sources["first_ns"][0],
            "last": trace.sources["last_ns"][0],
        }
        expected = {key: truth[key] for key in found if key in truth}
        assert found == expected | {"first": _ns(truth["time_first"]), "last": _ns(truth["time_last"])}, name
        assert trace.sources["skipped_bytes"][0] == 0, name
        became("perf_script", "equal to the truth")


def test_instruction_trace_errors_are_losses(corpus):
    (name,) = [n for n in _truth(corpus, "perf_script/") if n.endswith("cpu_wide_tiny.txt")]
    assert read(corpus / name).sources["lost_declared"][0] == 1


def test_no_file_of_another_format_is_taken_for_perf(corpus):
    others = [
        p
        for folder in ("ftrace", "kineto", "chrome_json", "nsys")
        for p in (corpus / folder).rglob("*")
        if p.is_file()
    ]
    assert len(others) > 30
    wrong = [path.name for path in others if sniff(head(path), path.name)]
    assert wrong == []


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_recordings_hold_what_the_truth_counts_or_perf_refuses_them(corpus, became):
    files = _truth(corpus, "perf_data/")
    assert len(files) >= 20
    read_whole = 0
    for name, truth in files.items():
        path = corpus / name
        assert sniff(head(path), path.name), name
        try:
            trace = read(path)
        except BadTrace as error:
            assert any(part in name for part in MAY_BE_REFUSED), error
            assert "perf script --header --ns" in str(error)
            became("perf_data", "refused as expected")
            continue
        assert trace.samples.height + trace.sched.height == truth["n_samples"], name
        assert trace.sources["file"][0] == path.name
        read_whole += 1
        became("perf_data", "equal to the truth")
    assert read_whole >= 15


def test_without_perf_a_recording_names_the_command(corpus, monkeypatch):
    path = corpus / next(iter(_truth(corpus, "perf_data/")))
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(
        BadTrace, match=r"no perf is installed here.*perf script --header --ns .* > perf\.txt"
    ):
        read(path)
