"""Findings: rules over the analyses' frames, the verdict, and the document that holds them."""

from tracelib.findings.contract import read, schema, validate
from tracelib.findings.diagnose import diagnose
from tracelib.findings.document import Document, Verdict
from tracelib.findings.finding import Abstained, Evidence, Finding
from tracelib.findings.requests import without_log
from tracelib.findings.verdict import Thresholds, verdict
