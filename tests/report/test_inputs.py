"""What people type: windows, names, and paths that a notebook may keep."""

import os
from pathlib import Path

import pytest

from tracelib.cli import default_folder
from tracelib.errors import BadParameter
from tracelib.report.inputs import given, name_of, portable, seconds


def test_windows():
    assert seconds("") is None
    assert seconds("0.5:2") == (0.5, 2.0)
    for text in ("2", "2:1", "a:b", "1:2:3", "1:1"):
        with pytest.raises(BadParameter):
            seconds(text)


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


def test_names():
    assert name_of("/data/run-7") == "run-7"
    assert name_of(["/d/a", "/d/b", "/d/c", "/d/d", "/d/e"]) == "a, b, c and 2 more"
    assert given(traces=["/data/a", "b"], rules="/etc/rules.toml", title="", roles={}) == {
        "traces": ["a", "b"],
        "rules": "rules.toml",
    }


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("INC-42", "INC-42"),
        ("../../etc", "etc"),
        ("a b/c;$(x)", "a-b-c-x"),
        ("..", "report"),
        ("\u202e", "report"),
    ],
)
def test_the_default_folder_stays_below_reports(name, folder):
    assert default_folder(name) == Path("reports") / folder
