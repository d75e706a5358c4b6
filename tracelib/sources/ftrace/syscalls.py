"""System calls: entries and exits paired on their thread into slices of category `os`.

A thread is in one call at a time, so an entry and the next event of the same thread belong together if that is the exit
of the same call. The name is the call's without `sys_` ("futex"), as nsys names its OS runtime calls.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

__all__ = ["ARM64", "NO_NUMBER", "X86_64", "Calls", "machine_of", "paired"]

#: Numbers of the calls that servers spend time in, by machine (arch/x86/entry/syscalls/syscall_64.tbl and
#: include/uapi/asm-generic/unistd.h).
X86_64 = {
    0: "read", 1: "write", 3: "close", 5: "newfstat", 7: "poll", 8: "lseek", 9: "mmap", 10: "mprotect", 11: "munmap",
    12: "brk", 13: "rt_sigaction", 14: "rt_sigprocmask", 15: "rt_sigreturn", 16: "ioctl", 17: "pread64", 18: "pwrite64",
    19: "readv", 20: "writev", 23: "select", 24: "sched_yield", 28: "madvise", 32: "dup", 35: "nanosleep", 39: "getpid",
    41: "socket", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 56: "clone",
    57: "fork", 58: "vfork", 59: "execve", 60: "exit", 61: "wait4", 62: "kill", 72: "fcntl", 74: "fsync", 202: "futex",
    219: "restart_syscall", 228: "clock_gettime", 230: "clock_nanosleep", 231: "exit_group", 232: "epoll_wait", 233: "epoll_ctl",
    247: "waitid", 257: "openat", 262: "newfstatat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4",
    299: "recvmmsg", 307: "sendmmsg", 318: "getrandom", 426: "io_uring_enter", 435: "clone3", 441: "epoll_pwait2",
    449: "futex_waitv",
}  # fmt: skip
ARM64 = {
    20: "epoll_create1", 21: "epoll_ctl", 22: "epoll_pwait", 23: "dup", 25: "fcntl", 29: "ioctl", 56: "openat", 57: "close",
    62: "lseek", 63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 72: "pselect6",
    73: "ppoll", 79: "newfstatat", 80: "newfstat", 82: "fsync", 93: "exit", 94: "exit_group", 95: "waitid", 98: "futex",
    101: "nanosleep", 113: "clock_gettime", 115: "clock_nanosleep", 124: "sched_yield", 128: "restart_syscall", 129: "kill",
    134: "rt_sigaction", 135: "rt_sigprocmask", 139: "rt_sigreturn", 172: "getpid", 198: "socket", 202: "accept",
    203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 214: "brk", 215: "munmap", 220: "clone",
    221: "execve", 222: "mmap", 226: "mprotect", 233: "madvise", 242: "accept4", 243: "recvmmsg", 260: "wait4",
    269: "sendmmsg", 278: "getrandom", 426: "io_uring_enter", 435: "clone3", 441: "epoll_pwait2", 449: "futex_waitv",
}  # fmt: skip
TELLING = ("futex", "read", "write", "sched_yield", "epoll_pwait", "epoll_wait", "ppoll", "clock_nanosleep")
#: Calls from which a thread that did not enter them returns: it is the new thread.
BIRTHS = ("clone", "clone3", "fork", "vfork")
#: Calls whose end the kernel does not tell by their name: they never return, or (the last) with the number NO_NUMBER.
ENDS = ("exit", "exit_group", "rt_sigreturn")
NO_NUMBER = -1


class Calls(NamedTuple):
    """Slices of system calls, and what could not be paired."""

    slices: pl.DataFrame  # thread Int32, ts_ns, dur_ns, name Categorical
    at_edges: int  # began before the trace or ended after it: cut at its first and last event
    without_end: int  # an entry whose exit is missing: dur_ns 0
    without_start: int  # an exit whose entry is missing: no slice


def machine_of(numbers: pl.Series) -> dict[int, str]:
    """Return the table of the machine that calls with these numbers were made on, which the text does not name.

    The calls that every program makes most have numbers on one machine that mean rare calls on the other.
    """
    hits = {}
    for name, table in (("x86", X86_64), ("arm", ARM64)):
        telling = [number for number, call in table.items() if call in TELLING]
        hits[name] = int(numbers.is_in(telling).sum())
    return ARM64 if hits["arm"] > hits["x86"] else X86_64


def paired(calls: pl.DataFrame, first_ns: int, last_ns: int, dead: pl.DataFrame) -> Calls:
    """Pair entries with exits.

    Parameters
    ----------
    calls
        ts_ns, thread Int32, name Categorical, ends Boolean: one row per entry or exit, in the order of the file.
    first_ns, last_ns
        Of the whole trace.
    dead
        thread, dead_ns: when a thread left its CPU for good, where the scheduler's events say so.

    """
    # nearly every text is in the order of time already, and a stable sort by one key costs a fifth
    key = ["thread"] if calls["ts_ns"].is_sorted() else ["thread", "ts_ns"]
    rows = calls.sort(key, maintain_order=True)
    if dead.is_empty():
        rows = rows.with_columns(dead_ns=pl.lit(None, pl.Int64))
    else:
        rows = rows.join(dead, on="thread", how="left", maintain_order="left")
    here = {"thread": pl.col("thread"), "name": pl.col("name")}
    first = (here["thread"] != here["thread"].shift(1)).fill_null(value=True)
    last = (here["thread"] != here["thread"].shift(-1)).fill_null(value=True)
    ends, births, finals = pl.col("ends"), here["name"].is_in(BIRTHS), here["name"].is_in(ENDS)
    closed = ~ends & ~last & ends.shift(-1) & (here["name"].shift(-1) == here["name"])
    rows = rows.with_columns(
        closed=closed.fill_null(value=False),
        next_ns=pl.col("ts_ns").shift(-1),
        open_end=~ends & last & ~finals,
        open_start=ends & first & ~births,
        unpaired_exit=ends & ~first,  # unless the row before closes with it: taken off below
        unpaired_entry=~ends & ~last & ~finals,
    )
    until = pl.min_horizontal(pl.lit(last_ns), pl.when(pl.col("dead_ns") >= pl.col("ts_ns")).then("dead_ns"))
    end = pl.when("closed").then("next_ns").when("open_end").then(until).otherwise("ts_ns")
    start = pl.when("open_start").then(first_ns).otherwise("ts_ns")
    slices = rows.filter(~ends | pl.col("open_start")).select(
        "thread", start.alias("ts_ns"), (end - start).alias("dur_ns"), "name"
    )
    pairs = pl.col("closed").sum()
    count = rows.select(
        edges=(pl.col("open_end") | pl.col("open_start")).sum(),
        without_end=pl.col("unpaired_entry").sum() - (pl.col("closed") & ~finals).sum(),
        without_start=pl.col("unpaired_exit").sum() - pairs,
    ).row(0)
    return Calls(slices, *count)
