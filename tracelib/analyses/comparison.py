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

from tracelib.analyses.capacity import cpus_known
from tracelib.analyses.gpu_time import USEFUL
from tracelib.analyses.requests import PARTS
from tracelib.analyses.results import Results
from tracelib.analyses.scheduling import WAITS_FOR_CPU

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

STRETCHES = 20
RESAMPLES = 1000
#: Two-sided 95 %.
BAND = (2.5, 97.5)


def comparison(runs: Mapping[str, Results], cores: Mapping[str, int] | None = None) -> pl.DataFrame:
    """Return the figures of each run.

    `cores` says how many cores a run had, by label; else the CPUs on which the server was seen to run.

    One row per run and figure, in the order of `runs`: `run` (String), `cores` (Int64, null = not known),
    `figure` (String: `useful`, `busy`, `lost to CAUSE`, `CPU shortage`: shares of GPU time; `steps`: a
    worker's dequeues per second; `decode tokens`, `prompt tokens`: per second; `ttft p50`, `ttft p95`;
    `ttft mean`, and `ttft in PART`, which add up to it),
    `value` (Float64), `low`, `high` (Float64: 95 % band of the value within this run; null where fewer than
    two stretches or requests make it), `unit` (String: share, 1/s, ns). A figure that a run cannot tell has
    no row.

    Tokens are those of the steps of one worker, counted at the step's middle
    (:mod:`tracelib.analyses.requests`): of the lowest rank, which stands for all that share the model with
    it. An answer's first token comes out of its prompt's step and is not a decode token. Where no step tells,
    prompt tokens are those of the request log, counted at the first token.
    """
    given = dict(cores or {})
    rows = [
        {"run": run, "cores": given.get(run, cpus_known(results)[0]), **figure}
        for run, results in runs.items()
        for figure in [*_shares(results), *_steps(results), *_tokens(results), *_waits(results)]
    ]
    return pl.DataFrame(rows, schema=COMPARISON)


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
        return []
    first = dequeues.filter(pl.col("thread") == dequeues["thread"].min())
    return [_rate("steps", results, first["ts_ns"])]


def _tokens(results: Results) -> list[dict[str, object]]:
    steps = results.step_tokens.sort("rank", "thread", nulls_last=True)
    own = steps.join(steps.head(1).select("thread"), on="thread", maintain_order="left")
    if own.is_empty() or own["decode"].null_count():  # with a step that does not tell, the sum is too low
        return _logged_tokens(results)
    middles = own["ts_ns"] + own["dur_ns"] // 2
    return [
        _rate(f"{word} tokens", results, middles, own[kind])
        for word, kind in (("decode", "decode"), ("prompt", "prefill"))
    ]


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
    ttft = results.requests["ttft_ns"].drop_nulls().to_numpy().astype(np.float64)
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
