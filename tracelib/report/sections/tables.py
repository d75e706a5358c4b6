"""The tables behind the verdict, what the files were worth, and how the figures were computed."""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl
from markupsafe import Markup

from tracelib.analyses.results import ANALYSES, Results
from tracelib.analyses.scheduling import WAITS_FOR_CPU, cpu_waits
from tracelib.findings.document import Device, Document, Remark, RoleStates
from tracelib.report.sections.findings import viewer_of
from tracelib.report.sections.render import Section, render
from tracelib.words import CPU_STATES, GPU_STATES, REQUEST_PARTS, SERVER, counted, duration

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
_NUMBER = re.compile(r"\d")


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
    return Section(html, f"{len(devices)} devices", count=len(devices))


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


def cpu_waits_table(results: Results) -> Section:
    """Return which threads had no CPU, for how long, and who ran instead; unfolded where no GPU was seen."""
    from tracelib.charts.phrases import thread_names  # noqa: PLC0415 (with what draws)

    rows = cpu_waits(results.trace, results.thread_states).head(FRAME_ROWS)
    unfolded = results.gpu_states.is_empty()
    if rows.is_empty():
        return Section("", "no thread lacked a CPU", unfolded=unfolded)
    html = render("cpu_waits", rows=list(rows.iter_rows(named=True)), names=thread_names(results))
    return Section(html, f"{len(rows)} threads lacked a CPU", count=len(rows), unfolded=unfolded)


def request_parts_table(findings: Document) -> Section:
    """Return what the time to first token consists of, where requests can be told apart."""
    requests = findings.requests
    if not requests or not requests.parts:
        # The chart's place says why; the same sentence twice helps nobody.
        return Section("", "requests: not known")
    return Section(render("requests", requests=requests), "requests", requests.count, requests.sentence)


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
    """Return the sources, how their clocks were tied, what they lost, and the kinds of remarks on them."""
    kinds = _kinds(findings)
    html = render("health", sources=findings.sources, kinds=kinds, ties=TIES, levels=LEVELS, losses=LOSSES)
    seen: Counter[str] = Counter(row.level for row in findings.health)
    counts = [counted(seen[level], LEVELS[level].lower()) for level in LEVELS if seen[level]]
    said = f"{counted(len(findings.sources), 'file')}; {', '.join(counts) or 'no remarks'}"
    text = "; ".join(f"{kind.level}: {kind.message}" for kind in kinds)
    return Section(html, text, count=seen["error"] + seen["warning"], said=said)


@dataclass(frozen=True)
class Kind:
    """Remarks that differ in numbers and files only; `message` has an ellipsis where they differ."""

    level: str
    message: str
    fix: str
    remarks: list[Remark]

    @property
    def files(self) -> list[str]:
        """The files that they are about, each once."""
        return list(dict.fromkeys(row.source for row in self.remarks if row.source))


def _kinds(findings: Document) -> list[Kind]:
    """Return the remarks by kind, the worst first."""
    names = {source.file for source in findings.sources}
    groups: dict[tuple[str, ...], list[Remark]] = {}
    for row in findings.health:
        groups.setdefault((row.level, row.fix, *_pattern(row.message, names)), []).append(row)
    order = list(LEVELS)
    kinds = [
        Kind(rows[0].level, _common([row.message for row in rows]), rows[0].fix, rows)
        for rows in groups.values()
    ]
    return sorted(kinds, key=lambda kind: order.index(kind.level) if kind.level in order else len(order))


def _pattern(message: str, names: set[str]) -> list[str]:
    """Return the words of a remark, without those that name a file or hold a number."""
    return ["" if word.strip(",;:()") in names or _NUMBER.search(word) else word for word in message.split()]


def _common(messages: Sequence[str]) -> str:
    words = [set(column) for column in zip(*(message.split() for message in messages), strict=True)]
    common = [next(iter(column)) if len(column) == 1 else "\N{HORIZONTAL ELLIPSIS}" for column in words]
    return " ".join(common)


def method(findings: Document) -> Section:
    """Return how the figures are defined and which window they are about."""
    window = findings.window
    said = f"{duration(window.duration_ns)}: {window.why}"
    return Section(render("method", window=window), window.why, said=said)


def computed(*by: str | Callable[..., object]) -> Section:
    """Return how figures are defined and computed: what each function's module says, and its code.

    `by`: public functions, those of analyses by their frame's name.
    """
    functions = [ANALYSES[name] if isinstance(name, str) else name for name in by]
    rows = [
        (
            inspect.getdoc(inspect.getmodule(each)) or "",
            f"{each.__module__}.{each.__name__}",
            inspect.getsource(each),
        )
        for each in functions
    ]
    return Section(render("computed", rows=rows), ", ".join(name for _, name, _ in rows), computed=True)


def footer(findings: Document) -> Section:
    """Return what made this report from what: version, time, parameters, files and their checksums."""
    tool = findings.tool
    text = f"{tool.name} {tool.version}, {findings.generated_utc}"
    return Section(render("footer", findings=findings), text)


def sentences(said: Sequence[str]) -> Section:
    """Return sentences as a list; an empty section where there are none."""
    return Section(render("sentences", said=said) if said else "", " ".join(said))


def frame_table(frame: pl.DataFrame, caption: str, limit: int = FRAME_ROWS) -> Section:
    """Return the first `limit` rows of `frame` as a table."""
    columns = [(name, dtype.is_numeric()) for name, dtype in frame.schema.items()]
    rows = frame.head(limit).rows()
    return Section(render("frame", caption=caption, columns=columns, rows=rows, height=frame.height), caption)


def overview(results: Results, findings: Document) -> Section:
    """Return the picture of the run, and what the page's script needs to look into it.

    It stands without JavaScript; times of evidence are told event by event.
    """
    from tracelib import charts  # noqa: PLC0415 (plotly: only when it draws)

    caption = charts.timeline_sentence(results)
    evidence = (row for finding in findings.findings for row in finding.evidence)
    zoom = charts.zoomable(results, [(row.ts_ns, row.ts_ns + row.dur_ns) for row in evidence])
    viewer = viewer_of(findings)
    html = render(
        "overview",
        svg=Markup(charts.overview_svg(results)),  # noqa: S704 (our own)
        caption=caption,
        zoom=zoom,
        viewer=viewer,
        window=findings.window,
    )
    return Section(html, caption)


def picture(svg: str, caption: str) -> Section:
    """Return an inline SVG, which escapes its own texts, with its caption: it shows without JavaScript."""
    return Section(render("picture", svg=Markup(svg), caption=caption), caption)  # noqa: S704 (our own)
