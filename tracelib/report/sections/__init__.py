"""The parts of a report, each a function from a findings dict to an object that Jupyter shows; no script, all escaped."""

from tracelib.report.sections.account import footer, health, method
from tracelib.report.sections.capacity import capacity_table
from tracelib.report.sections.causes import abstained, causes_table, findings_list
from tracelib.report.sections.chart import Chart, chart, frame_table, picture
from tracelib.report.sections.html import Section
from tracelib.report.sections.shown import shown
from tracelib.report.sections.tables import per_rank_table, per_role_table, request_parts_table
from tracelib.report.sections.verdict import three_figures, three_numbers, verdict

__all__ = [
    "Chart",
    "Section",
    "abstained",
    "capacity_table",
    "causes_table",
    "chart",
    "findings_list",
    "footer",
    "frame_table",
    "health",
    "method",
    "per_rank_table",
    "per_role_table",
    "picture",
    "request_parts_table",
    "shown",
    "three_figures",
    "three_numbers",
    "verdict",
]
