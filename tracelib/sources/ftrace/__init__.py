"""ftrace: the text of tracefs, `trace-cmd report`, atrace and systrace, and trace.dat through an installed trace-cmd.

README.md beside this file says what the format holds, how to record it, and what is lost at worst.
"""

from __future__ import annotations

from tracelib.sources.ftrace.containers import converter
from tracelib.sources.ftrace.reader import read
from tracelib.sources.ftrace.recognise import sniff

__all__ = ["converter", "read", "sniff"]
