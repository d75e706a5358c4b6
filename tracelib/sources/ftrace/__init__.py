"""ftrace: the text of tracefs, `trace-cmd report`, atrace and systrace, and trace.dat through an installed trace-cmd.

README.md beside this file says what the format holds, how to record it, and what is lost at worst.
"""

from __future__ import annotations

from tracelib.sources.format import Format, InPerfetto
from tracelib.sources.ftrace.containers import converter
from tracelib.sources.ftrace.reader import read
from tracelib.sources.ftrace.recognise import sniff

FORMAT = Format(
    name="ftrace",
    sniff=sniff,
    read=read,
    scope="machine",
    thread_name_rank=1,
    clock_from_user=True,
    in_perfetto=InPerfetto(has_clock=True),
    program=converter,
)
