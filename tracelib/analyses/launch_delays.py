"""The delay between a launch and its operation as each tool defines it, side by side: one word stands for several numbers.

A launch call begins, returns, and its operation starts; in a busy server any of the last two comes first. Tools take
different pairs of these moments, and differ in what they do where the operation starts before the call has returned.

Sources: SKIP (arXiv 2504.11750: t_l, its sum TKLQT); HTA, CUDA kernel launch statistics (`launch_delay`, negative values put
to 0; flagged above 100 us); Nsight Systems' report cuda_kern_exec_sum (Queue only where positive; Total); nsys-ai's skill
cpu_gpu_pipeline (starvation: a queue delay above 1 ms). Ours: ATTRIBUTION.md, "Launch metrics".
"""

from __future__ import annotations

import polars as pl

__all__ = ["LAUNCH_DELAYS", "launch_delays"]

LAUNCH_DELAYS = pl.Schema(
    {
        "name": pl.String(),
        "by": pl.String(),
        "meaning": pl.String(),
        "operations": pl.Int64(),
        "sum_ns": pl.Int64(),
        "p50_ns": pl.Int64(),
        "p95_ns": pl.Int64(),
        "max_ns": pl.Int64(),
        "threshold_ns": pl.Int64(),
        "above_threshold": pl.Int64(),
    }
)

_BEGIN, _START = pl.col("call_ts_ns"), pl.col("ts_ns")
_BACK = _BEGIN + pl.col("call_dur_ns")
_ALL, _KERNELS = pl.lit(value=True), pl.col("kind").is_in(["kernel", "graph"])
_QUEUE = pl.when(_BACK < _START).then(_START - _BACK)
#: Name, whose, meaning, the value in ns (null = the definition leaves the operation out), which operations, threshold in ns.
DEFINITIONS: tuple[tuple[str, str, str, pl.Expr, pl.Expr, int | None], ...] = (
    ("launch_to_start", "tracelib", "call's begin to operation's start", _START - _BEGIN, _ALL, None),
    (
        "return_to_start",
        "tracelib",
        "call's return to operation's start, negative values kept",
        _START - _BACK,
        _ALL,
        None,
    ),
    ("t_l", "SKIP", "call's begin to kernel's start; the sum is TKLQT", _START - _BEGIN, _KERNELS, None),
    (
        "launch_delay",
        "HTA",
        "call's return to operation's start, negative values as 0",
        (_START - _BACK).clip(lower_bound=0),
        _ALL,
        100_000,
    ),
    (
        "Queue",
        "nsys cuda_kern_exec_sum",
        "call's return to kernel's start, where positive",
        _QUEUE,
        _KERNELS,
        None,
    ),
    (
        "Total",
        "nsys cuda_kern_exec_sum",
        "call's begin to the later of its return and the kernel's end",
        pl.max_horizontal(_BACK, _START + pl.col("dur_ns")) - _BEGIN,
        _KERNELS,
        None,
    ),
    (
        "starvation",
        "nsys-ai cpu_gpu_pipeline",
        "call's return to kernel's start, where positive",
        _QUEUE,
        _KERNELS,
        1_000_000,
    ),
)


def launch_delays(launches: pl.DataFrame) -> pl.DataFrame:
    """Return the delay from launch to start by each definition, of the frame `launches`.

    One row per definition: `name`, `by` (String: whose it is), `meaning` (String), `operations` (Int64: how many it takes in;
    those without a recorded launch never), `sum_ns`, `p50_ns`, `p95_ns`, `max_ns` (Int64; null without operations),
    `threshold_ns` (Int64: above it, its author calls a launch late; null = none), `above_threshold` (Int64: how many are).
    """
    known = launches.filter(_BEGIN.is_not_null())
    rows = [
        known.filter(whose)
        .select(value=value)
        .drop_nulls()
        .select(
            name=pl.lit(name),
            by=pl.lit(by),
            meaning=pl.lit(meaning),
            operations=pl.len(),
            sum_ns=pl.when(pl.len() > 0).then(pl.col("value").sum()),
            **{
                f"{q}_ns": pl.col("value").quantile(share, "nearest")
                for q, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))
            },
            threshold_ns=pl.lit(threshold, pl.Int64),
            above_threshold=None if threshold is None else (pl.col("value") > threshold).sum(),
        )
        for name, by, meaning, value, whose, threshold in DEFINITIONS
    ]
    return pl.concat([row.select(pl.col(c).cast(t) for c, t in LAUNCH_DELAYS.items()) for row in rows])
