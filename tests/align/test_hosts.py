"""Process ids repeat on every node: two nsys sessions without a host stay apart unless proven to be one."""

import polars as pl
import pytest

from tests.align.clocks import only, read
from tracelib.align import align
from tracelib.align.merge import _Thread, _threads_frame


def _unnamed(trace, file, shift_ns=0):
    """Return the trace under another file name, without its host's name, and as of another moment."""
    said = trace.sources.with_columns(
        file=pl.lit(file), host=pl.lit(None, pl.String), wall_offset_ns=pl.col("wall_offset_ns") + shift_ns
    )
    return trace.replace(sources=said)


@pytest.fixture(scope="module")
def session(captures):
    return read(captures / "nsys_starved" / "nsys_starved.sqlite.gz")


@pytest.fixture(scope="module")
def node(captures, session):
    """Another run, with the process ids and the time of `session`: a second node that runs the same image."""
    other = read(captures / "nsys_healthy" / "nsys_healthy.sqlite.gz")
    mains = [
        dict(t.threads.filter(pl.col("pid") == pl.col("tid")).select("name", "pid").iter_rows())
        for t in (other, session)
    ]
    new = {pid: mains[1][name] for name, pid in mains[0].items() if name in mains[1]}
    assert len(new) >= 4
    columns = [pl.col(name).replace(new) for name in ("pid", "tid")]
    begins = [t.sources["wall_offset_ns"].item() + t.sched["ts_ns"].min() for t in (session, other)]
    return other.replace(
        threads=other.threads.with_columns(columns),
        gpu_ops=other.gpu_ops.with_columns(pl.col("pid").replace(new)),
        sources=other.sources.with_columns(pl.col("wall_offset_ns") + begins[0] - begins[1]),
    )


def _processes(run, source):
    used = run.slices.filter(pl.col("source") == source)["thread"].unique().implode()
    return set(run.threads.filter(pl.col("thread").is_in(used)).select("host", "pid").iter_rows())


def test_two_nodes_with_the_same_pids_stay_apart(session, node):
    run = align([_unnamed(session, "a.sqlite"), _unnamed(node, "b.sqlite")])
    one, two = (_processes(run, source) for source in (0, 1))
    assert {pid for _, pid in one} & {pid for _, pid in two}
    assert not one & two
    assert run.gpus.height == session.gpus.height + node.gpus.height
    assert run.health["message"].str.contains("different processes of one id").any()


def test_without_scheduler_events_nothing_proves_one_machine(session, node):
    one, two = (
        only(t, file, "nsys", "slices", "gpu_ops") for t, file in ((session, "a.sqlite"), (node, "b.sqlite"))
    )
    run = align([_unnamed(one, "a.sqlite"), _unnamed(two, "b.sqlite")])
    assert not _processes(run, 0) & _processes(run, 1)


def test_one_after_the_other_may_be_two_nodes(session, node):
    """Nothing that both saw at one time: the same ids and names prove nothing, the user's word does."""
    later = [_unnamed(session, "a.sqlite"), _unnamed(node, "b.sqlite", 60_000_000_000)]
    run = align(later)
    assert not _processes(run, 0) & _processes(run, 1)
    said = [t.replace(sources=t.sources.with_columns(host=pl.lit("n1"))) for t in later]
    run = align(said)
    assert _processes(run, 0) & _processes(run, 1)


def test_nodes_that_give_their_names_are_told_apart_by_them(session, node):
    named = [
        t.replace(sources=t.sources.with_columns(file=pl.lit(file), host=pl.lit(host)))
        for t, file, host in ((session, "a.sqlite", "n1"), (node, "b.sqlite", "n2"))
    ]
    run = align(named)
    assert {host for host, _ in _processes(run, 0)} == {"n1"}
    assert {host for host, _ in _processes(run, 1)} == {"n2"}


def test_a_second_recorder_of_the_same_machine_is_joined(session):
    """Its threads do something only while the other's scheduler events have them on a CPU: that proves it."""
    run = align([_unnamed(session, "a.sqlite"), _unnamed(only(session, "b", "nsys", "slices"), "b.sqlite")])
    assert _processes(run, 0) == _processes(run, 1)
    assert {host for host, _ in _processes(run, 0)} == {None}


def test_a_process_is_named_as_its_main_thread_s_recorders_name_it_wherever_that_stands():
    others = [_Thread(0, 1, tid, {0: (f"t{tid}", "other")}) for tid in (2, 3)]
    main = _Thread(0, 1, 1, {0: ("first", "other"), 1: ("second", None)})
    frame = _threads_frame([*others, main], ["torch_profiler"] * 2, [None])
    assert frame["process"].unique().to_list() == ["first"]
