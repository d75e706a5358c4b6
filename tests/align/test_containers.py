"""A container's ids are matched by proof or by a map, never by guess.

The captures' ids are renumbered as a pid namespace does.
"""

import random

import polars as pl
import pytest

from tests.align.clocks import read
from tests.conftest import thorough
from tracelib.align import align
from tracelib.align.containers import user_map
from tracelib.sources.discovery import discover

KINETO = ("api_server", "engine_core", "worker_TP0", "worker_TP1")


def inside(trace, seed, first=2):
    """Return the trace as a container has it, main threads' ids equal to their process's, and a map back."""
    ids = sorted(
        {i for i in (*trace.threads["pid"].drop_nulls(), *trace.threads["tid"].drop_nulls()) if i > 0}
    )
    numbers = list(range(first, first + len(ids)))
    random.Random(seed).shuffle(numbers)
    new = dict(zip(ids, numbers, strict=True))
    columns = [pl.col(name).replace(new) for name in ("pid", "tid")]
    moved = trace.replace(
        threads=trace.threads.with_columns(columns),
        gpu_ops=trace.gpu_ops.with_columns(pl.col("pid").replace(new)),
    )
    return moved, {small: large for large, small in new.items()}


def _run(captures, name):
    """Return a capture's traces, its Kineto files renumbered, and the map of each of those."""
    paths = [file.path for file in discover([captures / name]).traces]
    traces, maps = [], {}
    for path in paths:
        trace = read(path)
        if path.name.startswith(KINETO):
            trace, maps[path.name] = inside(trace, path.name)
        traces.append(trace)
    return traces, maps


def _hosts(run):
    """Return, per file, the processes that its slices lie on: (host, pid) as the aligned trace has them."""
    threads = run.slices.select("source", "thread").unique().join(run.threads, on="thread")
    files = dict(run.sources.select("source", "file").iter_rows())
    return {
        files[s]: set(part.select("host", "pid").iter_rows()) for (s,), part in threads.group_by("source")
    }


PROVABLE = [
    ("starved", ("engine_core", "worker_TP0", "worker_TP1")),
    ("throttled", ("engine_core", "worker_TP0")),
    ("healthy", ("engine_core", "worker_TP0")),
]


@pytest.mark.parametrize(("name", "provable"), thorough(PROVABLE, but=PROVABLE[:1]))
def test_activity_proves_who_is_who_or_a_file_stays_apart(captures, name, provable):
    """Those whose threads were off the CPU often enough are found; no file is put on a wrong process."""
    traces, _ = _run(captures, name)
    paths = [file.path for file in discover([captures / name]).traces]
    truth = _hosts(align([read(path) for path in paths]))
    run = align(traces)
    found = _hosts(run)
    for file in (f for f in truth if f.startswith(KINETO)):
        source = run.sources.filter(pl.col("file") == file)["source"].item()
        said = run.health.filter(pl.col("source") == source)["message"]
        if file.startswith(provable):
            assert found[file] == truth[file]
            assert said.str.contains("another pid namespace").any()
        else:
            assert found[file] == truth[file] or not found[file] & set().union(*truth.values())
            assert said.str.contains("another pid namespace|kept apart").any()


def test_a_proven_file_joins_what_the_scheduler_saw(captures):
    traces, _ = _run(captures, "starved")
    run = align(traces)
    worker = run.threads.filter(
        (pl.col("role") == "worker") & (pl.col("rank") == 0) & (pl.col("pid") == pl.col("tid"))
    )
    thread = worker["thread"].item()
    assert worker["name"].item() == "worker_TP0"
    assert run.slices.filter(pl.col("thread") == thread).height > 10_000
    assert run.sched.filter(pl.col("next") == thread).height > 100
    assert set(run.gpu_ops.drop_nulls("pid")["pid"]) <= set(run.threads["pid"])


def test_a_map_is_applied_to_every_file_and_said(captures):
    traces, maps = _run(captures, "throttled")
    paths = [file.path for file in discover([captures / "throttled"]).traces]
    run = align(traces, pids=maps)
    assert _hosts(run) == _hosts(align([read(path) for path in paths]))
    said = run.health.filter(pl.col("message").str.contains("map of ids"))
    assert said.height == len(maps)
    assert set(said["level"]) == {"info"}


def test_a_wrong_map_is_told_and_joins_nothing(captures):
    traces, maps = _run(captures, "throttled")
    wrong = {file: {small: large + 5_000_000 for small, large in ids.items()} for file, ids in maps.items()}
    run = align(traces, pids=wrong)
    seen = set(run.sched["next"].drop_nulls()) | set(run.sched["prev"].drop_nulls())
    kineto = run.sources.filter(pl.col("format") == "torch_profiler")["source"].implode()
    assert not set(run.slices.filter(pl.col("source").is_in(kineto))["thread"].drop_nulls()) & seen
    empty = align(traces, pids={"worker_TP0*": {999_999: 1}})
    assert empty.health.filter(pl.col("message").str.contains("names 0 of its"))["level"].to_list() == [
        "warning"
    ]


def test_two_processes_that_claim_one_are_not_matched(captures):
    """The same worker's file twice under other ids: nothing tells which of both is the host's process."""
    paths = [file.path for file in discover([captures / "starved"]).traces]
    perf = next(read(p) for p in paths if p.name.startswith("perf"))
    worker = next(p for p in paths if p.name.startswith("worker_TP0"))
    one, _ = inside(read(worker), "one")
    two, _ = inside(read(worker, "copy.json.gz"), "two", 50)
    run = align([perf, one, two])
    hosts = _hosts(run)
    assert hosts["worker_TP0.pt.trace.json.gz"].isdisjoint(hosts["copy.json.gz"])
    assert not any(host == "vm" for host, _ in hosts["worker_TP0.pt.trace.json.gz"] | hosts["copy.json.gz"])
    assert run.health["message"].str.contains("fit the same process of the host").sum() == 2


def test_which_files_a_map_is_for():
    pids = {"*": {1: 100}, "worker_TP1*": {1: 200}}
    assert user_map("worker_TP0.json", "torch_profiler", pids) == {1: 100}
    assert user_map("worker_TP1.json", "torch_profiler", pids) == {1: 200}
    assert user_map("perf.txt", "perf", pids) == {}  # the host's own recorder
    assert user_map("perf.txt", "perf", {"perf*": {1: 5}}) == {1: 5}
