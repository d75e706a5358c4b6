"""The compiled pass: it is there, reads nothing beyond its text, and is never one of another version."""

import gzip
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.sources.torch_profiler.agreement import chunks_of
from tracelib.sources.torch_profiler import native, read
from tracelib.sources.torch_profiler.fast import fast_batch

HERE = Path(__file__).parent
SAMPLE = HERE.parents[2] / "sample_traces" / "starved" / "worker_TP0.pt.trace.json.gz"
COMPILER = shutil.which("cc")
SANITIZED = ["-std=c99", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]  # fmt: skip
#: A second or so in each run; `make fuzz` sets more.
COPIES = int(float(os.environ.get("FUZZ_SECONDS", "0")) * 10_000) or 40_000


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_it_was_compiled_with_the_installation():
    assert native.available(), "run `python hatch_build.py`, or `make` once more"


def test_a_library_is_named_after_its_source(tmp_path):
    one, other = tmp_path / "one.c", tmp_path / "other.c"
    one.write_text("int x;")
    other.write_text("int y;")
    assert native.library_of(one).name != native.library_of(other).name
    assert native.library_of(native.SOURCE).parent == native.SOURCE.parent


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_damaged_text_never_makes_it_leave_its_memory(tmp_path):
    program, text = tmp_path / "damaging", tmp_path / "events"
    include = ["-I", str(native.SOURCE.parent)]
    made = subprocess.run([COMPILER, *SANITIZED, *include, str(HERE / "damaging.c"), "-o", str(program)], capture_output=True, text=True, check=False)  # fmt: skip
    if "cannot find" in made.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert not made.returncode, made.stderr
    trace = gzip.decompress(SAMPLE.read_bytes())
    text.write_bytes(trace[trace.index(b"[") + 1 :][:900_000])
    run = subprocess.run([str(program), str(text), "1", str(COPIES)], capture_output=True, text=True, check=False)  # fmt: skip
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


def test_without_it_the_rows_are_the_same(monkeypatch):
    fast = read(SAMPLE)
    monkeypatch.setattr(native, "_scan", lambda: None)
    assert not native.available()
    plain = read(SAMPLE)
    for name, rows in fast.frames().items():
        assert rows.equals(plain.frames()[name]), name
