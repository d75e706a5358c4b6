"""What a text comes in, made here: web pages, `atrace -z`, gzip; graphs; raw buffers, which are refused."""

import gzip
import io
import tarfile
import zlib

import pytest

from tracelib.errors import BadTrace
from tracelib.sources.discovery import discover, read_files, recognised
from tracelib.sources.files import head
from tracelib.sources.ftrace import read, sniff

EVENTS = """\
            bash-557   (    557) [001] d..2     1.000001: sched_switch: prev_comm=bash prev_pid=557 \
prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120
            init-1     (      1) [000] ...1     1.000002: tracing_mark_write: B|1|load
            init-1     (      1) [000] ...1     1.000009: tracing_mark_write: E
"""
TEXT = "# tracer: nop\n#\n" + EVENTS
IN_SCRIPT = EVENTS.replace("\n", "\\n\\\n")
FORMS = {
    "text": TEXT.encode(),
    "gzip": gzip.compress(TEXT.encode()),
    "atrace -z": b"capturing trace... done\nTRACE:\n" + zlib.compress(TEXT.encode()),
    "systrace": (
        f"<!DOCTYPE html>\n<html><body>\n"
        f'<script class="trace-data" type="application/text">\n{TEXT}</script>\n'
        f"</body></html>\n"
    ).encode(),
    "old systrace": (
        f'<!DOCTYPE HTML>\n<html><head>\n<script>\n  var linuxPerfData = "\\\n'
        f'# tracer: nop\\n\\\n{IN_SCRIPT}";\n</script></head></html>\n'
    ).encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_events_in_every_container(tmp_path, form):
    path = tmp_path / "x"
    path.write_bytes(FORMS[form])
    assert sniff(head(path), path.name)
    trace = read(path).check()
    assert trace.sched.select("ts_ns", "cpu", "prev_state", "next").rows() == [(1_000_001_000, 1, "S", -1)]
    assert trace.slices.select("ts_ns", "dur_ns", "name").rows() == [(1_000_002_000, 7000, "load")]
    assert dict(trace.threads.select("tid", "pid").iter_rows()) == {1: 1, 557: 557}
    assert trace.sources["skipped_bytes"][0] == 0


@pytest.mark.parametrize("cut", [3, 20])
def test_atrace_that_ends_early(tmp_path, cut):
    path = tmp_path / "x"
    path.write_bytes(b"TRACE:\n" + zlib.compress(TEXT.encode() * 50)[:-cut])
    trace = read(path)
    assert "compressed data ends early" in " ".join(trace.health["message"])
    assert trace.sched.height > 10


def test_a_function_graph_with_times_and_tasks(tmp_path):
    """Options funcgraph-abstime and -proc: leaf, opening and closing line, an event in comment marks."""
    path = tmp_path / "x"
    path.write_text(
        "# tracer: function_graph\n#\n"
        "    9.000010 |   1)   ping-1922    |  ...1 |               |  do_sys_poll() {\n"
        "    9.000012 |   1)   ping-1922    |  ..s. |   1.747 us    |    e1000_clean [e1000]();\n"
        "    9.000015 |   1)   ping-1922    |  ...1 |               |  /* sched_waking: "
        "comm=a pid=7 prio=120 target_cpu=000 */\n"
        "    9.000030 |   1)   ping-1922    |  ..s. | + 20.000 us   |  }\n"
    )
    trace = read(path)
    assert trace.slices.select("ts_ns", "dur_ns", "name").rows() == [
        (9_000_010_000, 20_000, "do_sys_poll"),
        (9_000_012_000, 1747, "e1000_clean [e1000]"),
    ]
    assert trace.sched.select("ts_ns", "cpu", "event").rows() == [(9_000_015_000, 0, "waking")]


@pytest.mark.parametrize("packed", [True, False])
def test_raw_ring_buffers_are_refused_with_the_reason(tmp_path, packed):
    """As schedviz collects them: the error says what they are and what to record instead."""
    path = tmp_path / "buffers.tar.gz"
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w:gz" if packed else "w") as tar:
            for name in ("formats/header_page", "traces/cpu0"):
                member = tarfile.TarInfo(name)
                member.size = 100
                tar.addfile(member, io.BytesIO(b"\1" * 100))
        path.write_bytes(buffer.getvalue())
    assert recognised(path).format.name == "ftrace"
    _, (failure,) = read_files(discover([path]).traces)
    assert isinstance(failure, BadTrace)
    assert "raw per-CPU ring buffers" in str(failure)
    assert "trace-cmd record" in str(failure)


REPORT = (
    "cpus=2\n            bash-557   [001]     1.000001000: sched_switch:         "
    "bash:557 [120] S ==> swapper/1:0 [120]\n"
)
OPTIONS = (
    "\t\t[Option TRACECLOCK, 67 bytes]\nlocal global [mono] boot x86-tsc\n"
    '\t\t[Option BUFFER, 23 bytes]\n"" [name]\n"local" [clock]\n'
)


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A `trace-cmd` that prints the texts it is given and ends with a status."""

    def make(report, options, status=0):
        (tmp_path / "bin").mkdir()
        (tmp_path / "report").write_text(report)
        (tmp_path / "options").write_text(options)
        program = tmp_path / "bin" / "trace-cmd"
        program.write_text(
            f'#!/bin/sh\nif [ "$1" = dump ]; then /bin/cat {tmp_path}/options; exit {status}; fi\n'
            f"/bin/cat {tmp_path}/report; echo went wrong >&2; exit {status}\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        path = tmp_path / "trace.dat"
        path.write_bytes(b"\x17\x08\x44tracing6\0" + bytes(100))
        return path

    return make


@pytest.mark.parametrize(
    ("options", "clock"),
    [(OPTIONS, "monotonic"), (OPTIONS + '"instance" [name]\n"boot" [clock]\n', "unknown"), ("", "unknown")],
)
def test_a_trace_dat_names_its_clock(tool, options, clock):
    trace = read(tool(REPORT, options))
    assert trace.sched.select("ts_ns", "cpu", "prev_state", "next").rows() == [(1_000_001_000, 1, "S", -1)]
    assert trace.sources.select("clock", "cpus", "recorder").row(0) == (clock, 2, "trace-cmd")


@pytest.mark.parametrize(("report", "status"), [("", 0), ("", 1), (REPORT, 1)])
def test_a_trace_cmd_that_fails_is_quoted(tool, report, status):
    with pytest.raises(BadTrace, match=f"ended with {status} and printed (nothing|little): 'went wrong'"):
        read(tool(report, OPTIONS, status))
