"""Rules on the server's processes, and on the run as a whole: steps in GPU use, GPUs at their limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.drains import OBJECT
from tracelib.analyses.results import Results
from tracelib.analyses.upstream import NOT_RECORDED
from tracelib.findings import recording
from tracelib.findings.cpus import taken_by_tokenizers
from tracelib.findings.finding import (
    ASIDE,
    NOT_HOST,
    Abstained,
    Finding,
    evidence_rows,
    exposed_share,
    gpus_named,
    moments,
    over_the_window,
    own_ns,
    quantile,
    seen_share,
    share_of,
    shortage_note,
    spent,
    thread_name,
)
from tracelib.findings.verdict import shares
from tracelib.intervals import overlay
from tracelib.words import cause_name, counted, duration, plain, role_name, share

if TYPE_CHECKING:
    from tracelib.findings.rules import Rule

#: Starved stretches between bursts, per GPU.
FEWEST_STEPS = 3
#: Frames that a claim names.
PLACES = 3
#: Part of the window that a saturated thread is on a CPU, polling not counted.
SATURATED = 0.85
#: Work that a warm server does not do has rules of its own.
ONCE = ("jit_compile", "module_load", "alloc")
CPUS_FIRST = [
    (
        "Fix the lack of CPUs first: most of this time the sender or reader was ready and had none, and no "
        "other transport changes that."
    ),
    (
        "Give every polling reader a core: a reader that shares one waits a scheduler slice (2 to 4 ms) for "
        "each poll."
    ),
]


def engine_scheduling(rule: Rule, results: Results) -> Finding | None:
    """Report lost GPU time in which a step was scheduled or its input prepared, by whose threads did it."""
    lost = results.lost.filter(pl.col("cause") == "scheduling")
    part = exposed_share(results, lost)
    if part < rule.threshold:
        return None
    roles = results.trace.threads.select("thread", "role")
    whose = lost.join(roles, on="thread", how="left").group_by("role").agg(pl.col("dur_ns").sum())
    largest = whose.sort("dur_ns", "role", descending=[True, False])
    by = ", ".join(
        f"{role_name(role)} {share(exposed_share(results, pl.DataFrame({'dur_ns': [ns]})))}"
        for role, ns in largest.iter_rows()
    )
    mostly = rule.of_role.get(largest["role"][0] or "")
    awaited = mostly.awaited if mostly else "the next step to be scheduled and its input prepared"
    return rule.finding(
        results,
        lost,
        claim=f"For {share(part)} of GPU time the GPUs waited for {awaited} ({by}).{shortage_note(lost)}",
        **(mostly.words() if mostly else {}),
    )


def tokenization_exposed(rule: Rule, results: Results) -> Finding | None:
    """Report lost GPU time that ends up at tokenization after following waits upstream."""
    decodes = (pl.col("sub_cause") == "decode").fill_null(value=False)
    lost = results.lost.filter((pl.col("cause") == "tokenization") & ~decodes)
    part = exposed_share(results, lost)
    if part < rule.threshold:
        return None
    whole = results.host_time.filter((pl.col("cause") == "tokenization") & ~decodes)
    engine = "the engine, the engine for " if "engine" in set(results.trace.threads["role"]) else ""
    total, together = int(whole["total_ns"].sum()), int(whole["union_ns"].sum())
    waited = spent(lost) / results.gpu_time["gpu"].n_unique()
    hidden = max(0.0, 1 - waited / together) if together else 0.0
    taken = exposed_share(results, taken_by_tokenizers(results))
    in_the_way = (
        f"; but for {share(taken)} of GPU time tokenizing took the CPU from a thread that a GPU waited for"
        if taken >= ASIDE
        else ""
    )
    return rule.finding(
        results,
        lost,
        claim=f"For {share(part)} of GPU time the GPUs waited for tokenization: the workers waited for "
        f"{engine}a request, and the API server was tokenizing. All threads together tokenized for "
        f"{duration(total)}; no GPU waited for {share(hidden)} of this{in_the_way}.{shortage_note(lost)}",
    )


def host_work(rule: Rule, results: Results) -> Finding | None:
    """Report lost GPU time that ends up at work which no rule names, with the frames in which it was."""
    loads = (pl.col("sub_cause") == "input_pipeline").fill_null(value=False)
    lost = results.lost.filter((pl.col("cause") == "host_work") & ~loads)
    part = exposed_share(results, lost)
    if part < rule.threshold:
        return None
    named = pl.col("what").cast(pl.String).str.replace(OBJECT, "")
    places = (
        lost.with_columns(named.alias("what"))
        .group_by("sub_cause", "what")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "sub_cause", "what", descending=[True, False, False], nulls_last=True)
    )
    most = ", ".join(
        f"{plain(what, 80) if what else 'code without a recorded frame'} "
        f"({role_name(role)}, {share(exposed_share(results, pl.DataFrame({'dur_ns': [ns]})))})"
        for role, what, ns in places.head(PLACES).iter_rows()
    )
    return rule.finding(
        results,
        lost,
        claim=f"For {share(part)} of GPU time the GPUs waited for host work in {most}.{shortage_note(lost)}",
    )


def ipc_stretched(rule: Rule, results: Results) -> Finding | Abstained | None:
    """Report lost GPU time in messages between processes; where the other side was not recorded, abstain."""
    unrecorded = (pl.col("sub_cause") == NOT_RECORDED).fill_null(value=False)
    ranks = (pl.col("sub_cause") == "cpu_collective").fill_null(value=False)  # `cpu_collectives`
    lost = results.lost.filter((pl.col("cause") == "ipc") & ~unrecorded & ~ranks)
    blind = exposed_share(results, results.lost.filter((pl.col("cause") == "ipc") & unrecorded))
    part = exposed_share(results, lost)
    if part < rule.threshold:
        if blind < rule.threshold:
            return None
        return rule.abstained(
            f"for {share(blind)} of GPU time workers waited for their next step, but no source recorded what "
            "the engine and the API server did meanwhile; an idle server looks the same",
            recording.SERVER,
        )
    dequeue = results.ipc.filter(pl.col("kind") == "dequeue")["dur_ns"]
    middle, p95 = quantile(dequeue, 0.5), quantile(dequeue, 0.95)
    spread = (
        ""
        if middle is None
        else f" A worker's dequeue took {duration(middle)} at the median and {duration(p95)} at p95."
    )
    return rule.finding(
        results,
        lost,
        claim=f"For {share(part)} of GPU time the GPUs waited for messages between the server's processes"
        f"{_mostly(lost)}.{spread}{shortage_note(lost)}",
        advice=CPUS_FIRST if own_ns(lost) < spent(lost) / 2 else rule.advice,
    )


def _mostly(lost: pl.DataFrame) -> str:
    """Name the range in which most of the time was lost, if one was."""
    by_name = lost.group_by(pl.col("what").cast(pl.String)).agg(pl.col("dur_ns").sum()).sort("dur_ns")
    name, ns = by_name.row(-1)
    return f", most of it in {plain(name, 80)}" if name and ns > spent(lost) / 2 else ""


# -------------------- one full thread
def single_thread_saturated(rule: Rule, results: Results) -> Finding | None:
    """Report threads that worked over 85 % of what was recorded, and the GPU time lost meanwhile.

    Polling is not work: a worker that spins for its GPU is on a CPU all the time and waits.
    """
    least = max(1, SATURATED * recording.switches_ns(results))
    full = results.thread_load.filter(pl.col("working_ns") >= least)
    once = pl.col("sub_cause").is_in(ONCE).fill_null(value=False)
    blamed = (pl.col("cpu_state") == "running") & ~pl.col("cause").is_in(NOT_HOST) & ~once
    lost = results.lost.filter(blamed & pl.col("thread").is_in(full["thread"].implode()))
    part = exposed_share(results, lost)
    if part < rule.threshold:
        return None
    by_thread = lost.group_by("thread").agg(pl.col("dur_ns").sum())
    threads = by_thread.join(full, on="thread").sort("dur_ns", "thread", descending=[True, False])
    worked = [
        (thread_name(results, thread), recording.of_recorded(ns, results))
        for thread, ns in threads.select("thread", "working_ns").head(5).iter_rows()
    ]
    name, most = worked[0]
    others = "it" if threads.height == 1 else f"it and {threads.height - 1} more like it"
    return rule.finding(
        results,
        lost,
        claim=f"Thread {name} worked for {most}, as much as one thread can; for {seen_share(results, part)} "
        f"of GPU time the GPUs waited for {others}. More CPUs do not help a thread that already has one.",
        evidence=[
            over_the_window(results, thread, "on a CPU and at work", working, results.trace.sched)
            for thread, working in worked
        ],
    )


# -------------------- the whole run
def gpu_bound(rule: Rule, results: Results) -> Finding | None:
    """Report that the devices did useful work nearly all the time: the host is not what to look at."""
    if results.gpu_time.is_empty():
        return None
    if shares(results).useful < rule.threshold:
        return None
    useful = shares(results, exposed_share).useful
    return rule.finding(
        results,
        0,
        claim=f"For {share(useful)} of GPU time the GPUs computed, copied or transferred: they are the "
        "limit, not the host.",
        evidence=[over_the_window(results, "all GPUs", "useful work", round(useful, 3))],
    )


def staircase(rule: Rule, results: Results) -> Finding | None:
    """Report bursts and starvation in turn, where it is the host that starves the GPUs between bursts.

    Steps that come from missing requests are not of this kind: there is nothing to fix in the server.
    """
    starved = results.utilisation_steps.filter(pl.col("level") == "starved")
    pieces = overlay(
        starved.select("gpu", "ts_ns", "dur_ns"),
        results.lost.select("gpu", "ts_ns", "dur_ns", "cause"),
        "gpu",
    )
    lost = pieces.filter(pl.col("cause").is_not_null())
    host = lost.filter(~pl.col("cause").is_in(NOT_HOST))
    if not _in_steps(results, rule.threshold) or not spent(host) or spent(host) < spent(lost) / 2:
        return None
    by_cause = host.group_by("cause").agg(pl.col("dur_ns").sum())
    mostly = ", ".join(
        f"{cause_name(cause)} {share(share_of(results, ns))}"
        for cause, ns in by_cause.sort("dur_ns", "cause", descending=[True, False]).head(3).iter_rows()
    )
    times = counted(starved.height // results.gpu_time["gpu"].n_unique(), "time")
    return rule.finding(
        results,
        spent(host),
        claim=f"GPU use goes in steps: between bursts of work each GPU was starved {times}, at the median "
        f"for {duration(quantile(starved['dur_ns'], 0.5))} and together for "
        f"{share(exposed_share(results, starved))} of GPU time. Meanwhile the GPUs waited for {mostly} (of "
        "GPU time).",
        evidence=evidence_rows(
            moments(starved, of="level"),
            lambda row: gpus_named(results, row["gpus"]),
            lambda _: "useful for at most 20 % of each bin",
        ),
    )


def _in_steps(results: Results, least: float) -> bool:
    """Return whether some GPU shows starved stretches between bursts, often and long enough."""
    window = results.window.duration_ns
    for _, line in results.utilisation_steps.group_by("gpu"):
        rows = line.sort("ts_ns")
        long_starved = (pl.col("level") == "starved") & (pl.col("dur_ns") >= window // 50)
        # Levels alternate: there are bursts around each but the first and the last.
        between = rows.slice(1, max(0, rows.height - 2)).filter(long_starved).height
        levels = [spent(rows.filter(pl.col("level") == level)) / window for level in ("burst", "starved")]
        if between >= FEWEST_STEPS and min(levels) >= least:
            return True
    return False
