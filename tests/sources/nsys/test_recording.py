"""What an export lacks is told, with what would have recorded or exported it."""

import pytest

from tracelib.sources.nsys import read

KERNELS, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
TABLES, TIMES = "EXPORT_PARAM_TABLES_TO_EXPORT", "EXPORT_PARAM_TIMES_TO_EXPORT"


def said(trace, part):
    """Return level, message and advice of the only remark with `part` in its message, None without one."""
    rows = [row for row in trace.health.select("level", "message", "fix").rows() if part in row[1]]
    assert len(rows) <= 1
    return rows[0] if rows else None


def fixes(trace):
    return " | ".join(trace.health["fix"])


def test_graphs_recorded_as_a_whole_are_told_beside_kernels_too(export, process):
    rows = {
        KERNELS: [(10, 20, 0, 1, 7, 1, process, 4, 4, None, None)],
        GRAPHS: [(30, 50, 0, 7, 5, process, 3, 4), (60, 80, 0, 7, 6, process, 3, 4)],
    }
    level, message, fix = said(read(export(rows)), "as a whole")
    assert level == "warning"
    assert message.startswith(
        "2 CUDA graphs were recorded as a whole: no kernel inside them is known (the 1 "
    )
    assert fix == "Record with: nsys profile --cuda-graph-trace=node"
    assert said(read(export({KERNELS: rows[KERNELS]})), "as a whole") is None


def sampled(process, capture):
    return {"COMPOSITE_EVENTS": [(1, 10, 0, 1, process + 1, 1)], "META_DATA_CAPTURE": capture}


def test_samples_of_which_only_some_have_a_chain(export, process):
    every = "LINUX_PERF_OPTIONS:SAMPLES_PER_BACKTRACE"
    level, message, fix = said(read(export(sampled(process, [(every, "4")]))), "walked the stack")
    assert (level, message[:53]) == ("info", "nsys walked the stack of one CPU sample in 4: the oth")
    assert fix == "Record with: nsys profile --samples-per-backtrace=1"


@pytest.mark.parametrize("every", ["0", "1", "", "four", "-3"])
def test_samples_that_all_have_a_chain_or_none(export, process, every):
    capture = [("LINUX_PERF_OPTIONS:SAMPLES_PER_BACKTRACE", every)]
    assert said(read(export(sampled(process, capture))), "walked the stack") is None


def test_an_export_of_some_tables_is_to_be_made_again_not_the_recording(export, process):
    calls = [(10, 15, 0, process + 7, 1, 1)]
    trace = read(export({RUNTIME: calls, "META_DATA_EXPORT": [(TABLES, RUNTIME), (TIMES, "")]}))
    assert said(trace, "limited to the") == (
        "warning",
        f"this export was limited to the tables {RUNTIME}: what else was recorded is not in it",
        "Export the .nsys-rep again without --tables.",
    )
    again = "Export again without --tables; else record with: nsys profile"
    assert said(trace, "no libc calls")[2] == f"{again} -t osrt"
    assert said(trace, "1 CUDA calls (1 launches), but no kernel: GPU activity was not exported")[2] == (
        f"{again} -t cuda"
    )
    assert "Record with" not in fixes(trace)


def test_an_export_of_some_times_and_tables(export):
    trace = read(export({"META_DATA_EXPORT": [(TABLES, "a\nb"), (TIMES, "1s-2s")]}))
    assert said(trace, "limited to the times 1s-2s")[2] == "Export the .nsys-rep again without --times."
    assert said(trace, r"limited to the tables a\nb")
    assert "Export again without --tables and --times; else record with: nsys profile -t osrt" in fixes(trace)


def test_a_whole_export_is_not_limited(export):
    trace = read(export({"META_DATA_EXPORT": [(TABLES, ""), (TIMES, "")]}))
    assert said(trace, "limited") is None
    assert "Record with: nsys profile -t osrt" in fixes(trace)


def test_only_warnings_and_errors_of_nsys_are_passed_on(export):
    """ENUM_DIAGNOSTIC_SEVERITY_LEVEL: 0 unknown, 1 information, 2 warning, 3 error, 4 verbose."""
    rows = {"DIAGNOSTIC_EVENT": [(severity, severity, f"of level {severity}") for severity in range(6)]}
    health = read(export(rows)).health.select("level", "message").rows()
    assert [row for row in health if "of level" in row[1]] == [
        ("warning", "nsys reported: of level 2"),
        ("error", "nsys reported: of level 3"),
    ]
