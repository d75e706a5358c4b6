"""The picture without a browser: well-formed, small, described in words, drawn without the system's fonts."""

import re
import struct
import xml.etree.ElementTree as ET

import polars as pl
import pytest

from tests.charts.server import STATES, make, rows, trace
from tracelib.charts import overview_png, overview_svg
from tracelib.charts.lanes import DEVICES, shown_devices

NS = {"s": "http://www.w3.org/2000/svg"}


def test_svg_is_well_formed_and_described(results):
    svg = overview_svg(results)
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    assert root.find("s:title", NS).text.startswith(
        "In the window of 1.00 s the 2 GPUs did useful work for 35 %"
    )
    assert "rank 1 GPU: useful 30 %, busy 30 %" in root.find("s:desc", NS).text
    assert "prefers-color-scheme:dark" in root.find("s:style", NS).text
    assert "var(--tl-gpu-compute,#0072B2)" in svg
    assert len(svg.encode()) < 100_000


def test_svg_areas_are_the_ledger(results):
    """Bins of 1/320 s: rank 0 computes for the first 300 of 1000 ms, and the strip is full there."""
    root = ET.fromstring(overview_svg(results))
    first = next(
        g.find("s:path", NS).get("d")
        for g in root.iter(f"{{{NS['s']}}}g")
        if g.get("class") == "tl-gpu-compute" and g.find("s:path", NS) is not None
    )
    steps = [(float(v), float(h)) for v, h in re.findall(r"V(-?[\d.]+)h([\d.]+)", first)]
    assert sum(-v * h for v, h in steps) == pytest.approx(0.3 * 640 * 16, rel=0.01)


def test_svg_refers_to_nothing_outside_and_runs_nothing(results):
    svg = overview_svg(results)
    assert not re.search(r"(?:href|src)=[\"'](?!#)", svg)
    assert "<script" not in svg
    assert not re.search(r"\bon\w+=", svg)


def test_hostile_names_are_text():
    hostile = '</svg><script>alert(1)</script>"\x1b\u202e'
    evil = trace((hostile,) * 4)
    evil = evil.replace(
        gpus=evil.gpus.with_columns(
            rank=pl.lit(None, pl.Int32), device=pl.lit(0, pl.Int32), host=pl.Series([hostile, hostile + "2"])
        )
    )
    svg = overview_svg(make(trace=evil))
    ET.fromstring(svg)
    assert "<script" not in svg
    assert "\x1b" not in svg
    assert "\u202e" not in svg


def test_many_devices_show_the_worst_and_stay_small():
    states = [
        (gpu, t, 1, "compute" if (t + gpu) % 3 else "idle") for gpu in range(16) for t in range(0, 1000, 2)
    ]
    results = make(gpu_states=rows(STATES, *states))
    assert len(shown_devices(results)) == DEVICES
    assert {0, 1} <= set(shown_devices(results))  # the two that lost time
    assert len(overview_svg(results).encode()) < 100_000


GPU_AND_HOST = ("gpu_states", "gpu_time", "lost", "host_activity", "ipc", "launches")


def test_threads_alone_are_drawn(results):
    """A recording of the scheduler alone shows the threads that wanted a CPU most, with their CPU states."""
    root = ET.fromstring(overview_svg(make(**{f: getattr(results, f).clear() for f in GPU_AND_HOST})))
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    wanted = results.thread_states.filter(~pl.col("state").is_in(["blocked", "unknown"]))["thread"].unique()
    assert len([text for text in texts if text and text.endswith(" %")]) == len(wanted) > 0
    assert "no GPU was recorded" in " ".join(filter(None, texts))


def test_where_nothing_was_recorded_the_picture_says_so(results):
    nothing = make(**{f: getattr(results, f).clear() for f in (*GPU_AND_HOST, "thread_states")})
    root = ET.fromstring(overview_svg(nothing))
    assert "no GPU was recorded" in "".join(root.itertext())
    assert not list(root.iter("{http://www.w3.org/2000/svg}path"))
    pytest.importorskip("resvg_py")
    assert overview_png(nothing)[:8] == b"\x89PNG\r\n\x1a\n"


def test_png_is_small_and_of_the_pictures_shape(results):
    pytest.importorskip("resvg_py")
    png = overview_png(results)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    box = [float(v) for v in ET.fromstring(overview_svg(results)).get("viewBox").split()]
    assert (width, height) == (round(box[2] * 1.6), pytest.approx(box[3] * 1.6, abs=1))
    assert len(png) < 300_000


def test_png_has_text_without_the_systems_fonts(results):
    """Words change the picture: were no font found, both would look alike."""
    pytest.importorskip("resvg_py")
    resvg = pytest.importorskip("resvg_py")
    svg = overview_svg(results, dark=False)
    without = resvg.svg_to_bytes(svg_string=svg, background="#ffffff", zoom=1.6, skip_system_fonts=True)
    assert len(overview_png(results)) > len(without) + 10_000
