"""What the header says, worked out by hand."""

import pytest

from tracelib.sources.perf.header import clock_of, of_lines

EVENT = (
    "# event : name = {name}, , id = {{ 12, 13 }}, type = {kind}, size = 128, {{ "
    "sample_period, sample_freq }} = {rate}, sample_type = IP, {freq}inherit = 1"
)
SAMPLE = "x 1/1 [000] 1.000001: 1 cycles: \n\n"


def test_the_pair_of_clocks_is_exact():
    header = of_lines(
        [
            "# hostname : gpu-7",
            "# perf version : 6.8",
            "# arch : aarch64",
            "# nrcpus online : 8",
            "# nrcpus avail : 16",
            "# cmdline : /usr/bin/perf record -k mono -a sleep 1",
            "# clockid: monotonic (1)",
            (
                "# reference time: 2026-11-30 02:40:04.348532 = 1796006404.348532 (TOD) = "
                "89.740626607 (monotonic)"
            ),
        ]
    )
    assert header.wall_offset_ns == 1796006404348532000 - 89740626607
    assert (header.host, header.cpus, header.recorder, header.architecture) == (
        "gpu-7",
        8,
        "perf 6.8",
        "aarch64",
    )
    assert (header.clock, header.system_wide) == ("monotonic", True)


@pytest.mark.parametrize(
    ("lines", "clock", "offset"),
    [
        ([], "unknown", None),
        (["# hostname : h"], "local", None),  # no -k: the scheduler's clock
        (["# hostname : h", "# clockid: realtime (0)"], "realtime", 0),
        (["# hostname : h", "# clockid: boottime (7)"], "boottime", None),
        (
            [
                "# hostname : h",
                "# clockid: monotonic_raw (4)",
                "# reference time: x = 10.000001 (TOD) = 1.000000002 (monotonic_raw)",
            ],
            "monotonic_raw",
            9_000_000_998,
        ),
    ],
)
def test_clocks(lines, clock, offset):
    header = of_lines(lines)
    assert (header.clock, header.wall_offset_ns) == (clock, offset)


@pytest.mark.parametrize(
    ("name", "kind", "rate", "freq", "sparse"),
    [
        ("sched:sched_switch", 2, 199, "freq = 1, ", True),  # perf record -F 199 -e sched:sched_switch
        ("sched:sched_switch", 2, 1, "", False),
        ("sched:sched_switch", 2, 100, "", True),  # -c 100
        ("cpu-clock/freq=199/", 1, 199, "freq = 1, ", False),
        ("cycles:u", 0, 4000, "freq = 1, ", False),
    ],
)
def test_thinned_out_tracepoints_are_told_from_samples(name, kind, rate, freq, sparse, load):
    line = EVENT.format(name=name, kind=kind, rate=rate, freq=freq)
    assert of_lines(["# hostname : h", line]).subsampled == ((name,) if sparse else ())
    trace = load(f"# hostname : h\n# perf version : 6.1\n{line}\n#\n{SAMPLE}")
    errors = trace.health.filter(trace.health["level"] == "error")
    assert errors.height == int(sparse)
    if sparse:
        assert "sched:sched_switch" in errors["message"][0]
        assert "cpu-clock/freq=199/" in errors["fix"][0]


@pytest.mark.parametrize(
    ("command", "clock"),
    [
        (["perf", "record", "-k", "mono"], "monotonic"),
        (["perf", "record", "--clockid=CLOCK_REALTIME"], "realtime"),
        (["perf", "record", "-a"], "local"),
        (["perf", "record", "-kboot"], "boottime"),
    ],
)
def test_the_clock_of_a_command_line(command, clock):
    assert clock_of(None, command) == clock


@pytest.mark.parametrize("command", ["perf record -p 12", "perf record ./app -x", "perf record --all-user x"])
def test_recordings_of_some_processes(command):
    assert of_lines([f"# cmdline : {command}"]).system_wide is False


@pytest.mark.parametrize(
    "command",
    ["perf record -a", "perf record --all-cpus -g", "perf record -ag sleep 1", "perf record -C 0-3 sleep 1"],
)
def test_recordings_of_the_whole_system(command):
    assert of_lines([f"# cmdline : {command}"]).system_wide is True


def test_a_text_without_header_says_what_is_unknown(load, messages):
    trace = load(SAMPLE)
    assert "no header" in messages(trace)
    assert trace.sources.select("clock", "host", "cpus").row(0) == ("unknown", None, None)
