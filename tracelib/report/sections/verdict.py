"""The top of a report: the verdict, and the three numbers that carry it."""

from __future__ import annotations

from typing import Any

from tracelib.report import numbers
from tracelib.report.sections.html import Markup, Section, esc, items
from tracelib.report.sections.words import VERDICTS
from tracelib.report.text import duration, share

__all__ = ["Figure", "three_figures", "three_numbers", "verdict"]

Findings = dict[str, Any]
#: head, value, what it means
Figure = tuple[str, str, str]


def verdict(findings: Findings) -> Section:
    """Return the title, the verdict in a sentence, how sure it is, and the reasons."""
    said = findings["verdict"]
    ticket = f'<p class="ticket">{esc(findings["ticket"])}</p>' if findings["ticket"] else ""
    state = VERDICTS.get(said["state"], said["state"])
    body = (
        f'<header id="verdict" class="verdict {esc(said["state"])}">{ticket}<h1>{esc(findings["title"])}</h1>'
        f'<p class="state"><strong>{esc(state)}</strong> <span>{esc(said["confidence"])} confidence</span></p>'
        f'<p class="sentence">{esc(said["sentence"])}</p>{_first(findings)}{_reasons(said["why"])}</header>'
    )
    return Section(body, f"{state} ({said['confidence']} confidence): {said['sentence']}")


def _first(findings: Findings) -> Markup:
    """Return what to change first: a reader who stops at the verdict must not leave with its largest number alone."""
    if findings["verdict"]["state"] not in ("cpu_bound", "mixed") or not findings["findings"]:
        return Markup("")
    finding = findings["findings"][0]
    gain = finding["gain_share"]
    back = f" (gain up to {share(gain)} of the window)" if gain else ""
    return Markup(
        f'<p class="first"><strong>Fix first:</strong> {esc(finding["advice"][0])}{esc(back)}</p>'
        if finding["advice"]
        else ""
    )


def _reasons(why: list[str]) -> Markup:
    return Markup(f'<div class="why">{items(why)}</div>' if why else "")


def three_numbers(findings: Findings) -> Section:
    """Return the three numbers that matter, as cards."""
    figures = three_figures(findings)
    cards = "".join(
        f"<div><dt>{esc(head)}</dt><dd><b>{esc(value)}</b><span>{esc(meaning)}</span></dd></div>"
        for head, value, meaning in figures
    )
    return Section(
        f'<dl class="numbers">{cards}</dl>', "; ".join(f"{head}: {value}" for head, value, _ in figures)
    )


def three_figures(findings: Findings) -> tuple[Figure, Figure, Figure]:
    """Return the three numbers: what the host took, how full the GPUs really were, what CPUs were short."""
    return _host(findings), _gpu(findings), _third(findings)


def _host(findings: Findings) -> Figure:
    of_window = f"of the {duration(findings['window']['duration_ns'])} window, median GPU"
    shares = numbers.exposed_host_shares(findings)
    if not shares:
        return "GPU time lost to the host", "not known", "no GPU operation was recorded"
    lost = numbers.median_of(list(numbers.lost_shares(findings)))
    value = share(numbers.median_of(list(shares)))
    return "GPU time lost to the host", value, f"{of_window}; lost for any reason: {share(lost)}"


def _gpu(findings: Findings) -> Figure:
    devices = findings["devices"] or ()
    useful = numbers.median_of([device["useful_share"] for device in devices])
    busy = numbers.median_of([device["busy_share"] for device in devices])
    if busy is None:
        return "GPU doing useful work", "not known", "no GPU operation was recorded"
    apart = numbers.median_of(
        [d["gpu_time_ns"]["collective"] / findings["window"]["duration_ns"] for d in devices]
    )
    if apart is not None and apart >= 0.005:
        doubt = f"{share(apart)} more in collectives, where waiting cannot be told from transfer"
        return (
            "GPU doing useful work",
            f"at least {share(useful)}",
            f"{doubt}; monitoring shows {share(busy)} busy",
        )
    seen = (
        f"monitoring shows {share(busy)} busy: it counts waiting for a late rank"
        if busy > useful
        else "as busy as monitoring shows it: no GPU waited for a late rank"
    )
    return "GPU doing useful work", share(useful), seen


def _third(findings: Findings) -> Figure:
    requests = findings["requests"]
    ttft = (requests or {}).get("ttft_ns") or {}
    first_token = ttft.get("p50")
    aside = "" if first_token is None else f"; time to first token p50 {duration(first_token)}"
    if numbers.known_cpu_state_ns(findings):
        gpu_time = findings["window"]["duration_ns"] * len(numbers.devices(findings))
        short, stopped = numbers.cpu_shortage_ns(findings), numbers.cpu_shortage_ns(findings, {"throttled"})
        split = f"no CPU free {share((short - stopped) / gpu_time)}, stopped by a quota {share(stopped / gpu_time)}"
        meaning = f"of the window, all GPUs: lost while the thread to blame was ready and did not run ({split}){aside}"
        return "CPU shortage", share(short / gpu_time), meaning
    if first_token is not None:
        p95 = duration(ttft.get("p95"))
        return "Time to first token, p50", duration(first_token), f"p95 {p95}, {requests['count']} requests"
    if not findings["devices"]:
        return "CPU shortage", "not known", "no GPU operation was recorded that it could have held up"
    return "CPU shortage", "not known", "that takes wake-up events of the scheduler"
