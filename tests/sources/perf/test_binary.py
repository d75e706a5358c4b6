"""perf.data by way of a perf, which a script stands in for here."""

import functools

import pytest

from tracelib.errors import BadTrace
from tracelib.sources.perf import read

EVENT = "x 7/8 [003] 5.000001:         12 cycles: \n\t    7f0012345678 foo+0x1 (/lib/x.so)\n\n"


@pytest.fixture
def recording(tmp_path, stand_in):
    """A recording, in a place where only the `perf` that a test writes is found; and what writes it."""
    path = tmp_path / "perf.data"
    path.write_bytes(b"PERFILE2" + bytes(100))
    (tmp_path / "text").write_text(EVENT * 3)
    return path, functools.partial(stand_in, "perf")


def test_the_text_that_perf_prints_is_read(recording, tmp_path):
    path, install = recording
    install(f'cat {tmp_path}/text; echo "$@" > {tmp_path}/said')
    trace = read(path)
    assert trace.samples.height == 3
    assert trace.sources.select("file", "bytes").row(0) == ("perf.data", 108)
    assert (tmp_path / "said").read_text().split()[-2:] == ["-i", str(path)]


def test_what_perf_printed_before_it_died_is_read(recording, tmp_path):
    path, install = recording
    install(f'cat {tmp_path}/text; echo "Segmentation fault" >&2; kill -9 $$')
    trace = read(path)
    assert trace.samples.height == 3
    assert "status -9: Segmentation fault" in " ".join(trace.health["message"])


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no such format >&2; exit 3", "ended with status 3: no such format"),
        ("exit 0", "printed no event"),
        ("head -c 5000 /dev/zero", "printed no event"),
        (b"\x7fELF of another machine", "status 126: it cannot be started"),
        ("echo x 8 cycles:; exit 0", "Record again with times: perf record -T"),
    ],
)
def test_a_perf_that_prints_nothing_is_told(recording, script, said):
    path, install = recording
    install(script)
    with pytest.raises(BadTrace, match=said):
        read(path)


def test_a_perf_that_hangs_is_stopped(recording, tmp_path, monkeypatch):
    path, install = recording
    install(f"cat {tmp_path}/text; exec sleep 300")
    monkeypatch.setattr("tracelib.sources.perf.binary.SECONDS", 1)
    trace = read(path)
    assert trace.samples.height == 3
    assert "stopped after 1 s" in " ".join(trace.health["message"])
