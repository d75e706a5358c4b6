"""Findings to files: the notebook run, the page, the ticket. What a report notebook calls is gathered here."""

from tracelib.report.inputs import given, name_of, seconds
from tracelib.report.notebooks import located
from tracelib.report.pipeline import record, removed, write_report
from tracelib.report.redact import trace as redacted

__all__ = ["given", "located", "name_of", "record", "redacted", "removed", "seconds", "write_report"]
