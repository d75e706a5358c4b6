"""The rules, in no order: what they find is ranked by the GPU time that it cost.

A rule is one file with one function of that name, as :class:`tracelib.findings.finding.Rule` describes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelib.findings.rules.cpu_shortage import cpu_shortage
from tracelib.findings.rules.gpu_bound import gpu_bound
from tracelib.findings.rules.ipc_stretched import ipc_stretched
from tracelib.findings.rules.launch_bound import launch_bound
from tracelib.findings.rules.no_load import no_load
from tracelib.findings.rules.quota_throttling import quota_throttling
from tracelib.findings.rules.straggler_rank import straggler_rank
from tracelib.findings.rules.tokenization_exposed import tokenization_exposed

if TYPE_CHECKING:
    from tracelib.findings.finding import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    cpu_shortage, gpu_bound, ipc_stretched, launch_bound, no_load, quota_throttling, straggler_rank, tokenization_exposed,
)  # fmt: skip
