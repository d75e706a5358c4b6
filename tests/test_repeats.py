"""One recording that lies in several files of a folder is read once."""

import gzip
import shutil

import tracelib
from tests.conftest import ROOT

SAMPLE = ROOT / "sample_traces" / "starved"


def test_one_recording_in_several_files_is_read_once(tmp_path):
    """Packed and unpacked, a link, and a copy in a hidden folder: one GPU, as many rows as in one of them."""
    packed = SAMPLE / "worker_TP0.pt.trace.json.gz"
    alone = tracelib.load(packed)
    shutil.copy(packed, tmp_path)
    (tmp_path / "worker_TP0.pt.trace.json").write_bytes(gzip.decompress(packed.read_bytes()))
    (tmp_path / "latest.json").symlink_to(tmp_path / "worker_TP0.pt.trace.json")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    shutil.copy(packed, tmp_path / ".ipynb_checkpoints" / "worker_TP0-checkpoint.json.gz")
    for _ in range(2):  # the second time some come from the cache
        both = tracelib.load(tmp_path)
        assert (both.gpus.height, both.sources.height) == (1, 1)
        assert both.gpu_ops.height == alone.gpu_ops.height
        assert both.slices.height == alone.slices.height
        assert both.health["message"].str.contains("holds the same recording as").sum() == 2
        assert not both.health["message"].str.contains("one id").any()


def test_two_ranks_are_not_taken_for_one_recording(tmp_path):
    for rank in (0, 1):
        shutil.copy(SAMPLE / f"worker_TP{rank}.pt.trace.json.gz", tmp_path)
    both = tracelib.load(tmp_path)
    assert both.gpus.height == both.sources.height == 2
    assert not both.health["message"].str.contains("same recording").any()
