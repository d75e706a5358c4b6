"""The compiled pass: it is there, reads nothing beyond its text, and is never one of another version."""

import ctypes
import gzip
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import hatch_build
from tests.conftest import ROOT
from tests.sources.torch_profiler.agreement import chunks_of
from tracelib.sources.torch_profiler import native, read
from tracelib.sources.torch_profiler.fast import fast_batch

HERE = Path(__file__).parent
SAMPLE = ROOT / "sample_traces" / "starved" / "worker_TP0.pt.trace.json.gz"
COMPILER = shutil.which("cc")
SANITIZED = [
    "-std=c99",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
]
#: A second or so in each run; some minutes in `make fuzz`.
COPIES = 5_000_000 if os.environ.get("FUZZ_SECONDS") else 40_000


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_it_was_compiled_with_the_installation():
    assert native.available(), "run `python hatch_build.py`, or `make` once more"


def test_a_library_is_named_after_its_source(tmp_path):
    names = set()
    for file, text in (("scan.c", "int x;"), ("scan.c", "int y;"), ("json.h", "int y;")):
        (tmp_path / file).write_text(text)
        names.add(native.library_in(tmp_path).name)
        assert hatch_build.library_in(tmp_path) == native.library_in(tmp_path)
    assert len(names) == 3
    assert hatch_build.library_in(ROOT / hatch_build.FOLDER) == native.library_in(native.FOLDER)


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_what_is_no_library_is_made_anew_and_older_ones_go(tmp_path):
    folder = tmp_path / hatch_build.FOLDER
    folder.mkdir(parents=True)
    for file in native.FOLDER.glob("*.[ch]"):
        shutil.copy(file, folder)
    hatch_build.library_in(folder).write_text("garbage")
    (folder / "_scan_old.so").write_text("of before")
    made = hatch_build.compile_scan(tmp_path)
    assert [made] == list(folder.glob("_scan_*"))
    assert hasattr(ctypes.CDLL(str(made)), "scan")


@pytest.mark.parametrize("compiler", ["false", "/nope/cc", 'gcc "', "   "])
def test_a_compiler_that_fails_is_told_of_and_costs_nothing_else(tmp_path, monkeypatch, capsys, compiler):
    (tmp_path / hatch_build.FOLDER).mkdir(parents=True)
    (tmp_path / hatch_build.FOLDER / "scan.c").write_text("no C")
    monkeypatch.setenv("CC", compiler)
    assert hatch_build.compile_scan(tmp_path) is None
    assert "was not compiled" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / hatch_build.FOLDER).iterdir()] == ["scan.c"]


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_damaged_text_never_makes_it_leave_its_memory(tmp_path):
    program, text = tmp_path / "damaging", tmp_path / "events"
    include = ["-I", str(native.FOLDER)]
    made = subprocess.run(
        [COMPILER, *SANITIZED, *include, str(HERE / "damaging.c"), "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "cannot find" in made.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert not made.returncode, made.stderr
    trace = gzip.decompress(SAMPLE.read_bytes())
    text.write_bytes(trace[trace.index(b"[") + 1 :][:900_000])
    run = subprocess.run(
        [str(program), str(text), "1", str(COPIES)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > COPIES // 20  # else the damage is too heavy to test anything


def test_more_events_or_strings_than_there_is_room_for_are_refused(monkeypatch):
    monkeypatch.setattr(native, "_rooms", native._Rooms())  # larger ones may be left from other texts
    tiny = b'{"ph":"s"},' * 3000
    with pytest.raises(native.Refused, match="too many"):
        fast_batch(chunks_of(b"[" + tiny[:-1] + b"]")[0])
    names = b",".join(b'{"ph":"X","name":"%d","cat":"c%d","x":"%030d"}' % (n, n, n) for n in range(3000))
    with pytest.raises(native.Refused, match="too many"):
        fast_batch(chunks_of(b"[" + names + b"]")[0])


def test_strings_that_end_differently_are_told_apart_as_fast_as_others():
    def seconds(name):
        events = b",".join(
            b'{"ph":"X","cat":"c","name":"%s","pid":1,"tid":2,"ts":%d,"dur":1}' % (name % n, n)
            for n in range(60_000)
        )
        (chunk,) = chunks_of(b"[" + events + b"]", 16 << 20)
        native.scanned(chunk)
        began = time.process_time()
        assert native.scanned(chunk).string_starts.size == 60_002
        return time.process_time() - began

    assert min(seconds(b"step %d") for _ in range(3)) < 10 * min(
        seconds(b"%06d-of-these-requests") for _ in range(3)
    )


def test_without_it_the_rows_are_the_same(monkeypatch):
    fast = read(SAMPLE)
    monkeypatch.setattr(native, "_scan", lambda: None)
    assert not native.available()
    plain = read(SAMPLE)
    for name, rows in fast.frames().items():
        assert rows.equals(plain.frames()[name]), name
