"""How many CPUs the server had and needs, by several estimates side by side, each with its origin.

docs/numbers.md, "Capacity", defines them.
"""

import math
from typing import NamedTuple

import polars as pl

from tracelib.analyses.quantiles import nearest_rank
from tracelib.analyses.results import Results
from tracelib.analyses.scheduling import WAITS_FOR_CPU, demand_at, tells_shortage
from tracelib.analyses.window import WHOLE, recorded_ns
from tracelib.words import SERVER, share

CAPACITY = pl.Schema(
    {"estimate": pl.String(), "cores": pl.Float64(), "source": pl.String(), "why_not": pl.String()}
)

DEMAND_CURVE = pl.Schema({"cores": pl.Int64(), "exceeded": pl.Float64(), "unmet": pl.Float64()})

RECOMMENDED = "recommended"
#: Less GPU time lost for want of a CPU than this is not a reason for more cores.
ENOUGH = 0.02
PAPER = "arXiv 2603.22774 (a claim of its authors', measured on their servers)"
ARTICLE = (
    "rule max(4, GPUs x (2 + log2(mean input tokens / 1024))) of the article that this tool started from"
)
MEASURED = "this run: running + runnable threads of the server's roles"


def capacity(results: Results, mean_input_tokens: float | None = None) -> pl.DataFrame:
    """Return every estimate of the cores that this run's server needs.

    `mean_input_tokens` is for the article's rule: no trace holds it; by default it is what the request log or
    `run.toml` says (`results.supply`). Demand counts running + runnable threads of the server; what of it
    only polled is told apart, as a mean over time (samples do not tell more).

    One row per estimate: `estimate` (String), `cores` (Float64, null = cannot be told), `source` (String:
    whose figure it is), `why_not` (String: why it cannot be told; "" otherwise).
    """
    gpus = results.gpu_time["gpu"].n_unique()
    cpus, how = cores_had(results)
    tokens = mean_input_tokens or results.supply.mean_input_tokens
    no_gpu = "" if gpus else "no GPU was recorded"
    advised = recommendation(results)
    rows: list[tuple[str, float | None, str, str]] = [
        (RECOMMENDED, advised.cores, f"this run: {advised.why}", results.missing.get("demand", "")),
        ("cores that the server had", cpus, how, "" if cpus is not None else "not recorded"),
        *_stops(results),
        *_demand(results),
        *_spin(results),
        (
            "article's rule",
            _rule(gpus, tokens),
            _rule_source(results, mean_input_tokens),
            no_gpu or ("" if tokens else "mean input tokens not given"),
        ),
        ("floor: GPUs + 2 runnable processes", gpus + 2 if gpus else None, PAPER, no_gpu),
        ("band, low end: 4 cores a GPU", 4 * gpus if gpus else None, PAPER, no_gpu),
        ("band, high end: 8 cores a GPU", 8 * gpus if gpus else None, PAPER, no_gpu),
    ]
    return pl.DataFrame(rows, schema=CAPACITY, orient="row")


class Recommendation(NamedTuple):
    """A number of cores, on what it rests, and what is not known of it; None = nothing can be recommended."""

    cores: int | None
    why: str
    unknown: tuple[str, ...]


def recommendation(results: Results) -> Recommendation:
    """Return how many cores this run's load needs, as far as the run itself shows it.

    They are those that suffice 95 % of the time, but no fewer than GPUs + 2; where the cores that it had cost
    less than :data:`ENOUGH` of the GPUs' time, no more than those. Other rules of others stand beside it.
    """
    p95, (had, _) = demand_at(results.demand, 0.95), cores_had(results)
    if p95 is None:
        return Recommendation(None, "its demand for CPUs was not measured", _unknown(results))
    floor = results.gpu_time["gpu"].n_unique() + 2
    cores, why = p95, f"for 95 % of the time at most {p95} of its threads wanted a CPU"
    if floor > cores:
        cores, why = floor, f"{why}; GPUs + 2 is the least that such a server needs (the paper's floor)"
    short = shortage(results)
    if short is not None and short < ENOUGH and had is not None and had < cores:
        cores = math.ceil(had)
        why = f"{why}; yet with its {had:g} only {share(short)} of GPU time was lost for want of a CPU"
    return Recommendation(cores, why, _unknown(results))


def shortage(results: Results) -> float | None:
    """Return the share of GPU time lost while the blamed thread wanted a CPU; None = not known."""
    time = results.window.duration_ns * results.gpu_time["gpu"].n_unique()
    if not time or not tells_shortage(results.thread_states):
        return None
    waited = results.lost.filter(pl.col("cpu_state").cast(pl.String).is_in(WAITS_FOR_CPU))
    return int(waited["dur_ns"].sum()) / time


def _unknown(results: Results) -> tuple[str, ...]:
    """Return what stands between the recommendation and certainty."""
    said = ["this load only: with more requests, or longer ones, it needs more"]
    covered = int(results.demand["dur_ns"].sum()) / results.window.duration_ns
    if results.demand.is_empty():
        return (results.missing.get("demand") or "its demand was not measured", *said)
    if covered < WHOLE:
        said.append(f"scheduler events cover only {share(covered)} of the window")
    if (shortage(results) or 0) >= ENOUGH:
        said.append(
            "demand was measured on a server short of CPUs: threads that wait make others wait, so with more "
            "cores it may be higher or lower"
        )
    if not results.supply.mean_input_tokens:
        said.append("mean input tokens are not known, so neither is the article's rule")
    return (*said, "whether its cores are whole ones or half (hyperthreads) was not recorded")


def demand_curve(results: Results) -> pl.DataFrame:
    """Return how often, and by how much, the server's threads wanted more than a number of cores.

    One row per number of cores, from 1 to the most that were ever wanted: `cores` (Int64), `exceeded`
    (Float64: the share of the time in which more threads wanted a CPU), `unmet` (Float64: the share of the
    wanted CPU time above that number, had the demand been the same). Empty where demand was not measured.
    """
    demand = results.demand.with_columns(n=(pl.col("running") + pl.col("runnable")).cast(pl.Int64))
    total, wanted = int(demand["dur_ns"].sum()), int((demand["n"] * demand["dur_ns"]).sum())
    if not wanted:
        return pl.DataFrame(schema=DEMAND_CURVE)
    rows = []
    for cores in range(1, int(demand["n"].max()) + 1):  # type: ignore[arg-type]
        above = demand.filter(pl.col("n") > cores)
        over = int(((above["n"] - cores) * above["dur_ns"]).sum())
        rows.append((cores, int(above["dur_ns"].sum()) / total, over / wanted))
    return pl.DataFrame(rows, schema=DEMAND_CURVE, orient="row")


def _demand(results: Results) -> list[tuple[str, float | None, str, str]]:
    quantiles = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    missing = results.missing.get("demand", "")
    return [
        (f"measured demand, {name}", demand_at(results.demand, q), MEASURED, missing)
        for name, q in quantiles.items()
    ]


def cores_had(results: Results) -> tuple[float | None, str]:
    """Return how many CPUs the server could use, and who says so.

    That is its quota or its affinity, whichever is less. The CPUs on which it was seen to run stand for the
    affinity where no one wrote that down, and overrule it where more threads wanted a CPU than those for most
    of the time; the host's count says nothing of what the server had.
    """
    seen, host = server_cpus(results)
    supply = results.supply
    limits: list[tuple[float, str]] = []
    if supply.allowed_cpus:
        limits.append((float(supply.allowed_cpus), "its affinity, as run.toml says"))
    if seen is not None and (not supply.allowed_cpus or _pinned(results, seen)):
        limits.append((float(seen), _seen(host)))
    if supply.quota_cpus:
        limits.append((supply.quota_cpus, "its CPU quota (cpu.max)"))
    cores, why = min(limits, default=(None, "not recorded"))
    bounds = supply.quota_bounds()
    if bounds is not None and not supply.quota_cpus:
        why += f"; under a CPU quota of {bounds[0]:.1f} to {bounds[1]:.1f} CPUs, by the kernel's cpu.stat"
    return cores, why


def _pinned(results: Results, seen: int) -> bool:
    """Return whether, most of the time, more threads wanted a CPU than it was seen on: a limit."""
    half = demand_at(results.demand, 0.5)
    return half is not None and half > seen


def quota_by_use(results: Results) -> float | None:
    """Return the quota as its stops show it: the CPUs that were used before one, at the median."""
    return results.quota_use.select(nearest_rank(pl.col("cpus"), 0.5)).item()  # type: ignore[no-any-return]


def _stops(results: Results) -> list[tuple[str, float | None, str, str]]:
    if results.quota_use.is_empty():
        return []
    periods = f"{results.quota_use.height} periods in which they were stopped"
    source = f"this run: CPU time of the server's threads in {periods}, median"
    return [("CPU quota, estimated", quota_by_use(results), source, "")]


def _spin(results: Results) -> list[tuple[str, float | None, str, str]]:
    source, missing = "this run: CPU samples of polling threads", results.missing.get("cpu_time", "")
    mean = _mean_demand(results.demand)
    spin, sampled = None, recorded_ns([results.trace.samples], results.window)
    if results.cpu_time.height and sampled:
        spin = int(results.cpu_time.filter(pl.col("cause") == "spin")["cpu_ns"].sum()) / sampled
        if sampled < WHOLE * results.window.duration_ns:
            source += f", which cover {share(sampled / results.window.duration_ns)} of the window"
    rest = None if mean is None or spin is None else max(0.0, mean - spin)
    return [
        ("measured demand, mean", mean, MEASURED, results.missing.get("demand", "")),
        ("of it busy polling, mean", spin, source, missing),
        (
            "demand without busy polling, mean",
            rest,
            "this run: the difference of both",
            results.missing.get("demand", "") or missing,
        ),
    ]


def _mean_demand(demand: pl.DataFrame) -> float | None:
    total = int(demand["dur_ns"].sum())
    wanted = (pl.col("running") + pl.col("runnable")).cast(pl.Int64) * pl.col("dur_ns")
    return int(demand.select(wanted.sum()).item()) / total if total else None


def _rule_source(results: Results, given: float | None) -> str:
    tokens = given or results.supply.mean_input_tokens
    if not tokens:
        return ARTICLE
    origin = "as given" if given else results.supply.tokens_from
    return f"{ARTICLE}; {tokens:,.0f} tokens, {origin}"


def _rule(gpus: int, tokens: float | None) -> float | None:
    """Return the article's rule; inputs under 1024 tokens count as 1024, where its logarithm is 0.

    >>> _rule(4, 8192), _rule(8, 131072), _rule(1, 100)
    (20.0, 72.0, 4.0)
    """
    return max(4.0, gpus * (2 + math.log2(max(tokens, 1024) / 1024))) if gpus and tokens else None


def options(results: Results, instances: pl.DataFrame) -> pl.DataFrame:
    """Return what each instance would cost, and what enough cores could give back at most on this run's load.

    `instances` has `instance`, `gpus`, `vcpus`, `price_per_hour`, `currency`, `date`, `source`.

    One row per instance, those columns (`date` and `source` last) and: `cores_per_gpu` (Float64: two vCPUs
    are one core), `covers_p95_demand` (Boolean, null = demand not measured: its cores per GPU, times this
    run's GPUs, reach the p95 of demand), `lost_per_hour`, `shortage_per_hour` (Float64, in `currency`: the
    price of the GPU time that this run lost, and of the part of it in which the blamed thread wanted a CPU
    and had none; null = not known). They are estimates: the instance was not measured.
    """
    gpus = results.gpu_time["gpu"].n_unique()
    time = results.window.duration_ns * gpus
    lost = int(results.lost["dur_ns"].sum()) / time if time else None
    short = shortage(results)
    p95 = demand_at(results.demand, 0.95)
    per_gpu, price = pl.col("vcpus") / 2 / pl.col("gpus"), pl.col("price_per_hour")
    rated = instances.with_columns(
        cores_per_gpu=per_gpu,
        covers_p95_demand=pl.lit(None, pl.Boolean) if p95 is None else per_gpu * gpus >= p95,
        lost_per_hour=price * pl.lit(lost, pl.Float64),
        shortage_per_hour=price * pl.lit(short, pl.Float64),
    )
    return rated.select(*(name for name in rated.columns if name not in ("date", "source")), "date", "source")


def server_cpus(results: Results) -> tuple[int | None, int | None]:
    """Return on how many CPUs the server's threads were seen to run, and how many the host has.

    The first is what an affinity mask or a container's CPU set leaves; None without scheduler events. The
    second is the host's count as recorded, which says nothing of either; None = not recorded. Of several
    hosts, all together.
    """
    server = results.trace.threads.filter(pl.col("role").is_in(SERVER)).select("thread", "host")
    running = results.thread_states.filter(pl.col("state").cast(pl.String) == "running").drop_nulls("cpu")
    ran = running.join(server, on="thread").select("host", "cpu").unique()
    counted = (
        results.trace.sources.drop_nulls("cpus").group_by("host").agg(pl.col("cpus").max()).drop_nulls("host")
    )
    named = int(counted["cpus"].sum()) if counted.height > 1 else None
    host = named or max(results.trace.sources["cpus"].drop_nulls().to_list(), default=None)
    return (ran.height or None), host


def _seen(host: int | None) -> str:
    of = f"of the host's {host} " if host else ""
    return f"{of}on which its threads were seen to run"
