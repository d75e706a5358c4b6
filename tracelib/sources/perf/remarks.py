"""Remarks on a recording: what is missing, by whose word, and how to record it better."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import IDLE
from tracelib.sources.health import Remarks
from tracelib.sources.kernel.sched import gaps, handovers
from tracelib.sources.perf.call_chains import PAGE, PHYSICAL
from tracelib.words import counted, plain

if TYPE_CHECKING:
    from tracelib.sources.perf.header import Header
    from tracelib.sources.perf.scan import Ending, Text

RECORD = "perf record -k mono -a -g -e cpu-clock/freq=199/ -e sched:sched_switch -e sched:sched_wakeup"
SHOWN, EXCERPT = 3, 80
#: Lines that are neither heads nor frames, yet known: what `-F` adds below a chain (source positions as
#: perf's get_srcline has them, source text, registers, branches, instructions, addresses, page sizes), the
#: rest of a namespace record, rounds.
EXTRA_LINE = "|".join(
    [
        r"^  (?:\S.*)?(?::\d+|\[[0-9a-f]+\]|\+(?:0x[0-9a-f]+|\d+))\s*$",
        r"^\|\d+ ",
        r"^ ABI:\d+(?: +\w+:0x[0-9a-f]+)*\s",
        r"^ \S*.*/[PM-]/[X-]/[A-]/\d+",
        r"^(?: ilen: \d+)?(?: insn:(?: [0-9a-f]{2})*)?\s*$",
        r"^\t[0-9a-f]+\s+insn:",
        rf"^{PAGE}{{1,2}}\s*$",
        PHYSICAL,
        r"^\t\t[ \[]\d+/\w+: ",
        r"^PERF_RECORD_FINISHED_\w+\s*$",
    ]
)
SHARE = r"\d%"
LOSS = r"(?i)\blost\D{0,20}?(\d+)|\blost (?:trace|chunk|event|sample)|instruction trace error"


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

    def untied(self, clock: str, wall_offset_ns: int | None) -> int | None:
        """Remark on a clock that the file does not tie to wall time; return the offset."""
        if wall_offset_ns is None:
            self.add(
                "warning", f"the file does not tie its clock ({clock}) to wall time", "perf record -k mono"
            )
        return wall_offset_ns

    def indistinct(self, tracepoints: list[str]) -> None:
        """Remark on tracepoints that stand among the samples and look like them."""
        if tracepoints:
            shown = ", ".join(tracepoints[:8]) + (", …" if len(tracepoints) > 8 else "")
            self.add(
                "error",
                f"tracepoints were recorded ({shown}), but this file has no fields of theirs: "
                "their events cannot be told from samples, and are among them",
                "give the text of perf script --header --ns -F +pid instead",
            )

    def subsampled(self, header: Header) -> None:
        """Remark on tracepoints that a global -F or -c thinned out."""
        if header.subsampled:
            self.add(
                "error",
                f"only some events of {', '.join(header.subsampled)} were recorded "
                "(sampled by frequency or period)",
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
            "check the kernel's tracepoints, enlarge the buffer (-m 4096); "
            "intervals at the gaps are rebuilt or unknown",
        )
        return missing

    def unread(self, count: int, size: int, examples: list[str]) -> None:
        """Remark on lines that are not perf's."""
        if count:
            shown = "; ".join(f"'{plain(line, EXCERPT)}'" for line in examples[:SHOWN])
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
                f"the text ends inside an event, which is left out: '{plain(ending.dropped[-EXCERPT:])}'",
                "let perf script finish before copying its output",
            )
        elif ending.open_chain:
            self.add("info", "no empty line closes the last call chain: it may lack its outer frames")

    def lost(self, events: int, messages: int) -> None:
        """Remark on what the recorder says it lost."""
        if messages:
            self.add(
                "error",
                f"perf says that events were lost: {counted(events, 'event')} "
                f"in {counted(messages, 'message')}",
                "enlarge the buffer (-m 4096), sample less often, record less long",
            )

    def counted(self, what: str, names: pl.DataFrame) -> None:
        """Remark on events that have no frame: `names` has `event` and `len`."""
        if names.height:
            listed = ", ".join(f"{name} ({count:,})" for name, count in names.head(8).iter_rows())
            self.add("info", f"{what}: {listed}{', …' if names.height > 8 else ''}")


def not_understood(other: pl.DataFrame) -> pl.DataFrame:
    """Return those of the lines that are neither heads nor frames which are not known either."""
    return other.filter(~pl.col("text").str.contains(EXTRA_LINE) & ~pl.col("text").str.contains(LOSS))


def remark_on_text(remarks: PerfRemarks, text: Text) -> int:
    """Add what can be said of the text itself, and return how many events perf says it lost."""
    remarks.clock(text.header)
    remarks.subsampled(text.header)
    unknown = not_understood(text.other)
    remarks.unread(unknown.height, int(unknown["bytes"].sum()), unknown["text"].head(SHOWN).to_list())
    remarks.ending(text.ending, text.damage)
    if text.orphans:
        remarks.add("warning", f"{text.orphans:,} call-chain lines follow no readable event and are left out")
    if text.damaged:
        remarks.add("info", f"{text.damaged:,} places are not UTF-8 and shown as U+FFFD")
    losses = _losses(text)
    # not "lost 12.3%"
    number = pl.when(~pl.col("text").str.contains(SHARE)).then(pl.col("text").str.extract(LOSS))
    count = number.cast(pl.Int64, strict=False).fill_null(1) * pl.col("len")
    lost = int(losses.select(count).to_series().sum())
    remarks.lost(lost, int(losses["len"].sum()))
    return lost


def _losses(text: Text) -> pl.DataFrame:
    """Return the messages that events were lost: text, len (how often)."""
    records = text.events.filter(pl.col("kind") == "record").group_by("says").len()
    spoken = text.says.with_row_index("says").join(records, on="says", how="inner")
    lines = text.other.filter(pl.col("text").str.contains(LOSS))
    lost = spoken.filter(pl.col("event").str.contains("LOST"))
    return pl.concat(
        [
            lines.select("text", pl.lit(1, pl.UInt32).alias("len")),
            lost.select(pl.concat_str(pl.lit("lost "), "rest").alias("text"), "len"),
        ]
    )
