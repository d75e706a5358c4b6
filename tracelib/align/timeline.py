"""Ties every source's clock to one timeline, in the order that docs/numbers.md (Alignment) gives.

By the user's word, by declaration, by a steady clock that another source names too, by anchors that two
sources both saw. What is left stays untied. If no file says where wall time is, the clock of the fullest one
is the timeline. Declared clocks are checked against the anchors: a clock that they prove wrong is replaced by
theirs, and the report says so; the user's word is never replaced, only doubted. Files that share no time with
the others are pointed out.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from tracelib.align.anchors import Fit
from tracelib.align.evidence import COARSE_NS, COLLECTIVES, GOOD_NS, Check, Evidence
from tracelib.align.stars import Stars, stars
from tracelib.align.ties import (
    UNMOVED,
    UNTIED,
    Remark,
    Tie,
    declared_tie,
    shared_clock_tie,
    source_row,
    tie_through,
    user_offset,
)
from tracelib.trace import Trace
from tracelib.words import count, duration

Rows = Sequence[Mapping[str, Any]]  # of `sources`, one per trace
Checks = dict[tuple[int, int], Check]
Span = tuple[int, int]  # first and last ns on the timeline

DEFAULT_MAX_ERROR_NS = 50_000
UNTIED_MESSAGE = (
    "its clock could not be tied to the others': it is reported alone, and nothing of it is joined"
)
UNTIED_FIX = (
    "give its clock (--ftrace-clock mono) or its offset to wall time (--offset FILE=NS); "
    "record perf with -k mono"
)
REFERENCE_MESSAGE = "no file says where wall time is: this file's clock is the timeline"
ALONE_MESSAGE = "it covers none of the time that the other files cover: another run, or a wrong clock"
LEFT_OUT = "; nothing of it is joined"
UNCHECKED_MESSAGE = "nothing that other files saw checks its clock: it is taken at its word"


@dataclass
class Timeline:
    """A tie per source, what there is to say about them, and the evidence that they rest on."""

    ties: list[Tie]
    evidence: Evidence
    remarks: list[Remark] = field(default_factory=list)

    def off_share(self, index: int, other: int) -> float | None:
        """Return the share of a source's slices that begin while their thread is off the CPU in another's."""
        return self.evidence.off_share(index, other, self.ties)


def timeline(traces: Sequence[Trace], offsets: Mapping[str, int], max_error_ns: int) -> Timeline:
    """Return how each of `traces` is tied."""
    tying = _Tying(traces, offsets, max_error_ns)
    tying.tie_all(tying.rows)
    remarks, checks = tying.replace_wrong()
    ties = [_checked(index, tie, checks, tying.files) for index, tie in enumerate(tying.settled())]
    said, alone = _apart(tying.evidence, ties)
    for index, tie in enumerate(ties):
        remarks += [] if index in alone else _remarks(index, tie, checks, tying.files)
    ties = [UNTIED if index in alone else tie for index, tie in enumerate(ties)]
    remarks += said
    return Timeline(ties, tying.evidence, remarks)


class _Tying:
    """The sources' ties so far: None, until one is found.

    `groups` are those of ranks, by source; `pairs` the pairs of sources that are compared one by one.
    """

    def __init__(self, traces: Sequence[Trace], offsets: Mapping[str, int], max_error_ns: int) -> None:
        self.rows: Rows = [source_row(trace) for trace in traces]
        self.files = [str(row["file"]) for row in self.rows]
        self.evidence = Evidence(traces, max_error_ns)
        self.ties = [
            user_offset(file, offsets) or declared_tie(row)
            for file, row in zip(self.files, self.rows, strict=True)
        ]
        if not any(self.ties):
            sizes = [(trace.gpu_ops.height, _events(trace)) for trace in traces]
            self.ties[sizes.index(max(sizes))] = Tie("reference")
        self.groups = [self.evidence.groups(index) for index in range(len(traces))]
        self.stars = Stars()
        every = combinations(range(len(traces)), 2)
        self.pairs = [pair for pair in every if not self.ranks_apart(*pair)]

    def settled(self) -> list[Tie]:
        return [tie or UNTIED for tie in self.ties]

    def tie_all(self, rows: Rows) -> None:
        """Tie what can be tied through those that are, the surest first."""
        while True:
            for index, row in enumerate(rows):
                if self.ties[index] is None:
                    tied = [
                        (other, tie) for other, tie in zip(rows, self.ties, strict=True) if tie is not None
                    ]
                    self.ties[index] = shared_clock_tie(row, tied)
            fits = [
                (fit, index, through)
                for index, tie in enumerate(self.ties)
                if tie is None
                for fit, through in self.fits(index)
            ]
            if fits:
                fit, index, through = min(fits, key=lambda item: item[0].error_ns)
                self.ties[index] = tie_through(fit, self.ties[through] or UNTIED, self.files[through])
            elif not self.tie_by_rhythm():
                return

    def fits(self, index: int) -> Iterator[tuple[Fit, int]]:
        """Yield how a source's clock maps to those of tied ones; of ranks up to the first good one.

        Those with which a rank was compared go first, and of these those with which most agree.
        """
        tied = [through for through, tie in enumerate(self.ties) if tie is not None]
        mates = {at for pair in self.stars.checks if index in pair for at in pair}
        good = False
        for through in sorted(tied, key=lambda at: (at not in mates, -self.stars.agree[at])):
            rank = self.ranks_apart(index, through)
            if rank and (good or not self.groups[index].keys() & self.groups[through].keys()):
                continue
            fit = self.evidence.fit(through, index)
            if fit is not None:
                yield fit, through
                good = good or (rank and fit.error_ns <= GOOD_NS)

    def ranks_apart(self, one: int, other: int) -> bool:
        """Say whether two sources are ranks of which nothing but collectives can tell."""
        both = self.groups[one] and self.groups[other]
        return bool(both) and self.evidence.only_collectives(one, other)

    def tie_by_rhythm(self) -> bool:
        """Tie one more source by when threads were busy, if one can be."""
        for index in (index for index, tie in enumerate(self.ties) if tie is None):
            found = self.evidence.rhythm(index, self.ties)
            if found is not None:
                fit, through = found
                self.ties[index] = tie_through(replace(fit, kind="activity"), UNMOVED, self.files[through])
                return True
        return False

    def untie(self, index: int) -> None:
        """Take a source's tie away, and the ties of those that were tied through it."""
        self.ties[index] = None
        for other in self.through(index):
            self.untie(other)

    def through(self, index: int) -> list[int]:
        """Return the sources that are tied through source `index`."""
        return [
            at for at, tie in enumerate(self.ties) if tie is not None and tie.against == self.files[index]
        ]

    def replace_wrong(self) -> tuple[list[Remark], Checks]:
        """Check the ties against each other; tie by anchors those whose declared clock is proven wrong."""
        remarks: list[Remark] = []
        while True:
            checks = self.checks()
            wrong = {pair: check for pair, check in checks.items() if check.shift_ns}
            worst = self.worst(wrong, checks)
            if worst is None:
                return [*remarks, *(_doubt(*pair, wrong[pair], self.files) for pair in wrong)], checks
            pair = next(pair for pair in wrong if worst in pair)
            self.untie(worst)
            self.tie_all([{**row, "clock": None} if at == worst else row for at, row in enumerate(self.rows)])
            level, outcome = "warning", "it is tied by anchors instead"
            if self.ties[worst] is None:
                level, outcome = "error", "it is kept apart"
            message = (
                f"the clock that it declares is {_off(wrong[pair])} off that of "
                f"{self.files[_other(pair, worst)]}, as {_anchors(wrong[pair])} prove; {outcome}"
            )
            remarks.append((worst, level, message, "give its offset (--offset FILE=NS) if you know better"))

    def checks(self) -> Checks:
        """Return how the sources agree whose clocks nobody measured."""
        ties = self.settled()
        declared = [index for index, tie in enumerate(ties) if tie.method not in ("anchors", "untied")]
        ranks = [index for index in declared if self.groups[index]]
        self.stars = stars(ranks, self.groups, lambda one, other: self.evidence.check_ends(one, other, ties))
        checks: Checks = {**self.stars.checks}
        for pair in self.pairs:
            if any(self.ties[index] is None for index in pair):
                continue
            files = [self.files[index] for index in pair]
            measured = [ties[index] for index in pair if ties[index].method == "anchors"]
            # What was tied through the other one proves nothing about it.
            if len(measured) < 2 and not any(tie.against in files for tie in measured):
                check = self.evidence.check(*pair, ties)
                if check is not None and not self.strangers(pair, check):
                    checks[pair] = check
        return {**checks, **self.checks_by_rhythm(checks)}

    def strangers(self, pair: tuple[int, int], check: Check) -> bool:
        """Say whether a pair's collectives disagree because all ranks of one's group were found, elsewhere.

        Replicas do the same in one order, and their groups often bear one name.
        """
        ranks = all(self.groups[index] for index in pair)
        return ranks and check.kind == COLLECTIVES and bool(check.shift_ns) and not self.stars.related(*pair)

    def checks_by_rhythm(self, checks: Checks) -> Checks:
        """Return what the sources' activity says of declared clocks that nothing else checks closely."""
        found: Checks = {}
        for index, tie in enumerate(self.ties):
            close = [check.error_ns for pair, check in checks.items() if index in pair]
            if tie is None or tie.method == "anchors" or min(close, default=COARSE_NS) < COARSE_NS:
                continue
            # What was measured proves nothing: perhaps it was measured through this one.
            witnesses = [other if other and other.method != "anchors" else None for other in self.ties]
            result = self.evidence.check_rhythm(index, witnesses)
            if result is not None:
                check, through = result
                found[min(index, through), max(index, through)] = check
        return found

    def worst(self, wrong: Checks, checks: Checks) -> int | None:
        """Return which source of the pairs that disagree declares a wrong clock, None if none declares one.

        More witnesses decide; then, with whom fewer agree; then, who shares less time with the others; then,
        who has no GPU work, and whose header is a mere pair of clock readings.
        """
        method = [tie.method for tie in self.settled()]
        # What was measured against an accused one repeats its word: only declared clocks bear witness.
        own = checks.keys() - self.stars.checks.keys()
        votes = Counter(
            at for pair in own & wrong.keys() if all(method[at] != "anchors" for at in pair) for at in pair
        )
        agree = Counter(at for pair in own - wrong.keys() for at in pair)
        return max(
            (index for pair in wrong for index in pair if method[index] == "declared"),
            key=lambda index: (
                votes[index] + self.stars.disagree[index],
                -(agree[index] + self.stars.agree[index]),
                -self.shared_time(index),
                self.evidence.traces[index].gpu_ops.is_empty(),
                index,
            ),
            default=None,
        )

    def shared_time(self, index: int) -> int:
        """Return how long a source and others, not tied through it, cover the same time."""
        spans = _spans(self.evidence, self.settled())
        first, last = spans.get(index, (0, 0))
        others = [span for at, span in spans.items() if at not in (index, *self.through(index))]
        return sum(max(0, min(last, end) - max(first, begin)) for begin, end in others)


def _events(trace: Trace) -> int:
    return sum(frame.height for frame in trace.frames().values())


def _other(pair: tuple[int, int], one: int) -> int:
    return pair[0] if pair[1] == one else pair[1]


def _checked(index: int, tie: Tie, checks: Checks, files: Sequence[str]) -> Tie:
    """Return a tie that nobody measured with the error that its best check leaves room for, and by what."""
    best = _best_check(index, checks)
    if best is None or tie.error_ns is not None:
        return tie
    check, other = best
    return replace(
        tie,
        error_ns=check.error_ns,
        against=files[other],
        kind=check.kind,
        anchors=check.count,
        p50_ns=check.p50_ns,
        p99_ns=None if check.p50_ns is None else check.p99_ns,
    )


def _best_check(index: int, checks: Checks) -> tuple[Check, int] | None:
    """Return the check that leaves a source least room, of those that agree, and the source it is against."""
    agreed = [
        (check, _other(pair, index)) for pair, check in checks.items() if index in pair and not check.shift_ns
    ]
    return min(agreed, key=lambda item: item[0].error_ns, default=None)


def _off(check: Check) -> str:
    return f"{abs(check.shift_ns) / 1e6:.3f} ms"


def _anchors(check: Check) -> str:
    return f"{count(check.count)} anchors ({check.kind})"


def _doubt(one: int, other: int, check: Check, files: Sequence[str]) -> Remark:
    message = (
        f"its clock is {_off(check)} off that of {files[one]}, as {_anchors(check)} say; "
        "what is joined between them is off by as much"
    )
    fix = "correct the offset of one of them (--offset FILE=NS), or leave it out"
    return other, "warning", message, fix


def _remarks(index: int, tie: Tie, checks: Checks, files: Sequence[str]) -> list[Remark]:
    if tie.method == "untied":
        return [(index, "warning", UNTIED_MESSAGE, UNTIED_FIX)]
    if tie.method == "anchors":
        return [(index, "info", _by_anchors(tie), "")]
    remarks: list[Remark] = []
    if tie.method == "reference" and len(files) > 1:
        remarks.append((index, "info", REFERENCE_MESSAGE, ""))
    if best := _best_check(index, checks):
        check, other = best
        median = "" if check.p50_ns is None else f", half of them within {duration(check.p50_ns)}"
        message = (
            f"its clock agrees with that of {files[other]} within {duration(check.error_ns)}{median} "
            f"by {_anchors(check)}"
        )
        if check.error_ns > COARSE_NS:
            message = (
                f"{UNCHECKED_MESSAGE}; only that it is less than {duration(check.error_ns)} off that of "
                f"{files[other]} is known, by {_anchors(check)}"
            )
        remarks.append((index, "info", message, ""))
    elif tie.method == "declared" and tie.against is None and len(files) > 1:
        remarks.append((index, "info", UNCHECKED_MESSAGE, ""))
    return remarks


def _by_anchors(tie: Tie) -> str:
    if tie.kind == "activity":
        times = f"{count(tie.anchors)} times that its threads were off the CPU"
        how = f"{times} leave it within {duration(tie.p99_ns)}"
    else:
        how = (
            f"{count(tie.anchors)} moments that both saw ({tie.kind}): half of them agree within "
            f"{duration(tie.p50_ns)}, 99 % within {duration(tie.p99_ns)}"
        )
    drifts = abs(tie.drift_ppb) >= 1000
    drift = f"; its clock runs {-tie.drift_ppb / 1000:+.1f} ppm against that one" if drifts else ""
    return f"tied through {tie.against} by {how}{drift}"


def _apart(evidence: Evidence, ties: Sequence[Tie]) -> tuple[list[Remark], set[int]]:
    """Return remarks on files that share no time with the others, and on several runs read as one.

    And the files that share none with the others, who do: upstream of these, such a file would seem idle.
    """
    together = stretches(_spans(evidence, ties))
    if len(together) < 2:
        return [], set()
    single = [files[0] for files in together if len(files) == 1]
    shared = any(len(files) > 1 for files in together)
    alone = {index for index in single if shared and ties[index].method == "declared"}
    remarks: list[Remark] = [
        (index, "warning", ALONE_MESSAGE + LEFT_OUT * (index in alone), "") for index in single
    ]
    runs = sum(len(files) > 1 for files in together)
    if runs > 1:
        message = (
            f"the files lie in {runs} stretches of time between which nothing was recorded, as those of "
            f"{runs} runs would"
        )
        remarks.append((None, "warning", message, "report each run by itself: tracelib batch 'FOLDER/*'"))
    return remarks, alone


def stretches(spans: Mapping[int, Span]) -> list[list[int]]:
    """Return the keys of the spans, those together that share time, directly or by way of others; by time."""
    groups: list[list[int]] = []
    reached = -math.inf
    for key, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        if first < reached:
            groups[-1].append(key)
        else:
            groups.append([key])
        reached = max(reached, last)
    return groups


def _spans(evidence: Evidence, ties: Iterable[Tie]) -> dict[int, Span]:
    """Return what each tied source covers, of those that hold anything with a time."""
    return {
        index: (own[0] + tie.offset_ns, own[1] + tie.offset_ns)
        for index, tie in enumerate(ties)
        if tie.method != "untied" and (own := evidence.span(index)) is not None
    }
