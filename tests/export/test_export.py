"""The command `tracelib export`: its window, its targets, and what it refuses."""

import json
from collections import Counter
from decimal import Decimal

import polars as pl

from tracelib.cli import main
from tracelib.export import viewers


def test_a_window_leaves_only_what_overlaps_it(folder, results, tmp_path):
    """Nothing is cut at an edge: by times worked out from the frames of the whole."""
    start, end = (results.window.start_ns + round(s * 1e9) for s in (0.02, 0.05))
    assert (
        main(
            [
                "export",
                str(folder),
                "--to",
                "chrome",
                "--window",
                "0.02:0.05",
                "--redact",
                "off",
                "-o",
                str(tmp_path / "run.json"),
            ]
        )
        == 0
    )
    document = json.loads((tmp_path / "run.json").read_text(), parse_float=Decimal)
    streams = {
        (e["pid"], e["tid"])
        for e in document["traceEvents"]
        if e["name"] == "thread_name" and e["args"]["name"].startswith("stream ")
    }
    drawn = Counter(
        document["baseTimeNanoseconds"] + int(e["ts"] * 1000)
        for e in document["traceEvents"]
        if e["ph"] == "X" and (e["pid"], e["tid"]) in streams
    )
    ops = results.trace.gpu_ops.filter(
        (pl.col("ts_ns") < end) & (pl.col("ts_ns") + pl.col("dur_ns") >= start)
    )
    assert 0 < ops.height < results.trace.gpu_ops.height - 20
    assert drawn == Counter(ops["ts_ns"])


def test_the_archive_is_not_cut(folder, capsys):
    assert main(["export", str(folder), "--to", "archive", "--window", "0:1"]) == 2
    assert "which holds whole files" in capsys.readouterr().err


def test_the_command_writes_what_it_is_asked_for_and_never_over_a_trace(
    folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(folder), "--to", "speedscope"]) == 0
    assert capsys.readouterr().out.strip() == "server.speedscope.json"
    assert json.loads((tmp_path / "server.speedscope.json").read_text())["exporter"] == "tracelib"
    trace = folder / "perf.txt.gz"
    assert main(["export", str(folder), "--to", "chrome", "-o", str(trace)]) == 2
    assert "not one of the traces" in capsys.readouterr().err
    assert trace.read_bytes()[:2] == b"\x1f\x8b"


def test_a_full_disk_leaves_no_half_file_and_the_earlier_one(folder, tmp_path, monkeypatch, capsys):
    def full(_, __, target):
        target.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(viewers, "write_chrome", full)
    target = tmp_path / "run.json"
    assert main(["export", str(folder), "--to", "chrome", "-o", str(target)]) == 2
    assert "disk is full" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    target.write_text("earlier")
    assert main(["export", str(folder), "--to", "chrome", "-o", str(target)]) == 2
    assert target.read_text() == "earlier"
