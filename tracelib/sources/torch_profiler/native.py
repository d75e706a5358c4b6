"""The compiled pass over a piece of a trace (`scan.c`), called through ctypes: no copy, no lock is held.

The library is made when tracelib is installed (`hatch_build.py`), and named after the source that it was made
from, so that none of another version is ever loaded. Where there is none, because no C compiler was at hand,
all events go to the plain decoder: the same rows, several times slower.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import sysconfig
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tracelib.sources.torch_profiler.chunks import Chunk
from tracelib.sources.torch_profiler.events import KINETO

Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]
Kind = Literal["integer", "time", "string", "object"]

FOLDER = Path(__file__).parent
#: States of a value: as it should be, or something else (0: none at all); of an event: with faults to mend.
PLAIN, ODD, MENDED = 1, 2, 3
KINDS: tuple[Kind, ...] = ("integer", "time", "string", "object")
#: Spellings of a collective's args before October 2024: the plain decoder knows what they mean.
OLDER = ("Process Group ID", "In msg size", "Out msg size")
EVENT: dict[str, Kind] = KINETO["event"]
ARGS: dict[str, Kind] = KINETO["args"]
PLACES = {
    place: at
    for at, place in enumerate([*(("event", key) for key in EVENT), *(("args", key) for key in ARGS)])
}
#: Bytes of text per event and per distinct string for which there is room: with less, a piece is refused.
EVENT_BYTES, STRING_BYTES = 48, 64
REASONS = {-1: "it is cut short or not valid JSON", -2: "too many events or distinct strings"}


class Refused(Exception):
    """The fast decoder leaves this text to the plain one."""


class _Field(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("length", ctypes.c_int32),
        ("level", ctypes.c_int32),
        ("kind", ctypes.c_int32),
    )


class _Result(ctypes.Structure):
    _fields_ = (
        ("events", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("begins", "ends", "values", "states")),
        ("strings", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("string_starts", "string_lengths")),
        ("slots", ctypes.c_int64),
        ("table", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("found", "list_end", "beyond_ascii")),
    )


def _fields() -> ctypes.Array[_Field]:
    rows = [
        (name.encode(), len(name), level, KINDS.index(kind))
        for level, fields in enumerate((EVENT, ARGS))
        for name, kind in fields.items()
    ]
    return (_Field * len(rows))(*(_Field(*row) for row in rows))


FIELDS = _fields()


def library_in(folder: Path) -> Path:
    """Return where the library lies that is made for this platform from the sources in `folder`."""
    sources = [path.read_bytes() for path in sorted(folder.glob("*.[ch]"))]
    made_of = b"".join([sysconfig.get_platform().encode(), *sources])
    return folder / f"_scan_{hashlib.sha256(made_of).hexdigest()[:12]}.so"


@functools.cache
def _scan() -> ctypes._FuncPointer | None:
    try:
        function = ctypes.CDLL(str(library_in(FOLDER))).scan
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_int64
    integers = ctypes.c_int64, ctypes.c_int32
    pointers = ctypes.POINTER(_Field), ctypes.POINTER(_Result)
    function.argtypes = (ctypes.c_void_p, *integers, pointers[0], ctypes.c_int32, pointers[1])
    return function


def available() -> bool:
    """Say whether the compiled pass is there."""
    return _scan() is not None


def how_read() -> str:
    """Return how PyTorch traces are read, for a person, and what to do where that is slow."""
    slow = "without the compiled pass, several times slower: reinstall where there is a C compiler (cc)"
    return f"PyTorch traces are read {'by the compiled pass' if available() else slow}"


class _Room:
    """Memory for what is found in a text of up to `size` bytes; each thread uses its own again and again."""

    def __init__(self, size: int) -> None:
        events, strings = size // EVENT_BYTES + 16, size // STRING_BYTES + 16
        self.size = size
        self.begins, self.ends = np.empty(events, np.int64), np.empty(events, np.int64)
        self.values = np.empty((len(FIELDS), events), np.int64)
        self.states = np.empty((events, len(FIELDS) + 1), np.uint8)
        self.starts, self.lengths = np.empty(strings, np.int64), np.empty(strings, np.int64)
        self.table = np.empty(1 << (2 * strings).bit_length(), np.int32)
        self.result = _Result(
            events,
            *(a.ctypes.data for a in (self.begins, self.ends, self.values, self.states)),
            strings,
            *(a.ctypes.data for a in (self.starts, self.lengths)),
            self.table.size,
            self.table.ctypes.data,
        )


class _Rooms(threading.local):
    room = _Room(0)

    def of(self, size: int) -> _Room:
        if self.room.size < size:
            self.room = _Room(size)
        return self.room


_rooms = _Rooms()


@dataclass(frozen=True)
class Column:
    """One field of all events: a value and a state (0: it has none, `PLAIN`, `ODD`) per event."""

    values: Integers
    states: NDArray[np.uint8]


@dataclass(frozen=True)
class Scanned:
    """The events of a piece of text. The arrays are overwritten by the thread's next :func:`scanned`."""

    data: bytearray
    begins: Integers  # opening brace of each event
    ends: Integers  # closing brace of each event
    values: Integers  # one row per field
    states: NDArray[np.uint8]  # one row per event
    string_starts: Integers
    string_lengths: Integers
    tail: bytes | None  # what follows the list's end, None if it does not end here

    def column(self, level: Literal["event", "args"], name: str) -> Column:
        """Return the field `name`: integers, times in ns, or numbers of strings."""
        at = PLACES[level, name]
        return Column(self.values[at, : self.begins.size], self.states[:, at])

    @property
    def mended(self) -> Flags:
        """Which events have faults that need no look to be repaired: in values not used, or in strings."""
        mended: Flags = self.states[:, -1] == MENDED
        return mended

    @property
    def odd(self) -> Flags:
        """Which events have extreme numbers, or keys with escapes, which match no field's name."""
        odd: Flags = self.states[:, -1] == ODD
        return odd

    def strings(self, numbers: Integers) -> list[str]:
        """Return the strings called by `numbers`, as they stand in the text."""
        places = zip(self.string_starts[numbers].tolist(), self.string_lengths[numbers].tolist(), strict=True)
        return [self.data[at : at + size].decode() for at, size in places]


def _check_utf8(data: bytearray) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise Refused("not UTF-8") from error


def scanned(chunk: Chunk) -> Scanned:
    """Return the events of `chunk`.

    Raises Refused if it is not a sequence of whole events in UTF-8, has more than small faults, or there is
    no compiled pass.
    """
    scan = _scan()
    if scan is None:
        raise Refused("there is no compiled pass")
    data = chunk.data
    room = _rooms.of(len(data))
    text = np.frombuffer(data, np.uint8)
    count = scan(text.ctypes.data, chunk.stop, not chunk.last, FIELDS, len(FIELDS), ctypes.byref(room.result))
    if count < 0:
        raise Refused(REASONS[count])
    if room.result.beyond_ascii:
        _check_utf8(data)
    strings, end = room.result.found, room.result.list_end
    return Scanned(
        data,
        room.begins[:count],
        room.ends[:count],
        room.values,
        room.states[:count],
        room.starts[:strings],
        room.lengths[:strings],
        None if end < 0 else bytes(memoryview(data)[end + 1 : chunk.stop]),
    )
