"""What is particular to each server, read from `recipes.toml`."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from tracelib.errors import BadParameter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelib.record.proc import Thread

__all__ = ["Recipe", "processes_of", "recipe", "recipe_names"]


@dataclass(frozen=True)
class Recipe:
    """One server. `processes`: pattern of its processes' names; `start`, `stop`: paths of its profiler's switch."""

    name: str
    processes: str
    server: str
    note: str
    start: str = ""
    stop: str = ""


@cache
def _recipes() -> dict[str, Recipe]:
    text = resources.files("tracelib.record").joinpath("recipes.toml").read_text(encoding="utf-8")
    return {name: Recipe(name, **table) for name, table in tomllib.loads(text).items()}


def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes."""
    return tuple(_recipes())


def recipe(name: str) -> Recipe:
    """Return the recipe of this name.

    Raises
    ------
    BadParameter
        There is none.

    """
    if name not in _recipes():
        raise BadParameter("--recipe", name, recipe_names())
    return _recipes()[name]


def processes_of(chosen: Recipe, threads: Iterable[Thread]) -> list[int]:
    """Return the processes whose main thread is named as the recipe says, sorted."""
    if not chosen.processes:
        return []
    return sorted(
        thread.pid
        for thread in threads
        if thread.tid == thread.pid and re.search(chosen.processes, thread.name)
    )
