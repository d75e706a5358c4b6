"""One sentence under each chart that says what it shows, computed from the very frames that the chart draws.

Words and figures are those of ATTRIBUTION.md. A sentence never claims more than its frame holds: what was not recorded
is called not recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.capacity import cpus_known
from tracelib.analyses.scheduling import demand_at, tells_shortage
from tracelib.charts.names import cause_label, gpu_names, launch_threads, role_name, thread_names
from tracelib.charts.theme import count, duration, look, share
from tracelib.findings.finding import quantile
from tracelib.intervals import clip

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = [
    "causes_sentence",
    "collectives_sentence",
    "cpu_time_sentence",
    "demand_sentence",
    "detail_sentence",
    "flame_sentence",
    "ipc_sentence",
    "launches_sentence",
    "requests_sentence",
    "staircase_sentence",
    "states_sentence",
    "threads_sentence",
    "timeline_sentence",
]

USEFUL = ["compute", "copy", "collective_transfer"]
SHORT = ["runnable", "throttled"]


def gpu_shares(gpu_time: pl.DataFrame) -> pl.DataFrame:
    """Return per GPU `useful`, `busy` (shares of the window), `doubtful` (collective, one rank only) and `spin_ns`."""
    of = pl.col("state").cast(pl.String)
    ns = pl.col("ns")
    total = ns.sum()
    return (
        gpu_time.group_by("gpu")
        .agg(
            useful=ns.filter(of.is_in(USEFUL)).sum() / total,
            busy=1 - ns.filter(of == "idle").sum() / total,
            doubtful=ns.filter(of == "collective").sum() / total,
            spin_ns=ns.filter(of == "collective_wait").sum(),
        )
        .sort("gpu")
    )


def _useful(results: Results, gpu_time: pl.DataFrame) -> str:
    names = gpu_names(results)
    shares = gpu_shares(gpu_time)
    least = "at least " if (shares["doubtful"].max() or 0) > 0 else ""  # type: ignore[operator]
    worst = shares.sort("useful", "gpu").row(0, named=True)
    if len(shares) == 1:
        return f"the GPU did useful work for {least}{share(worst['useful'])} of it and looked busy for {share(worst['busy'])}"
    mean = shares.select(pl.col("useful", "busy").mean()).row(0, named=True)
    useful, least_useful = share(mean["useful"]), share(worst["useful"])
    who = f" ({names.get(worst['gpu'], 'one')} least, {least_useful})" if least_useful != useful else ""
    return (
        f"the {len(shares)} GPUs did useful work for {least}{useful} of it on average{who} "
        f"and looked busy for {share(mean['busy'])}"
    )


def _ranked(frame: pl.DataFrame, column: str, ns: str) -> list[tuple[str, float]]:
    """Return the values of `column` with their share of `ns`, greatest first."""
    total = frame[ns].sum()
    parts = (
        frame.group_by(pl.col(column).cast(pl.String))
        .agg(pl.col(ns).sum())
        .sort(ns, column, descending=[True, False])
    )
    return [(name, part / total) for name, part in parts.select(column, ns).iter_rows() if total and part]


def _charged(lost: pl.DataFrame, ns: str) -> str:
    ranked = _ranked(lost, "cause", ns)
    if not ranked:
        return "no GPU time was lost"
    first = f"{share(ranked[0][1])} of the lost GPU time is charged to {look('cause', ranked[0][0]).label}"
    return first + (
        f" and {share(ranked[1][1])} to {look('cause', ranked[1][0]).label}" if len(ranked) > 1 else ""
    )


NO_WAKEUPS = "was not recorded (that takes wake-up events)"


def _kind(ready_ns: int, stopped_ns: int) -> str:
    """Say why a thread lacked a CPU: all were taken, a quota had stopped it, or now one, now the other."""
    if not stopped_ns:
        return "wanted a CPU and had none"
    if not ready_ns:
        return "was stopped by a CPU quota"
    by_quota = share(stopped_ns / (ready_ns + stopped_ns))
    return f"wanted a CPU and had none or was stopped by a quota (the quota: {by_quota} of this)"


def _wanting(results: Results) -> str:
    """Return what the launching threads' CPU states say, or that they were not recorded."""
    launching = list(launch_threads(results).values())
    inside = results.thread_states.filter(pl.col("thread").is_in(launching))
    states = clip(inside, results.window.start_ns, results.window.end_ns)
    of = pl.col("state").cast(pl.String)
    known, ready, stopped = states.select(
        pl.col("dur_ns").filter(of != "unknown").sum().alias("known"),
        pl.col("dur_ns").filter(of == "runnable").sum().alias("ready"),
        pl.col("dur_ns").filter(of == "throttled").sum().alias("stopped"),
    ).row(0)
    if not known:
        return "the CPU states of the launching threads were not recorded"
    if not tells_shortage(results.thread_states):
        return f"whether the launching threads wanted a CPU and had none {NO_WAKEUPS}"
    kind = _kind(ready, stopped).replace("was stopped", "were stopped")
    return f"the launching threads {kind} for {share((ready + stopped) / known)} of the time"


def timeline_sentence(results: Results) -> str:
    """Say what the picture shows: useful and busy GPU time, the first causes, CPU shortage."""
    start = f"In the window of {duration(results.window.duration_ns)} "
    if results.gpu_time.is_empty():
        return f"{start}no GPU was recorded; {_wanting(results)}."
    lost = _charged(results.lost, "dur_ns") if not results.lost.is_empty() else "no GPU time was lost"
    return f"{start}{_useful(results, results.gpu_time)}; {lost}; {_wanting(results)}."


def detail_sentence(results: Results, start_ns: int, end_ns: int) -> str:
    """Say the same of a stretch ``[start_ns, end_ns)`` of the window."""
    base = results.window.start_ns
    where = f"Between {duration(start_ns - base)} and {duration(end_ns - base)} of the window"
    states = clip(results.gpu_states, start_ns, end_ns).select("gpu", "state", ns="dur_ns")
    if states.is_empty():
        return f"{where} no GPU was recorded."
    return f"{where}, {_useful(results, states)}; {_charged(clip(results.lost, start_ns, end_ns), 'dur_ns')}."


def causes_sentence(results: Results) -> str:
    """Say how much GPU time was lost, to what, and for how much of it the blamed thread lacked a CPU."""
    total = int(results.causes["ns"].sum())
    if not total:
        return "No GPU time was lost."
    gpus = count(results.causes["gpu"].n_unique(), "GPU")
    of = pl.col("cpu_state").cast(pl.String)
    ready, stopped = (int(results.causes.filter(of == state)["ns"].sum()) for state in SHORT)
    unknown = int(results.causes.filter(of == "unknown")["ns"].sum())
    if unknown == total:
        shortage = "whether the blamed thread had a CPU was not recorded"
    elif not tells_shortage(results.thread_states):
        shortage = f"whether the blamed thread wanted a CPU and had none {NO_WAKEUPS}"
    else:
        shortage = f"for {share((ready + stopped) / total)} of it the blamed thread {_kind(ready, stopped)}"
        shortage += f" (not known for {share(unknown / total)})" if unknown else ""
    return f"On {gpus} {duration(total)} were lost: {_charged(results.causes, 'ns')}; {shortage}."


def states_sentence(results: Results) -> str:
    """Say what monitoring would show against what was useful, on the device where they differ most."""
    shares = gpu_shares(results.gpu_time)
    worst = shares.with_columns(gap=pl.col("busy") - pl.col("useful")).sort(
        "gap", "gpu", descending=[True, False]
    )
    row = worst.row(0, named=True)
    name = gpu_names(results).get(row["gpu"], "the GPU")
    head = f"The GPU of {name} looked busy for {share(row['busy'])} of the window and did useful work for {share(row['useful'])}"
    if row["doubtful"]:
        return f"{head}; {share(row['doubtful'])} in collectives, where waiting cannot be told from transfer: not all of their ranks were recorded or matched."
    return f"{head}; {duration(row['spin_ns'])} went into spinning for late ranks."


def cpu_time_sentence(results: Results) -> str:
    """Say who used most CPU time, for what, and how sure that is."""
    top = results.cpu_time.sort("cpu_ns", "role", "cause", descending=[True, False, False]).row(0, named=True)
    total = int(results.cpu_time["cpu_ns"].sum())
    sure = f"95 % interval {share(top['ci_low'])} to {share(top['ci_high'])}"
    what = f"{cause_label(top['cause'], top['sub_cause'])} ({role_name(top['role'])})"
    return f"Of {duration(total)} of CPU time the largest part is {what}: {share(top['share'])}, {sure}."


def launches_sentence(results: Results) -> str:
    """Say how long launches took to start and how many found the device idle."""
    known = results.launches.filter(pl.col("launch_to_start_ns").is_not_null())
    if known.is_empty():
        return f"No launch was found for {count(len(results.launches), 'GPU operation')}."
    half, most = (duration(quantile(known["launch_to_start_ns"], q)) for q in (0.5, 0.95))
    late = known["late"].fill_null(value=False).mean()
    return (
        f"Half of {count(len(known), 'GPU operation')} started within {half} of their launch call and 95 % within {most}; "
        f"{share(late)} were launched late, when the device was already idle."  # type: ignore[arg-type]
    )


def arrivals(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return one row per collective whose ranks were matched: `event`, `ts_ns` (last arrival), `skew_ns`, `straggler`."""
    return (
        collectives.filter(pl.col("matched") & pl.col("skew_ns").is_not_null())
        .group_by("event")
        .agg(
            ts_ns=pl.col("last_start_ns").first(),
            skew_ns=pl.col("skew_ns").first(),
            straggler=pl.col("straggler").first(),
        )
        .sort("ts_ns", "event")
    )


def collectives_sentence(results: Results) -> str:
    """Say how far apart ranks arrived, and who was last most often."""
    events = arrivals(results.collectives)
    if events.is_empty():
        return "No collective could be matched between ranks, so arrival skew is not known."
    half, most = (duration(quantile(events["skew_ns"], q)) for q in (0.5, 0.95))
    last = events.group_by("straggler").len().sort("len", "straggler", descending=[True, False]).row(0)
    who = gpu_names(results).get(last[0], "one rank")
    return (
        f"In half of {count(len(events), 'collective')} the ranks arrived within {half} of each other, in 95 % within {most}; "
        f"{who} came last most often ({share(last[1] / len(events))})."
    )


def dequeues(results: Results) -> pl.DataFrame:
    """Return the workers' dequeues with `rank` and `step_ns`, the time from one dequeue's begin to the next one's."""
    ranks = results.trace.threads.select("thread", "rank")
    own = results.ipc.filter((pl.col("role") == "worker") & (pl.col("kind") == "dequeue"))
    step = pl.col("ts_ns").shift(-1).over("thread", order_by="ts_ns") - pl.col("ts_ns")
    return own.join(ranks, on="thread", how="left").with_columns(step_ns=step).sort("thread", "ts_ns")


def ipc_sentence(results: Results) -> str:
    """Say how long workers waited for their next step, against the length of a step."""
    rows = dequeues(results)
    if rows.is_empty():
        return "No worker's dequeue was recorded."
    half, most = (duration(quantile(rows["dur_ns"], q)) for q in (0.5, 0.95))
    paired = rows.filter(pl.col("step_ns").is_not_null())
    part = int(paired["dur_ns"].sum()) / int(paired["step_ns"].sum()) if len(paired) else None
    steps = f"; waiting makes {share(part)} of the time between steps" if part is not None else ""
    return f"Half of {count(len(rows), 'dequeue')} took up to {half} and 95 % up to {most}{steps}."


def demand_sentence(results: Results) -> str:
    """Say how many threads wanted a CPU, and how often that was more than there were."""
    p95 = demand_at(results.demand, 0.95) or 0
    cpus, how = cpus_known(results)
    lacking = int(results.demand.filter(pl.col("runnable") > 0)["dur_ns"].sum()) / int(
        results.demand["dur_ns"].sum()
    )
    if not tells_shortage(results.thread_states):
        return f"For 95 % of the time at most {count(p95, 'thread')} of the server ran; how many more wanted a CPU {NO_WAKEUPS}."
    have = "CPUs of the host were not recorded" if cpus is None else f"{count(cpus, 'CPU')} ({how})"
    return (
        f"For 95 % of the time at most {count(p95, 'thread')} of the server wanted a CPU, against {have}; "
        f"for {share(lacking)} of it at least one of them waited for a CPU."
    )


def staircase_sentence(results: Results) -> str:
    """Say the useful and the apparent utilisation side by side."""
    shares = gpu_shares(results.gpu_time)
    useful, busy = shares.select(pl.col("useful", "busy").mean()).row(0)
    return (
        f"Mean useful GPU utilisation is {share(useful)} over {count(len(shares), 'GPU')}; monitoring, which counts "
        f"spinning as busy, would have shown {share(busy)}."
    )


PARTS = {
    "before_tokenize_ns": "before the tokenizer",
    "tokenize_ns": "tokenize",
    "queue_ns": "queue before the engine",
    "broadcast_ns": "engine to workers",
    "gpu_useful_ns": "GPU useful",
    "gpu_wait_ns": "GPU waiting in a collective",
    "gpu_idle_ns": "GPU idle",
    "gpu_collective_ns": "collective, waiting not known",
    "back_ns": "back to the first token",
    "unknown_ns": "not known",
}


def requests_sentence(results: Results) -> str:
    """Say how long first tokens took and which part is the largest."""
    known = results.requests.filter(pl.col("ttft_ns").is_not_null())
    if known.is_empty():
        return "No request's first token was recorded."
    half, most = (duration(quantile(known["ttft_ns"], q)) for q in (0.5, 0.95))
    total = int(known["ttft_ns"].sum())
    sums = {part: int(known[part].sum()) for part in PARTS}
    untold = sums.pop("unknown_ns")
    largest = max(sums, key=lambda part: sums[part])
    why = (
        known.group_by("unknown_why")
        .agg(pl.col("unknown_ns").sum())
        .drop_nulls()
        .sort("unknown_ns", "unknown_why")
    )
    doubt = (
        f" {share(untold / total)} of it is not known, mostly because {why['unknown_why'][-1]}."
        if untold
        else ""
    )
    return (
        f"Half of {count(len(known), 'request')} had their first token within {half}, 95 % within {most}; "
        f"the largest part that is known is {PARTS[largest]}, {share(sums[largest] / total)} of all.{doubt}"
    )


def flame_sentence(role: str | None, samples: int, top: str, part: float) -> str:
    """Say where most of a role's own CPU samples lie."""
    return f"Of {count(samples, 'CPU sample')} in {role_name(role)} threads the most, {share(part)}, lie in {top} itself."


def served(threads: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose `role` is of the server; all of them where no role is known."""
    own = threads.filter(pl.col("role").is_not_null() & ~pl.col("role").is_in(["system", "recorder"]))
    return threads if own.is_empty() else own


def threads_sentence(results: Results) -> str:
    """Say which thread lacked a CPU most."""
    total = pl.sum_horizontal("running_ns", "runnable_ns", "throttled_ns", "blocked_ns", "unknown_ns")
    rows = served(results.scheduling).with_columns(
        short=pl.col("runnable_ns") + pl.col("throttled_ns"), total=total
    )
    rebuilt = _rebuilt(int(rows["inferred_ns"].sum()), int(rows["total"].sum()))
    row = rows.sort("short", "thread", descending=[True, False]).row(0, named=True)
    if not row["short"]:
        none = "No thread of the server waited for a CPU."
        told = tells_shortage(results.thread_states)
        return (none if told else f"Whether threads of the server waited for a CPU {NO_WAKEUPS}.") + rebuilt
    name = thread_names(results).get(row["thread"], "a thread")
    part = share(row["short"] / row["total"])
    return (
        f"{name} {_kind(row['runnable_ns'], row['throttled_ns'])} for {duration(row['short'])}, {part} of its time, the most of the server's threads."
        + rebuilt
    )


def _rebuilt(inferred_ns: int, total_ns: int) -> str:
    """Say how much of the threads' time stands on switches that were not recorded; nothing if none of it does."""
    if not inferred_ns:
        return ""
    return (
        f" Switches from idle are missing: {share(inferred_ns / total_ns)} of the threads' time is rebuilt from "
        "what they did next (wake-ups, samples, the next switch)."
    )
