"""A second load gives the same frames without reading the file; a broken cache costs time only."""

import ast
import gzip
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import tracelib
from tests.conftest import ROOT
from tracelib.sources import cache as module
from tracelib.sources import files, programs, torch_profiler
from tracelib.sources.cache import Cache
from tracelib.sources.discovery import recognised
from tracelib.sources.format import TraceFile
from tracelib.sources.programs import Scratch
from tracelib.trace import Trace

SAMPLE = ROOT / "sample_traces" / "starved" / "engine_core.pt.trace.json.gz"
LONG_AGO = 10**9 * 1_600_000_000


@pytest.fixture(autouse=True)
def small_files_too(monkeypatch):
    monkeypatch.setattr(module, "SMALLEST", 0)


@pytest.fixture
def trace_file(tmp_path):
    return shutil.copy(SAMPLE, tmp_path / SAMPLE.name)


class Counted:
    """Files of the PyTorch Profiler, of which it is counted how often they are read."""

    def __init__(self):
        self.reads = 0

    def __call__(self, path):
        return TraceFile(path, replace(torch_profiler.FORMAT, read=self._read))

    def _read(self, path):
        self.reads += 1
        return torch_profiler.read(path)


def same(one: Trace, other: Trace) -> bool:
    return all(
        one.frames()[name].equals(rows) and one.frames()[name].schema == rows.schema
        for name, rows in other.frames().items()
    )


def entries(cache):
    return sorted(cache.folder.glob("frames/*"))


def test_a_second_read_is_equal_and_does_not_read(tmp_path, trace_file):
    cache, reader = Cache(tmp_path / "cache"), Counted()
    first, second = cache.read(reader(trace_file)), cache.read(reader(trace_file))
    assert reader.reads == 1
    assert same(first, second)
    assert same(second, torch_profiler.read(trace_file))


def test_a_copy_elsewhere_is_found_and_other_content_or_name_is_not(tmp_path, trace_file):
    cache, reader = Cache(tmp_path / "cache"), Counted()
    cache.read(reader(trace_file))
    (tmp_path / "there").mkdir()
    cache.read(reader(Path(shutil.copy(trace_file, tmp_path / "there"))))
    assert reader.reads == 1
    renamed = cache.read(reader(Path(shutil.copy(trace_file, tmp_path / "rank5.json.gz"))))
    assert (reader.reads, renamed.sources["rank"][0], renamed.sources["file"][0]) == (2, 5, "rank5.json.gz")
    text = gzip.decompress(trace_file.read_bytes())
    trace_file.write_bytes(gzip.compress(text + b" "))
    cache.read(reader(trace_file))
    assert reader.reads == 3


def _imports(path):
    """Return the files of tracelib that the one at `path` imports; unless it is a reader's, on loading."""
    tree = ast.parse(path.read_text())
    reader = path.is_relative_to(module.PACKAGE / "sources")
    for node in ast.walk(tree) if reader else tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tracelib"):
            for name in (node.module, *(f"{node.module}.{each.name}" for each in node.names)):
                place = module.PACKAGE.parent / name.replace(".", "/")
                yield from (
                    file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()
                )


def test_the_key_knows_all_source_text_that_readers_use():
    front = module.PACKAGE / "__init__.py"  # names that are loaded when they are used
    waiting, used = list((module.PACKAGE / "sources").rglob("*.py")), {front}
    while waiting:
        new = set(_imports(waiting.pop())) - used
        waiting, used = [*waiting, *new], used | new
    names = {str(file.relative_to(module.PACKAGE)) for file in used - {front}}
    assert {name for name in names if not name.startswith("sources/")} == set(module.USED_BY_READERS)


@pytest.mark.parametrize(
    "name", ["sources/torch_profiler/frames.py", "sources/torch_profiler/json.h", "schema.py", "schema.toml"]
)
def test_a_change_of_the_reader_makes_entries_of_its_own(tmp_path, trace_file, monkeypatch, name):
    cache, reader = Cache(tmp_path / "cache"), Counted()
    cache.read(reader(trace_file))
    copy = Path(shutil.copytree(module.PACKAGE, tmp_path / "tracelib", ignore=shutil.ignore_patterns("*.so")))
    monkeypatch.setattr(module, "PACKAGE", copy)
    cache.read(reader(trace_file))
    assert reader.reads == 1
    (copy / name).write_text("# another definition\n")
    module._source_version.cache_clear()
    cache.read(reader(trace_file))
    assert reader.reads == 2


def _installed(folder, name, version, changed):
    program = folder / name
    program.write_text(f"#!/bin/sh\necho {name} {version}\n")
    program.chmod(0o755)
    os.utime(program, ns=(changed, changed))


@pytest.mark.parametrize(
    ("program", "start"),
    [("perf", b"PERFILE2"), ("nsys", b"NVIDIA Tegra Profiler Report"), ("trace-cmd", b"\x17\x08\x44tracing")],
)
def test_another_version_of_the_converter_makes_entries_of_its_own(tmp_path, monkeypatch, program, start):
    recording, cache = tmp_path / "recording", Cache(tmp_path / "cache")
    recording.write_bytes(start + bytes(100))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    keys = []
    for version, changed in (("6.1", LONG_AGO), ("6.1", LONG_AGO), ("6.2", LONG_AGO)):
        _installed(tmp_path, program, version, changed)
        module._version.cache_clear()
        keys.append(cache._key(recognised(recording)))
    module._version.cache_clear()
    assert keys[0] == keys[1] != keys[2]
    text = tmp_path / "text"
    text.write_bytes(b"read by ourselves")
    assert module._program_version(replace(recognised(recording), head=text.read_bytes())) == ""


def test_content_is_hashed_again_only_when_the_file_may_have_changed(tmp_path, trace_file, monkeypatch):
    hashed = []
    monkeypatch.setattr(module, "sha256", lambda path: hashed.append(path) or files.sha256(path))
    monkeypatch.setattr(module, "RACY_NS", 0)
    cache = Cache(tmp_path / "cache")
    digests = [cache._content(trace_file) for _ in range(3)]
    assert (len(hashed), set(digests)) == (1, {files.sha256(trace_file)})
    os.utime(
        trace_file, ns=(LONG_AGO, LONG_AGO)
    )  # the modification time turned back: the time of change still tells
    changed = bytearray(trace_file.read_bytes())
    changed[-1] ^= 1
    trace_file.write_bytes(changed)
    os.utime(trace_file, ns=(LONG_AGO, LONG_AGO))
    assert cache._content(trace_file) != digests[0]
    assert len(hashed) == 2


def test_what_has_just_been_modified_is_not_remembered(tmp_path, trace_file, monkeypatch):
    monkeypatch.setattr(module, "RACY_NS", 10**18)
    cache = Cache(tmp_path / "cache")
    cache._content(trace_file)
    assert not list(cache.folder.glob("files/*"))


def _flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x40
    file.write_bytes(data)


def _other_columns(entry):
    pl.DataFrame({"a": [1]}).write_parquet(entry / "gpus-0.parquet")
    (entry / "checksums.json").write_text(json.dumps(module._checksums(entry)))


DAMAGE = {
    "a byte flipped": lambda entry: _flip(entry / "slices-0.parquet"),
    "cut short": lambda entry: (entry / "slices-0.parquet").write_bytes(b"PAR1"),
    "a frame missing": lambda entry: (entry / "gpus-0.parquet").unlink(),
    "no checksums": lambda entry: (entry / "checksums.json").unlink(),
    "checksums are no JSON": lambda entry: (entry / "checksums.json").write_text("{"),
    "other columns": _other_columns,
    "emptied": lambda entry: [file.unlink() for file in entry.iterdir()],
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_broken_entry_is_replaced_and_said(tmp_path, trace_file, kind):
    cache, reader = Cache(tmp_path / "cache"), Counted()
    first = cache.read(reader(trace_file))
    (entry,) = entries(cache)
    DAMAGE[kind](entry)
    again = cache.read(reader(trace_file))
    assert "the cache's copy was broken and was replaced" in again.health["message"][-1]
    assert same(first, again.replace(health=again.health[:-1]))
    assert same(first, cache.read(reader(trace_file)))
    assert reader.reads == 2
    assert entries(cache) == [entry]


def test_an_entry_appears_whole_or_not_at_all(tmp_path, trace_file, monkeypatch):
    cache, reader = Cache(tmp_path / "cache"), Counted()
    with monkeypatch.context() as broken:
        broken.setattr(
            module, "_checksums", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        trace = cache.read(reader(trace_file))
    assert "not kept in the cache" in trace.health["message"][-1]
    assert "No space left" in trace.health["message"][-1]
    assert entries(cache) == []
    cache.read(reader(trace_file))
    assert reader.reads == 2


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path, trace_file):
    (tmp_path / "cache").write_text("a file, no folder")
    trace = Cache(tmp_path / "cache").read(Counted()(trace_file))
    assert "not kept in the cache" in trace.health["message"][-1]
    assert same(torch_profiler.read(trace_file), trace.replace(health=trace.health[:-1]))


def test_a_full_disk_costs_nothing_but_time(tmp_path, trace_file, monkeypatch):
    def full(*_, **__):
        raise pl.exceptions.ComputeError("No space left on device (os error 28)")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    cache = Cache(tmp_path / "cache")
    trace = cache.read(Counted()(trace_file))
    assert "No space left" in trace.health["message"][-1]
    assert entries(cache) == []


def test_the_folder_is_its_owner_s_alone(tmp_path, trace_file, monkeypatch):
    cache, reader = Cache(tmp_path / "cache"), Counted()
    cache.folder.mkdir(mode=0o755)
    cache.read(reader(trace_file))
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    os.chown(cache.folder, 12345, -1)
    trace = cache.read(reader(trace_file))
    assert "another user's (TRACELIB_CACHE_SHARED=yes" in trace.health["message"][-1]
    assert reader.reads == 2
    monkeypatch.setenv("TRACELIB_CACHE_SHARED", "yes")
    cache.read(reader(trace_file))
    assert reader.reads == 2


def test_the_least_used_entries_go_when_the_limit_is_passed(tmp_path, trace_file):
    cache, reader = Cache(tmp_path / "cache"), Counted()
    paths = [Path(shutil.copy(trace_file, tmp_path / f"rank{rank}.json.gz")) for rank in range(3)]
    for number, path in enumerate(paths[:2]):
        before = set(entries(cache))
        cache.read(reader(path))
        (made,) = set(entries(cache)) - before
        os.utime(made, (number, number))
    size = sum(file.stat().st_size for file in made.iterdir())
    cache.read(reader(paths[0]))  # used again: now the other one is older
    Cache(cache.folder, limit=int(2.5 * size)).read(reader(paths[2]))
    assert len(entries(cache)) == 2
    assert reader.reads == 3
    cache.read(reader(paths[0]))
    assert reader.reads == 3
    cache.read(reader(paths[1]))
    assert reader.reads == 4


def test_leftovers_of_dead_processes_are_removed_and_count_as_no_entry(tmp_path, trace_file, monkeypatch):
    monkeypatch.setattr(programs, "YOUNG_S", -1)
    cache = Cache(tmp_path / "cache", limit=0)
    dead = cache.folder / "frames" / ".tracelib-scratch-abcdefgh"
    dead.mkdir(parents=True)
    with Scratch(dead.parent) as alive:
        cache.read(Counted()(trace_file))
        assert list(dead.parent.iterdir()) == [Path(alive)]


def test_load_uses_it_as_the_flag_and_the_variable_say(tmp_path, trace_file, monkeypatch):
    monkeypatch.setenv("TRACELIB_CACHE", str(tmp_path / "cache"))
    tracelib.load(trace_file, cache=False)
    assert not (tmp_path / "cache").exists()
    first, second = tracelib.load(trace_file), tracelib.load(trace_file)
    assert len(entries(Cache(tmp_path / "cache"))) == 1
    assert same(first, second)
    monkeypatch.setenv("TRACELIB_CACHE", "off")
    assert module.cache(None) is None
    assert module.cache(wanted=True).folder.name == "tracelib"


def test_parquet_round_trip_and_a_missing_frame(tmp_path, trace_file):
    trace = torch_profiler.read(trace_file)
    trace.to_parquet(tmp_path / "kept")
    assert same(trace, Trace.from_parquet(tmp_path / "kept"))
    (tmp_path / "kept" / "sched-0.parquet").unlink()
    with pytest.raises(FileNotFoundError, match="sched"):
        Trace.from_parquet(tmp_path / "kept")


def test_parts_are_read_in_the_order_of_their_numbers(tmp_path, trace_file):
    trace = torch_profiler.read(trace_file)
    trace.to_parquet(tmp_path)
    (tmp_path / "slices-0.parquet").unlink()
    for part in range(11):
        rows = trace.slices[part * 5 : part * 5 + 5] if part < 10 else trace.slices[50:]
        rows.write_parquet(tmp_path / f"slices-{part}.parquet")
    assert same(trace, Trace.from_parquet(tmp_path))
