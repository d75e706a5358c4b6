"""The parts of a request's time to first token add up to it."""

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
