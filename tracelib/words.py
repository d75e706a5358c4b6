"""What everything is called (words.toml) and how every figure is written, wherever a person reads it.

Texts that come from files are untrusted: :func:`plain` is the one way to put them on a line.
"""

import math
import os
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from tracelib.data import data


class Word(NamedTuple):
    """A name, and one line that says what it means."""

    name: str
    meaning: str


_TABLES = data(__file__, "words.toml")


def _words(table: str) -> dict[str, Word]:
    return {key: Word(*pair) for key, pair in _TABLES[table].items()}


#: What each table holds stands in words.toml.
CAUSES, SUB_CAUSES = _words("causes"), _words("sub_causes")
GPU_STATES, CPU_STATES = _words("gpu_states"), _words("cpu_states")
ROLES, REQUEST_PARTS, VERDICTS = _words("roles"), _words("request_parts"), _words("verdicts")
QUEUE_REASONS, LIMITS = _words("queue_reasons"), _words("limits")
#: The roles of the server's own processes, in the order in which a request meets them.
SERVER = ("api_server", "engine", "worker")
NOT_KNOWN = "not known"
#: Categories of characters that a reader cannot see or a terminal obeys, and letters drawn as nothing.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_UNITS = ((60e9, "min", 120e9), (1e9, "s", 0.9995e9), (1e6, "ms", 0.9995e6), (1e3, "µs", 999.5))
_NAME_CHARACTERS = 40


def cause_name(cause: str | None) -> str:
    """Return the name of `cause`; one that a user's rules added is named as they name it."""
    return _name(CAUSES, cause)


def sub_cause_name(sub_cause: str | None) -> str:
    """Return the name of `sub_cause`: its own, that of a role, or as the rules name it.

    >>> sub_cause_name("api"), sub_cause_name("api_server"), sub_cause_name("my_own")
    ('launch calls', 'API server', 'my own')
    """
    return _name(SUB_CAUSES | ROLES, sub_cause)


def cause_label(cause: str | None, sub_cause: str | None) -> str:
    """Return the name of a part of a cause.

    >>> cause_label("kernel_launch", "api"), cause_label("gc", None)
    ('kernel launch: launch calls', 'garbage collection')
    """
    return f"{cause_name(cause)}: {sub_cause_name(sub_cause)}" if sub_cause else cause_name(cause)


def role_name(role: str | None) -> str:
    """Return the name of `role`; one that a user's rules added is named as they name it."""
    return _name(ROLES, role) if role else "unknown role"


def request_part_name(part: str) -> str:
    """Return the name of a part of the time to first token."""
    return _name(REQUEST_PARTS, part)


def queue_reason_name(why: str) -> str:
    """Return the name of what a request in the engine's queue waited for."""
    return _name(QUEUE_REASONS, why)


def verdict_name(state: str) -> str:
    """Return the name of the verdict `state`."""
    return _name(VERDICTS, state)


def limit_name(limit: str) -> str:
    """Return the name of what limits a run: of the host, of the GPUs, or a cause of lost time.

    >>> limit_name("cores"), limit_name("imbalance")
    ('too few CPU cores', 'imbalance between ranks')
    """
    return _name(LIMITS, limit) if limit in LIMITS else cause_name(limit)


def badge(state: str, limits: Sequence[str], *, firm: bool = True) -> str:
    """Return the verdict in a few words: what limits, not only that something does.

    >>> badge("cpu_bound", ["cores", "host_work"]), badge("mixed", ["quota"])
    ('Too few CPU cores, host work', 'In part: CPU quota')
    >>> badge("not_cpu_bound", ["kernels"]), badge("cpu_bound", ["host_work"], firm=False)
    ('Not CPU-bound: GPU kernels', 'Not firm: host work')
    """
    named = ", ".join(map(limit_name, limits))
    if not firm:
        return f"Not firm: {named or verdict_name(state)}"
    if state == "cpu_bound":
        return sentence(named or verdict_name(state))
    lead = "In part" if state == "mixed" else sentence(verdict_name(state))
    return f"{lead}: {named}" if named else lead


def _name(words: dict[str, Word], key: str | None) -> str:
    word = words.get(key or "")
    return word.name if word else plain(key, _NAME_CHARACTERS).replace("_", " ") if key else NOT_KNOWN


def sentence(text: str) -> str:
    """Return `text` with a capital first letter: the rest may hold names that keep theirs."""
    return text[:1].upper() + text[1:]


def share(part: float | None) -> str:
    """Return a share (0..1) in per cent; neither a little nor nearly all is rounded to nothing or to all.

    >>> share(0.443), share(0.0421), share(0.0001), share(0), share(0.996), share(0.9999), share(None)
    ('44 %', '4.2 %', '<0.1 %', '0 %', '99.6 %', '>99.9 %', 'not known')
    """
    if part is None or math.isnan(part):
        return NOT_KNOWN
    size = abs(part)
    if 0 < size < 0.0005:
        return "<0.1 %"
    if 0.9995 <= size < 1:
        return ">99.9 %"
    one_decimal = 0 < size < 0.0995 or 0.995 <= size < 1
    return f"{100 * part:.{1 if one_decimal else 0}f} %"


def duration(ns: float | None) -> str:
    """Return a length of time: three digits and the unit that fits.

    >>> duration(90), duration(1_500), duration(45_600_000), duration(61e9), duration(600e9), duration(None)
    ('90 ns', '1.50 µs', '45.6 ms', '61.0 s', '10.0 min', 'not known')
    """
    if ns is None or math.isnan(ns):
        return NOT_KNOWN
    if ns == 0:
        return "0 s"
    for factor, unit, least in _UNITS:
        if abs(ns) >= least:
            return f"{_three_digits(ns / factor)} {unit}"
    return f"{ns:.0f} ns"


def moment(ts_ns: int | None, start_ns: int) -> str:
    """Return a moment as the time since the window's start, to the microsecond.

    >>> moment(1_234_567_000, 0)
    '+1.234567 s'
    """
    return NOT_KNOWN if ts_ns is None else f"{(ts_ns - start_ns) / 1e9:+.6f} s"


def count(number: float | None) -> str:
    """Return a whole number in groups of three digits.

    >>> count(1234567)
    '1,234,567'
    """
    return NOT_KNOWN if number is None else f"{number:,}"


def counted(number: int, noun: str, nouns: str = "") -> str:
    """Return how many there are of something; `nouns` is the plural where an s does not make it.

    >>> counted(1, "file"), counted(1200, "file"), counted(2, "process", "processes")
    ('1 file', '1,200 files', '2 processes')
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


#: Of fewer values the 95th percentile by nearest rank is their maximum.
FEWEST_FOR_P95 = 20


def slow_end_name(number: int) -> str:
    """Return what the slow end of so many values is called that :func:`slow_end` writes.

    >>> slow_end_name(19), slow_end_name(20)
    ('max', 'p95')
    """
    return "p95" if number >= FEWEST_FOR_P95 else "max"


def slow_end(number: int, p95: int | None, longest: int | None) -> str:
    """Return the 95th percentile of `number` times, of fewer than 20 the maximum, which it would be.

    >>> slow_end(2, 3_000_000, 3_000_000), slow_end(40, 3_000_000, 9_000_000)
    ('max 3.00 ms', 'p95 3.00 ms')
    """
    name = slow_end_name(number)
    return f"{name} {duration(p95 if name == 'p95' else longest)}"


def cpus(number: float) -> str:
    """Return a number of CPUs, which need not be whole.

    >>> cpus(1.0), cpus(2.5)
    ('1 CPU', '2.5 CPUs')
    """
    return f"{number:g} CPU{'' if number == 1 else 's'}"


def rate(per_second: float | None) -> str:
    """Return how often something happens, or how much of it there is, in a second.

    >>> rate(0.25), rate(12.34), rate(1234.5)
    ('0.25/s', '12.3/s', '1,234/s')
    """
    return NOT_KNOWN if per_second is None or math.isnan(per_second) else f"{_three_digits(per_second)}/s"


def readable(name: str) -> str:
    """Return a file's name in valid UTF-8: Python holds bytes that are none as halves of surrogates."""
    return os.fsencode(name).decode("utf-8", "replace")


def plain(text: object, limit: int | None = None) -> str:
    r"""Return `text` on one line, with everything visible that could fool a terminal or a reader's eye.

    Control characters, line breaks, direction marks and invisible characters stand as their escapes (`\x1b`,
    `\u202e`); names in any script stay as they are. What is longer than `limit` ends in an ellipsis.

    >>> plain("a\x1b[31m\u202eb"), plain("a long name", 7)
    ('a\\x1b[31m\\u202eb', 'a long…')
    """
    written = str(text)
    start = written if limit is None else written[: limit + 1]
    if not (start.isascii() and start.isprintable()):
        start = "".join(map(_visible, start))
    return start if limit is None or len(start) <= limit else start[: limit - 1].rstrip() + "…"


def _visible(character: str) -> str:
    hidden = character in _BLANK or unicodedata.category(character) in _INVISIBLE
    return ascii(character)[1:-1] if hidden else character


def _three_digits(value: float) -> str:
    size = abs(value)
    return f"{value:,.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"
