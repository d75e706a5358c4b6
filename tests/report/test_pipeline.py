"""Paths that a report's notebook may keep."""

import os
from pathlib import Path

from tracelib.report.pipeline import portable


def test_a_path_is_named_from_the_folder_and_leads_back(tmp_path):
    (tmp_path / "out").mkdir()
    trace = tmp_path / "in" / "a.json"
    trace.parent.mkdir()
    trace.write_text("x")
    name = portable(str(trace), tmp_path / "out")
    assert name == "../in/a.json"
    assert (tmp_path / "out" / name).read_text() == "x"


def test_links_on_the_way_are_resolved_the_file_s_own_name_stays(tmp_path):
    (tmp_path / "deep" / "out").mkdir(parents=True)
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "blob").write_text("x")
    (tmp_path / "real" / "trace.json").symlink_to("blob")
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "out")
    name = portable(str(tmp_path / "real" / "trace.json"), tmp_path / "link")
    assert Path(name).name == "trace.json"
    assert Path(os.path.realpath(tmp_path / "link"), name).read_text() == "x"


def test_a_file_in_the_home_directory_is_named_without_it(tmp_path, monkeypatch):
    home = tmp_path / "home" / "alice"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    assert portable(str(home / "traces" / "a"), tmp_path / "out") == "~/traces/a"
    assert portable(str(home / "traces" / "a"), home / "reports") == "../traces/a"
