"""The compiled pass: it is there, reads nothing beyond its text, and is never one of another version."""

import ctypes
import gzip
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import hatch_build
from tests.conftest import ROOT, SHARED
from tests.sources.mutations import damaged
from tests.sources.samples import samples_of
from tests.sources.torch_profiler.agreement import chunks_of, compared
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
#: A second or so in each run; some minutes in `make fuzz`, of other damage each time.
FUZZING = "FUZZ_SECONDS" in os.environ
SEED = int(os.environ.get("FUZZ_SEED") or (random.SystemRandom().randrange(10**9) if FUZZING else 1))
COPIES, DAMAGED_FILES = (5_000_000, 10_000) if FUZZING else (40_000, 60)


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


def _header(path):
    """Write the fields that Python asks for as C, so that the harness asks for the same."""
    rows = [
        f'{{"{name}", {len(name)}, {level}, {kind.upper()}}},\n'
        for level, fields in (("EVENT", native.EVENT), ("ARGS", native.ARGS))
        for name, kind in fields.items()
    ]
    count = "enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS };"
    path.write_text(f"static const struct field FIELDS[] = {{\n{''.join(rows)}}};\n{count}\n")


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_damaged_text_never_makes_it_leave_its_memory(tmp_path):
    program, text = tmp_path / "damaging", tmp_path / "events"
    _header(tmp_path / "fields.h")
    include = ["-I", str(native.FOLDER), "-I", str(tmp_path)]
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
        [str(program), str(text), str(SEED), str(COPIES)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    print(f"\nfuzz scan.c: seed {SEED}, {COPIES:,} pieces, {int(run.stdout):,} of them taken whole")
    assert int(run.stdout) > COPIES // 3  # else too few of them reach the deep paths


def test_it_gives_what_the_plain_decoder_gives_on_damaged_files(tmp_path):
    """Short pieces: damage in one of them keeps no other from being compared."""
    samples, taken = samples_of("torch_profiler", SHARED, tmp_path), 0
    texts = [next(iter(samples[name].values())) for name in sorted(samples)]
    for number in range(DAMAGED_FILES):
        pick = random.Random(f"{SEED} {number}")
        text = damaged(pick.choice(texts), pick.choice(texts), pick)
        try:
            taken += compared(chunks_of(text, 1 << 12)) > 0
        except AssertionError as error:
            (tmp_path / "damaged.json").write_bytes(text)
            raise AssertionError(f"seed {SEED}, file {number}: {tmp_path / 'damaged.json'}") from error
    print(f"\nfuzz both decoders: seed {SEED}, {DAMAGED_FILES:,} files, {taken:,} of them compared")
    assert taken > DAMAGED_FILES // 3


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
