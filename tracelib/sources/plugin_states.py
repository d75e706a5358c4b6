"""States in which threads leave a CPU, as libtraceevent's plugin spells them (plugins/plugin_sched_switch.c).

`trace-cmd report` and perfs that load the plugin print `a:1 [120] S ==> b:2 [120]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

__all__ = ["of_newer_kernels"]

#: The plugin names bits as kernels before 4.14 numbered them. A thread that leaves in "W" alone is one of a newer kernel.
OLD, NEW, TELLING = ("Z", "X", "x", "W"), ("X", "Z", "P", "I"), "W"


def of_newer_kernels(state: pl.Series, by_plugin: pl.Series) -> pl.Series:
    """Return `state` in the letters of newer kernels where the plugin wrote it and the file shows such a kernel."""
    if not (state.filter(by_plugin) == TELLING).any():
        return state
    return state.replace(OLD, NEW).zip_with(by_plugin, state)
