"""What a rule returns: a finding with its proof, or why it abstains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

import polars as pl

from tracelib.intervals import merge_equal

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = [
    "Abstained",
    "Change",
    "Confidence",
    "Evidence",
    "Finding",
    "Rule",
    "cost_of",
    "evidence_of_lost",
    "exposed",
    "exposed_share",
    "gain_of",
    "mean",
    "own_ns",
    "percent",
    "quantile",
    "shortage_note",
    "spent",
    "thread_name",
    "without_cpu",
]

Confidence = Literal["high", "medium", "low"]
#: What the advice changes: the machine (cores, quota), a setting of the server, its code, or nothing of its own.
Change = Literal["machine", "setting", "code", "none"]
#: Rows of evidence that a finding shows: the worst ones.
EVIDENCE_ROWS = 5
#: What gives back less than this part of its time is a symptom of something else.
SYMPTOM = 0.1


@dataclass(frozen=True)
class Evidence:
    """One row of proof: when, how long, who, what, and how much."""

    ts_ns: int
    dur_ns: int
    who: str
    what: str
    value: float | int | str | None = None


@dataclass(frozen=True)
class Finding:
    """A claim about the run, with everything that a reader needs to check it and to act on it."""

    id: str
    cause: str | None  # None = it cuts across causes (a shortage, a quota)
    claim: str
    exposed_ns: int  # lost GPU time, summed over devices
    exposed_share: float  # of the window, mean over devices
    confidence: Confidence
    why: str  # of the confidence
    evidence: list[Evidence]
    disproof: str
    advice: list[str]
    verify: list[str]
    change: Change
    gain_ns: (
        int | None
    )  # what the change gives back at most, lack of a CPU not counted; None = no gain of its own
    statement: str = ""  # of one on the whole run, for which nothing is to be changed: what it is good for
    leads: bool = False  # of a statement: the verdict says the same, so it stands first


@dataclass(frozen=True)
class Abstained:
    """A question that these files cannot answer, and how to record what would."""

    id: str
    reason: str
    record_with: str = field(default="")


class Rule(Protocol):
    """What a file in `findings/rules/` holds.

    - It looks at frames only, and decides by numbers that the report shows too.
    - It returns None where there is nothing to say, `Abstained` where the files cannot tell; where all that it looks at is
      missing, :mod:`tracelib.findings.unseen` makes an `Abstained` of its None.
    - Its claim names an amount; lost GPU time only counts where a GPU was held up (hidden host time costs nothing).
    """

    __name__: str

    def __call__(self, results: Results) -> Finding | Abstained | None:
        """Look at the run."""
        ...


def exposed(results: Results, condition: pl.Expr) -> pl.DataFrame:
    """Return the rows of `results.lost` for which `condition` holds."""
    return results.lost.filter(condition)


def exposed_share(results: Results, lost: pl.DataFrame) -> float:
    """Return the time of `lost` rows as a share of the window, mean over the devices."""
    devices = results.gpu_time["gpu"].n_unique()
    return int(lost["dur_ns"].sum()) / (results.window.duration_ns * devices) if devices else 0.0


def percent(share: float) -> str:
    """Return a share as people read it."""
    return f"{100 * share:.1f} %" if share < 0.995 else "100 %"


def spent(rows: pl.DataFrame) -> int:
    """Return the sum of `dur_ns`."""
    return int(rows["dur_ns"].sum())


def without_cpu(lost: pl.DataFrame) -> tuple[int, int]:
    """Return how much of the rows of `lost` the blamed thread was runnable, and throttled."""
    state = pl.col("cpu_state").cast(pl.String)
    return spent(lost.filter(state == "runnable")), spent(lost.filter(state == "throttled"))


def own_ns(lost: pl.DataFrame) -> int:
    """Return the part of `lost` in which the blamed thread did not lack a CPU: what more CPUs would not give back."""
    return spent(lost) - sum(without_cpu(lost))


def gain_of(lost: pl.DataFrame) -> int | None:
    """Return what mending the cause of `lost` gives back beyond CPUs; None where it was lack of CPUs nearly all the time."""
    own = own_ns(lost)
    return own if own >= SYMPTOM * spent(lost) else None


class Cost(TypedDict):
    """The fields of a :class:`Finding` that follow from the lost time that it speaks of."""

    exposed_ns: int
    exposed_share: float
    evidence: list[Evidence]
    gain_ns: int | None


def cost_of(results: Results, lost: pl.DataFrame) -> Cost:
    """Return what one cause cost, with its worst stretches, and what mending it gives back."""
    return {
        "exposed_ns": spent(lost),
        "exposed_share": exposed_share(results, lost),
        "evidence": evidence_of_lost(results, lost),
        "gain_ns": gain_of(lost),
    }


def shortage_note(lost: pl.DataFrame) -> str:
    """Return a sentence on how much of `lost` was lack of a CPU, by its kind; empty where it is little."""
    total, (ready, stopped) = spent(lost), without_cpu(lost)
    parts = [
        f"in {100 * ns / total:.0f} % of it {words}"
        for ns, words in (
            (ready, "the thread in question was ready and had no CPU"),
            (stopped, "a CPU quota had stopped the thread in question"),
        )
        if total and ns >= 0.05 * total
    ]
    said = ", ".join(parts)
    return f" {said[0].upper()}{said[1:]}." if said else ""


def thread_name(results: Results, thread: int | None) -> str:
    """Return how people call a thread: role or name, and thread id ("worker_TP0/767")."""
    if thread is None:
        return "unknown thread"
    row = results.trace.threads.filter(pl.col("thread") == thread).row(0, named=True)
    return f"{row['name'] or row['role'] or row['process'] or 'thread'}/{row['tid']}"


def evidence_of_lost(results: Results, lost: pl.DataFrame, rows: int = EVIDENCE_ROWS) -> list[Evidence]:
    """Return the longest stretches of lost time as evidence, each moment once: that of the GPU that lost most in it.

    Neighbouring pieces of one GPU with the same blamed thread and cause are one stretch, whatever the thread's CPU state
    was in between; `value` is the part of it in which that thread lacked a CPU, and why.
    """
    same = ["gpu", "lost", "thread", "cause", "sub_cause"]
    stretches = merge_equal(lost.sort("gpu", "ts_ns"), same).with_columns(
        end=pl.col("ts_ns") + pl.col("dur_ns")
    )
    worst = stretches.sort("dur_ns", "ts_ns", "gpu", descending=[True, False, False]).unique(
        ["thread", "ts_ns"], keep="first", maintain_order=True
    )
    return [_evidence(results, lost, row) for row in worst.head(rows).iter_rows(named=True)]


def _evidence(results: Results, lost: pl.DataFrame, row: dict[str, Any]) -> Evidence:
    labels = dict(results.trace.gpus.select("gpu", pl.col("rank").fill_null(pl.col("device"))).iter_rows())
    inside = lost.filter(
        (pl.col("gpu") == row["gpu"]) & pl.col("ts_ns").is_between(row["ts_ns"], row["end"], closed="left")
    )
    ready, stopped = without_cpu(inside)
    doing = (
        inside.drop_nulls("what")
        .group_by("what")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns")["what"]
        .cast(pl.String)
    )
    during = doing[-1] if doing.len() else (row["sub_cause"] or row["cause"])
    state = "idle" if row["lost"] == "idle" else "waiting in a collective"
    parts = ((ready, "without a CPU"), (stopped, "stopped by a quota"))
    value = ", ".join(f"{ns / 1e6:.1f} ms {words}" for ns, words in parts if ns >= 50_000) or None
    who = thread_name(results, row["thread"])
    return Evidence(
        row["ts_ns"],
        row["dur_ns"],
        who,
        f"GPU of rank {labels[row['gpu']]} {state}; mostly in {during}",
        value,
    )


def mean(series: pl.Series) -> float:
    """Return the mean of a series as a float, 0.0 where it has no value."""
    return float(series.cast(pl.Float64).fill_null(0.0).to_numpy().mean()) if series.len() else 0.0


def quantile(series: pl.Series, q: float) -> int | None:
    """Return the nearest-rank quantile of the series' known values, None where it has none."""
    known = series.drop_nulls().sort()
    return int(known[round(q * (known.len() - 1))]) if known.len() else None
