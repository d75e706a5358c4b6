"""What a rule returns, a finding with its evidence or why it abstains, and how lost GPU time becomes one."""

import importlib
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import polars as pl
from msgspec import Meta, Struct

from tracelib.analyses.capacity import quota_by_use
from tracelib.analyses.quantiles import nearest_rank
from tracelib.analyses.results import Results
from tracelib.analyses.throttling import FEWEST_PERIODS
from tracelib.analyses.upstream import NOT_RECORDED
from tracelib.analyses.window import WHOLE, recorded_ns
from tracelib.intervals import merge_equal
from tracelib.words import cause_name, cpus, duration, sentence, share, sub_cause_name

Confidence = Literal["high", "medium", "low"]
#: What the advice changes: the machine (cores, quota), a setting of the server, its code, or nothing of its
#: own.
Change = Annotated[
    Literal["machine", "setting", "code", "none"],
    Meta(
        description="What the advice changes: cores or quota, a setting of the server, its code, nothing of "
        "its own."
    ),
]
#: Checked by the published schema, not when a document is made or read.
Natural = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
Share = Annotated[float, Meta(extra_json_schema={"minimum": 0})]

#: Causes of lost GPU time that are not the host's doing, or that nobody can tell.
NOT_HOST = ("device", "imbalance", "no_work", "profiler", "unattributed")
#: Kernels launched by graphs / kernels, from which most come from graphs.
COVERED = 0.5
#: Share of the time whose CPU states are known, below which a shortage is "at least" so much.
KNOWN = 0.9
#: Share of a loss whose CPU states are known, from which on it stands for all of it.
NEARLY_ALL = 0.99
#: A share of the window that is not worth a word beside a larger one.
ASIDE = 0.005
#: Rows of evidence that a finding shows: the worst ones.
EVIDENCE_ROWS = 5
#: From this part of the largest gain on, a cheaper change goes first; from this part of the time lost to the
#: host on, a lack of CPUs is what limits.
WORTH_FIRST = 0.25
#: What gives back less than this part of its time is a symptom of something else.
SYMPTOM = 0.1
#: So many ranks are named one by one.
NAMED_RANKS = 4
#: Less than this is not worth a word in a row of evidence.
WORTH_A_WORD_NS = 50_000


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of `findings.json`: its fields are the keys there, in the same order."""


class Evidence(Part, frozen=True, kw_only=True):
    """One row of proof: when, how long, who, what, and how much."""

    ts_ns: int
    dur_ns: int
    who: str
    what: str
    value: float | int | str | None


class Replayed(Part, frozen=True, kw_only=True):
    """What the run would have been with a finding's change, by replaying it (docs/what-if.md)."""

    change: Annotated[str, Meta(description='What is changed: words that follow "replayed".')]
    window_ns: Annotated[Natural, Meta(description="How long the same work takes, mean of the GPUs.")]
    gained_ns: Annotated[int, Meta(description="By how much that is less than replayed unchanged.")]
    error_ns: Annotated[Natural, Meta(description="By how much the unchanged replay is off.")]
    ttft_before_ns: Annotated[Natural | None, Meta(description="Median, replayed unchanged.")]
    ttft_ns: Annotated[Natural | None, Meta(description="Median, with the change.")]


class Finding(Part, frozen=True, kw_only=True, dict=True):
    """A claim about the run, with everything that a reader needs to check it and to act on it."""

    id: Annotated[str, Meta(extra_json_schema={"pattern": "^[a-z0-9_]+$"})]
    cause: Annotated[str | None, Meta(description="null: it cuts across causes (a shortage, a quota)")]
    claim: str
    exposed_ns: Annotated[Natural, Meta(description="Lost GPU time, summed over devices.")]
    exposed_share: Annotated[Share, Meta(description="Of the window, mean over devices.")]
    confidence: Confidence
    why: Annotated[str, Meta(description="The reason for the confidence.")]
    evidence: list[Evidence]
    disproof: str
    advice: list[str]
    verify: list[str]
    change: Change
    gain_ns: Annotated[
        Natural | None,
        Meta(
            description="What the change gives back, as exposed_ns: by replay where there is one, else "
            "bound_ns. null: a symptom, or a statement on the run."
        ),
    ]
    gain_share: Annotated[
        Share | None, Meta(description="gain_ns as a share of the window, mean over devices.")
    ]
    place: Annotated[str, Meta(description="Why the finding stands where it does in the list.")]
    known_share: Annotated[
        Share | None,
        Meta(
            description="What of the window the scheduler recorded, where the finding rests on that and a "
            "part is not known: exposed and gain are at least so much. null: enough to tell all."
        ),
    ] = None
    bound_ns: Annotated[
        Natural | None,
        Meta(
            description="What of the lost time itself the change can give back, as exposed_ns; time in which "
            "the thread that a GPU waited for lacked a CPU counts for cores and quota only."
        ),
    ] = None
    replay: Annotated[Replayed | None, Meta(description="Of the whole run with the change.")] = None
    not_replayed: Annotated[
        str | None, Meta(description="Why the gain is bound_ns, and not that of a replay.")
    ] = None

    def _repr_html_(self) -> str:
        start = self.__dict__.get("start_ns", min((row.ts_ns for row in self.evidence), default=0))
        return shown(self, start)


class Abstained(Part, frozen=True, kw_only=True):
    """A question that these files cannot answer, and how to record what would."""

    id: str
    reason: str
    record_with: str


def shown(part: Part, start_ns: int) -> str:
    """Return a part as Jupyter shows it: the report's own words, with times after `start_ns`."""
    # By name: what draws stands to the right of what holds the data.
    return str(importlib.import_module("tracelib.report.sections").shown(part, start_ns).html)


# -------------------- lost GPU time
def whole_ns(results: Results) -> int:
    """Return the GPU time of the window, all devices."""
    return results.window.duration_ns * results.gpu_time["gpu"].n_unique()


def share_of(results: Results, ns: int) -> float:
    """Return GPU time as a share of the window, mean over the devices."""
    return ns / whole_ns(results) if results.gpu_time.height else 0.0


def exposed_share(results: Results, lost: pl.DataFrame) -> float:
    """Return the time of `lost` rows as a share of the window, mean over the devices."""
    return share_of(results, spent(lost))


def spent(rows: pl.DataFrame) -> int:
    """Return the sum of `dur_ns`."""
    return int(rows["dur_ns"].sum())


def longest_first(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows sorted by their length, the longest first."""
    return rows.sort("dur_ns", "ts_ns", "gpu", descending=[True, False, False])


def accuses_host() -> pl.Expr:
    """Say which lost time is the host's doing, as the verdict counts it: what was not recorded is not."""
    recorded = pl.col("sub_cause").cast(pl.String).ne_missing(pl.lit(NOT_RECORDED))
    return ~pl.col("cause").cast(pl.String).is_in(NOT_HOST) & recorded


def short_of_cpu(results: Results, state: str) -> pl.DataFrame:
    """Return the time lost to the host whose blamed thread was `runnable`, or `throttled`.

    CPU shortage is this, wherever a report speaks of it: in the verdict, findings and figures alike.
    """
    return results.lost.filter((pl.col("cpu_state").cast(pl.String) == state) & accuses_host())


def at_least(known: float) -> str:
    """Return "at least " for an amount of CPU shortage where much lost time has no known CPU state."""
    return "at least " if known < KNOWN else ""


def shortage_known(results: Results) -> float:
    """Return the share of the time lost to the host for which the blamed thread's CPU state is known."""
    return state_known(results.lost.filter(accuses_host()))


def seen_share(results: Results, part: float) -> str:
    """Return a share of the window with CPU shortage in words: "at least" where many CPU states are open."""
    return f"{at_least(shortage_known(results))}{share(part)}"


def known_share(results: Results) -> float | None:
    """Return how much of the window scheduler events cover; None where they tell of all CPU shortage."""
    covered = recorded_ns([results.trace.sched], results.window) / results.window.duration_ns
    return covered if covered < WHOLE or at_least(shortage_known(results)) else None


def quota_words(results: Results) -> str:
    """Return the quota's size: as cpu.max says it, else from what was used before each stop (`quota_use`)."""
    if results.supply.quota_cpus is not None:
        return f" of {cpus(results.supply.quota_cpus)}"
    if results.quota_use.height < FEWEST_PERIODS:
        return ""
    return f" of about {quota_by_use(results):.1f} CPUs"


def without_cpu(lost: pl.DataFrame) -> tuple[int, int]:
    """Return how much of the rows of `lost` the blamed thread was runnable, and throttled."""
    state = pl.col("cpu_state")
    return spent(lost.filter(state == "runnable")), spent(lost.filter(state == "throttled"))


def state_known(lost: pl.DataFrame) -> float:
    """Return the share of the rows' time for which the blamed thread's CPU state is known."""
    return spent(lost.filter(pl.col("cpu_state") != "unknown")) / max(spent(lost), 1)


def own_ns(lost: pl.DataFrame) -> int:
    """Return the part of `lost` that more CPUs would not give back: the blamed thread did not lack one."""
    return spent(lost) - sum(without_cpu(lost))


def gain_of(lost: pl.DataFrame) -> int | None:
    """Return what fixing the cause of `lost` gives back beyond CPUs; None where that is little."""
    own = own_ns(lost)
    return own if own >= SYMPTOM * spent(lost) else None


def shortage_note(lost: pl.DataFrame) -> str:
    """Return a sentence on how much of `lost` was lack of a CPU, by its kind; empty where it is little.

    Shares are of the part of this loss whose CPU state is known: the rest says neither yes nor no.
    """
    known = state_known(lost)
    told, (ready, stopped) = known * spent(lost), without_cpu(lost)
    of = (
        "of this loss"
        if known >= NEARLY_ALL
        else f"of the {share(known)} of this loss whose CPU states are known"
    )
    parts = [
        f"for {share(ns / told)} {of} {words}"
        for ns, words in (
            (ready, "the thread was ready and had no CPU"),
            (stopped, "a CPU quota had stopped the thread"),
        )
        if told and ns >= 0.05 * told
    ]
    return f" {sentence(' and '.join(parts))}." if parts else ""


# -------------------- evidence
def thread_name(results: Results, thread: int | None) -> str:
    """Return how people call a thread: role or name, and thread id ("worker_TP0/767")."""
    if thread is None:
        return "unknown thread"
    row = results.trace.threads.filter(pl.col("thread") == thread).row(0, named=True)
    return f"{row['name'] or row['role'] or row['process'] or 'thread'}/{row['tid']}"


def rank_labels(results: Results) -> dict[int, int]:
    """Return the rank of each GPU; its device number where the rank is not known."""
    return dict(results.trace.gpus.select("gpu", pl.col("rank").fill_null(pl.col("device"))).iter_rows())


def evidence_of_lost(results: Results, lost: pl.DataFrame, rows: int = EVIDENCE_ROWS) -> list[Evidence]:
    """Return the longest stretches of lost time, each moment once, with the GPUs that lost it to that thread.

    Neighbouring pieces of one GPU with the same blamed thread and cause are one stretch, whatever the
    thread's CPU state was in between; `value` is the part of it in which that thread lacked a CPU, and why.
    """
    same = ["gpu", "lost", "thread", "cause", "sub_cause"]
    stretches = merge_equal(lost.sort("gpu", "ts_ns"), same)
    return [_evidence(results, lost, row) for row in moments(stretches, rows)]


def moments(rows: pl.DataFrame, most: int = EVIDENCE_ROWS, of: str = "thread") -> list[dict[str, Any]]:
    """Return the `most` longest rows, each moment once; `gpus` = all that lost it, and what they did.

    One moment: rows that are alike in the column `of`, more than half of the shorter one in the longer one.
    """
    found: list[dict[str, Any]] = []
    for row in longest_first(rows).head(200 * most).iter_rows(named=True):
        same = next((one for one in found if one[of] == row[of] and _one_moment(one, row)), None)
        if same is not None:
            same["gpus"].setdefault(row["gpu"], row.get("lost"))
        elif len(found) < most:
            found.append({**row, "gpus": {row["gpu"]: row.get("lost")}})
    return found


def _one_moment(longer: dict[str, Any], row: dict[str, Any]) -> bool:
    ends = [one["ts_ns"] + one["dur_ns"] for one in (longer, row)]
    inside = min(ends) - max(longer["ts_ns"], row["ts_ns"])
    return bool(2 * inside > row["dur_ns"])


def gpus_named(results: Results, gpus: Iterable[int]) -> str:
    """Return GPUs by their ranks: "rank 0", "ranks 0 and 1", "12 ranks"."""
    labels = rank_labels(results)
    ranks = sorted(labels[gpu] for gpu in gpus)
    if len(ranks) > NAMED_RANKS:
        return f"{len(ranks)} ranks"
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def _evidence(results: Results, lost: pl.DataFrame, row: dict[str, Any]) -> Evidence:
    end = row["ts_ns"] + row["dur_ns"]
    inside = lost.filter(
        (pl.col("gpu") == row["gpu"]) & pl.col("ts_ns").is_between(row["ts_ns"], end, closed="left")
    )
    doing = inside.drop_nulls("what").group_by("what").agg(pl.col("dur_ns").sum()).sort("dur_ns")["what"]
    named = sub_cause_name(row["sub_cause"]) if row["sub_cause"] else cause_name(row["cause"])
    mostly = f"in {doing[-1]}" if doing.len() else named
    ready, stopped = without_cpu(inside)
    lacks = ((ready, "without a CPU"), (stopped, "stopped by a quota"))
    return Evidence(
        ts_ns=row["ts_ns"],
        dur_ns=row["dur_ns"],
        who=thread_name(results, row["thread"]),
        what=f"{_held_up(results, row['gpus'])}; mostly {mostly}",
        value=", ".join(f"{duration(ns)} {words}" for ns, words in lacks if ns >= WORTH_A_WORD_NS) or None,
    )


def _held_up(results: Results, gpus: dict[int, str]) -> str:
    """Say which GPUs idled and which waited in a collective at one moment."""
    states = {"idle": "idle", "collective_wait": "waiting in a collective"}
    return ", ".join(
        f"GPU{'' if len(own) == 1 else 's'} of {gpus_named(results, own)} {words}"
        for state, words in states.items()
        if (own := [gpu for gpu, lost in gpus.items() if lost == state])
    )


def evidence_rows(
    rows: Iterable[dict[str, Any]],
    who: Callable[[dict[str, Any]], str],
    what: Callable[[dict[str, Any]], str],
    value: Callable[[dict[str, Any]], str | None] = lambda _: None,
) -> list[Evidence]:
    """Return a row of evidence for each of `rows`, in their order."""
    return [
        Evidence(ts_ns=row["ts_ns"], dur_ns=row["dur_ns"], who=who(row), what=what(row), value=value(row))
        for row in rows
    ]


def over_the_window(
    results: Results,
    who: str,
    what: str,
    value: float | str | None = None,
    events: pl.DataFrame | None = None,
) -> Evidence:
    """Return a row of evidence that is about the whole window, or what of it `events` cover."""
    first, last = results.window.start_ns, results.window.end_ns
    if events is not None and events.height:
        first = max(first, int(events["ts_ns"].min()))  # type: ignore[arg-type]
        last = max(first, min(last, int(events["ts_ns"].max())))  # type: ignore[arg-type]
    return Evidence(ts_ns=first, dur_ns=last - first, who=who, what=what, value=value)


# -------------------- figures
def mean(series: pl.Series) -> float:
    """Return the mean of a series as a float, 0.0 where it has no value."""
    return float(series.cast(pl.Float64).fill_null(0.0).to_numpy().mean()) if series.len() else 0.0


def quantile(series: pl.Series, q: float) -> int | None:
    """Return the nearest-rank quantile of the series' known values, None where it has none."""
    value = series.to_frame("value").select(nearest_rank(pl.col("value"), q)).item()
    return None if value is None else int(value)


class Quantiles(Part, frozen=True, kw_only=True):
    """Three quantiles of a length, in ns."""

    p50: int | None
    p95: int | None
    max: int | None


def quantiles(series: pl.Series) -> Quantiles | None:
    """Return the three quantiles of the series' known values, None where it has none."""
    if series.null_count() == series.len():
        return None
    return Quantiles(p50=quantile(series, 0.5), p95=quantile(series, 0.95), max=quantile(series, 1.0))
