"""Charts: results in, a plotly figure out, with a sentence that says what it shows and a table.

A chart function returns None where its frame has no rows; `draw` then says why (`Results.missing`).
"""

from tracelib.charts.capacity import at_cores_chart, capacity_chart, demand_curve_chart, what_if_chart
from tracelib.charts.causes import causes_chart, exposure_chart, moments_chart
from tracelib.charts.comparison import (
    first_tokens_chart,
    loads_compared,
    losses_chart,
    side_by_side,
    tokens_chart,
    utilisation_chart,
    waterfall_chart,
    what_changed,
)
from tracelib.charts.cpu import cpu_time_chart, demand_chart, threads_chart
from tracelib.charts.flame import blamed_role, flame_chart
from tracelib.charts.gpus import kernels_chart, kernels_compared_chart, staircase_chart, states_chart
from tracelib.charts.latencies import collectives_chart, ipc_chart, launches_chart
from tracelib.charts.overview import overview_png, overview_svg, zoomable
from tracelib.charts.phrases import draw
from tracelib.charts.requests import requests_chart
from tracelib.charts.timeline import detail_chart, timeline_chart, timeline_sentence, worst_chart
