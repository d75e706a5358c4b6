"""Decimal numbers in text, eight characters at a time.

The 8 bytes from a position on are one little-endian word. Exclusive-or with "00000000" turns digits into 0..9; adding
0x76 sets the top bit of every byte above 9, so the lowest such bit tells how many digits lead. They are shifted to the
top, and three multiplications add neighbours up: 2, then 4, then 8 digits (Daniel Lemire, "Quickly parsing eight
digits", 2018).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["integers", "nanoseconds"]

_W = np.uint64
ZEROS, ABOVE_9, TOP_BITS = _W(0x3030303030303030), _W(0x7676767676767676), _W(0x8080808080808080)
PAIRS, QUADS = _W(0x00FF00FF00FF00FF), _W(0x0000FFFF0000FFFF)
POWERS = np.array([10**n for n in range(17)], np.int64)
#: A number may be followed by these only; a decimal point or an exponent means that it goes on.
DOT = ord(".")


def _leading(words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the value and the number of the digits that each word of 8 characters starts with."""
    digits = words ^ ZEROS
    others = ((digits + ABOVE_9) | digits) & TOP_BITS
    below = (others & (~others + _W(1))) - _W(1)  # the bits below the lowest one that is set; all if none is
    count = np.bitwise_count(below) >> 3
    value = digits << (_W(64) - (count.astype(_W) << _W(3)))
    value = (value * _W(10 * 256 + 1)) >> _W(8) & PAIRS
    value = (value * _W(100 * 65536 + 1)) >> _W(16) & QUADS
    value = (value * _W(10000 * 2**32 + 1)) >> _W(32)
    return value.view(np.int64), count.astype(np.int64)


def _whole(
    words: NDArray[np.uint64], places: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the value and the number of the up to 16 digits from each place on."""
    value, count = _leading(words[places])
    long = np.flatnonzero(count == 8)
    if long.size:
        more, digits = _leading(words[places[long] + 8])
        value[long] = value[long] * POWERS[digits] + more
        count[long] += digits
    return value, count


def _ended(text: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.bool_]:
    after = text[places]
    ended: NDArray[np.bool_] = (after == ord(",")) | (after == ord("}")) | (after <= 32)
    return ended


def integers(
    text: NDArray[np.uint8], words: NDArray[np.uint64], places: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the non-negative integers of up to 15 digits at `places`, and which of them are just that."""
    value, count = _whole(words, places)
    return value, (count > 0) & (count < 16) & _ended(text, places + count)


def nanoseconds(
    text: NDArray[np.uint8], words: NDArray[np.uint64], places: NDArray[np.int64], largest: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return microseconds with up to three decimals at `places` in ns, and which are just that and not above `largest`."""
    whole, count = _whole(words, places)
    sound = (count > 0) & (whole < largest // 1000)
    end = places + count
    dotted = text[end] == DOT
    decimals, digits = _leading(words[end + 1])
    digits = np.where(dotted, digits, 0)
    sound &= digits <= 3
    sound &= ~dotted | (digits > 0)
    fraction = np.where(dotted, decimals * POWERS[np.maximum(3 - digits, 0)], 0)
    sound &= _ended(text, end + dotted + digits)
    return whole * 1000 + fraction, sound
