"""Remarks on a recording: what is missing, by whose word, and how to record it better."""

import polars as pl

from tracelib.schema import IDLE
from tracelib.sources.health import Remarks
from tracelib.sources.kernel.sched import missing_switches
from tracelib.sources.perf.call_chains import PAGE, PHYSICAL
from tracelib.sources.perf.heads import Header
from tracelib.sources.perf.scan import Ending, Text
from tracelib.words import counted, plain

MONOTONIC = "perf record -k mono"
SHOWN, EXCERPT, NAMED = 3, 80, 8
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
    """Remarks on one recording, whichever form it has."""

    def untied(self, clock: str, wall_offset_ns: int | None) -> int | None:
        """Remark on a clock that the file does not tie to wall time; return the offset."""
        if wall_offset_ns is None:
            self.add("warning", f"the file does not tie its clock ({clock}) to wall time", MONOTONIC)
        return wall_offset_ns

    def indistinct(self, tracepoints: list[str]) -> None:
        """Remark on tracepoints that stand among the samples and look like them."""
        if tracepoints:
            self.say("indistinct_tracepoints", names=_listed(tracepoints))

    def counted_only(self, tracepoints: pl.DataFrame) -> None:
        """Remark on tracepoints that have no frame: `event` and `len`."""
        if tracepoints.height:
            names = [f"{name} ({count:,})" for name, count in tracepoints.iter_rows()]
            self.add("info", f"tracepoints that are counted only: {_listed(names)}")

    def missing_switches(self, scheduled: pl.DataFrame, *, system_wide: bool | None) -> int:
        """Remark on switches proven to be missing from the frame `sched`, and return how many at least.

        `system_wide` is None where the file does not tell: it was if idle CPUs are seen to become busy.
        """
        if system_wide is None:
            system_wide = bool(((scheduled["event"] == "switch") & (scheduled["prev"] == IDLE)).any())
        return missing_switches(scheduled, self, system_wide=system_wide)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")


def not_understood(other: pl.DataFrame) -> pl.DataFrame:
    """Return those of the lines that are neither heads nor frames which are not known either."""
    return other.filter(~pl.col("text").str.contains(EXTRA_LINE) & ~pl.col("text").str.contains(LOSS))


def remark_on_text(remarks: PerfRemarks, text: Text) -> int:
    """Add what can be said of the text itself, and return how many events perf says it lost."""
    _remark_on_header(remarks, text.header)
    unknown = not_understood(text.other)
    if unknown.height:
        shown = "; ".join(f"'{plain(line, EXCERPT)}'" for line in unknown["text"].head(SHOWN))
        size = f"{unknown['bytes'].sum():,}"
        lines = counted(unknown.height, "line")
        remarks.say("lines_not_understood", lines=lines, size=size, shown=shown)
    _remark_on_ending(remarks, text.ending, text.damage)
    if text.orphans:
        remarks.add("warning", f"{text.orphans:,} call-chain lines follow no readable event and are left out")
    if text.damaged:
        remarks.add("info", f"{text.damaged:,} places are not UTF-8 and shown as U+FFFD")
    losses = _losses(text)
    # not "lost 12.3%"
    number = pl.when(~pl.col("text").str.contains(SHARE)).then(pl.col("text").str.extract(LOSS))
    count = number.cast(pl.Int64, strict=False).fill_null(1) * pl.col("len")
    lost, messages = int(losses.select(count).to_series().sum()), int(losses["len"].sum())
    if messages:
        remarks.say("perf_lost", events=counted(lost, "event"), messages=counted(messages, "message"))
    return lost


def _remark_on_header(remarks: PerfRemarks, header: Header) -> None:
    if not header.present:
        remarks.say("no_header")
    elif header.clock == "local":
        remarks.say("own_clock")
    else:
        remarks.untied(header.clock, header.wall_offset_ns)
    if header.subsampled:
        remarks.say("subsampled", names=", ".join(header.subsampled))


def _remark_on_ending(remarks: PerfRemarks, ending: Ending, damage: str | None) -> None:
    if damage:
        damaged = f"the file is damaged: {damage}; what came before is read"
        remarks.add("error", damaged, "copy or record it again")
    if ending.dropped_bytes:
        cut = f"the text ends inside an event, which is left out: '{plain(ending.dropped[-EXCERPT:])}'"
        remarks.add("warning", cut, "let perf script finish before copying its output")
    elif ending.open_chain:
        remarks.add("info", "no empty line closes the last call chain: it may lack its outer frames")


def _losses(text: Text) -> pl.DataFrame:
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
