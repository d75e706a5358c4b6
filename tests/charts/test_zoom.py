"""What the page's script draws when the overview is looked into: shares of small bins, and events."""

import base64
import gzip
import json

import polars as pl
import pytest

from tests.charts.server import HOSTILE, MS, START, make, rows, trace
from tests.charts.server import STATES as GPU_STATES
from tracelib.charts import overview_svg, zoomable
from tracelib.charts.overview import PIECES, ZOOM_BINS


def unpacked(text):
    return json.loads(gzip.decompress(base64.b64decode(text)))


def lane(told, name):
    return next(n for n, each in enumerate(told["lanes"]) if each["name"] == name)


def test_a_bin_holds_the_share_of_each_state(results):
    """Rank 0 computes for the first 300 of 1000 ms: in 900 of 3000 bins, and nowhere else."""
    told = unpacked(zoomable(results, []))
    assert (told["borders"], told["length"], told["near"]) == (ZOOM_BINS, 1000 * MS, [])
    gpu = told["lanes"][lane(told, "rank 0 GPU")]
    compute = [ord(c) - 0x100 for c in gpu["shares"][gpu["states"].index("GPU computes")]]
    assert compute == [200] * 900 + [0] * 2100


def test_what_is_shorter_than_a_step_of_a_share_is_not_nothing():
    tiny = rows(GPU_STATES, (0, 0, 1, "idle")).with_columns(dur_ns=pl.lit(100, pl.Int64))
    told = unpacked(zoomable(make(gpu_states=tiny), []))
    gpu = told["lanes"][lane(told, "rank 0 GPU")]
    assert [ord(c) - 0x100 for c in gpu["shares"][0]][:2] == [1, 0]


def test_near_a_stretch_events_are_told_one_by_one(results):
    """Asked for 299 to 301 ms, a margin of 1 ms comes to it: rank 0 computes to 300, then waits."""
    told = unpacked(zoomable(results, [(START + 299 * MS, START + 301 * MS)]))
    (near,) = told["near"]
    assert (near["from"], near["to"]) == (298 * MS, 302 * MS)
    place = lane(told, "rank 0 GPU")
    names = told["lanes"][place]["states"]
    steps = near["lanes"][place]
    events = [(steps[i], steps[i + 1], names[steps[i + 2]]) for i in range(0, len(steps), 3)]
    two_ms = 2 * MS // told["unit"]
    assert events == [(0, two_ms, "GPU computes"), (0, two_ms, "spins for a late rank")]
    assert near["lanes"][lane(told, "rank 0 dequeue")] == []  # there is none at that time


@pytest.mark.parametrize(
    ("start", "end", "kept"),
    [(0, 20, True), (0, 21, False), (-300, -290, False), (1000, 1010, False), (-5, 5, True)],
)
def test_stretches_that_are_long_or_outside_are_left_to_the_bins(results, start, end, kept):
    told = unpacked(zoomable(results, [(START + start * MS, START + end * MS)]))
    assert len(told["near"]) == kept
    assert all(0 <= part["from"] < part["to"] <= told["length"] for part in told["near"])


def test_a_lane_with_too_many_events_is_left_to_the_bins():
    alternate = rows(GPU_STATES, *((0, n, 1, ("compute", "idle")[n % 2]) for n in range(PIECES + 100)))
    short = alternate.with_columns((pl.col("ts_ns") - START) // 100 + START, pl.col("dur_ns") // 100)
    told = unpacked(zoomable(make(gpu_states=short), [(START, START + 18 * MS)]))
    assert told["near"][0]["lanes"][lane(told, "rank 0 GPU")] is None


def test_it_fits_over_the_picture(results):
    svg, told = overview_svg(results), unpacked(zoomable(results, []))
    assert f'viewBox="0 0 {told["width"]} {told["height"]}"' in svg
    assert svg.count("tl-now") == len(told["lanes"]) == len(told["tops"])
    for top in told["tops"]:
        assert (
            f'<rect class="tl-bg" x="{told["left"]}" y="{top}" width="{told["right"] - told["left"]}"' in svg
        )
    for css in {css for each in told["lanes"] for css in each["css"]}:
        assert f'class="tl-{css}"' in svg


def test_names_are_visible_and_cannot_end_a_script():
    evil = trace((HOSTILE,) * 4)
    evil = evil.replace(
        gpus=evil.gpus.with_columns(
            rank=pl.lit(None, pl.Int32), device=pl.lit(0, pl.Int32), host=pl.Series([HOSTILE, HOSTILE + "2"])
        )
    )
    packed = zoomable(make(trace=evil), [])
    assert "<" not in packed
    assert all("\u202e" not in each["name"] for each in unpacked(packed)["lanes"])


def test_without_lanes_there_is_nothing_to_look_into(results):
    frames = ("gpu_states", "gpu_time", "lost", "host_activity", "ipc", "launches", "thread_states")
    assert zoomable(make(**{name: getattr(results, name).clear() for name in frames}), []) == ""
