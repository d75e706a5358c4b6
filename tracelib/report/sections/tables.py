"""Per rank and per role: the tables behind the verdict."""

from __future__ import annotations

from typing import Any

from tracelib.charts.requests import PARTS
from tracelib.report import numbers
from tracelib.report.sections.html import Column, Markup, Section, bar, esc, table
from tracelib.report.sections.words import CPU_STATES, cause_name, sub_cause_name
from tracelib.report.text import count, duration, share

__all__ = ["per_rank_table", "per_role_table", "request_parts_table"]

Findings = dict[str, Any]

_GPU_STATES = (
    ("compute", "Compute"),
    ("copy", "Copy"),
    ("collective", "Collective"),
    ("collective_transfer", "Collective: transfer"),
    ("collective_wait", "Collective: waiting"),
    ("idle", "Idle"),
)


_ROLES = ("api_server", "engine", "worker")
#: Smaller shares of the CPU time are counted, not listed.
LEAST_SHARE = 0.005


def per_rank_table(findings: Findings) -> Section:
    """Return each device's time by state (they add up to the window) and the largest causes of its loss."""
    devices = findings["devices"] or []
    if not devices:
        return Section('<p class="empty">No GPU operation was recorded.</p>', "no devices")
    states = [
        (key, name)
        for key, name in _GPU_STATES
        if key != "collective" or any(d["gpu_time_ns"].get(key) for d in devices)
    ]
    columns = [
        Column("GPU"),
        *(Column(name, number=True) for _, name in states),
        Column("Busy", number=True, meaning="not idle, as monitoring shows it"),
        Column("Useful", number=True, meaning="compute, copy and transfer"),
        Column("Lost mostly to"),
    ]
    window = findings["window"]["duration_ns"]
    several = len({device["host"] for device in devices}) > 1
    rows = [
        _device_cells(device, [key for key, _ in states], window, with_host=several) for device in devices
    ]
    body = table(
        "GPU time by state, per device; the states add up to the window", columns, rows, anchor="ranks-table"
    )
    return Section(body, f"{len(devices)} devices")


def device_name(device: dict[str, Any], *, with_host: bool) -> Markup:
    """Return what a device is called: its rank where known, its index, its host where there are several."""
    index = f"GPU {'?' if device['device'] is None else device['device']}"
    place = f"{device['host']}, {index}" if with_host and device["host"] else index
    if device["rank"] is None:
        return esc(place)
    return Markup(f"rank {esc(device['rank'])}<small>{esc(place)}</small>")


def _device_cells(
    device: dict[str, Any], states: list[str], window: int, *, with_host: bool
) -> tuple[object, ...]:
    times = (_time(device["gpu_time_ns"].get(state), window) for state in states)
    return (
        device_name(device, with_host=with_host),
        *times,
        share(device["busy_share"]),
        share(device["useful_share"]),
        _largest(device, window),
    )


def _time(ns: int | None, window: int) -> Markup:
    aside = "" if ns is None or not window else f"<small>{esc(share(ns / window))}</small>"
    return Markup(f"{esc(duration(ns))} {aside}")


def _largest(device: dict[str, Any], window: int) -> str:
    by_cause: dict[str, int] = {}
    for row in device["causes"] or ():
        by_cause[row["cause"]] = by_cause.get(row["cause"], 0) + row["ns"]
    largest = sorted(by_cause.items(), key=lambda pair: -pair[1])[:2]
    return ", ".join(f"{cause_name(cause)} {share(ns / window)}" for cause, ns in largest if ns and window)


def per_role_table(findings: Findings) -> Section:
    """Return, per role of the server, its threads' scheduler states and where its CPU time went."""
    parts = [part for part in (_scheduling(findings), quota_line(findings), _cpu_time(findings)) if part]
    if not parts:
        return Section(
            '<p class="empty">Neither scheduler events nor CPU samples were recorded.</p>', "roles: not known"
        )
    return Section("".join(parts), "roles")


def _scheduling(findings: Findings) -> str:
    threads = (findings["scheduling"] or {}).get("threads") or []
    if not threads:
        return ""
    columns = [
        Column("Role"),
        *(Column(state.capitalize(), number=True, meaning=CPU_STATES[state]) for state in CPU_STATES),
        Column(
            "Short of CPU", number=True, meaning="(runnable + throttled) / (running + runnable + throttled)"
        ),
    ]
    rows = [_role_cells(row) for row in _by_role(threads)]
    note = (
        "<p>All threads of a role are in its row, helpers and pollers too. A thread that no GPU waits for costs no GPU time, "
        "however long it had no CPU: the shortage that counts is the one under Causes.</p>"
    )
    return table("Scheduler states by role, threads summed", columns, rows) + note


def quota_line(findings: Findings) -> str:
    """Return in a sentence what is known of the CPU quota; nothing where nobody kept it."""
    quota = findings["quota"]
    if quota is None:
        return ""
    if quota["limited"] is False:
        size = "The server's cgroup has no CPU quota (cpu.max)"
    elif quota["cpus"] is not None:
        size = f"The server's CPU quota is {quota['cpus']:g} CPUs (cpu.max)"
    elif quota["cpus_by_counters"]:
        size = "By the kernel's counters the server's CPU quota lies between {:.1f} and {:.1f} CPUs (for periods of 100 ms)".format(
            *quota["cpus_by_counters"]
        )
    else:
        size = "How large the server's CPU quota is was not recorded (cpu.max)"
    ran_out = ""
    if quota["nr_periods"] is not None:
        ran_out = (
            f"; it ran out in {count(quota['nr_throttled'])} of {count(quota['nr_periods'])} periods, "
            f"{duration(quota['throttled_usec'] * 1000)} throttled (cpu.stat, {quota['since']}; summed over CPUs)"
        )
    used = f"; {quota['cpus_used']:.2f} CPUs used on average" if quota["cpus_used"] is not None else ""
    return f"<p>{esc(size + ran_out + used)}.</p>"


def _by_role(threads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = [f"{state}_ns" for state in CPU_STATES]
    roles: dict[str, dict[str, Any]] = {}
    for thread in threads:
        if thread["role"] == "system":  # the kernel's own threads: no part of the server
            continue
        role = roles.setdefault(thread["role"] or "unknown", dict.fromkeys(keys))
        for key in keys:
            if thread[key] is not None:
                role[key] = (role[key] or 0) + thread[key]
    return [{"role": role, **roles[role]} for role in sorted(roles, key=_server_first)]


def _server_first(role: str | None) -> tuple[int, str]:
    """Order roles as a request meets them, then all that is not the server."""
    return (_ROLES.index(role) if role in _ROLES else len(_ROLES), role or "")


def _role_cells(row: dict[str, Any]) -> tuple[object, ...]:
    wanted = sum(row[f"{state}_ns"] or 0 for state in ("running", *numbers.SHORTAGE))
    short = sum(row[f"{state}_ns"] or 0 for state in numbers.SHORTAGE)
    told = row["runnable_ns"] is not None
    times = (duration(row[f"{state}_ns"]) for state in CPU_STATES)
    return str(row["role"]).replace("_", " "), *times, share(short / wanted if wanted and told else None)


def _cpu_time(findings: Findings) -> str:
    rows = findings["cpu_time"] or []
    if not rows:
        return ""
    columns = (
        Column("Role"),
        Column("CPU time went to"),
        Column("CPU time", number=True),
        Column("Share of all", number=True),
        Column("95 % interval", number=True, meaning="from the number of samples"),
    )
    shown = [row for row in rows if row["share"] is None or row["share"] >= LEAST_SHARE]
    shown.sort(key=lambda row: (*_server_first(row["role"]), -(row["cpu_ns"] or 0)))
    left = len(rows) - len(shown)
    more = (
        f'<p class="more">{left} smaller parts, each under {share(LEAST_SHARE)}, stand in findings.json</p>'
        if left
        else ""
    )
    return (
        table("CPU time by role and cause, from samples", columns, [_cpu_cells(row) for row in shown]) + more
    )


def _cpu_cells(row: dict[str, Any]) -> tuple[object, ...]:
    interval = "" if row["ci95"] is None else " to ".join(share(end) for end in row["ci95"])
    part = "" if row["share"] is None else bar(row["share"], "c-" + row["cause"])
    role = str(row["role"] or "unknown").replace("_", " ")
    sub_cause = f": {sub_cause_name(row['sub_cause'])}" if row.get("sub_cause") else ""
    cause = f"{cause_name(row['cause'])}{sub_cause}"
    return role, cause, duration(row["cpu_ns"]), Markup(f"{part} {esc(share(row['share']))}"), interval


def request_parts_table(findings: Findings) -> Section:
    """Return what the time to first token consists of, where requests can be told apart."""
    requests = findings["requests"]
    if not requests or not requests["parts"]:
        # The chart's place says why; the same sentence twice helps nobody.
        return Section("", "requests: not known")
    columns = (
        Column("Part of the time to first token"),
        Column("p50", number=True),
        Column("p95", number=True),
        Column("Correlation with it", number=True, meaning="over the requests; near 1: this part decides"),
    )
    rows = [
        (
            PARTS.get(f"{row['part']}_ns", row["part"]),
            duration(row["p50"]),
            duration(row["p95"]),
            _r(row["correlation_with_ttft"]),
        )
        for row in requests["parts"]
    ]
    rows += [
        (
            f"GPU time lost after the tokenizer: {cause_name(row['cause'])}",
            duration(row["p50"]),
            duration(row["p95"]),
            _r(row["correlation_with_ttft"]),
        )
        for row in requests["lost_by_cause"]
    ]
    left = requests["outside_window"]
    outside = f"; {count(left)} more in the log do not lie in the window whole" if left else ""
    untold = "".join(
        f'<p class="more">Of {count(row["requests"])} requests {esc(duration(row["total_ns"]))} not known: {esc(row["why"])}.</p>'
        for row in requests["unknown"]
    )
    return Section(table(f"{count(requests['count'])} requests{outside}", columns, rows) + untold, "requests")


def _r(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
