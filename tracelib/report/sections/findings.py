"""The verdict and its numbers, the causes, each finding, and what could not be known, as HTML."""

import shlex
from dataclasses import dataclass

from tracelib.analyses.scheduling import WAITS_FOR_CPU
from tracelib.findings import Document, Finding, Verdict, figures
from tracelib.findings.document import Scheduling
from tracelib.findings.finding import at_least
from tracelib.intervals.cover import widened
from tracelib.options import OPTIONS, seconds
from tracelib.report.sections.render import Section, render
from tracelib.words import NOT_KNOWN, SERVER, badge, cause_name, counted, duration, share, slow_end

#: Head, value, what it means.
Figure = tuple[str, str, str]

#: Findings that stand open on the page; the others are folded behind their claim.
OPEN = 3
#: A share of the window in collectives whose waiting is not known, from which the numbers mention it.
LEAST_COLLECTIVE = 0.005
NO_WAKEUPS = "it needs the scheduler's wake-up events"
NO_GPU = "no GPU operation was read"


def verdict(findings: Document) -> Section:
    """Return the title, the verdict in a sentence, how sure it is, what to fix first, and the reasons."""
    answer = findings.verdict
    named = badge(answer.state, answer.limits, firm=answer.firm)
    text = f"{named} ({answer.confidence} confidence): {answer.sentence}"
    return Section(render("verdict", findings=findings), text)


def three_numbers(findings: Document) -> Section:
    """Return the three numbers that matter, as cards."""
    cards = three_figures(findings)
    return Section(
        render("numbers", figures=cards), "; ".join(f"{head}: {value}" for head, value, _ in cards)
    )


def three_figures(findings: Document) -> tuple[Figure, Figure, Figure]:
    """Return the three numbers: what the host took, how full the GPUs really were, what CPUs were short."""
    if not findings.devices and findings.scheduling:
        return _of_threads(findings.scheduling)
    return _host(findings), _gpu(findings), _third(findings)


def _of_threads(scheduling: Scheduling) -> tuple[Figure, Figure, Figure]:
    """Return what the scheduler's events tell without a GPU: who had no CPU, CPUs wanted, a quota's part."""
    server = [row for row in scheduling.threads if row.role in SERVER] or scheduling.threads
    ran, ready, stopped = (
        sum(getattr(row, f"{state}_ns") or 0 for row in server) for state in ("running", *WAITS_FOR_CPU)
    )
    wanted = ran + ready + stopped
    told = wanted and any(row.runnable_ns is not None for row in server)
    demand = scheduling.demand.p95 if scheduling.demand else None
    of_wanted = "of the time in which the server's threads ran or were ready to run, summed over threads"
    seen = counted(scheduling.cpus_seen or 0, "CPU")
    at_once = f"threads of the server ran or were ready to run, for 95 % of the time at most; {seen} recorded"
    figures_told = (
        ("Server's threads without a CPU", share((ready + stopped) / wanted) if told else None, of_wanted),
        ("CPUs wanted at once", None if demand is None else f"{demand:g}", at_once),
        ("Stopped by a CPU quota", share(stopped / wanted) if told else None, of_wanted),
    )
    first, second, third = (
        (head, NOT_KNOWN, NO_WAKEUPS) if value is None else (head, value, meaning)
        for head, value, meaning in figures_told
    )
    return first, second, third


def _host(findings: Document) -> Figure:
    head = "GPU time lost to the host"
    shares = figures.exposed_host_shares(findings)
    if not shares:
        return head, NOT_KNOWN, NO_GPU
    lost = share(figures.mean_of(figures.lost_shares(findings)))
    gpus = f"{duration(findings.window.duration_ns)} of {counted(len(shares), 'GPU')}"
    meaning = f"of GPU time ({gpus}); lost for any reason: {lost}"
    return head, share(figures.mean_of(shares)), meaning


def _gpu(findings: Document) -> Figure:
    devices = findings.devices or ()
    useful = figures.mean_of([device.useful_share for device in devices])
    busy = figures.mean_of([device.busy_share for device in devices])
    if busy is None:
        return "GPU doing useful work", NOT_KNOWN, NO_GPU
    collective = [device.gpu_time_ns.collective for device in devices]
    apart = figures.mean_of([ns / findings.window.duration_ns for ns in collective])
    if apart is not None and apart >= LEAST_COLLECTIVE:
        doubt = f"{share(apart)} more in collectives, where waiting cannot be told from transfer"
        shown = f"{doubt}; monitoring would show {share(busy)} busy"
        return "GPU doing useful work", f"at least {share(useful)}", shown
    shown = (
        f"monitoring would show {share(busy)} busy: it counts waiting for a late rank"
        if useful is not None and busy > useful
        else "as busy as monitoring shows it: no GPU waited for a late rank"
    )
    return "GPU doing useful work", share(useful), shown


def _third(findings: Document) -> Figure:
    requests = findings.requests
    ttft = requests.ttft_ns if requests else None
    first_token = ttft.p50 if ttft else None
    if figures.known_cpu_state_ns(findings):
        gpu_time = findings.window.duration_ns * len(figures.devices(findings))
        short = figures.cpu_shortage_ns(findings)
        known = figures.known_cpu_state_share(findings)
        least = at_least(known)
        stopped = figures.cpu_shortage_ns(findings, {"throttled"})
        reasons = (("no CPU was free", short - stopped), ("a quota had stopped it", stopped))
        why = ", ".join(f"{reason} {share(ns / gpu_time)}" for reason, ns in reasons if ns)
        meaning = (
            f"of GPU time: lost while the thread that a GPU waited for had no CPU{f' ({why})' if why else ''}"
        )
        shown = f"{least}{share(short / gpu_time)}"
        if least and short < 0.0005 * gpu_time:  # at least nothing is not a figure
            shown = share(short / gpu_time) if short else "none seen"
            meaning = f"in the {share(known)} of the lost GPU time for which CPU states are known"
        if first_token is not None:
            number = counted(requests.count, "request") if requests else ""
            meaning += f"; time to first token of {number}: p50 {duration(first_token)}"
        return "CPU shortage", shown, meaning
    if requests and ttft and first_token is not None:
        meaning = f"of {counted(requests.count, 'request')}; {slow_end(requests.count, ttft.p95, ttft.max)}"
        return "Time to first token, p50", duration(first_token), meaning
    if not findings.devices:
        return "CPU shortage", NOT_KNOWN, f"{NO_GPU} that it could have held up"
    return "CPU shortage", NOT_KNOWN, NO_WAKEUPS


def causes_table(findings: Document) -> Section:
    """Return the causes of lost GPU time, exposed time first, all host time of that kind beside it."""
    if not figures.devices(findings):
        return _empty("The causes are not known: no GPU operation was read.", "causes: not known")
    rows = [row for row in figures.cause_rows(findings) if row.exposed_ns or row.total_ns]
    text = "; ".join(f"{cause_name(row.cause)} {duration(row.exposed_ns)}" for row in rows)
    more_lost = [
        cause_name(row.cause)
        for row in rows
        if row.accuses_host and row.total_ns is not None and row.exposed_ns > row.total_ns
    ]
    return Section(render("causes", rows=rows, more_lost=more_lost), text, count=len(rows))


@dataclass(frozen=True)
class Viewer:
    """The command that shows a stretch of the run in Perfetto, run where the traces lie.

    `words` come before the window's FROM:TO, in s after the moment `zero_ns`.
    """

    words: str
    zero_ns: int

    def command(self, start_ns: int, end_ns: int) -> str:
        """Return the command for the stretch with some time around it."""
        start, end = widened(start_ns, end_ns)
        shown = (f"{max(0, ns - self.zero_ns) / 1e9:.6f}" for ns in (start, end))
        return f"{self.words} {':'.join(shown)}"


def viewer_of(findings: Document) -> Viewer | None:
    """Return how to see the run in Perfetto; None if its window was one of annotations.

    Then it is not known from where on `--window` counts.
    """
    given = findings.parameters
    if "window_of" in given or not given.get("traces"):
        return None
    asked = seconds(given.get("window", ""))
    words = [
        word
        for name, value in given.items()
        if name in OPTIONS and name != "window" and "export" in OPTIONS[name].commands
        if name == "traces" or value != OPTIONS[name].default
        for word in OPTIONS[name].arguments(value)
    ]
    command = shlex.join(["tracelib", "export", *words, "--to", "perfetto", "--window"])
    return Viewer(command, findings.window.start_ns - round(asked[0] * 1e9 if asked else 0))


def findings_list(findings: Document) -> Section:
    """Return the findings, what to fix first on top: claim, gain, evidence, advice, check, disproof."""
    if not findings.findings:
        return _empty("No rule found anything to report in this window.", "no findings", 0)
    start_ns, viewer = findings.window.start_ns, viewer_of(findings)
    articles = [
        finding_article(finding, start_ns, is_open=place < OPEN, viewer=viewer)
        for place, finding in enumerate(findings.findings)
    ]
    return Section(
        "".join(article.html for article in articles),
        "; ".join(article.text for article in articles),
        count=len(articles),
    )


def finding_article(
    finding: Finding, start_ns: int, *, is_open: bool = True, viewer: Viewer | None = None
) -> Section:
    """Return one finding; times of its evidence are after `start_ns`. `viewer` shows them elsewhere."""
    html = render("finding", finding=finding, start_ns=start_ns, open=is_open, viewer=viewer)
    return Section(html, finding.claim)


def abstained(findings: Document) -> Section:
    """Return what could not be known, why, and the command that records it; one row per reason."""
    rows = findings.abstained
    if not rows:
        return _empty("Nothing: these files answer every question that this report asks.", "nothing", 0)
    questions: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        ids = questions.setdefault((row.reason, row.record_with), [])
        ids.append(row.id.replace("_", " "))
    text = "; ".join(f"{row.id}: {row.reason}" for row in rows)
    return Section(render("abstained", questions=questions.items()), text, count=len(questions))


def shown(part: Document | Finding | Verdict, start_ns: int) -> Section:
    """Return what a cell in Jupyter shows of the whole document, of a finding or of a verdict."""
    if isinstance(part, Document):
        sections = [show(part) for show in (verdict, three_numbers, causes_table, findings_list)]
        return Section("".join(section.html for section in sections), sections[0].text)
    if isinstance(part, Finding):
        return finding_article(part, start_ns)
    return Section(render("verdict_alone", verdict=part), part.sentence)


def _empty(sentence: str, text: str, count: int | None = None) -> Section:
    return Section(render("empty", sentence=sentence), text, count=count)
