"""Lines of ftrace texts for tests, and what a trace says of its file."""

import polars as pl


def line(ts, rest, task="bash-7", cpu=1):
    return f"{task:>22}     [{cpu:03d}] .....  {ts:>12}: {rest}\n"


def messages(trace, level="warning"):
    return " | ".join(trace.health.filter(pl.col("level") == level)["message"])


SWITCH_1 = line("1.000000", "sched_switch: a:1 [120] S ==> b:2 [120]", "a-1")
SWITCH_2 = line("3.000000", "sched_switch: c:3 [120] S ==> a:1 [120]", "c-3")
OTHER_CPU = line("2.000000", "cpu_idle: state=1", "x-9", cpu=0)
HUGE = "99999999999999999999"
