"""What a person should know about the state of an ftrace text: rows of the frame `health`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelib.sources.ftrace.events import UNPRINTED
from tracelib.words import counted

if TYPE_CHECKING:
    from tracelib.sources.ftrace.events import Events
    from tracelib.sources.ftrace.heads import Heads
    from tracelib.sources.health import Remarks

__all__ = ["BIGGER", "of_lines", "shown"]

BIGGER = "Record with a bigger buffer: trace-cmd record -b 65536 (KiB per CPU), or echo 65536 > buffer_size_kb; or fewer events."
EXCERPT = 80


def shown(text: str) -> str:
    """Return an excerpt that is safe to print: the text is not trusted."""
    printable = "".join(c if c.isprintable() else "\ufffd" for c in text[:EXCERPT])
    return printable + ("…" if len(text) > EXCERPT else "")


def of_lines(events: Events, heads: Heads, remarks: Remarks) -> None:
    """Add what the lines themselves show: which events there are, what could not be read, and the clock."""
    by_name = sorted(events.counts.items(), key=lambda item: (-item[1], item[0]))
    if by_name:
        listed = ", ".join(f"{shown(name)} {count:,}" for name, count in by_name[:40])
        more = f", and {len(by_name) - 40} more" if len(by_name) > 40 else ""
        remarks.add("info", f"{counted(sum(events.counts.values()), 'event')}: {listed}{more}")
    if events.unread:
        at, text = events.unread_example or (0, "")
        remarks.add(
            "warning", f"{counted(events.unread, 'line')} not understood, first at line {at}: {shown(text)!r}"
        )
    if events.continued:
        remarks.add(
            "info",
            f"{counted(events.continued, 'line')} continue the text of a marker; only its first line is kept",
        )
    if events.no_time:
        remarks.add(
            "warning",
            f"{counted(events.no_time, 'line')} of a function graph carry no time, no task or no duration and cannot be placed",
            "Record with: echo 1 > options/funcgraph-abstime; echo 1 > options/funcgraph-proc; echo 1 > options/funcgraph-duration. "
            "Graphs of irqsoff and wakeup tracers count time from their start: echo 0 > options/display-graph",
        )
    if unprinted := events.counts.get(UNPRINTED):
        remarks.add(
            "warning",
            f"{counted(unprinted, 'event')} that the kernel did not print (UNKNOWN TYPE): text that programs wrote is missing",
            "Record with: echo 0 > options/fields",
        )
    if heads.counting:
        remarks.add(
            "warning",
            "times are bare numbers, taken as ns: right for raw mono or boot clocks, wrong for x86-tsc, counter or uptime",
            "Record with: echo mono > trace_clock, or trace-cmd record -C mono",
        )
    if heads.since_start:
        remarks.add(
            "warning",
            "latency format: times count from the start of the trace",
            "Record with: echo 0 > options/latency-format",
        )
