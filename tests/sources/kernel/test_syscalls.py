"""Which machine numbers of system calls show, and what they are called there."""

import polars as pl
import pytest

from tracelib.sources.kernel.syscalls import edge_of, machine_of, machines, names_of


@pytest.mark.parametrize(
    ("numbers", "machine"),
    [
        ([98, 98, 63, 124], "arm64"),
        ([202, 0, 24], "x86-64"),
        ([98, 63, 202, 57, 5], "arm64"),  # 202 is accept there
        ([202], "x86-64"),
        ([29, 56, 57], None),  # ioctl, openat and close of arm64; shmget, clone and fork of x86-64
        ([3, 4], None),  # read and write of 32-bit ARM; close and stat of x86-64
        ([3, 4, 0], None),
        ([202, 29, 56, 57], None),  # accept among others of arm64: too few that are usual elsewhere
        ([98, 202], None),  # as many for one as for the other
        ([15, -1], None),
        ([], None),
    ],
)
def test_a_machine_is_known_only_where_its_usual_calls_show_it(numbers, machine):
    assert machine_of(pl.Series(numbers, dtype=pl.Int32)) == machine


def test_numbers_stay_numbers_where_the_machine_is_not_known():
    numbers = pl.Series([202, 9999, None, -1], dtype=pl.Int32)
    assert names_of(numbers, None).to_list() == ["syscall 202", "syscall 9999", "syscall ?", "rt_sigreturn"]
    assert names_of(numbers, "x86-64").to_list() == ["futex", "syscall 9999", "syscall ?", "rt_sigreturn"]
    assert names_of(numbers, "arm64").to_list() == ["accept", "syscall 9999", "syscall ?", "rt_sigreturn"]


def test_the_table_is_whole():
    for machine in machines().values():
        assert len(set(machine.numbers.values())) == len(machine.numbers)
        assert set(machine.usual) <= set(machine.numbers)


@pytest.mark.parametrize(
    ("word", "edge"),
    [
        ("sys_enter:", ("", False)),
        ("sys_exit:", ("", True)),
        ("sys_enter_futex:", ("futex", False)),
        ("sys_exit_futex:", ("futex", True)),
        ("sys_sched_yield()", ("sched_yield", False)),
        ("sys_futex(uaddr:", ("futex", False)),
        ("sys_futex", ("futex", True)),
        ("sys_exit(error_code:", ("exit", False)),
        ("vfs_read", None),
        ("sched_switch:", None),
    ],
)
def test_first_words_of_system_calls(word, edge):
    assert edge_of(word) == edge
