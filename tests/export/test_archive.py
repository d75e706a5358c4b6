"""The archive holds the files as they are, and says how their clocks stand."""

import gzip
import json
import tarfile

import polars as pl
import pytest

from tests.cut import reference
from tracelib.errors import TraceError
from tracelib.export.archive import MANIFEST, write_archive


def test_the_archive_holds_the_files_and_says_how_their_clocks_stand(results, folder, tmp_path):
    files = sorted(folder.iterdir())
    assert write_archive(results.trace, files, tmp_path / "run.tar") == []
    with tarfile.open(tmp_path / "run.tar") as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}
        assert all(m.uname == m.gname == "" and m.uid == m.gid == 0 for m in archive.getmembers())
    text = members.pop(MANIFEST)
    assert members == {path.name: path.read_bytes() for path in files}
    assert text.startswith(b'{"perfetto_manifest"')
    made = json.loads(text)["perfetto_manifest"]
    assert made["version"] == 1
    entries = {entry["path"]: entry for entry in made["files"]}
    assert set(entries) == set(members)
    assert "clocks" not in entries["perf.txt.gz"]
    clocks = entries["worker_TP0.pt.trace.json.gz"]["clocks"]
    assert clocks["sync_to"] == {"file": "perf.txt.gz", "clock": "MONOTONIC"}
    assert "clock" not in clocks  # pinned: Perfetto takes Kineto's times as they stand
    # By hand: wall = base + ts, and perf's header says what wall time less monotonic time is.
    base = json.loads(gzip.decompress(members["worker_TP0.pt.trace.json.gz"]))["baseTimeNanoseconds"]
    apart = reference(gzip.decompress(members["perf.txt.gz"]).decode())
    assert abs(clocks["offset_ns"] - (base - apart)) <= 1000  # the header gives microseconds


def test_files_that_perfetto_does_not_open_are_named(results, tmp_path):
    foreign = results.trace.replace(sources=results.trace.sources.with_columns(format=pl.lit("nsys")))
    with pytest.raises(TraceError, match=r"Perfetto does not read nsys.*Use --to perfetto"):
        write_archive(foreign, [], tmp_path / "run.tar")
    assert not (tmp_path / "run.tar").exists()
