"""What an export says of its recording, and what it lacks, with what would have recorded or exported it."""

import pytest

from tests.sources.nsys.conftest import KERNELS, RUNTIME, messages
from tracelib.sources.nsys import read

GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
TABLES, TIMES = "EXPORT_PARAM_TABLES_TO_EXPORT", "EXPORT_PARAM_TIMES_TO_EXPORT"


def said(trace, part):
    """Return level, message and advice of the only remark with `part` in its message, None without one."""
    rows = [row for row in trace.health.select("level", "message", "fix").rows() if part in row[1]]
    assert len(rows) <= 1
    return rows[0] if rows else None


def fixes(trace):
    return " | ".join(trace.health["fix"])


def sampled(process, capture):
    return {"COMPOSITE_EVENTS": [(1, 10, 0, 1, process + 1, 1)], "META_DATA_CAPTURE": capture}


def test_tables_of_events_without_a_frame_are_counted(export, kernels):
    rows = {KERNELS: kernels, "CUDA_UM_GPU_PAGE_FAULT_EVENTS": [(1, 2, 3, 0), (4, 5, 6, 0)]}
    assert "counted, not read: CUDA_UM_GPU_PAGE_FAULT_EVENTS (2)" in messages(read(export(rows)))


def test_of_many_such_tables_those_with_most_rows_are_named(export, kernels):
    made = [f'CREATE TABLE "T{at:03}\n" (start INTEGER, x TEXT)' for at in range(150)]
    filled = [f'INSERT INTO "T{at:03}\n" VALUES (1, 2)' for at in range(20)] + [
        'INSERT INTO "T005\n" VALUES (1, 2)'
    ]
    trace = read(export({KERNELS: kernels}, statements=made + filled))
    said = next(message for message in trace.health["message"] if "counted, not read" in message)
    assert said.startswith(r"events that are counted, not read: T005\n (2), T019\n (1), ")
    assert said.endswith(" and 8 tables more")


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("1,200 CUPTI records were dropped", 1200),
        ("CUDA profiling might have dropped some events. 1,234,567 events were dropped.", 1_234_567),
        ("Number of OSRT events dropped: 17", 17),
        ("5 processes were found; lost 12 samples", 12),
        ("12 events were lost in 5 buffers", 12),
        ("Process 4711: 3 NVTX events have been discarded", 3),
        ("Buffer overflow at 0x7f001234", 0),
        ("Some events were lost.", 0),
    ],
)
def test_how_many_events_a_diagnostic_says_were_lost(export, text, lost):
    trace = read(export({"DIAGNOSTIC_EVENT": [(1, 2, text)]}))
    assert trace.sources["lost_declared"].item() == lost
    assert text in messages(trace)


@pytest.mark.parametrize(
    ("noted", "clock", "offset"),
    [
        ({}, "session", 1_700_000_000_000_000_000),
        (
            {"EXPORT_PARAM_TIME_NORMALIZE": "false", "EXPORT_PARAM_TIME_SHIFT": "500"},
            "session",
            1_699_999_999_999_999_500,
        ),
        ({"EXPORT_PARAM_TIME_NORMALIZE": "true"}, "realtime", 0),
    ],
)
def test_clock(export, noted, clock, offset):
    rows = {
        "META_DATA_EXPORT": list(noted.items()),
        "TARGET_INFO_SESSION_START_TIME": [(1_700_000_000_000_000_000, "", "")],
    }
    assert read(export(rows)).sources.select("clock", "wall_offset_ns").row(0) == (clock, offset)


def test_an_export_that_does_not_tell_its_start(export):
    assert read(export()).sources.select("clock", "wall_offset_ns").row(0) == ("session", None)


def test_what_nsys_reported_is_passed_on(export):
    rows = {
        "DIAGNOSTIC_EVENT": [
            (1, 2, "Not all CUDA events\n might have been collected."),
            (2, 2, "Not all CUDA events might have been collected."),
            (3, 3, "1,200 CUPTI records were dropped"),
            (4, 1, "Profiling has started."),
        ]
    }
    trace = read(export(rows))
    assert trace.sources["lost_declared"].item() == 1200
    assert "(2 times): Not all CUDA events might have been collected." in messages(trace, "warning")
    assert "1,200 CUPTI records were dropped" in messages(trace, "error")
    assert "started" not in messages(trace)


def test_calls_without_kernels_are_pointed_out(export, process):
    trace = read(export({RUNTIME: [(10, 15, 0, process + 7, 1, 1)]}))
    assert "1 CUDA calls (1 launches), but no kernel" in messages(trace, "warning")


def test_copies_alone_are_no_sign_of_missing_kernels(export, process):
    rows = {"CUPTI_ACTIVITY_KIND_MEMCPY": [(30, 40, 0, 7, 0, process, 4096, 1, 0, 2)]}
    assert "1 copies and memsets, but no kernel" in messages(read(export(rows)), "info")


def test_secrets_stay_in_the_file(export, process):
    secret = "hunter2-s3cr3t"
    strings = {0: "[Unknown]", 1: "cudaLaunchKernel_v7000", 4: "k", 99: secret}
    rows = {
        "META_DATA_CAPTURE": [
            ("PROCESS_0:ENVIRONMENT_VARIABLE", secret),
            ("PROCESS_0:ARGUMENT_0", secret),
            ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph"),
        ],
        "TARGET_INFO_SYSTEM_ENV": [(0, "", "CpuCores", 0, "32"), (0, "", "TargetInstallDir", 0, secret)],
        "ProcessStreams": [(process, 99, 99)],
        RUNTIME: [(10, 15, 0, process + 7, 1, 1)],
        KERNELS: [(20, 30, 0, 1, 7, 1, process, 4, 4, None, None)],
        "SCHED_EVENTS": [(1, 0, 1, process + 7, 0)],
    }
    trace = read(export(rows, strings=strings))
    assert trace.sources["cpus"].item() == 32
    for frame in trace.frames().values():
        assert secret not in frame.write_json()


def test_the_machine_that_was_recorded_is_named(export, process):
    rows = {
        "TARGET_INFO_SYSTEM_ENV": [(0, "", "Hostname", 0, "gpu-7"), (0, "", "CpuCores", 0, "32")],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [(20, 25, 0, process + 7, 1, 1)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [(100, 150, 0, 1, 7, 1, process, 4, 4, None, None)],
    }
    trace = read(export(rows))
    assert [trace.sources["host"][0], trace.threads["host"][0], trace.gpus["host"][0]] == ["gpu-7"] * 3
    rows["TARGET_INFO_SYSTEM_ENV"] += [(1, "", "Hostname", 0, "gpu-8")]  # which of them is whose is not known
    assert read(export(rows)).sources["host"][0] is None


def test_generic_events_are_counted(export):
    trace = read(export({"GENERIC_EVENTS": [(10, 1, "{}"), (20, 1, "{}")]}))
    assert trace.health["message"].str.contains("^2 generic events .* are counted, not read").sum() == 1


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
