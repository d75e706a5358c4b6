"""Remarks on a recording: what is missing, by whose word, and how to record it better."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import IDLE
from tracelib.sources.health import Remarks
from tracelib.sources.kernel.sched import gaps, handovers
from tracelib.words import counted

if TYPE_CHECKING:
    from tracelib.sources.perf.ending import Ending
    from tracelib.sources.perf.header import Header

RECORD = "perf record -k mono -a -g -e cpu-clock/freq=199/ -e sched:sched_switch -e sched:sched_wakeup"
SHOWN = 3


class PerfRemarks(Remarks):
    """Remarks on one recording, each kind of flaw with its own words."""

    def clock(self, header: Header) -> None:
        """Remark on times that cannot be compared with other files."""
        if not header.present:
            self.add(
                "warning",
                "the text has no header: host, CPUs and clock are not known",
                "perf script --header --ns, after perf record -k mono",
            )
        elif header.clock == "local":
            self.add(
                "warning",
                "recorded on the scheduler's own clock, which no other trace shares",
                "perf record -k mono",
            )
        elif header.wall_offset_ns is None:
            self.add(
                "warning",
                f"the header does not tie the clock ({header.clock}) to wall time",
                "perf record -k mono",
            )

    def untold(self, tracepoints: list[str]) -> None:
        """Remark on tracepoints that stand among the samples and look like them."""
        if tracepoints:
            shown = ", ".join(tracepoints[:8]) + (", …" if len(tracepoints) > 8 else "")
            self.add(
                "error",
                f"tracepoints were recorded ({shown}), but this file has no fields of theirs: their events cannot be told "
                "from samples, and are among them",
                "give the text of perf script --header --ns -F +pid instead",
            )

    def subsampled(self, header: Header) -> None:
        """Remark on tracepoints that a global -F or -c thinned out."""
        if header.subsampled:
            self.add(
                "error",
                f"only some events of {', '.join(header.subsampled)} were recorded (sampled by frequency or period)",
                f"give the rate to the CPU samples alone, in place of -F: {RECORD}",
            )

    def missing_switches(self, scheduled: pl.DataFrame, *, system_wide: bool | None) -> int:
        """Remark on switches proven to be missing from the frame `sched`, and return how many at least.

        `system_wide` is None where the file does not tell: it was if idle CPUs are seen to become busy.
        """
        pairs = handovers(scheduled)
        missing = gaps(pairs).height
        if not missing:
            return 0
        switch = pl.col("event") == "switch"
        to_idle = scheduled.filter(switch & (pl.col("next") == IDLE)).height
        from_idle = scheduled.filter(switch & (pl.col("prev") == IDLE)).height
        if not (from_idle > 0 if system_wide is None else system_wide):
            self.add(
                "info",
                "recorded for some processes only: switches of other processes are not in the file",
                RECORD,
            )
            return 0
        self.add(
            "warning",
            f"at least {counted(missing, 'switch event')} missing: {missing:,} of {pairs.height:,} "
            f"times the next switch on that CPU leaves another thread than the one that came; "
            f"{to_idle:,} switches to idle, {from_idle:,} from idle",
            "check the kernel's tracepoints, enlarge the buffer (-m 4096); intervals at the gaps are rebuilt or unknown",
        )
        return missing

    def unread(self, count: int, size: int, examples: list[str]) -> None:
        """Remark on lines that are none of perf's."""
        if count:
            shown = "; ".join(repr(line[:80]) for line in examples[:SHOWN])
            self.add(
                "warning",
                f"{counted(count, 'line')} ({size:,} bytes) not understood, e.g. {shown}",
                "keep perf's messages apart: perf script 2> errors.txt > perf.txt",
            )

    def ending(self, ending: Ending, damage: str | None) -> None:
        """Remark on a text that ends early."""
        if damage:
            self.add(
                "error", f"the file is damaged: {damage}; what came before is read", "copy or record it again"
            )
        if ending.dropped_bytes:
            self.add(
                "warning",
                f"the text ends inside an event, which is left out: {ending.dropped[-80:]!r}",
                "let perf script finish before copying its output",
            )
        elif ending.open_chain:
            self.add("info", "no empty line closes the last call chain: it may lack its outer frames")

    def lost(self, events: int, messages: int) -> None:
        """Remark on what the recorder says it lost."""
        if messages:
            self.add(
                "error",
                f"perf says that events were lost: {counted(events, 'event')} in {counted(messages, 'message')}",
                "enlarge the buffer (-m 4096), sample less often, record less long",
            )

    def counted(self, what: str, names: pl.DataFrame) -> None:
        """Remark on events that have no frame: `names` has `event` and `len`."""
        if names.height:
            listed = ", ".join(f"{name} ({count:,})" for name, count in names.head(8).iter_rows())
            self.add("info", f"{what}: {listed}{', …' if names.height > 8 else ''}")
