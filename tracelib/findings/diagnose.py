"""From a run's analyses to its findings document."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import polars as pl
from msgspec.structs import replace

from tracelib import __version__
from tracelib.analyses.capacity import capacity
from tracelib.analyses.cpu_time import polls
from tracelib.analyses.launches import graph_coverage, launch_delays
from tracelib.analyses.results import NEEDS, Results
from tracelib.analyses.scheduling import demand_at, tells_shortage
from tracelib.findings import document as doc
from tracelib.findings.doubts import doubts, inflated, less_sure, recorder_cost
from tracelib.findings.finding import Abstained, Finding, Part, quantiles, rank_labels
from tracelib.findings.order import in_order, not_yet, record_first, without_advice
from tracelib.findings.requests import requests_part
from tracelib.findings.rules import RULES
from tracelib.findings.verdict import Thresholds, verdict

#: Parts that take events of their own; where these are absent the part is None and abstained from.
PARTS = ("launches", "collectives", "ipc", "scheduling", "requests", "cpu_time", "quota")

Row = TypeVar("Row", bound=Part)
#: A source whose own clock is the timeline (no file declares wall time) is tied to it by declaration.
TIED = {"reference": "declared"}
#: What the kernel counts of a quota (cpu.stat).
COUNTERS = ("nr_periods", "nr_throttled", "throttled_usec", "usage_usec")


def diagnose(
    results: Results,
    *,
    title: str = "",
    ticket: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    thresholds: Thresholds | None = None,
    generated: datetime | None = None,
) -> doc.Document:
    """Return what `findings.json` holds of `results`; Jupyter shows it as the report does.

    A part that cannot be computed is None and is in `abstained`; it is never 0. Texts from the traces are as
    recorded: whoever writes them anywhere escapes and redacts them (:mod:`tracelib.report`).
    """
    outcomes = [rule.judge(results) for rule in sorted(RULES, key=lambda rule: rule.id)]
    answer, findings = _answer(results, [row for row in outcomes if isinstance(row, Finding)], thresholds)
    window = results.window
    document = doc.Document(
        schema=doc.SCHEMA,
        tool=doc.Tool(name="tracelib", version=__version__),
        generated_utc=(generated or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        title=title,
        ticket=ticket,
        parameters=dict(parameters or {}),
        sources=_sources(results),
        window=doc.Window(
            start_ns=window.start_ns, end_ns=window.end_ns, duration_ns=window.duration_ns, why=window.why
        ),
        verdict=answer,
        devices=_devices(results),
        host_time=_rows(results.host_time, doc.HostTime),
        launches=_launches(results),
        collectives=_collectives(results),
        ipc=_messages(results),
        scheduling=_scheduling(results),
        requests=requests_part(results),
        cpu_time=_cpu_time(results),
        quota=_quota(results),
        capacity=_capacity(results),
        findings=findings,
        abstained=[row for row in outcomes if isinstance(row, Abstained)],
        health=_health(results),
    )
    return replace(document, abstained=_unknown_parts(document, results) + document.abstained)


def _answer(
    results: Results, found: list[Finding], thresholds: Thresholds | None
) -> tuple[doc.Verdict, list[Finding]]:
    """Return the verdict with what to record first, and the findings in order, as sure as the files allow."""
    answer, open_questions = verdict(results, thresholds), doubts(results)
    cost = recorder_cost(results)
    workers = results.trace.threads.filter(pl.col("role") == "worker")["thread"].implode()
    surely = [inflated(less_sure(row, open_questions), cost, workers) for row in found]
    findings = in_order(surely, results)
    if answer.state in ("no_load", "not_cpu_bound"):
        return answer, findings
    first = [*answer.record_first, *record_first(results, findings, open_questions)]
    answer = replace(answer, record_first=first)
    if answer.state == "insufficient":
        return answer, without_advice(findings)
    return answer, not_yet(findings) if answer.record_first else findings


def _unknown_parts(document: doc.Document, results: Results) -> list[Abstained]:
    return [
        Abstained(
            id=part,
            reason=results.missing.get(part, "no event of this kind in the window"),
            record_with=NEEDS[part].record_with,
        )
        for part in PARTS
        if getattr(document, part) is None
    ]


def _rows(frame: pl.DataFrame, row: type[Row]) -> list[Row]:
    """Return the frame's rows as structs with the fields of their names."""
    columns = frame.select(row.__struct_fields__).with_columns(
        pl.col(pl.Categorical, pl.Enum).cast(pl.String)
    )
    return [row(**values) for values in columns.iter_rows(named=True)]


# -------------------- the files
def _sources(results: Results) -> list[doc.Source]:
    recorded = results.recorded or results.trace
    counts = {
        name: dict(getattr(recorded, name).group_by("source").len().iter_rows())
        for name in doc.Rows.__struct_fields__
    }
    health = results.trace.health
    return [
        doc.Source(
            **{name: row[name] for name in doc.Source.__struct_fields__ if name in row and name != "tied_by"},
            tied_by=TIED.get(row["tied_by"], row["tied_by"]),
            residual=_residual(row),
            rows=doc.Rows(**{name: count.get(row["source"], 0) for name, count in counts.items()}),
            lost=doc.Lost(
                declared=row["lost_declared"],
                detected=row["lost_detected"],
                skipped_bytes=row["skipped_bytes"],
            ),
            notes=health.filter(pl.col("source") == row["source"])["message"].to_list(),
        )
        for row in results.trace.sources.iter_rows(named=True)
    ]


def _residual(row: dict[str, Any]) -> doc.Residual | None:
    if row["anchors"] is None:
        return None
    return doc.Residual(
        against=row["tied_with"],
        kind=row["anchor_kind"],
        anchors=row["anchors"],
        p50_ns=row["residual_p50_ns"],
        p99_ns=row["residual_p99_ns"],
        drift_ppb=row["drift_ppb"],
    )


def _health(results: Results) -> list[doc.Remark]:
    files = dict(results.trace.sources.select("source", "file").iter_rows())
    named = results.trace.health.with_columns(
        pl.col("source").replace_strict(files, default=None, return_dtype=pl.String)
    )
    return _rows(named, doc.Remark)


# -------------------- the GPUs
def _devices(results: Results) -> list[doc.Device]:
    analysed = results.trace.gpus.filter(pl.col("gpu").is_in(results.gpu_time["gpu"].implode()))
    return [_device(results, row) for row in analysed.iter_rows(named=True)]


def _device(results: Results, gpu: dict[str, Any]) -> doc.Device:
    this = pl.col("gpu") == gpu["gpu"]
    states = results.gpu_time.filter(this).select(pl.col("state").cast(pl.String), "ns")
    time = doc.GpuTime(**dict(states.iter_rows()))
    window = results.window.duration_ns
    return doc.Device(
        host=gpu["host"],
        rank=gpu["rank"],
        device=gpu["device"],
        gpu_time_ns=time,
        busy_share=(window - time.idle) / window,
        useful_share=(time.compute + time.copy + time.collective_transfer) / window,
        lost_ns=time.idle + time.collective_wait,
        causes=_rows(results.causes.filter(this), doc.LostTime),
    )


def _launches(results: Results) -> doc.Launches | None:
    ops = results.launches
    if ops.is_empty() or ops["call_ts_ns"].null_count() == ops.height:
        return None
    return doc.Launches(
        count=ops.height,
        api_ns=quantiles(ops["api_ns"]),
        launch_to_start_ns=quantiles(ops["launch_to_start_ns"]),
        return_to_start_ns=quantiles(ops["return_to_start_ns"]),
        negative_returns=int((ops["return_to_start_ns"] < 0).sum() or 0),
        late=int(ops["late"].sum() or 0),
        graph_coverage=graph_coverage(ops),
        unmatched_gpu_ops=ops["call_ts_ns"].null_count(),
        definitions=_rows(launch_delays(ops), doc.LaunchDelay),
    )


def _collectives(results: Results) -> doc.Collectives | None:
    rows = results.collectives
    if rows.is_empty():
        return None
    matched = rows.filter("matched")
    skews = matched.unique("event")["skew_ns"]
    by_straggler = matched.group_by("straggler").agg(pl.col("wait_ns").sum()).sort("wait_ns")
    waited = matched.group_by("gpu").agg(pl.col("wait_ns").sum()).sort("gpu")["wait_ns"].to_list()
    skew = int(skews.sum())
    return doc.Collectives(
        groups=rows["group"].n_unique(),
        matched=matched.height,
        unmatched=rows.height - matched.height,
        arrival_skew_ns=quantiles(skews),
        transfer_ns=_transfer_ns(matched, results),
        wait_ns=waited,
        amplification=sum(waited) / skew if skew else None,
        worst_straggler_rank=rank_labels(results)[by_straggler["straggler"][-1]] if waited else None,
    )


def _transfer_ns(matched: pl.DataFrame, results: Results) -> int:
    """Return the collectives' time inside the window in which no rank was waited for."""
    start, end = results.window.start_ns, results.window.end_ns
    inside = (pl.col("ts_ns") + pl.col("dur_ns")).clip(start, end) - pl.col("ts_ns").clip(start, end)
    return int(matched.select((inside - pl.col("wait_ns")).sum()).item())


# -------------------- the host's threads and CPUs
def _messages(results: Results) -> doc.Messages | None:
    rows = results.ipc
    dequeue = rows.filter((pl.col("kind") == "dequeue") & (pl.col("role") == "worker"))
    if dequeue.is_empty():
        return None
    spins = results.cpu_time.filter(pl.col("cause") == "spin")["cpu_ns"]
    first = dequeue.filter(pl.col("thread") == dequeue["thread"][0]).sort("ts_ns")
    steps = first["ts_ns"].diff().drop_nulls()
    return doc.Messages(
        dequeue_ns=quantiles(dequeue["dur_ns"]),
        dequeue_over_step=int(first["dur_ns"].head(-1).sum()) / int(steps.sum()) if steps.len() else None,
        enqueue_ns=quantiles(rows.filter(pl.col("kind") == "enqueue")["dur_ns"]),
        spin_cpu_ns=int(spins.sum()) if results.cpu_time.height else None,
        polls=_rows(polls(results.spinning), doc.Polls),
    )


def _cpu_time(results: Results) -> list[doc.CpuTime] | None:
    if results.cpu_time.is_empty():
        return None
    interval = pl.concat_list("ci_low", "ci_high").alias("ci95")
    return _rows(results.cpu_time.with_columns(interval), doc.CpuTime)


def _scheduling(results: Results) -> doc.Scheduling | None:
    if results.scheduling.is_empty():
        return None
    recorded = results.trace.sched["source"].unique()
    sources = results.trace.sources.filter(pl.col("source").is_in(recorded.implode()))
    throttled = results.thread_states.filter(pl.col("state").cast(pl.String) == "throttled")
    by_role = results.scheduling.group_by("role").agg(
        _total(name) for name in doc.RoleStates.__struct_fields__ if name != "role"
    )
    return doc.Scheduling(
        threads=_rows(by_role.sort("role", nulls_last=True), doc.RoleStates),
        demand=_demand(results),
        cpus_seen=results.trace.sched["cpu"].drop_nulls().n_unique(),
        lost_switches=int(sources["lost_detected"].sum() or 0),
        throttle_gaps=throttled.height if tells_shortage(results.thread_states) else None,
    )


def _total(column: str) -> pl.Expr:
    """Sum a column; null, not 0, where none of it is known."""
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum()).alias(column)


def _demand(results: Results) -> doc.Demand | None:
    p50, p95, p99 = (demand_at(results.demand, q) for q in (0.5, 0.95, 0.99))
    if p50 is None or p95 is None or p99 is None:
        return None
    return doc.Demand(p50=float(p50), p95=float(p95), p99=float(p99))


def _quota(results: Results) -> doc.Quota | None:
    """Return what is known of the CPU quota and what the kernel counted of it, None where nobody said."""
    supply = results.supply
    if supply.limited is None and not supply.counters:
        return None
    bounds = supply.quota_bounds()
    counted = {name: supply.counters.get(name) for name in COUNTERS}
    return doc.Quota(
        limited=supply.limited,
        cpus=supply.quota_cpus,
        period_us=supply.period_us,
        cpus_by_counters=list(bounds) if bounds else None,
        since=supply.since or None,
        **counted,
        throttled_share=supply.throttled_share,
        cpus_used=supply.cpus_used,
    )


def _capacity(results: Results) -> doc.Capacity:
    """Return every estimate of the cores that the server needs, each with its origin."""
    cpus = results.trace.sources["cpus"].drop_nulls()
    return doc.Capacity(
        gpus=results.gpu_time["gpu"].n_unique(),
        cpus_of_host=max(cpus.to_list(), default=None),
        mean_input_tokens=results.supply.mean_input_tokens,
        demand=_demand(results),
        estimates=_rows(capacity(results), doc.Estimate),
    )
