"""What Chrome's viewer is given, read with exact decimals, keeps every nanosecond."""

import json
from collections import Counter
from decimal import Decimal

import polars as pl

from tracelib.export.viewers import write_chrome


def test_chrome_keeps_every_nanosecond(results, findings, tmp_path):
    write_chrome(results, findings, tmp_path / "run.json")
    document = json.loads((tmp_path / "run.json").read_text(), parse_float=Decimal)
    base = document["baseTimeNanoseconds"]
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"
    }
    drawn = Counter(
        (base + int(e["ts"] * 1000), int(e["dur"] * 1000), e["name"])
        for e in document["traceEvents"]
        if e["ph"] == "X" and names[e["pid"], e["tid"]].startswith("stream ")
    )
    ops = results.trace.gpu_ops.select("ts_ns", "dur_ns", pl.col("name").cast(pl.String))
    assert drawn == Counter(ops.iter_rows())
    arrows = Counter(e["ph"] for e in document["traceEvents"] if e["ph"] in "sf")
    assert arrows["s"] == arrows["f"] == ops.height
    ids = [{e["id"] for e in document["traceEvents"] if e["ph"] == end} for end in "sf"]
    assert ids[0] == ids[1]
