"""Findings: rules over the analyses' frames, and the verdict (FINDINGS.md, ATTRIBUTION.md "Verdict")."""

from tracelib.findings.document import diagnose
from tracelib.findings.finding import Abstained, Evidence, Finding
from tracelib.findings.verdict import Thresholds, Verdict, verdict

__all__ = ["Abstained", "Evidence", "Finding", "Thresholds", "Verdict", "diagnose", "verdict"]
