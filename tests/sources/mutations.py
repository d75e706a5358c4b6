"""Damage: what copying, cutting, editing and other programs' output do to a file, at random places."""

import gzip
import random

TOKENS = (
    b"\n",
    b"\n\n",
    b"\r\n",
    b"\r",
    b"\t",
    b" ",
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\x1b[31m",
    b"\\",
    b'"',
    b"\\u0000",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"(",
    b")",
    b": ",
    b"# ",
    b"-1",
    b"0",
    b"1e400",
    b"NaN",
    b"null",
    b"18446744073709551616",
    b"9223372036854775807",
    b"-9223372036854775809",
    b"4294967296",
    b"99999999999999999999.999999999",
    b'{"ph": "X"',
    b'"traceEvents": [',
    b"]}",
    b"<...>-1 [000] ",
    b"CPU:0 [LOST 3 EVENTS]\n",
    b"PERF_RECORD_LOST lost 3\n",
    b"B|1|x",
    b"S|a|",
    b"us!",
    b"\xe2\x80\xa8",
    b"Warning: a message of another program\n",
)
#: Bytes that say what follows: damage there goes deepest.
LONGEST = 2000


def _flip(data: bytearray, pick: random.Random, _: bytes) -> None:
    data[pick.randrange(len(data))] = pick.randrange(256)


def _near_start(data: bytearray, pick: random.Random, _: bytes) -> None:
    data[min(len(data) - 1, int(pick.expovariate(1 / 60)))] = pick.choice((0, 1, 5, 13, 127, 255))


def _remove(data: bytearray, pick: random.Random, _: bytes) -> None:
    at = pick.randrange(len(data))
    del data[at : at + min(LONGEST, int(pick.expovariate(1 / 30)) + 1)]


def _insert(data: bytearray, pick: random.Random, _: bytes) -> None:
    at = pick.randrange(len(data) + 1)
    data[at:at] = pick.choice(TOKENS) * (1 if pick.random() < 0.9 else pick.randrange(1, 400))


def _overwrite(data: bytearray, pick: random.Random, _: bytes) -> None:
    at, token = pick.randrange(len(data)), pick.choice(TOKENS)
    data[at : at + len(token)] = token


def _repeat(data: bytearray, pick: random.Random, _: bytes) -> None:
    at, start = pick.randrange(len(data) + 1), pick.randrange(len(data))
    data[at:at] = data[start : start + pick.randrange(1, LONGEST)]


def _splice(data: bytearray, pick: random.Random, other: bytes) -> None:
    at, start = pick.randrange(len(data) + 1), pick.randrange(len(other))
    data[at:at] = other[start : start + pick.randrange(1, LONGEST)]


def _fill(data: bytearray, pick: random.Random, _: bytes) -> None:
    at, length = pick.randrange(len(data)), pick.randrange(1, LONGEST)
    part = data[at : at + length]
    data[at : at + length] = bytes([pick.choice((0, 255, 32, 48))]) * len(part)


def _number(data: bytearray, pick: random.Random, _: bytes) -> None:
    """Put another number in place of one."""
    at = pick.randrange(len(data))
    while at < len(data) and not 48 <= data[at] <= 57:
        at += 1
    end = at
    while end < len(data) and 48 <= data[end] <= 57:
        end += 1
    data[at:end] = str(
        pick.choice((0, -1, 7, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, pick.randrange(10**6)))
    ).encode()


def _lines(data: bytearray, pick: random.Random, _: bytes) -> None:
    """Move a line elsewhere, or all ends of lines to another convention."""
    lines = bytes(data).split(b"\n")
    if pick.random() < 0.2:
        data[:] = b"\r\n".join(lines)
        return
    moved = lines.pop(pick.randrange(len(lines)))
    lines.insert(pick.randrange(len(lines) + 1), moved)
    data[:] = b"\n".join(lines)


KINDS = (_flip, _near_start, _remove, _insert, _overwrite, _repeat, _splice, _fill, _number, _number, _lines)


def damaged(data: bytes, other: bytes, pick: random.Random) -> bytes:
    """Return `data` changed in places, with parts of `other`, cut or compressed, as `pick` decides."""
    changed = bytearray(data)
    for _ in range(1 + int(pick.expovariate(1 / 4))):
        if changed:
            pick.choice(KINDS)(changed, pick, other)
    if pick.random() < 0.15:
        del changed[pick.randrange(len(changed) + 1) :]
    if pick.random() < 0.1:
        packed = gzip.compress(bytes(changed), 1)
        return packed if pick.random() < 0.5 else packed[: pick.randrange(1, len(packed))]
    return bytes(changed)
