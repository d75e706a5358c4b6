"""How many CPUs the server had (ATTRIBUTION.md, "Capacity")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.demand import SERVER

if TYPE_CHECKING:
    from tracelib.trace import Trace

__all__ = ["server_cpus"]


def server_cpus(trace: Trace, thread_states: pl.DataFrame) -> tuple[int | None, int | None]:
    """Return on how many CPUs the server's threads were seen to run, and how many the host has.

    The first is what an affinity mask or a container's CPU set leaves; None without scheduler events. The second is the
    host's count as recorded, which says nothing of either; None = not recorded.
    """
    server = trace.threads.filter(pl.col("role").is_in(SERVER))["thread"]
    ran = thread_states.filter(
        (pl.col("state").cast(pl.String) == "running") & pl.col("thread").is_in(server.implode())
    )
    host = max(trace.sources["cpus"].drop_nulls().to_list(), default=None)
    return (ran["cpu"].drop_nulls().n_unique() if ran.height else None), host
