"""System calls as slices: an enter and the exit that follows it on the same thread.

perf prints them as `syscalls:sys_enter_futex: uaddr: …` / `syscalls:sys_exit_futex: 0x0`, or by number as
`raw_syscalls:sys_enter: NR 202 (…)` / `raw_syscalls:sys_exit: NR 202 = 0`.
"""

from __future__ import annotations

import polars as pl

from tracelib.schema import SLICES

__all__ = ["calls", "slices"]

NAMED = r"^syscalls:sys_(?P<edge>enter|exit)_(?P<name>\w+)$"
#: Numbers of the calls in which threads wait, poll and talk; from the kernel's arch/x86/entry/syscalls/syscall_64.tbl
#: and include/uapi/asm-generic/unistd.h. Others are named by their number.
NUMBERS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 9: "mmap", 10: "mprotect", 11: "munmap", 12: "brk", 16: "ioctl", 17: "pread64",
        20: "writev", 23: "select", 24: "sched_yield", 28: "madvise", 35: "nanosleep", 39: "getpid", 44: "sendto",
        45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 56: "clone", 59: "execve", 61: "wait4", 202: "futex",
        230: "clock_nanosleep", 232: "epoll_wait", 257: "openat", 262: "newfstatat", 270: "pselect6", 271: "ppoll",
        281: "epoll_pwait", 318: "getrandom", 435: "clone3", 441: "epoll_pwait2", 449: "futex_waitv",
    },
    "aarch64": {
        22: "epoll_pwait", 29: "ioctl", 63: "read", 64: "write", 66: "writev", 67: "pread64", 72: "pselect6", 73: "ppoll",
        98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 124: "sched_yield", 206: "sendto", 207: "recvfrom",
        211: "sendmsg", 212: "recvmsg", 215: "munmap", 220: "clone", 221: "execve", 222: "mmap", 226: "mprotect",
        233: "madvise", 260: "wait4", 435: "clone3", 441: "epoll_pwait2", 449: "futex_waitv",
    },
}  # fmt: skip


def calls(says: pl.DataFrame, architecture: str | None) -> pl.DataFrame:
    """Return one row per row of `says` (`event`, `rest`): `edge` ("enter", "exit", null = no system call), `call` (name)."""
    names = NUMBERS.get(architecture or "x86_64", {})
    number = pl.col("rest").str.extract(r"^NR (-?\d+)").cast(pl.Int64, strict=False)
    raw = pl.col("event").str.extract(r"^raw_syscalls:sys_(enter|exit)$")
    named = pl.col("event").str.extract_groups(NAMED)
    by_number = number.replace_strict(
        names, default=pl.concat_str(pl.lit("syscall_"), number), return_dtype=pl.String
    )
    return says.select(
        pl.coalesce(named.struct.field("edge"), pl.when(number.is_not_null()).then(raw)).alias("edge"),
        pl.coalesce(named.struct.field("name"), pl.when(raw.is_not_null()).then(by_number)).alias("call"),
    )


def slices(edges: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the slices of paired edges, and how many edges found no partner.

    `edges` has `thread`, `ts_ns`, `edge`, `call`, `event` in the order of the file. A call recorded both by name and by
    number gives one slice: numbers are used only where the file has no names.
    """
    by_name = pl.col("event").str.starts_with("syscalls:")
    known = edges.filter(
        pl.col("edge").is_not_null() & pl.col("thread").is_not_null() & (pl.col("thread") >= 0)
    )
    known = known.filter(by_name) if known.select(by_name.any()).item() else known
    paired = (
        known.sort("thread", "ts_ns", maintain_order=True)
        .with_columns(pl.col("edge", "call", "ts_ns").shift(-1).over("thread").name.suffix("_next"))
        .filter(
            (pl.col("edge") == "enter")
            & (pl.col("edge_next") == "exit")
            & (pl.col("call") == pl.col("call_next"))
        )
    )
    made = paired.select(
        pl.lit(0, pl.Int32).alias("source"), "thread", "ts_ns", (pl.col("ts_ns_next") - pl.col("ts_ns")).alias("dur_ns"),
        pl.col("call").cast(pl.Categorical()).alias("name"), pl.lit("os", SLICES["category"]).alias("category"),
        pl.lit(None, pl.Int64).alias("correlation"),
    )  # fmt: skip
    return made.match_to_schema(SLICES), known.height - 2 * made.height
