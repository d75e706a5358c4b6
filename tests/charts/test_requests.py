"""The parts of a request's time to first token add up to it."""

import re

import numpy as np

from tracelib import charts, words
from tracelib.analyses.requests import PARTS
from tracelib.charts import requests


def test_request_parts_add_up_to_the_first_token(results):
    figure = charts.requests_chart(results)
    heights = [
        [ms or 0 for ms in bar.y] for bar in figure.data
    ]  # None: not known, its time is in "not known"
    assert np.allclose(np.sum(heights, axis=0), [200, 400])


def test_every_part_has_a_name_and_a_look():
    assert (
        list(words.REQUEST_PARTS)
        == list(requests.REQUEST_PARTS)
        == [part.removesuffix("_ns") for part in PARTS]
    )


def test_a_request_s_picture_is_to_scale():
    """100 and 200 of 600 ns, on 480 px: from 0 to 80 and from 80 to 240."""
    svg = requests.request_svg({"tokenize": 100, "unknown": 200}, 600)
    grounds = re.findall(r'<rect x="([\d.]+)" y="0" width="([\d.]+)" height="16" fill="(?!url)', svg)
    assert [(float(x), float(width)) for x, width in grounds] == [(0, 80), (80, 160)]
    assert "tokenize 100 ns, not known 200 ns" in svg
    hatch = re.search(r"url\((#[\w-]+)\)", svg)[1]
    assert f'id="{hatch[1:]}"' in requests.request_hatches()
