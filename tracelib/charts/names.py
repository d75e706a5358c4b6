"""What a person calls the GPUs and threads of a run: ranks and roles, never row numbers, never pids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.charts.theme import ROLES, look, plain

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["cause_label", "gpu_names", "launch_threads", "role_name", "thread_names"]


def gpu_names(results: Results) -> dict[int, str]:
    """Return "rank 0" per GPU where ranks are known and tell the GPUs apart, else "GPU 0", else with its host."""
    gpus = results.trace.gpus
    for words in (
        pl.concat_str(pl.lit("rank "), "rank"),
        pl.concat_str(pl.lit("GPU "), "device"),
        pl.concat_str(pl.lit("GPU "), "device", pl.lit(" of "), "host"),
    ):
        names = gpus.select(words.alias("name"))["name"]
        if names.null_count() == 0 and names.n_unique() == len(names):
            return dict(zip(gpus["gpu"].to_list(), map(plain, names.to_list()), strict=True))
    return {gpu: f"GPU #{gpu}" for gpu in gpus["gpu"].to_list()}


def cause_label(cause: str | None, sub_cause: str | None) -> str:
    """Return "kernel launch: dispatch", or the cause alone."""
    words = look("cause", cause).label
    return f"{words}: {plain(sub_cause, 40).replace('_', ' ')}" if sub_cause else words


def role_name(role: str | None) -> str:
    """Return a role's words; roles that a user's rules added are named as they are."""
    known = ROLES.get(role or "")
    return known.label if known else plain(role or "unknown role")


def thread_names(results: Results) -> dict[int, str]:
    """Return "worker rank 0", "API server / tokenizer", … per thread."""
    return {
        row["thread"]: _thread(row["role"], row["rank"], row["name"] or row["process"])
        for row in results.trace.threads.iter_rows(named=True)
    }


def _thread(role: str | None, rank: int | None, name: str | None) -> str:
    if role is None:
        return plain(name or "unnamed thread")
    who = role_name(role) + ("" if rank is None else f" rank {rank}")
    return who if name is None else f"{who} / {plain(name, 30)}"


def launch_threads(results: Results) -> dict[int, int]:
    """Return per GPU the thread that launched most of its work; GPUs for which none is known are left out."""
    launched = (
        results.launches.filter(pl.col("call_thread").is_not_null())
        .group_by("gpu", "call_thread")
        .len()
        .sort("len", "call_thread", descending=[True, False])
        .unique("gpu", keep="first", maintain_order=True)
    )
    return dict(zip(launched["gpu"].to_list(), launched["call_thread"].to_list(), strict=True))
