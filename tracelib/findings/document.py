"""`findings.json`: the run's whole outcome as one plain document (FINDINGS.md holds the contract)."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec import to_builtins

from tracelib import __version__
from tracelib.analyses.capacity import capacity
from tracelib.analyses.cpu_time import polls
from tracelib.analyses.launches import graph_coverage, launch_delays
from tracelib.analyses.requests import PARTS
from tracelib.analyses.results import NEEDS
from tracelib.analyses.scheduling import demand_at, tells_shortage
from tracelib.findings.finding import Abstained, Finding, quantile
from tracelib.findings.order import in_order
from tracelib.findings.rules import RULES
from tracelib.findings.shown import Shown
from tracelib.findings.verdict import Thresholds, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelib.analyses.results import Results

__all__ = ["SCHEMA", "diagnose"]

SCHEMA = "tracelib.findings/1"


def diagnose(
    results: Results,
    *,
    title: str = "",
    ticket: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    thresholds: Thresholds | None = None,
    generated: datetime | None = None,
) -> Shown:
    """Return the content of `findings.json` for `results`: a dict that Jupyter shows as the report does.

    A part that cannot be computed is None and stands in `abstained`; it is never 0. Texts from the traces are
    as recorded: whoever writes them anywhere escapes and redacts them (:mod:`tracelib.report`).
    """
    outcomes = [rule.judge(results) for rule in sorted(RULES, key=lambda rule: rule.id)]
    findings = in_order((o for o in outcomes if isinstance(o, Finding)), results)
    parts: dict[str, Any] = {
        "launches": _launches(results),
        "collectives": _collectives(results),
        "ipc": _ipc(results),
        "scheduling": _scheduling(results),
        "requests": _requests(results),
        "cpu_time": _cpu_time(results),
        "quota": _quota(results),
    }
    abstained = [
        Abstained(
            id=part,
            reason=results.missing.get(part, "no event of this kind in the window"),
            record_with=NEEDS[part].record_with,
        )
        for part, value in parts.items()
        if value is None
    ] + [o for o in outcomes if isinstance(o, Abstained)]
    now = generated or datetime.now(UTC)
    window = results.window
    document = {
        "schema": SCHEMA,
        "tool": {"name": "tracelib", "version": __version__},
        "generated_utc": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "title": title,
        "ticket": ticket,
        "parameters": dict(parameters or {}),
        "sources": _sources(results),
        "window": {
            "start_ns": window.start_ns,
            "end_ns": window.end_ns,
            "duration_ns": window.duration_ns,
            "why": window.why,
        },
        "verdict": Shown(dataclasses.asdict(verdict(results, thresholds)), window.start_ns),
        "devices": _devices(results),
        "host_time": _rows(results.host_time),
        **parts,
        "capacity": _capacity(results),
        "findings": [Shown(to_builtins(finding), window.start_ns) for finding in findings],
        "abstained": to_builtins(abstained),
        "health": _health(results),
    }
    return Shown(document, window.start_ns)


def _rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String)).to_dicts()


def _cpu_time(results: Results) -> list[dict[str, Any]] | None:
    if results.cpu_time.is_empty():
        return None
    keep = ["role", "cause", "sub_cause", "cpu_ns", "share"]
    return [
        {**{key: row[key] for key in keep}, "ci95": [row["ci_low"], row["ci_high"]]}
        for row in results.cpu_time.iter_rows(named=True)
    ]


def _quantiles(series: pl.Series) -> dict[str, int | None] | None:
    if series.null_count() == series.len():
        return None
    return {name: quantile(series, q) for name, q in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))}


#: A source whose own clock is the timeline (no file declares wall time) is tied to it by declaration.
_TIED = {"reference": "declared"}


def _sources(results: Results) -> list[dict[str, Any]]:
    frames = {
        name: getattr(results.recorded or results.trace, name)
        for name in ("slices", "gpu_ops", "samples", "sched")
    }
    counts = {name: dict(frame.group_by("source").len().iter_rows()) for name, frame in frames.items()}
    health = results.trace.health
    kept = [
        "file",
        "sha256",
        "format",
        "recorder",
        "clock",
        "tied_by",
        "offset_ns",
        "error_ns",
        "first_ns",
        "last_ns",
    ]
    return [
        {
            **{key: row[key] for key in kept},
            "tied_by": _TIED.get(row["tied_by"], row["tied_by"]),
            "residual": None
            if row["anchors"] is None
            else {
                "against": row["tied_with"],
                "kind": row["anchor_kind"],
                "anchors": row["anchors"],
                "p50_ns": row["residual_p50_ns"],
                "p99_ns": row["residual_p99_ns"],
                "drift_ppb": row["drift_ppb"],
            },
            "rows": {name: count.get(row["source"], 0) for name, count in counts.items()},
            "lost": {
                "declared": row["lost_declared"],
                "detected": row["lost_detected"],
                "skipped_bytes": row["skipped_bytes"],
            },
            "notes": health.filter(pl.col("source") == row["source"])["message"].to_list(),
        }
        for row in results.trace.sources.iter_rows(named=True)
    ]


def _devices(results: Results) -> list[dict[str, Any]]:
    out = []
    for gpu in results.trace.gpus.filter(pl.col("gpu").is_in(results.gpu_time["gpu"].implode())).iter_rows(
        named=True
    ):
        time = dict(
            results.gpu_time.filter(pl.col("gpu") == gpu["gpu"])
            .select(pl.col("state").cast(pl.String), "ns")
            .iter_rows()
        )
        apart = time.pop("collective")
        window = results.window.duration_ns
        useful = time["compute"] + time["copy"] + time["collective_transfer"]
        out.append(
            {
                "host": gpu["host"],
                "rank": gpu["rank"],
                "device": gpu["device"],
                "gpu_time_ns": {**time, "collective": apart},
                "busy_share": (window - time["idle"]) / window,
                "useful_share": useful / window,
                "lost_ns": time["idle"] + time["collective_wait"],
                "causes": _rows(results.causes.filter(pl.col("gpu") == gpu["gpu"]).drop("gpu")),
            }
        )
    return out


def _launches(results: Results) -> dict[str, Any] | None:
    ops = results.launches
    if ops.is_empty() or ops["call_ts_ns"].null_count() == ops.height:
        return None
    return {
        "count": ops.height,
        "api_ns": _quantiles(ops["api_ns"]),
        "launch_to_start_ns": _quantiles(ops["launch_to_start_ns"]),
        "return_to_start_ns": _quantiles(ops["return_to_start_ns"]),
        "negative_returns": int((ops["return_to_start_ns"] < 0).sum() or 0),
        "late": int(ops["late"].sum() or 0),
        "graph_coverage": graph_coverage(ops),
        "unmatched_gpu_ops": ops["call_ts_ns"].null_count(),
        "definitions": _rows(launch_delays(ops)),
    }


def _collectives(results: Results) -> dict[str, Any] | None:
    rows = results.collectives
    if rows.is_empty():
        return None
    met = rows.filter("matched")
    events = met.unique("event").sort("event")
    ranks = dict(results.trace.gpus.select("gpu", pl.col("rank").fill_null(pl.col("device"))).iter_rows())
    late = met.group_by("straggler").agg(pl.col("wait_ns").sum()).sort("wait_ns")
    waited = met.group_by("gpu").agg(pl.col("wait_ns").sum()).sort("gpu")["wait_ns"].to_list()
    skew = int(events["skew_ns"].sum())
    return {
        "groups": rows["group"].n_unique(),
        "matched": met.height,
        "unmatched": rows.height - met.height,
        "arrival_skew_ns": _quantiles(events["skew_ns"]),
        "transfer_ns": _transfer(met, results),
        "wait_ns": waited,
        "amplification": sum(waited) / skew if skew else None,
        "worst_straggler_rank": ranks[late["straggler"][-1]] if late.height else None,
    }


def _ipc(results: Results) -> dict[str, Any] | None:
    rows = results.ipc
    dequeue = rows.filter((pl.col("kind") == "dequeue") & (pl.col("role") == "worker"))
    if dequeue.is_empty():
        return None
    spin = (
        results.cpu_time.filter(pl.col("cause") == "spin")["cpu_ns"].sum()
        if results.cpu_time.height
        else None
    )
    first = dequeue.filter(pl.col("thread") == dequeue["thread"][0]).sort("ts_ns")
    step = first["ts_ns"].diff().drop_nulls()
    over = int(first["dur_ns"].head(-1).sum()) / int(step.sum()) if step.len() else None
    return {
        "dequeue_ns": _quantiles(dequeue["dur_ns"]),
        "dequeue_over_step": over,
        "enqueue_ns": _quantiles(rows.filter(pl.col("kind") == "enqueue")["dur_ns"]),
        "spin_cpu_ns": spin,
        "polls": polls(results.spinning).to_dicts(),
    }


def _transfer(met: pl.DataFrame, results: Results) -> int:
    """Return the collectives' time inside the window in which no rank was waited for."""
    start, end = results.window.start_ns, results.window.end_ns
    inside = (pl.col("ts_ns") + pl.col("dur_ns")).clip(start, end) - pl.col("ts_ns").clip(start, end)
    return int(met.select((inside - pl.col("wait_ns")).sum()).item())


_STATES = ("running", "runnable", "throttled", "blocked", "unknown")


def _total(column: str) -> pl.Expr:
    """Sum a column; null, not 0, where none of it is known."""
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum()).alias(column)


def _scheduling(results: Results) -> dict[str, Any] | None:
    if results.scheduling.is_empty():
        return None
    recorded = results.trace.sched["source"].unique()
    sources = results.trace.sources.filter(pl.col("source").is_in(recorded.implode()))
    told = tells_shortage(results.thread_states)
    throttled = results.thread_states.filter(pl.col("state").cast(pl.String) == "throttled")
    return {
        "threads": [
            {"role": row["role"], **{f"{s}_ns": row[f"{s}_ns"] for s in _STATES}}
            for row in results.scheduling.group_by("role")
            .agg(_total(f"{s}_ns") for s in _STATES)
            .sort("role", nulls_last=True)
            .iter_rows(named=True)
        ],
        "demand": _demand(results),
        "cpus_seen": results.trace.sched["cpu"].drop_nulls().n_unique(),
        "lost_switches": int(sources["lost_detected"].sum() or 0),
        "throttle_gaps": throttled.height if told else None,
    }


def _quota(results: Results) -> dict[str, Any] | None:
    """Return what is known of the CPU quota and what the kernel counted of it, None where nobody said."""
    supply = results.supply
    if supply.limited is None and not supply.counters:
        return None
    bounds = supply.quota_bounds()
    return {
        "limited": supply.limited,
        "cpus": supply.quota_cpus,
        "period_us": supply.period_us,
        "cpus_by_counters": list(bounds) if bounds else None,
        "since": supply.since or None,
        **{
            name: supply.counters.get(name)
            for name in ("nr_periods", "nr_throttled", "throttled_usec", "usage_usec")
        },
        "throttled_share": supply.throttled_share,
        "cpus_used": supply.cpus_used,
    }


def _demand(results: Results) -> dict[str, float] | None:
    at = {name: demand_at(results.demand, q) for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}
    return {name: float(n) for name, n in at.items() if n is not None} or None


def _requests(results: Results) -> dict[str, Any] | None:
    rows = results.requests
    if rows.is_empty():
        return None
    return {
        "count": rows.height,
        "ttft_ns": _quantiles(rows["ttft_ns"]),
        "parts": [
            {
                "part": part.removesuffix("_ns"),
                "p50": quantile(rows[part], 0.5),
                "p95": quantile(rows[part], 0.95),
                "correlation_with_ttft": _correlation(rows, part),
            }
            for part in PARTS
        ],
        "unknown": _unknown(rows),
        "outside_window": results.requests_outside,
        "lost_by_cause": _request_causes(results),
    }


def _unknown(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Return why parts of the time to first token are not known, the largest first."""
    why = rows.drop_nulls("unknown_why").group_by(why="unknown_why")
    told = why.agg(requests=pl.len(), total_ns=pl.col("unknown_ns").sum())
    return told.sort("total_ns", "why", descending=[True, False]).to_dicts()


def _request_causes(results: Results) -> list[dict[str, Any]]:
    """Return what took the GPU time lost within the times to first token, the largest first."""
    every = (
        results.requests.select("ttft_ns").with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    )
    out = []
    for (cause,), rows in results.request_causes.group_by("cause"):
        spent = every.join(rows.select("row", "ns"), on="row", how="left").with_columns(
            pl.col("ns").fill_null(0)
        )
        out.append(
            {
                "cause": cause,
                "p50": quantile(spent["ns"], 0.5),
                "p95": quantile(spent["ns"], 0.95),
                "total_ns": int(spent["ns"].sum()),
                "correlation_with_ttft": _correlation(spent, "ns"),
            }
        )
    return sorted(out, key=lambda row: -row["total_ns"])


def _correlation(rows: pl.DataFrame, part: str) -> float | None:
    value = rows.select(pl.corr(part, "ttft_ns")).item()
    return None if value is None or value != value else float(value)  # noqa: PLR0124  (NaN: the part never varies)


def _capacity(results: Results) -> dict[str, Any]:
    """Return every estimate of the cores that the server needs, each with its origin."""
    cpus = results.trace.sources["cpus"].drop_nulls()
    return {
        "gpus": results.gpu_time["gpu"].n_unique(),
        "cpus_of_host": max(cpus.to_list(), default=None),
        "mean_input_tokens": results.supply.mean_input_tokens,
        "demand": _demand(results),
        "estimates": _rows(capacity(results)),
    }


def _health(results: Results) -> list[dict[str, Any]]:
    files = dict(results.trace.sources.select("source", "file").iter_rows())
    rows = results.trace.health.with_columns(pl.col("level").cast(pl.String)).iter_rows(named=True)
    return [
        {"level": r["level"], "source": files.get(r["source"]), "message": r["message"], "fix": r["fix"]}
        for r in rows
    ]
