"""Thread names as different recorders write them: which are the same, which is the best.

The kernel cuts a thread's name (its comm) to 15 bytes and gives a new thread the name of its creator until it is
renamed; PyTorch's profiler writes "thread 767 (python3)", the process's name for each thread.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["bare_name", "best_name", "compatible", "is_generic", "same_name"]

COMM_BYTES = 15
KINETO_THREAD = re.compile(r"^(?:thread|stream) -?\d+(?: \((.*)\))?$", re.DOTALL)
#: Names that an interpreter gives to whatever it runs: they tell nothing about the thread.
GENERIC = re.compile(
    r"^(?:python[\d.]*|pypy[\d.]*|pt_main_thread|ld-linux.*|main|<\.\.\.>|Thread-\d+.*|MainThread|\d*)$"
)


def bare_name(name: str | None) -> str | None:
    """Return the name without what a recorder wrapped round it, None if nothing is left.

    Examples
    --------
    >>> bare_name("thread 767 (python3)"), bare_name("tokenizer"), bare_name("thread 12")
    ('python3', 'tokenizer', None)

    """
    if name is None:
        return None
    match = KINETO_THREAD.match(name)
    return (match[1] if match else name.strip()) or None


def is_generic(name: str | None) -> bool:
    """Say whether the name could be any thread's."""
    return name is None or GENERIC.match(name) is not None


def same_name(one: str, other: str) -> bool:
    """Say whether both can be one name, one of them cut to the kernel's 15 bytes."""
    if one.startswith("kworker/") and other.startswith("kworker/"):  # its name changes with the work it does
        return re.split(r"[-+]", one)[0] == re.split(r"[-+]", other)[0]
    short, long = sorted((one.encode(), other.encode()), key=len)
    return short == long or (len(short) == COMM_BYTES and long.startswith(short))


def compatible(one: str | None, other: str | None, inherited: Iterable[str | None] = ()) -> bool:
    """Say whether two recorders' names for a thread do not contradict each other.

    `inherited` are names of the process: a thread carries its creator's name until it is renamed.
    """
    if one is None or other is None or is_generic(one) or is_generic(other) or same_name(one, other):
        return True
    return any(same_name(name, parent) for parent in inherited if parent for name in (one, other))


def best_name(names: Iterable[str | None], inherited: Iterable[str | None] = ()) -> str | None:
    """Return the name that says most: own before inherited before generic, whole before cut, else the earlier one."""
    known = [name for name in names if name]
    parents = [name for name in inherited if name]
    own = [
        name
        for name in known
        if not is_generic(name) and not any(same_name(name, parent) for parent in parents)
    ]
    if not known:
        return None
    chosen = (own or [name for name in known if not is_generic(name)] or known)[0]
    return max((name for name in known if same_name(name, chosen)), key=len)
