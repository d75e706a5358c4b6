"""The rules of ``rules.toml`` as checked, frozen objects; :mod:`tracelib.classify` applies them.

The head of ``rules.toml`` explains every key. A mistake in a user's file is reported with its place and what
is allowed.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import polars as pl

from tracelib import words
from tracelib.errors import BadParameter, BadTrace
from tracelib.options import regular, toml
from tracelib.schema import SLICE_CATEGORY

#: What a rule can name as the cause: all but the name that charts give to waits.
CAUSES = tuple(cause for cause in words.CAUSES if cause != "ipc_wait")
#: Whose work a slice can wait for.
AWAITED = ("upstream", *words.SERVER)
DIRECTIONS = ("dequeue", "enqueue", "send", "recv")
TIERS = ("named", "library", "fallback")


@dataclass(frozen=True)
class SliceRule:
    """One ``[[slice]]`` of the rules: what a slice of this name and category means."""

    name: str
    category: tuple[str, ...] = ()
    cause: str | None = None
    sub_cause: str | None = None
    waits_for: str | None = None
    may_wait_for: str | None = None
    direction: str | None = None
    weak: bool = False
    long_ms: float | None = None
    long_cause: str | None = None
    long_sub_cause: str | None = None
    covers: bool = False
    between_launches: bool = False


@dataclass(frozen=True)
class StackRule:
    """One ``[[stack]]`` of the rules: what a frame of a call chain says of the whole chain."""

    cause: str
    symbol: str | None = None
    library: str | None = None
    sub_cause: str | None = None
    tier: str = "library"
    innermost: bool = False
    inside: str | None = None
    worker: str | None = None


@dataclass(frozen=True)
class ThreadRule:
    """One ``[[thread]]`` of the rules: what a thread of this name does where its call chain names nothing."""

    name: str
    cause: str
    sub_cause: str | None = None
    refines: bool = False


@dataclass(frozen=True)
class StepRule:
    """One ``[[step]]`` of the rules: a range around one step of the model, whose name tells its tokens."""

    name: str


@dataclass(frozen=True)
class SpanRule:
    """One ``[[span]]`` of the rules: what a thread does from one slice's begin to another's."""

    begin: str
    end: str
    cause: str
    sub_cause: str | None = None
    waits_for: str | None = None
    weak: bool = False
    covers: bool = False
    inside: bool = False
    bare: bool = False
    launches: bool = False


@dataclass(frozen=True)
class Rules:
    """All rules, in the order in which they are tried."""

    slices: tuple[SliceRule, ...] = ()
    stacks: tuple[StackRule, ...] = ()
    threads: tuple[ThreadRule, ...] = ()
    steps: tuple[StepRule, ...] = ()
    spans: tuple[SpanRule, ...] = ()


Rule = TypeVar("Rule", SliceRule, StackRule, ThreadRule, StepRule, SpanRule)

_ALLOWED: dict[str, tuple[str, ...]] = {
    "cause": CAUSES,
    "long_cause": CAUSES,
    "waits_for": AWAITED,
    "may_wait_for": AWAITED,
    "direction": DIRECTIONS,
    "tier": TIERS,
}
_PATTERNS = ("name", "symbol", "library", "inside", "begin", "end")
#: What a step's name can tell, by named groups of its pattern.
TOKENS = ("prompts", "prefill", "decode")
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str,),
    "bool": (bool,),
    "float | None": (int, float),
    "tuple[str, ...]": (list,),
}
_NEEDED: dict[type, tuple[tuple[str, ...], ...]] = {
    SliceRule: (("name",),),
    StackRule: (("cause",), ("symbol", "library")),
    ThreadRule: (("name",), ("cause",)),
    StepRule: (("name",),),
    SpanRule: (("begin",), ("end",), ("cause",)),
}
_TABLES = ("slice", "stack", "thread", "step", "span")


def load_rules(extra_path: Path | str | None = None) -> Rules:
    """Return tracelib's rules, with those of the file `extra_path` before them.

    Raises BadTrace if the file cannot be read, is not TOML, or holds a pattern that is not a regular
    expression; BadParameter if a key or a value is unknown; the message lists those that are allowed.
    """
    own = _builtin_rules()
    if extra_path is None:
        return own
    path = Path(extra_path)
    try:
        text = regular(path, "rules").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(path, "rules", "", str(error)) from error
    extra = _parsed(text, path)
    _check_patterns(text, path)
    return Rules(
        extra.slices + own.slices,
        extra.stacks + own.stacks,
        extra.threads + own.threads,
        extra.steps + own.steps,
        extra.spans + own.spans,
    )


@lru_cache(maxsize=1)
def _builtin_rules() -> Rules:
    return _parsed(
        resources.files("tracelib").joinpath("rules.toml").read_text(encoding="utf-8"), Path("rules.toml")
    )


def _parsed(text: str, path: Path) -> Rules:
    tables = toml(text, path, "rules")
    for key, rows in tables.items():
        if key not in _TABLES:
            raise BadParameter(f"{path}: table", key, _TABLES)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise BadParameter(f"{path}: table", key, [f"[[{key}]] before each rule"])
    return Rules(
        _rules(SliceRule, "slice", tables, path),
        _rules(StackRule, "stack", tables, path),
        _rules(ThreadRule, "thread", tables, path),
        _rules(StepRule, "step", tables, path),
        _rules(SpanRule, "span", tables, path),
    )


def _rules(kind: type[Rule], table: str, tables: dict[str, Any], path: Path) -> tuple[Rule, ...]:
    return tuple(
        _rule(kind, row, f"{path}: [[{table}]] {n}") for n, row in enumerate(tables.get(table, ()), 1)
    )


def _rule(kind: type[Rule], table: dict[str, Any], where: str) -> Rule:
    hints = get_type_hints(kind).items()
    types = {name: hint.__name__ if isinstance(hint, type) else str(hint) for name, hint in hints}
    for key, value in table.items():
        if key not in types:
            raise BadParameter(f"{where}: key", key, types)
        if not isinstance(value, _TYPES[types[key]]) or isinstance(value, bool) != (types[key] == "bool"):
            raise BadParameter(f"{where}: {key}", value, [types[key]])
        if key in _ALLOWED and value not in _ALLOWED[key]:
            raise BadParameter(f"{where}: {key}", value, _ALLOWED[key])
    for category in table.get("category", ()):
        if category not in SLICE_CATEGORY.categories:
            raise BadParameter(f"{where}: category", category, SLICE_CATEGORY.categories)
    if not all(any(key in table for key in keys) for keys in _NEEDED[kind]):
        raise BadParameter(f"{where}: keys", ", ".join(table), [" or ".join(keys) for keys in _NEEDED[kind]])
    if kind is StepRule:
        _check_groups(table["name"], where)
    checked: Any = {key: tuple(value) if key == "category" else value for key, value in table.items()}
    return kind(**checked)


def _check_patterns(text: str, path: Path) -> None:
    """Raise BadTrace for a pattern that is not a regular expression; ours are: tests use them all."""
    for table, rows in toml(text, path, "rules").items():
        for n, row in enumerate(rows, 1):
            for pattern in (row[key] for key in _PATTERNS if isinstance(row.get(key), str)):
                try:
                    pl.select(pl.lit("").str.contains(pattern))
                except pl.exceptions.ComputeError as error:
                    where = Path(f"{path}: [[{table}]] {n}")
                    reason = "not a valid regular expression"
                    raise BadTrace(where, "rules", "", reason, pattern) from error


def _check_groups(pattern: str, where: str) -> None:
    for group in re.findall(r"\(\?P?<(\w+)>", pattern):
        if group not in TOKENS:
            raise BadParameter(f"{where}: group", group, TOKENS)
