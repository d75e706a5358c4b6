"""GPU samples."""

import os
import stat
import time

from tracelib.record.gpu import Gpu
from tracelib.record.processes import alive


def test_gpus_are_sampled_until_they_are_stopped(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text('#!/bin/sh\necho "$*"\nwhile sleep 0.05; do echo "12:00:00, 0, 7 %"; done\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    step = Gpu(tmp_path)
    step.start()
    limit = time.monotonic() + 20
    while (tmp_path / "gpu.csv").read_text().count("7 %") < 2 and time.monotonic() < limit:
        time.sleep(0.05)
    assert alive(step.handle)
    step.stop()
    assert not alive(step.handle)
    text = (tmp_path / "gpu.csv").read_text()
    assert text.startswith("--query-gpu=timestamp,index,utilization.gpu")
    assert text.count("7 %") >= 2
