"""Trace files to frames: one package per format, which offers a :class:`tracelib.sources.format.Format`.

To add a format, write such a package and name its `FORMAT` here. Whatever depends on a file's format (who is
asked to read it, whose names count, containers, exports, the fuzzer) goes by this list.
"""

from tracelib.errors import BadParameter
from tracelib.sources import ftrace, nsys, perf, torch_profiler
from tracelib.sources.format import Format

#: In the order in which they are asked whether a file is theirs.
FORMATS: tuple[Format, ...] = (nsys.FORMAT, torch_profiler.FORMAT, perf.FORMAT, ftrace.FORMAT)


def format_named(name: str) -> Format:
    """Return the format that `sources.format` calls so.

    Raises BadParameter if there is none of that name.
    """
    for each in FORMATS:
        if each.name == name:
            return each
    raise BadParameter("format", name, [each.name for each in FORMATS])
