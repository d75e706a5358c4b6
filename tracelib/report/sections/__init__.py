"""The parts of a report: functions from findings to what Jupyter shows; no script, all escaped."""

from tracelib.report.sections.findings import (
    abstained,
    causes_table,
    findings_list,
    shown,
    three_figures,
    three_numbers,
    verdict,
)
from tracelib.report.sections.render import Section
from tracelib.report.sections.tables import (
    capacity_table,
    computed,
    cpu_waits_table,
    footer,
    frame_table,
    health,
    method,
    overview,
    per_rank_table,
    per_role_table,
    picture,
    request_parts_table,
    sentences,
    slowest_requests,
)
