"""System calls told by number (raw_syscalls): their names, and which of them are told by name as well.

The number of a call depends on the machine that it was made on, which a text need not name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracelib.sources.remarks import Remarks

__all__ = ["by_number", "judged", "machine_of", "told_twice"]

#: Numbers of the calls that servers spend time in, by machine (arch/x86/entry/syscalls/syscall_64.tbl and
#: include/uapi/asm-generic/unistd.h).
_X86_64 = {
    0: "read",
    1: "write",
    3: "close",
    5: "newfstat",
    7: "poll",
    8: "lseek",
    9: "mmap",
    10: "mprotect",
    11: "munmap",
    12: "brk",
    13: "rt_sigaction",
    14: "rt_sigprocmask",
    15: "rt_sigreturn",
    16: "ioctl",
    17: "pread64",
    18: "pwrite64",
    19: "readv",
    20: "writev",
    23: "select",
    24: "sched_yield",
    28: "madvise",
    32: "dup",
    35: "nanosleep",
    39: "getpid",
    41: "socket",
    42: "connect",
    43: "accept",
    44: "sendto",
    45: "recvfrom",
    46: "sendmsg",
    47: "recvmsg",
    56: "clone",
    57: "fork",
    58: "vfork",
    59: "execve",
    60: "exit",
    61: "wait4",
    62: "kill",
    72: "fcntl",
    74: "fsync",
    202: "futex",
    219: "restart_syscall",
    228: "clock_gettime",
    230: "clock_nanosleep",
    231: "exit_group",
    232: "epoll_wait",
    233: "epoll_ctl",
    247: "waitid",
    257: "openat",
    262: "newfstatat",
    270: "pselect6",
    271: "ppoll",
    281: "epoll_pwait",
    288: "accept4",
    299: "recvmmsg",
    307: "sendmmsg",
    318: "getrandom",
    426: "io_uring_enter",
    435: "clone3",
    441: "epoll_pwait2",
    449: "futex_waitv",
}
_ARM64 = {
    20: "epoll_create1",
    21: "epoll_ctl",
    22: "epoll_pwait",
    23: "dup",
    25: "fcntl",
    29: "ioctl",
    56: "openat",
    57: "close",
    62: "lseek",
    63: "read",
    64: "write",
    65: "readv",
    66: "writev",
    67: "pread64",
    68: "pwrite64",
    72: "pselect6",
    73: "ppoll",
    79: "newfstatat",
    80: "newfstat",
    82: "fsync",
    93: "exit",
    94: "exit_group",
    95: "waitid",
    98: "futex",
    101: "nanosleep",
    113: "clock_gettime",
    115: "clock_nanosleep",
    124: "sched_yield",
    128: "restart_syscall",
    129: "kill",
    134: "rt_sigaction",
    135: "rt_sigprocmask",
    139: "rt_sigreturn",
    172: "getpid",
    198: "socket",
    202: "accept",
    203: "connect",
    206: "sendto",
    207: "recvfrom",
    211: "sendmsg",
    212: "recvmsg",
    214: "brk",
    215: "munmap",
    220: "clone",
    221: "execve",
    222: "mmap",
    226: "mprotect",
    233: "madvise",
    242: "accept4",
    243: "recvmmsg",
    260: "wait4",
    269: "sendmmsg",
    278: "getrandom",
    426: "io_uring_enter",
    435: "clone3",
    441: "epoll_pwait2",
    449: "futex_waitv",
}
_TABLES = {"x86-64": _X86_64, "arm64": _ARM64}
_TELLING = ("futex", "read", "write", "sched_yield", "epoll_pwait", "epoll_wait", "ppoll", "clock_nanosleep")
#: The number with which the kernel tells the end of rt_sigreturn.
_NO_NUMBER = -1


def machine_of(numbers: pl.Series) -> str:
    """Return "arm64" or "x86-64": the machine that calls with these numbers were made on.

    The calls that every program makes most have numbers on one machine that mean rare calls on the other.
    """
    hits = {}
    for machine, table in _TABLES.items():
        telling = [number for number, call in table.items() if call in _TELLING]
        hits[machine] = int(numbers.is_in(telling).sum())
    return "arm64" if hits["arm64"] > hits["x86-64"] else "x86-64"


def judged(numbers: pl.Series, remarks: Remarks) -> str:
    """Return what :func:`machine_of` does, and say that it was judged so."""
    machine = machine_of(numbers)
    remarks.add(
        "info",
        f"system calls are named by number as on {machine}, judged by which numbers occur",
        "To be certain, record syscalls:* instead of raw_syscalls:*",
    )
    return machine


def by_number(number: pl.Expr, machine: str) -> pl.Expr:
    """Return the name of each call; "syscall 9999" where the number, or the machine, is in no table here."""
    table = {**_TABLES.get(machine, {}), _NO_NUMBER: "rt_sigreturn"}
    named = number.replace_strict(table, default=None, return_dtype=pl.String)
    return pl.coalesce(named, pl.concat_str(pl.lit("syscall "), number.cast(pl.String).fill_null("?")))


def told_twice(raw: pl.Expr, ends: pl.Expr) -> pl.Expr:
    """Say which events by number (`raw`) stand beside one by name, in rows in the order of time of each `thread`.

    A thread is in one call at a time: two entries, or two exits, next to each other are one told twice.
    """
    beside = [((~raw).shift(step) & (ends.shift(step) == ends)).over("thread") for step in (1, -1)]
    return (raw & pl.any_horizontal(beside)).fill_null(value=False)
