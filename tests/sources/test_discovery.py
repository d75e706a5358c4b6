"""Which files are traces: each is looked at once, and what is refused says what it is."""

import gzip
import shutil
from collections import Counter
from dataclasses import replace

import polars as pl
import pytest

import tracelib
from tests.conftest import ROOT
from tracelib import cli, sources
from tracelib.errors import UnknownFormat
from tracelib.sources import discovery

SAMPLE = ROOT / "sample_traces" / "starved"
#: Two packets of Perfetto's format: field 1 with its length, a timestamp in each.
PERFETTO = b"\x0a\x02\x40\x01\x0a\x02\x40\x02"


def _load(folder, cache):
    tracelib.load(folder, cache=cache)


def _export(folder, _):
    to = str(folder.parent / "run.tar")  # whole: a redacted copy is read as any file
    assert cli.main(["export", str(folder), "--to", "archive", "--redact", "off", "-o", to]) == 0


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("use", [_load, _export])
def test_each_file_is_looked_at_once(tmp_path, monkeypatch, use, cache):
    monkeypatch.setenv("TRACELIB_CACHE", str(tmp_path / "cache") if cache else "off")
    asked, heads = Counter(), Counter()

    def counted(each):
        def sniff(head, name):
            asked[each.name, name] += 1
            return each.sniff(head, name)

        return replace(each, sniff=sniff)

    def head(path, *size):
        heads[path.name] += 1
        return original(path, *size)

    original = discovery.head
    monkeypatch.setattr(sources, "FORMATS", tuple(map(counted, sources.FORMATS)))
    monkeypatch.setattr(discovery, "head", head)
    folder = shutil.copytree(SAMPLE, tmp_path / "run")
    use(folder, cache)
    files = {file.name for file in folder.iterdir() if file.is_file()}
    assert set(heads) == files
    assert set(heads.values()) == {1}
    assert {name for _, name in asked} == files
    assert set(asked.values()) == {1}


def test_a_perfetto_trace_is_refused_with_what_to_do_instead(tmp_path):
    path = tmp_path / "run.pftrace"
    path.write_bytes(PERFETTO)
    refused = "a trace in Perfetto's own format, .*`traceconv systrace IN OUT`"
    with pytest.raises(UnknownFormat, match=refused):
        tracelib.load(path)
    with pytest.raises(UnknownFormat, match=f"its only file is not a trace; run.pftrace is {refused}"):
        tracelib.load(tmp_path)
    shutil.copy(SAMPLE / "perf.txt.gz", tmp_path)
    warnings = tracelib.load(tmp_path).health.filter(pl.col("level") == "warning")["message"]
    assert warnings.str.contains(f"^run.pftrace is left out: it is {refused}").sum() == 1


def test_a_packed_perfetto_trace_is_refused_too(tmp_path):
    path = tmp_path / "run.pftrace.gz"
    path.write_bytes(gzip.compress(PERFETTO))
    with pytest.raises(UnknownFormat, match="a trace in Perfetto's own format"):
        tracelib.load(path)


@pytest.mark.parametrize("name", ["run.pftrace", "run.perfetto-trace"])
def test_what_is_only_called_so_is_told_by_its_content(tmp_path, name):
    path = shutil.copy(SAMPLE / "perf.txt.gz", tmp_path / name)
    assert discovery.recognised(path).format.name == "perf"
