"""The rules, in no order: :mod:`tracelib.findings.order` ranks what they find.

A rule is one file with one function of that name, as :class:`tracelib.findings.finding.Rule` describes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelib.findings.rules.allocation_hot_path import allocation_hot_path
from tracelib.findings.rules.busy_wait import busy_wait
from tracelib.findings.rules.cpu_shortage import cpu_shortage
from tracelib.findings.rules.engine_scheduling import engine_scheduling
from tracelib.findings.rules.gc_pauses import gc_pauses
from tracelib.findings.rules.gil_contention import gil_contention
from tracelib.findings.rules.gpu_bound import gpu_bound
from tracelib.findings.rules.host_synchronisation import host_synchronisation
from tracelib.findings.rules.ipc_stretched import ipc_stretched
from tracelib.findings.rules.launch_bound import launch_bound
from tracelib.findings.rules.launch_skew_amplified import launch_skew_amplified
from tracelib.findings.rules.low_graph_coverage import low_graph_coverage
from tracelib.findings.rules.module_loading import module_loading
from tracelib.findings.rules.no_load import no_load
from tracelib.findings.rules.profiler_overhead import profiler_overhead
from tracelib.findings.rules.quota_throttling import quota_throttling
from tracelib.findings.rules.rank_imbalance import rank_imbalance
from tracelib.findings.rules.run_time_compilation import run_time_compilation
from tracelib.findings.rules.single_thread_saturated import single_thread_saturated
from tracelib.findings.rules.staircase import staircase
from tracelib.findings.rules.straggler_rank import straggler_rank
from tracelib.findings.rules.tokenization_exposed import tokenization_exposed
from tracelib.findings.rules.tokenization_starves import tokenization_starves

if TYPE_CHECKING:
    from tracelib.findings.finding import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    allocation_hot_path,
    busy_wait,
    cpu_shortage,
    engine_scheduling,
    gc_pauses,
    gil_contention,
    gpu_bound,
    host_synchronisation,
    ipc_stretched,
    launch_bound,
    launch_skew_amplified,
    low_graph_coverage,
    module_loading,
    no_load,
    profiler_overhead,
    quota_throttling,
    rank_imbalance,
    run_time_compilation,
    single_thread_saturated,
    staircase,
    straggler_rank,
    tokenization_exposed,
    tokenization_starves,
)
