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
    host's count as recorded, which says nothing of either; None = not recorded. Of several hosts, all together.
    """
    server = results.trace.threads.filter(pl.col("role").is_in(SERVER)).select("thread", "host")
    running = results.thread_states.filter(pl.col("state").cast(pl.String) == "running").drop_nulls("cpu")
    ran = running.join(server, on="thread").select("host", "cpu").unique()
    counted = (
        results.trace.sources.drop_nulls("cpus").group_by("host").agg(pl.col("cpus").max()).drop_nulls("host")
    )
    named = int(counted["cpus"].sum()) if counted.height > 1 else None
    host = named or max(results.trace.sources["cpus"].drop_nulls().to_list(), default=None)
    return (ran.height or None), host


def cpus_known(results: Results) -> tuple[int | None, str]:
    """Return how many CPUs the server had, and how that is known: those it was seen to run on, else the host's count."""
    seen, host = server_cpus(results)
    if seen is None:
        return host, "recorded"
    of = f"of the host's {host} " if host else ""
    return seen, f"{of}on which its threads were seen to run"
