"""Names and processes of threads, whichever line showed them."""

import polars as pl

from tracelib.schema import IDLE
from tracelib.sources.kernel.threads import LESS_TRUSTED, NAMES, PROCESSES, number_of, threads


def made(names, processes=()):
    names = pl.DataFrame(names, schema=NAMES, orient="row")
    return threads(names, pl.DataFrame(list(processes), schema=PROCESSES, orient="row"), "vm")


def test_the_latest_name_counts_and_a_less_trusted_one_only_alone():
    rows = [(5, "late", 9), (5, "early", 1), (5, "<...>", 10), (5, ":5", 11), (5, None, 12)]
    rows += [(6, "cut", 9), (6, "whole", 3 - LESS_TRUSTED), (7, "alone", 4 - LESS_TRUSTED), (8, None, 1)]
    assert made(rows).select("thread", "tid", "name").rows() == [
        (0, 5, "late"),
        (1, 6, "cut"),
        (2, 7, "alone"),
        (3, 8, None),
    ]


def test_a_process_is_named_by_its_first_thread_whose_id_it_has():
    frame = made([(5, "main", 1), (6, "worker", 2), (7, "other", 3)], [(6, 5, 2), (6, 4, 1), (7, 0, 1)])
    assert frame.select("host", "pid", "tid", "process", "name").rows() == [
        ("vm", 5, 5, "main", "main"),
        ("vm", 5, 6, "main", "worker"),
        ("vm", None, 7, None, "other"),
    ]


def test_idle_tasks_and_unknown_ids_are_no_threads():
    frame = made([(5, "a", 1), (0, "swapper/0", 2), (-1, "gone", 3), (9, "b", 4)])
    assert number_of(pl.Series([5, 9, 0, -1, 7, None]), frame).to_list() == [0, 1, IDLE, None, None, None]
    assert number_of(pl.Series([5, 0]), made([])).to_list() == [None, IDLE]
