"""How times, shares and untrusted names are written for people: no locale, always a unit, no control characters."""

from __future__ import annotations

import unicodedata

__all__ = ["count", "duration", "moment", "plain", "share"]

NO_BREAK = "\N{NO-BREAK SPACE}"
UNKNOWN = "not known"
_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
#: Written by their code point: characters that change how their neighbours are shown (direction, joining, nothing at all).
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def duration(ns: float | None) -> str:
    """Return `ns` with three significant digits and the unit that fits: `1.23 s`, `45.6 ms`, `812 µs`, `90 ns`."""
    if ns is None:
        return UNKNOWN
    if ns == 0:
        return f"0{NO_BREAK}s"
    for factor, unit in _UNITS:
        # 999.6 µs would round to "1000 µs": take the next unit from where three digits no longer suffice.
        if abs(ns) >= factor * 0.9995:
            return f"{_three_digits(ns / factor)}{NO_BREAK}{unit}"
    return f"{round(ns)}{NO_BREAK}ns"


def moment(ts_ns: int | None, window_start_ns: int) -> str:
    """Return a moment as time after the window's start, to the microsecond: `+1.234567 s`."""
    if ts_ns is None:
        return UNKNOWN
    return f"{(ts_ns - window_start_ns) / 1e9:+.6f}{NO_BREAK}s"


def share(value: float | None) -> str:
    """Return a share 0..1 in per cent: `41.2 %`; a share above 0 is never written as 0."""
    if value is None:
        return UNKNOWN
    percent = value * 100
    text = f"{percent:.1f}"
    if text == "0.0":
        return f"<{NO_BREAK}0.1{NO_BREAK}%" if percent > 0 else f"0{NO_BREAK}%"
    return f"{text}{NO_BREAK}%"


def count(value: float | None) -> str:
    """Return a number with thin groups of three digits: `1 234 567`."""
    return UNKNOWN if value is None else f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def plain(text: object, limit: int | None = None) -> str:
    r"""Return `text` on one line with what a terminal or a reader's eye could be fooled by made visible.

    Control characters, terminal escapes, direction marks and invisible characters stand as `\u202e`; names in any
    script stay as they are. `limit` cuts, with an ellipsis.
    """
    seen = "".join(c if unicodedata.category(c) not in _UNSEEN else ascii(c)[1:-1] for c in str(text))
    return seen if limit is None or len(seen) <= limit else seen[: limit - 1] + "…"


def _three_digits(value: float) -> str:
    size = abs(value)
    decimals = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{value:.{decimals}f}"
