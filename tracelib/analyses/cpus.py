"""How many CPUs the server had, and how that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.demand import SERVER

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["cpus_known"]


def cpus_known(results: Results) -> tuple[int | None, str]:
    """Return how many CPUs the server had, and how that is known.

    The CPUs on which its threads were seen to run, where there are scheduler events: a host's CPU count says nothing of an
    affinity mask or a container's set. Else the host's count as recorded.
    """
    server = results.trace.threads.filter(pl.col("role").is_in(SERVER))["thread"]
    ran = results.thread_states.filter(
        (pl.col("state").cast(pl.String) == "running") & pl.col("thread").is_in(server.implode())
    )
    host = max(results.trace.sources["cpus"].drop_nulls().to_list(), default=None)
    of = f"of the host's {host} " if host else ""
    if ran.height:
        return ran["cpu"].drop_nulls().n_unique(), f"{of}on which its threads were seen to run"
    return host, "recorded"
