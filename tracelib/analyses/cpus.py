"""How many CPUs the server had, and how that is known (ATTRIBUTION.md, "Capacity")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.demand import SERVER

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["cpus_known", "server_cpus"]


def server_cpus(results: Results) -> tuple[int | None, int | None]:
    """Return on how many CPUs the server's threads were seen to run, and how many the host has.

    The first is what an affinity mask or a container's CPU set leaves; None without scheduler events. The second is the
    host's count as recorded, which says nothing of either; None = not recorded.
    """
    server = results.trace.threads.filter(pl.col("role").is_in(SERVER))["thread"]
    ran = results.thread_states.filter(
        (pl.col("state").cast(pl.String) == "running") & pl.col("thread").is_in(server.implode())
    )
    host = max(results.trace.sources["cpus"].drop_nulls().to_list(), default=None)
    return (ran["cpu"].drop_nulls().n_unique() if ran.height else None), host


def cpus_known(results: Results) -> tuple[int | None, str]:
    """Return how many CPUs the server had, and how that is known: those it was seen to run on, else the host's count."""
    seen, host = server_cpus(results)
    if seen is None:
        return host, "recorded"
    of = f"of the host's {host} " if host else ""
    return seen, f"{of}on which its threads were seen to run"
