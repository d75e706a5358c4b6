"""Archives of several ranks: every whole member comes out, and what does not is told of."""

import gzip
import io
import json
import os
import struct
import tarfile
import zipfile
import zlib

import polars as pl
import pytest

import tracelib
from tracelib.cli import main
from tracelib.errors import TraceError, UnknownFormat
from tracelib.sources import archives
from tracelib.sources.archives import is_archive
from tracelib.sources.discovery import discover
from tracelib.sources.files import open_stream

COUNT = 400


def rank_text(rank):
    """A trace of 400 slices that takes some KB however well it is packed."""
    names = [f"{zlib.crc32(bytes([rank, n % 256, n // 256])):08x}" for n in range(COUNT)]
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 100 + rank, "tid": 1, "ts": 10 * n, "dur": 3}
        for n, name in enumerate(names)
    ]
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()


RANKS = [(f"run/rank{rank}/trace.json", rank_text(rank)) for rank in range(3)]
#: What macOS and people put beside traces.
BESIDE = [("__MACOSX/run/._trace.json", b"\0\5\x16\7"), (".DS_Store", b"x"), ("run/notes.txt", b"hello")]


def zipped(members=RANKS, method=zipfile.ZIP_DEFLATED, out=None, **how):
    out = out or io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members:
            entry = zipfile.ZipInfo(name)
            entry.compress_type = method
            with archive.open(entry, "w", **how) as file:
                file.write(data)
    return out.getvalue()


def streamed():
    """As a program writes a zip to a pipe: sizes and checksums stand behind each member."""

    class Pipe(io.BytesIO):
        def seekable(self):
            return False

        def seek(self, *_):
            raise OSError

    return zipped(out=Pipe())


def tarred(form=tarfile.PAX_FORMAT, members=RANKS):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def version_7():
    """A tar of before 1988: its headers have no magic, only a checksum."""
    data = bytearray(tarred(tarfile.USTAR_FORMAT))
    for at in range(0, len(data), 512):
        if data[at + 257 : at + 262] == b"ustar":
            data[at + 257 : at + 345] = bytes(88)
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


@pytest.fixture
def loaded(tmp_path):
    def load(data, name="a.zip"):
        path = tmp_path / name
        path.write_bytes(data)
        run = tracelib.load(path, cache=False)
        counts = run.slices.group_by("source").len().join(run.sources, on="source").select("rank", "len")
        errors = run.health.filter(pl.col("level") == "error")["message"]
        return dict(counts.rows()), " | ".join(errors)

    return load


WHOLE = {
    "zip": zipped(),
    "stored": zipped(method=zipfile.ZIP_STORED),
    "zip64": zipped(force_zip64=True),
    "from a pipe": streamed(),
    "with a file manager's": zipped(BESIDE + RANKS),
    "each in gzip": zipped([(f"{name}.gz", gzip.compress(data)) for name, data in RANKS]),
    "tar": tarred(),
    "tar of version 7": version_7(),
    "tar.gz": gzip.compress(tarred()),
    "tar below .": tarred(members=[(f"./{name}", data) for name, data in RANKS]),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_every_rank_comes_out_and_is_called_by_its_folder(loaded, kind):
    assert loaded(WHOLE[kind]) == ({0: COUNT, 1: COUNT, 2: COUNT}, "")


def place_of(data, rank):
    """Where the header of a rank's member stands."""
    return zipfile.ZipFile(io.BytesIO(data)).infolist()[rank].header_offset


def changed(data, at, new):
    return data[:at] + new + data[at + len(new) :]


def marked(flag=0, method=8):
    """A zip of which rank 1 is said to be packed by `method`, in its header and in the directory."""
    data, here = zipped(), place_of(zipped(), 1)
    listed = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 4)
    field = struct.pack("<HH", flag, method)
    return changed(changed(data, here + 6, field), listed + 8, field)


#: What of rank 1 is lost, and what is said of it.
ONE_LOST = {
    "encrypted": (marked(flag=1), "it is encrypted"),
    "packed by a method that is unknown": (marked(method=9), "packed by method 9"),
    "empty in a damaged zip": (
        zipped([RANKS[0], (RANKS[1][0], b""), RANKS[2]])[:-30],
        "its directory is missing",
    ),
}


@pytest.mark.parametrize("kind", ONE_LOST)
def test_a_member_that_does_not_come_out_costs_no_other(loaded, kind):
    data, said = ONE_LOST[kind]
    counts, errors = loaded(data)
    assert counts == {0: COUNT, 2: COUNT}
    assert said in errors


def test_a_damaged_member_is_read_up_to_the_damage(loaded):
    data = zipped()
    counts, errors = loaded(changed(data, place_of(data, 1) + 3000, b"\xff" * 20))
    assert (counts[0], counts[2]) == (COUNT, COUNT)
    assert 20 < counts[1] < COUNT
    assert "unpacked in part, a member of a.zip" in errors


def test_a_wrong_checksum_is_told(loaded):
    data = zipped(method=zipfile.ZIP_STORED)
    counts, errors = loaded(
        data.replace(b'"pid": 101, "tid": 1, "ts": 1000,', b'"pid": 101, "tid": 1, "ts": 1001,')
    )
    assert counts == {0: COUNT, 1: COUNT, 2: COUNT}
    assert "its checksum is another" in errors


@pytest.mark.parametrize("kind", ["zip", "stored", "zip64", "from a pipe"])
def test_a_cut_zip_gives_what_stands_before_the_cut(loaded, kind):
    data = WHOLE[kind]
    here = place_of(data, 2)
    for cut, third in ((len(data) - 30, COUNT), (here + 2500, None), (here, 0), (here + 20, 0)):
        counts, errors = loaded(data[:cut])
        assert (counts[0], counts[1]) == (COUNT, COUNT)
        assert counts.get(2, 0) == third if third is not None else 10 < counts[2] < COUNT
        assert "its directory is missing" in errors


def test_a_cut_tar_gives_what_stands_before_the_cut(loaded):
    data = tarred()
    here = data.index(b"run/rank2")
    for packed in (bytes, gzip.compress):
        for cut, third in ((here + 512 + 20000, True), (here + 100, False), (here, False)):
            counts, errors = loaded(packed(data[:cut]), "a.tar")
            assert (counts[0], counts[1], counts.get(2, 0) > 10) == (COUNT, COUNT, third)
            assert "a.tar: not readable as an archive" in errors
    counts, errors = loaded(gzip.compress(data)[:-9], "a.tgz")
    assert counts == {0: COUNT, 1: COUNT, 2: COUNT}
    assert "ends early" in errors
    counts, errors = loaded(data + data, "a.tar")
    assert counts == {0: COUNT, 1: COUNT, 2: COUNT}
    assert "holds more behind its end" in errors


def test_what_is_no_trace_is_left_over_and_named(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(zipped([*BESIDE, *RANKS, ("inner.zip", zipped())]))
    traces, others, *_ = discover([path])
    assert len(traces) == 3
    assert [file.name for file in others] == ["notes.txt", "inner.zip"]
    path.write_bytes(marked(flag=1)[: place_of(marked(), 0) + 40])
    with pytest.raises(UnknownFormat, match="its directory is missing"):
        discover([path])


def test_names_lead_nowhere_else(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(
        zipped(
            [
                ("../../out.json", rank_text(0)),
                ("/abs/x.json", rank_text(1)),
                ("n" * 300 + ".json", rank_text(2)),
            ]
        )
    )
    traces = [file.path for file in discover([path]).traces]
    assert [file.name for file in traces] == ["out.json", "x.json", "n" * 195 + ".json"]
    assert len({file.parent.parent for file in traces}) == 1
    assert not (tmp_path.parent / "out.json").exists()


def test_any_cut_or_change_of_an_archive_gives_a_trace_or_a_typed_error(loaded):
    for data, name in ((zipped(), "a.zip"), (tarred(), "a.tar"), (gzip.compress(tarred()), "a.tgz")):
        for at in range(7, len(data), len(data) // 5):
            for broken in (data[:at], changed(data, at, b"\xff\0\x80")):
                try:
                    counts, errors = loaded(broken, name)
                except TraceError:
                    continue
                assert errors or sum(counts.values()) == 3 * COUNT


@pytest.mark.parametrize(
    ("packed", "by"),
    [
        (b"BZh91AY&SY", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"\x04\x22\x4d\x18\x64\x40", "LZ4"),
        (gzip.compress(gzip.compress(b"x")), "gzip twice"),
    ],
    ids=["bzip2", "xz", "LZ4", "gzip twice"],  # gzip's bytes hold the time
)
def test_what_is_packed_otherwise_says_so(tmp_path, packed, by):
    path = tmp_path / "x.json"
    path.write_bytes(packed)
    with pytest.raises(UnknownFormat, match=f"packed by {by}: unpack it first"):
        discover([path])


def test_what_cannot_be_decompressed_says_why(tmp_path):
    """A zstd frame with a window of 1 GiB (`zstd --long=30`): magic, descriptor, window, one raw block."""
    pytest.importorskip("zstandard")
    path = tmp_path / "x.json.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd\x00\xa0\x09\x00\x00x")
    with pytest.raises(UnknownFormat, match=r"nothing can be decompressed from it \(.*too much memory"):
        discover([path])


def test_text_is_no_archive(tmp_path):
    path = tmp_path / "x"
    for data in (b"", b"\0" * 512, b"text\n" * 200, tarred()[:400]):
        path.write_bytes(data)
        assert not is_archive(path.read_bytes())


def whole(path):
    with open_stream(path) as stream:
        return stream.readall(), stream.damage


def test_members_are_read_across_what_may_stand_between_them(tmp_path):
    """Zeros of any length, and the frames of zstd that hold data of others."""
    zstandard = pytest.importorskip("zstandard")
    path, data = tmp_path / "x", rank_text(0)
    one, two = data[:5000], data[5000:]
    skipped = struct.pack("<II", 0x184D2A5B, 4) + b"abcd"
    for pack, between in (
        (gzip.compress, bytes(200_000)),
        (zstandard.compress, skipped),
        (zstandard.compress, b""),
    ):
        for before in (b"", between if pack is zstandard.compress else b""):
            path.write_bytes(before + pack(one) + between + pack(two))
            assert whole(path) == (data, None)


def test_a_damaged_stream_is_read_up_to_the_damage(tmp_path):
    """Also in a member whose last block the decompressor keeps to itself once a checksum is wrong."""
    path, data = tmp_path / "x", rank_text(0) * 20
    packed = gzip.compress(data)
    path.write_bytes(packed[:-8] + bytes(8))
    found, damage = whole(path)
    assert found == data
    assert "damaged" in damage
    path.write_bytes(gzip.compress(b"first") + changed(packed, len(packed) // 2, b"\xff" * 20))
    found, damage = whole(path)
    assert found.startswith(b"first" + data[: len(data) // 4])
    assert "damaged" in damage


def oversized():
    """A tar whose only header declares more bytes than there will ever be."""
    entry = tarfile.TarInfo("trace.json")
    entry.size = 1 << 50
    return entry.tobuf(tarfile.GNU_FORMAT) + RANKS[0][1]


def sparse(content=b"1"):
    """A tar with a sparse file as GNU tar writes it: the map of its holes stands before its bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        entry = tarfile.TarInfo("trace.json")
        entry.size = len(content)
        entry.pax_headers = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.realsize": str(1 << 50),
        }
        tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def overlapping(count=500):
    """A zip whose directory names one member many times."""
    data = zipped(RANKS[:1])
    at = data.index(b"PK\x01\x02")
    directory, end = data[at : data.index(b"PK\x05\x06")], data[data.index(b"PK\x05\x06") :]
    tail = struct.pack("<4sHHHHIIH", end[:4], 0, 0, count, count, count * len(directory), at, 0)
    return data[:at] + directory * count + tail


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (sparse(), "its headers make no sense"),
        (sparse(b"1\n0\n1\n".ljust(512, b"\0")), "sparse"),
        (overlapping(), "its members overlap"),
    ],
)
def test_archives_made_to_explode_are_refused_and_stop_no_folder(tmp_path, data, reason):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "odd.tar").write_bytes(data)
    with pytest.raises(UnknownFormat, match=reason):
        discover([tmp_path / "run" / "odd.tar"])
    (tmp_path / "run" / "trace.json").write_bytes(RANKS[0][1])
    assert [trace.path.name for trace in discover([tmp_path / "run"]).traces] == ["trace.json"]


def test_a_tar_that_declares_more_than_there_is_ends(loaded):
    counts, errors = loaded(oversized(), "a.tar")
    assert 300 < sum(counts.values()) <= COUNT  # the block in which it ends is lost
    assert "unpacked in part" in errors


def test_an_archive_unpacks_to_a_multiple_of_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "ALWAYS", 0)
    (tmp_path / "bomb.zip").write_bytes(zipped([("trace.json", RANKS[0][1] + b" " * (1 << 24))]))
    with pytest.raises(UnknownFormat, match="250 times its size"):
        discover([tmp_path / "bomb.zip"])


def test_names_that_are_no_utf_8_are_read_and_shown(tmp_path):
    folder = tmp_path / os.fsdecode(b"f\xff")
    folder.mkdir()
    (folder / os.fsdecode(b"g\xff.json")).write_bytes(RANKS[0][1])
    (folder / os.fsdecode(b"notes\xff.txt")).write_text("x")
    run = tracelib.load(folder, cache=False)
    assert run.sources["file"].to_list() == ["g\ufffd.json"]
    assert run.health["message"].str.contains("notes\ufffd.txt").any()
    assert main(["inspect", str(folder / os.fsdecode(b"g\xff.json"))]) == 0
    assert main(["report", str(folder), "-o", str(tmp_path / "out")]) == 2
    assert main(["export", str(folder), "--to", "chrome", "-o", str(tmp_path / "out.json")]) == 0


def test_an_archive_of_very_many_members_is_unpacked_up_to_a_bound_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_MEMBERS", 4)
    path = tmp_path / "a.zip"
    path.write_bytes(zipped([*RANKS, *((f"notes/{n}.txt", b"hello") for n in range(9))]))
    trace = tracelib.load(path)
    assert trace.sources.height == 3
    assert [row["message"] for row in trace.health.rows(named=True) if "more than 4 files" in row["message"]]
    assert len(discover([path]).others) == 1


def test_members_of_one_folder_are_unpacked_together_and_two_of_one_name_apart(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(
        zipped([("a/x.json", rank_text(0)), ("a/y.json", rank_text(1)), ("b/x.json", rank_text(2))])
    )
    one, two, three = (trace.path for trace in discover([path]).traces)
    assert [one.name, two.name, three.name] == ["a-x.json", "y.json", "b-x.json"]
    assert one.parent == two.parent != three.parent
