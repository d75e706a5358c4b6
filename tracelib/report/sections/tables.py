"""The tables behind the verdict, what the files were worth, and how the figures were computed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from markupsafe import Markup

from tracelib.analyses.scheduling import WAITS_FOR_CPU
from tracelib.findings.document import Device, Document, RoleStates
from tracelib.report.sections.render import Section, render
from tracelib.words import CPU_STATES, GPU_STATES, REQUEST_PARTS, SERVER

#: Smaller shares of the CPU time are counted, not listed.
LEAST_SHARE = 0.005
FRAME_ROWS = 200
TIES = {
    "declared": "as its recorder declares",
    "anchors": "by events that two files share",
    "user": "as you said",
    "untied": "not tied: reported alone",
}
LEVELS = {"error": "Error", "warning": "Warning", "info": "Note"}
LOSSES = {"declared": "declared", "detected": "detected", "skipped_bytes": "bytes unreadable"}


def per_rank_table(findings: Document) -> Section:
    """Return each device's time by state (they add up to the window) and the largest causes of its loss."""
    devices = findings.devices or []
    if not devices:
        return Section(render("empty", sentence="No GPU operation was read."), "no devices")
    # Where one rank alone was recorded, transfer and wait cannot be told apart.
    alone = any(device.gpu_time_ns.collective for device in devices)
    window_ns = findings.window.duration_ns
    html = render(
        "ranks",
        devices=[(device, _largest_causes(device, window_ns)) for device in devices],
        states=[state for state in GPU_STATES if alone or state != "collective"],
        window_ns=window_ns,
        several_hosts=len({device.host for device in devices}) > 1,
    )
    return Section(html, f"{len(devices)} devices")


def _largest_causes(device: Device, window_ns: int) -> list[tuple[str, float]]:
    by_cause: Counter[str] = Counter()
    for row in device.causes or ():
        by_cause[row.cause] += row.ns
    return [(cause, ns / window_ns) for cause, ns in by_cause.most_common(2) if ns and window_ns]


@dataclass(frozen=True)
class Role:
    """A role's time in each scheduler state; `shortage` = the share of its wanted CPU time without a CPU."""

    name: str | None
    ns: dict[str, int | None]
    shortage: float | None


def per_role_table(findings: Document) -> Section:
    """Return, per role of the server, its threads' scheduler states and where its CPU time went."""
    roles = _roles(findings.scheduling.threads if findings.scheduling else [])
    rows = findings.cpu_time or []
    large = [row for row in rows if row.share is None or row.share >= LEAST_SHARE]
    html = render(
        "roles",
        roles=roles,
        quota=findings.quota,
        cpu_time=sorted(large, key=lambda row: (*_server_first(row.role), -(row.cpu_ns or 0))),
        smaller=len(rows) - len(large),
        least_share=LEAST_SHARE,
    )
    return Section(html, "roles" if roles or rows or findings.quota else "roles: not known")


def _roles(threads: list[RoleStates]) -> list[Role]:
    """Return the roles as a request meets them, then those outside the server; without the kernel's own."""
    sums: dict[str | None, dict[str, int | None]] = {}
    for thread in threads:
        if thread.role == "system":
            continue
        ns = sums.setdefault(thread.role, dict.fromkeys(CPU_STATES))
        for state in CPU_STATES:
            more = getattr(thread, f"{state}_ns")
            if more is not None:
                ns[state] = (ns[state] or 0) + more
    return [_role(role, sums[role]) for role in sorted(sums, key=_server_first)]


def _role(name: str | None, ns: dict[str, int | None]) -> Role:
    short = sum(ns[state] or 0 for state in WAITS_FOR_CPU)
    wanted = short + (ns["running"] or 0)
    return Role(name, ns, short / wanted if wanted and ns["runnable"] is not None else None)


def _server_first(role: str | None) -> tuple[int, str]:
    return (SERVER.index(role) if role in SERVER else len(SERVER), role or "unknown")


def request_parts_table(findings: Document) -> Section:
    """Return what the time to first token consists of, where requests can be told apart."""
    requests = findings.requests
    if not requests or not requests.parts:
        # The chart's place says why; the same sentence twice helps nobody.
        return Section("", "requests: not known")
    return Section(render("requests", requests=requests), "requests")


def slowest_requests(findings: Document) -> Section:
    """Return the requests with the longest time to first token, each with its parts on a time line."""
    from tracelib.charts import requests as drawn  # noqa: PLC0415 (plotly: only when it draws)

    slowest = findings.requests.slowest if findings.requests else []
    if not slowest:
        return Section("", "requests: not known")
    longest = slowest[0].ttft_ns
    rows = [(request, Markup(drawn.request_svg(request.parts, longest))) for request in slowest]  # noqa: S704
    seen = {part for request in slowest for part in request.parts}
    key = [(part, Markup(drawn.request_key(part))) for part in REQUEST_PARTS if part in seen]  # noqa: S704
    html = render("slowest", rows=rows, key=key, hatches=Markup(drawn.request_hatches()))  # noqa: S704
    return Section(html, f"the slowest {len(rows)} requests")


def capacity_table(findings: Document) -> Section:
    """Return the estimates of the cores that the server needs; what cannot be told says why."""
    capacity = findings.capacity
    if capacity is None or not capacity.estimates:
        return Section("", "cores: not known")
    estimates = capacity.estimates
    return Section(render("capacity", estimates=estimates), f"{len(estimates)} estimates of the cores needed")


def health(findings: Document) -> Section:
    """Return the sources, how their clocks were tied, what they lost, and every remark on their state."""
    order = list(LEVELS)
    worst_first = sorted(
        findings.health, key=lambda row: order.index(row.level) if row.level in order else len(order)
    )
    html = render(
        "health", sources=findings.sources, remarks=worst_first, ties=TIES, levels=LEVELS, losses=LOSSES
    )
    return Section(html, "; ".join(f"{row.level}: {row.message}" for row in worst_first))


def method(findings: Document) -> Section:
    """Return how the figures are defined and which window they are about."""
    return Section(render("method", window=findings.window), findings.window.why)


def footer(findings: Document) -> Section:
    """Return what made this report from what: version, time, parameters, files and their checksums."""
    tool = findings.tool
    text = f"{tool.name} {tool.version}, {findings.generated_utc}"
    return Section(render("footer", findings=findings), text)


def sentences(said: Sequence[str]) -> Section:
    """Return sentences as a list."""
    return Section(render("sentences", said=said), " ".join(said))


def frame_table(frame: pl.DataFrame, caption: str, limit: int = FRAME_ROWS) -> Section:
    """Return the first `limit` rows of `frame` as a table."""
    columns = [(name, dtype.is_numeric()) for name, dtype in frame.schema.items()]
    rows = frame.head(limit).rows()
    return Section(render("frame", caption=caption, columns=columns, rows=rows, height=frame.height), caption)


def picture(svg: str, caption: str) -> Section:
    """Return an inline SVG, which escapes its own texts, with its caption: it shows without JavaScript."""
    return Section(render("picture", svg=Markup(svg), caption=caption), caption)  # noqa: S704 (our own)
