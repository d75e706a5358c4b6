"""The moment from which a Kineto file counts its times, without reading its events."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelib.sources.files import open_stream

if TYPE_CHECKING:
    from pathlib import Path

_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})(?=\D)')
CHUNK = 1 << 20
#: As much of a chunk as may hold the begin of what ends in the next one.
OVERLAP = 64


def base_ns(path: Path) -> int:
    """Return `baseTimeNanoseconds` of the file, 0 if it has none: its times then are what they say.

    Raises
    ------
    OSError
        The file cannot be read.

    """
    rest = b""
    with open_stream(path) as stream:
        while chunk := stream.read(CHUNK):
            if found := _BASE.search(rest + chunk):
                return int(found[1])
            rest = (rest + chunk)[-OVERLAP:]
    return 0
