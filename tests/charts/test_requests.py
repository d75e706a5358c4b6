"""The parts of a request's time to first token add up to it."""

import re

import numpy as np
import polars as pl

from tests.charts.server import make
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


def test_a_part_that_no_file_tells_is_not_known_rather_than_nothing(results):
    """Requests of 200 and 400 ms, of whose tokenizer nothing was logged: its time is in another part."""
    untold = results.requests.with_columns(
        before_tokenize_ns=pl.lit(None, pl.Int64), tokenize_ns=pl.lit(None, pl.Int64), queue_ns=pl.lit(0)
    )
    table = {row[0]: row[1:] for row in charts.requests_chart(make(requests=untold)).layout.meta["table"]}
    assert table["tokenize"] == ["not known"] * 4
    assert table["before the tokenizer"] == ["not known"] * 4
    assert table["queue before the engine"] == ["0 s", "0 s", "0 s", "0 %"]
