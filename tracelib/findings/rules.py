"""The rules: one table per rule in this folder's TOML files, and the functions that some of them need.

A topic is a TOML file and a Python file of one name. A rule that only compares a share of lost GPU time with
its threshold is a table, and :func:`lost_time` evaluates it; any other has a function of its own name in the
topic's Python file, which takes the table (:class:`Rule`) and the run.

Whatever way a rule is written:

- It looks at the frames of :class:`tracelib.analyses.results.Results` only, and decides by figures that the
  report shows too.
- It returns None where there is nothing to say, `Abstained` where the files cannot tell; where what it looks
  at is missing altogether, :mod:`tracelib.findings.recording` turns its None into an `Abstained`.
- Its claim names an amount; lost GPU time only counts where a GPU was held up (hidden host time costs
  nothing).
"""

import re
from importlib.resources import files
from types import ModuleType
from typing import Any, Literal

import msgspec
import polars as pl

from tracelib.analyses.launches import graph_coverage
from tracelib.analyses.replay import Change as WhatIf
from tracelib.analyses.results import Results
from tracelib.findings import cpus, launching, ranks, server
from tracelib.findings.finding import (
    COVERED,
    Abstained,
    Change,
    Confidence,
    Evidence,
    Finding,
    evidence_of_lost,
    exposed_share,
    gain_of,
    known_share,
    shortage_note,
    spent,
)
from tracelib.findings.recording import WORTH_SAYING, unseen
from tracelib.words import SERVER, share

TOPICS: dict[str, ModuleType] = {"cpus": cpus, "launching": launching, "server": server, "ranks": ranks}

#: From this share of a process's samples that name a library or a function on, what they miss is not there.
NAMED = 0.9


class OfRole(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a finding says instead where threads of a role held GPUs up for longer than those of any other."""

    awaited: str  # what the GPUs waited for, as the claim says it
    disproof: str
    advice: list[str]
    verify: list[str]

    def words(self) -> dict[str, Any]:
        """Return the fields of the finding."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if name != "awaited"}


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule's table: what it needs, when it speaks, and all that its finding says but the amounts."""

    id: str = ""  # the table's name
    topic: str = ""
    because: str  # why a GPU waited, as docs/findings.md lists it
    threshold: float  # share of the window, mean over the GPUs, from which the rule speaks
    needs: str = ""  # what the files must hold besides the GPUs' own record, in words
    #: Checks of recording.py, tried in this order: if one fails, that the rule is silent does not mean "no".
    abstains_without: tuple[str, ...] = ()
    change: Change  # what the advice changes
    gain: Literal["all", "beyond CPUs", "none"]  # what the change gives back of the lost time at most
    replay: WhatIf | None = None  # what to replay for what it really gives back
    cause: str | None = None  # the finding's; of a rule without a function also the lost time's
    sub_cause: str | None = None  # the lost time's
    #: Of a rule without a function; {share} = of the window, {shortage} = a sentence on lack of CPUs.
    claim: str = ""
    confidence: Confidence = "high"
    why: str = ""  # of the confidence
    disproof: str  # what would show the claim to be wrong
    advice: list[str]  # best first
    graph_advice: tuple[str, ...] = ()  # goes after it where few kernels come from graphs
    verify: list[str]  # how to see that it helped
    of_role: dict[str, OfRole] = {}  # by the role of the threads that held GPUs up for longest
    statement: str = ""  # of one on the whole run, for which nothing is to be changed: what it is good for

    def judge(self, results: Results) -> Finding | Abstained | None:
        """Return what the rule says of a run; None = nothing, and the files could tell."""
        function = getattr(TOPICS[self.topic], self.id, lost_time)
        outcome: Finding | Abstained | None = function(self, results)
        return outcome or unseen(self.id, self.abstains_without, results)

    def finding(
        self,
        results: Results,
        lost: pl.DataFrame | int,
        *,
        claim: str,
        evidence: list[Evidence] | None = None,
        **differing: Any,
    ) -> Finding:
        """Return the rule's finding on `lost`, rows of `results.lost` or an amount of GPU time.

        `evidence` is by default the longest stretches of these rows; `differing` are fields of the finding
        that are not as the table has them.
        """
        rows = pl.DataFrame({"dur_ns": [lost]}) if isinstance(lost, int) else lost
        advice = [*self.advice, *(self.graph_advice if launching.launched_singly(results) else ())]
        differing["advice"] = not_yet_done(differing.get("advice", advice), results)
        made = Finding(
            **{
                "id": self.id,
                "cause": self.cause,
                "claim": claim + launching.wake_note(results, self.cause, self.sub_cause),
                "exposed_ns": spent(rows),
                "exposed_share": exposed_share(results, rows),
                "confidence": self.confidence,
                "why": self.why,
                "evidence": evidence_of_lost(results, rows) if evidence is None else evidence,
                "disproof": self.disproof,
                "verify": self.verify,
                "change": self.change,
                "gain_ns": differing["gain_ns"] if "gain_ns" in differing else self._gain(rows),
                "gain_share": None,
                "place": self.statement,
                "known_share": known_share(results) if "wakeups" in self.abstains_without else None,
                **differing,
            }
        )
        if not isinstance(lost, int):
            made.__dict__["lost"] = lost  # for `doubts.less_sure`
        return made

    def abstained(self, reason: str, record_with: str) -> Abstained:
        """Return that the files cannot tell, why, and what to record."""
        return Abstained(id=self.id, reason=reason, record_with=record_with)

    def _gain(self, lost: pl.DataFrame) -> int | None:
        if self.gain == "none":
            return None
        return spent(lost) if self.gain == "all" else gain_of(lost)


class Already(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that a trace can prove to be so already (`already.toml` explains the fields)."""

    advice: str
    slices: str = ""
    operations: str = ""
    without: str = ""
    graphs: bool = False
    waits_apart: bool = False
    frames: str = ""
    threads: int = 0

    def proven(self, results: Results) -> bool:
        """Return whether the run proves it."""
        trace = results.trace
        operations = bool(self.operations) and _named(trace.gpu_ops, self.operations)
        return (
            (bool(self.slices) and _named(trace.slices, self.slices))
            or (operations and not (self.without and _named(trace.gpu_ops, self.without)))
            or (self.graphs and (graph_coverage(results.launches) or 0.0) >= COVERED)
            or (self.waits_apart and _waits_apart(results))
            or (bool(self.frames) and _small_pool(self.frames, self.threads, results))
        )


def not_yet_done(advice: list[str], results: Results) -> list[str]:
    """Return the advice without what recommends something that the run proves to be on."""
    for already in ALREADY.values():
        recommends = [bool(re.search(already.advice, text)) for text in advice]
        if any(recommends) and already.proven(results):
            advice = [text for text, on in zip(advice, recommends, strict=True) if not on]
    return advice


def _named(rows: pl.DataFrame, pattern: str) -> bool:
    return bool(rows["name"].unique().cast(pl.String).str.contains(pattern).any())


def _waits_apart(results: Results) -> bool:
    """Return whether threads of workers that launch nothing wait for the device, for 1 % of the window."""
    launching = results.launches["call_thread"].drop_nulls().unique()
    workers = results.trace.threads.filter(pl.col("role") == "worker")["thread"]
    waits = pl.concat(
        [
            results.spinning.filter(pl.col("kind") == "device_wait").select("thread", "dur_ns"),
            results.host_activity.filter(pl.col("cause").cast(pl.String) == "sync").select(
                "thread", "dur_ns"
            ),
        ]
    )
    apart = pl.col("thread").is_in(workers.implode()) & ~pl.col("thread").is_in(launching.implode())
    return spent(waits.filter(apart)) >= WORTH_SAYING * results.window.duration_ns


def _small_pool(frames: str, most: int, results: Results) -> bool:
    """Return whether no process of the server has more than `most` threads in `frames`, its main one aside.

    Only samples that name what they hit prove that, of every process that ran for 1 % of the window.
    """
    server = results.trace.threads.filter(pl.col("role").is_in(SERVER))
    threads = server.select("thread", "host", "pid", "tid")
    texts = [pl.col(name).cast(pl.String) for name in ("library", "symbol")]
    stacks = results.trace.stacks.group_by("stack").agg(
        named=(texts[0].is_not_null() | (texts[1] != "[unknown]")).any(),
        inside=pl.any_horizontal(text.str.contains(frames).fill_null(value=False) for text in texts).any(),
    )
    samples = results.trace.samples.join(stacks, on="stack", how="left").join(threads, on="thread")
    pooled = pl.col("thread").filter(pl.col("inside") & (pl.col("tid") != pl.col("pid"))).n_unique()
    sampled = samples.group_by("host", "pid").agg(
        named=pl.col("named").fill_null(value=False).mean(), pooled=pooled
    )
    load = results.thread_load.join(threads, on="thread").group_by("host", "pid")
    ran = load.agg(pl.col("running_ns").sum()).filter(
        pl.col("running_ns") >= WORTH_SAYING * results.window.duration_ns
    )
    processes = ran.join(sampled, on=["host", "pid"], how="left", nulls_equal=True)
    small = (pl.col("named") >= NAMED) & (pl.col("pooled") <= most)
    return processes.height > 0 and processes.select(small.fill_null(value=False).all()).item()


def lost_time(rule: Rule, results: Results) -> Finding | None:
    """Report the lost GPU time of the rule's cause and sub-cause, where it reaches the threshold."""
    condition = pl.col("cause") == rule.cause
    if rule.sub_cause:
        condition &= pl.col("sub_cause") == rule.sub_cause
    lost = results.lost.filter(condition)
    part = exposed_share(results, lost)
    if part < rule.threshold:
        return None
    return rule.finding(
        results, lost, claim=rule.claim.format(share=share(part), shortage=shortage_note(lost))
    )


def _rules() -> tuple[Rule, ...]:
    folder = files("tracelib.findings")
    return tuple(
        msgspec.structs.replace(row, id=name, topic=topic)
        for topic in TOPICS
        for name, row in msgspec.toml.decode(
            folder.joinpath(f"{topic}.toml").read_bytes(), type=dict[str, Rule]
        ).items()
    )


RULES = _rules()
ALREADY: dict[str, Already] = msgspec.toml.decode(
    files("tracelib.findings").joinpath("already.toml").read_bytes(), type=dict[str, Already]
)
