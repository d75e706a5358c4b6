"""Several runs side by side: the same figures of each, with the band in which noise alone would move them.

Within one run a figure's noise is estimated by the bootstrap over equal stretches of its window (B. Efron,
"Bootstrap methods: another look at the jackknife", 1979; stretches instead of moments, because neighbouring
moments are not independent: H. Künsch, 1989). It says how much the figure varies inside that run, not from
one start of the server to the next: for that, record each condition several times and give each recording a
label of its own.
"""

import itertools
from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.analyses.capacity import server_cpus
from tracelib.analyses.gpu_time import USEFUL
from tracelib.analyses.requests import PARTS
from tracelib.analyses.results import Results
from tracelib.analyses.scheduling import WAITS_FOR_CPU
from tracelib.intervals import clip
from tracelib.intervals.cover import bin_borders, weighted_mean

COMPARISON = pl.Schema(
    {
        "run": pl.String(),
        "cores": pl.Int64(),
        "figure": pl.String(),
        "value": pl.Float64(),
        "low": pl.Float64(),
        "high": pl.Float64(),
        "unit": pl.String(),
    }
)

KERNELS = pl.Schema(
    {
        "run": pl.String(),
        "name": pl.String(),
        "collective": pl.Boolean(),
        "share": pl.Float64(),
        "per_second": pl.Float64(),
        "mean_ns": pl.Float64(),
    }
)

KERNEL_CHANGES = pl.Schema(
    {
        **dict.fromkeys(("run", "name", "seen"), pl.String()),
        **dict.fromkeys(("share_before", "share_after", "change"), pl.Float64()),
        **dict.fromkeys(("per_second_before", "per_second_after"), pl.Float64()),
        **dict.fromkeys(("mean_before_ns", "mean_after_ns"), pl.Float64()),
    }
)

STRETCHES = 20
RESAMPLES = 1000
#: Two-sided 95 %.
BAND = (2.5, 97.5)


def comparison(runs: Mapping[str, Results], cores: Mapping[str, int] | None = None) -> pl.DataFrame:
    """Return the figures of each run.

    `cores` says how many cores a run had, by label; else the CPUs on which the server was seen to run.

    One row per run and figure, in the order of `runs`: `run` (String), `cores` (Int64, null = not known),
    `figure` (String, below), `value` (Float64), `low`, `high` (Float64: 95 % band of the value within this
    run; null where fewer than two stretches or requests make it), `unit` (String: share, 1/s, ns, threads).
    The figures:

    - `useful`, `busy`, `lost to CAUSE`, `CPU shortage`: shares of GPU time
    - `CPU demand`, and `without a CPU` of it: threads of the server that ran or were ready, on average over
      what scheduler events cover
    - `steps`: those that a worker took in a second, by its dequeues or their names; `decode tokens`, `prompt
      tokens`: per second
    - `ttft p50`, `ttft p95`; `ttft mean`, and `ttft in PART`, which add up to it

    A figure that a run cannot tell has no row; a cause or a part that it does not have is 0.

    Tokens are those of the steps of one worker, counted at the step's middle
    (:mod:`tracelib.analyses.requests`): of the lowest rank, which stands for all that share the model with
    it. An answer's first token comes out of its prompt's step and is not a decode token. Where no step tells,
    prompt tokens are those of the request log, counted at the first token.
    """
    given = dict(cores or {})
    rows = [
        {"run": run, "cores": given.get(run, server_cpus(results)[0]), **figure}
        for run, results in runs.items()
        for figure in _figures(results)
    ]
    return with_zeros(pl.DataFrame(rows, schema=COMPARISON))


def with_zeros(figures: pl.DataFrame) -> pl.DataFrame:
    """Return the frame of :func:`comparison` with a row of 0 for what only other runs lost, or waited for."""
    whole = {"lost to ": "useful", "ttft in ": "ttft mean"}
    runs = figures.select("run", "cores").unique(maintain_order=True)
    each = [figures]
    for prefix, known_by in whole.items():
        known = runs.join(figures.filter(pl.col("figure") == known_by).select("run", "unit"), on="run")
        own = figures.filter(pl.col("figure").str.starts_with(prefix))
        wanted = known.join(own.select("figure").unique(maintain_order=True), how="cross")
        absent = wanted.join(own, on=["run", "figure"], how="anti")
        zero = {name: pl.lit(0.0) for name in ("value", "low", "high")}
        each.append(absent.select("run", "cores", "figure", **zero, unit="unit"))
    order = pl.Enum(runs["run"])
    return pl.concat(each).sort(pl.col("run").cast(order), maintain_order=True)


def changes(figures: pl.DataFrame) -> pl.DataFrame:
    """Return how each figure of the later runs differs from the first run's.

    Takes the frame of :func:`comparison`.

    One row per later run and figure that both know, in their order: `run` (String), `figure` (String),
    `before`, `after`, `change` (Float64: after - before), `relative` (Float64: change / before; null where
    that is 0), `beyond_noise` (Boolean: the two bands do not overlap; null where one has none), `unit`
    (String).
    """
    first = figures["run"].first()
    old = figures.filter(pl.col("run") == first).select("figure", "value", "low", "high")
    new = figures.filter(pl.col("run") != first)
    both = new.join(old, on="figure", suffix="_old", maintain_order="left")
    apart = (pl.col("low") > pl.col("high_old")) | (pl.col("high") < pl.col("low_old"))
    change = pl.col("value") - pl.col("value_old")
    return both.select(
        "run",
        "figure",
        before="value_old",
        after="value",
        change=change,
        relative=pl.when(pl.col("value_old") != 0).then(change / pl.col("value_old")),
        beyond_noise=apart,
        unit="unit",
    )


def kernels(runs: Mapping[str, Results]) -> pl.DataFrame:
    """Return the time and number of each kernel, copy and memset of each run.

    One row per run and name: `run`, `name` (String), `collective` (Boolean), `share` (Float64: of the GPUs'
    time; operations that overlap count each), `per_second` (Float64: how often one GPU ran it in a second),
    `mean_ns` (Float64). Sorted by run, then by `share`, largest first.
    """
    each = []
    for run, results in runs.items():
        window, gpus = results.window, results.gpu_time["gpu"].n_unique()
        inside = clip(results.trace.gpu_ops, window.start_ns, window.end_ns)
        each.append(
            inside.group_by(name=pl.col("name").cast(pl.String))
            .agg(
                run=pl.lit(run),
                collective=pl.col("collective").is_not_null().any(),
                share=pl.col("dur_ns").sum() / max(1, window.duration_ns * gpus),
                per_second=pl.len() * 1e9 / max(1, window.duration_ns * gpus),
                mean_ns=pl.col("dur_ns").mean(),
            )
            .sort("share", "name", descending=[True, False])
            .select(list(KERNELS))
        )
    return pl.concat([pl.DataFrame(schema=KERNELS), *each])


def kernel_changes(each: pl.DataFrame) -> pl.DataFrame:
    """Return how the later runs' kernels differ from the first run's.

    Takes the frame of :func:`kernels`.

    One row per later run and name in either: `run`, `name` (String), `seen` (String: both, new, gone),
    `share_before`, `share_after`, `change` (Float64: of the GPUs' time; after - before),
    `per_second_before`, `per_second_after` (Float64), `mean_before_ns`, `mean_after_ns` (Float64, null = it
    did not run). Sorted by run, then by the size of `change`, largest first.
    """
    runs = each["run"].unique(maintain_order=True)
    old = each.filter(pl.col("run") == pl.col("run").first()).drop("run", "collective")
    rows = []
    for run in runs[1:]:
        new = each.filter(pl.col("run") == run).drop("run", "collective")
        both = old.join(new, on="name", how="full", suffix="_after", coalesce=True)
        rows.append(
            both.select(
                pl.lit(run).alias("run"),
                "name",
                seen=pl.when(pl.col("share").is_null())
                .then(pl.lit("new"))
                .when(pl.col("share_after").is_null())
                .then(pl.lit("gone"))
                .otherwise(pl.lit("both")),
                share_before=pl.col("share").fill_null(0),
                share_after=pl.col("share_after").fill_null(0),
                change=pl.col("share_after").fill_null(0) - pl.col("share").fill_null(0),
                per_second_before=pl.col("per_second").fill_null(0),
                per_second_after=pl.col("per_second_after").fill_null(0),
                mean_before_ns="mean_ns",
                mean_after_ns="mean_ns_after",
            ).sort(pl.col("change").abs(), "name", descending=[True, False])
        )
    return pl.concat([pl.DataFrame(schema=KERNEL_CHANGES), *rows])


def _figures(results: Results) -> list[dict[str, object]]:
    return [*_shares(results), *_demand(results), *_steps(results), *_tokens(results), *_waits(results)]


def _demand(results: Results) -> list[dict[str, object]]:
    demand = results.demand
    if demand.is_empty():
        return []
    begin, end = demand.select(pl.col("ts_ns").min(), end=(pl.col("ts_ns") + pl.col("dur_ns")).max()).row(0)
    borders = bin_borders(begin, end, STRETCHES)
    wanted = demand.with_columns(wanted=pl.col("running") + pl.col("runnable"))
    return [
        _figure("CPU demand", weighted_mean(wanted, "wanted", borders), "threads"),
        _figure("without a CPU", weighted_mean(wanted, "runnable", borders), "threads"),
    ]


def _shares(results: Results) -> list[dict[str, object]]:
    if results.gpu_states.is_empty():
        return []
    state, cpu = (pl.col(column).cast(pl.String) for column in ("state", "cpu_state"))
    spent = {
        "useful": results.gpu_states.filter(state.is_in(USEFUL)),
        "busy": results.gpu_states.filter(state != "idle"),
        "CPU shortage": results.lost.filter(cpu.is_in(WAITS_FOR_CPU)),
        **{
            f"lost to {cause}": rows for (cause,), rows in results.lost.group_by("cause", maintain_order=True)
        },
    }
    if results.lost.filter(cpu != "unknown").is_empty() and results.lost.height:
        del spent["CPU shortage"]  # no scheduler event tells
    return [_figure(name, _by_stretch(results, rows), "share") for name, rows in spent.items()]


def _by_stretch(results: Results, pieces: pl.DataFrame) -> NDArray[np.float64]:
    """Return the share of GPU time that `pieces` take in each of equal stretches of the window."""
    borders = np.linspace(results.window.start_ns, results.window.end_ns, STRETCHES + 1).astype(np.int64)
    borders[0], borders[-1] = results.window.start_ns, results.window.end_ns
    begins, ends = pieces["ts_ns"].to_numpy(), (pieces["ts_ns"] + pieces["dur_ns"]).to_numpy()
    inside = [
        np.clip(np.minimum(ends, high) - np.maximum(begins, low), 0, None).sum()
        for low, high in itertools.pairwise(borders)
    ]
    gpus = results.gpu_time["gpu"].n_unique()
    shares: NDArray[np.float64] = np.array(inside) / (np.diff(borders) * gpus)
    return shares


def _steps(results: Results) -> list[dict[str, object]]:
    dequeues = results.ipc.filter((pl.col("kind") == "dequeue") & (pl.col("role") == "worker"))
    if dequeues.is_empty():
        own = _own_steps(results)
        return [] if own.is_empty() else [_rate("steps", results, own["ts_ns"] + own["dur_ns"] // 2)]
    first = dequeues.filter(pl.col("thread") == dequeues["thread"].min())
    return [_rate("steps", results, first["ts_ns"])]


def _tokens(results: Results) -> list[dict[str, object]]:
    own = _own_steps(results)
    if own.is_empty() or own["decode"].null_count():  # with a step that does not tell, the sum is too low
        return _logged_tokens(results)
    middles = own["ts_ns"] + own["dur_ns"] // 2
    return [
        _rate(f"{word} tokens", results, middles, own[kind])
        for word, kind in (("decode", "decode"), ("prompt", "prefill"))
    ]


def _own_steps(results: Results) -> pl.DataFrame:
    """Return the steps of the worker of the lowest rank."""
    steps = results.step_tokens.sort("rank", "thread", nulls_last=True)
    return steps.join(steps.head(1).select("thread"), on="thread", maintain_order="left")


def _logged_tokens(results: Results) -> list[dict[str, object]]:
    tokens = results.requests["prompt_tokens"]
    if tokens.is_empty() or tokens.null_count():
        return []
    return [_rate("prompt tokens", results, results.requests["first_token_ns"], tokens)]


def _rate(
    name: str, results: Results, moments: pl.Series, weights: pl.Series | None = None
) -> dict[str, object]:
    """Return how many moments, or how much of what they weigh, a second of the window holds."""
    borders = np.linspace(results.window.start_ns, results.window.end_ns, STRETCHES + 1)
    weighed = None if weights is None else weights.to_numpy()
    seconds = results.window.duration_ns / 1e9 / STRETCHES
    return _figure(name, np.histogram(moments.to_numpy(), borders, weights=weighed)[0] / seconds, "1/s")


def _waits(results: Results) -> list[dict[str, object]]:
    ttft = results.first_tokens["ttft_ns"].to_numpy().astype(np.float64)
    if not len(ttft):
        return []
    quantiles: list[dict[str, object]] = [
        {
            "figure": f"ttft p{q}",
            "value": float(np.percentile(ttft, q, method="inverted_cdf")),
            "unit": "ns",
            **_band(ttft, q),
        }
        for q in (50, 95)
    ]
    means = {"ttft mean": "ttft_ns", **{f"ttft in {part.removesuffix('_ns')}": part for part in PARTS}}
    spent = {
        name: results.requests[column].fill_null(0).to_numpy().astype(np.float64)
        for name, column in means.items()
        if results.requests[column].sum()
    }
    return quantiles + [
        {"figure": name, "value": float(ns.mean()), "unit": "ns", **_band(ns)} for name, ns in spent.items()
    ]


def _figure(name: str, stretches: NDArray[np.float64], unit: str) -> dict[str, object]:
    return {"figure": name, "value": float(stretches.mean()), "unit": unit, **_band(stretches)}


def _band(values: NDArray[np.float64], quantile: int | None = None) -> dict[str, float | None]:
    """Return the bootstrap's 95 % band of the values' mean or `quantile`; the same on every call."""
    if len(values) < 2:
        return {"low": None, "high": None}
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    made = (
        drawn.mean(axis=1)
        if quantile is None
        else np.percentile(drawn, quantile, axis=1, method="inverted_cdf")
    )
    low, high = np.percentile(made, BAND)
    return {"low": float(low), "high": float(high)}
