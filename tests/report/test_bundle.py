"""A report's folder is written whole or not at all, and never over something that is not ours."""

import pytest

from tracelib.errors import TraceError
from tracelib.report.bundle import MARKER, whole_folder


def entries(path):
    return sorted(entry.name for entry in path.iterdir())


def test_the_folder_appears_when_it_is_whole(tmp_path):
    target = tmp_path / "new" / "report"
    with whole_folder(target) as made:
        (made / "report.html").write_text("x")
        assert not target.exists()
        assert made.parent == target.parent
    assert entries(target) == [MARKER, "report.html"]
    assert entries(target.parent) == ["report"]


def test_an_error_leaves_nothing_behind(tmp_path):
    def fill():
        with whole_folder(tmp_path / "report") as made:
            (made / "report.html").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill()
    assert entries(tmp_path) == []


def test_an_error_leaves_the_report_that_was_there(tmp_path):
    target = tmp_path / "report"
    with whole_folder(target) as made:
        (made / "report.html").write_text("old")

    def fill():
        with whole_folder(target) as made:
            (made / "report.html").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fill()
    assert (target / "report.html").read_text() == "old"
    assert entries(tmp_path) == ["report"]


def test_a_report_is_replaced_whole(tmp_path):
    target = tmp_path / "report"
    with whole_folder(target) as made:
        (made / "summary.md").write_text("old")
    with whole_folder(target) as made:
        (made / "report.html").write_text("new")
    assert entries(target) == [MARKER, "report.html"]
    assert entries(tmp_path) == ["report"]


@pytest.mark.parametrize(("name", "said"), [("summary.md", "did not write"), ("report.html", "was changed")])
def test_a_file_of_one_s_own_in_a_report_is_not_replaced_whatever_its_name(tmp_path, name, said):
    with whole_folder(tmp_path / "report") as made:
        (made / "report.html").write_text("old")
    (tmp_path / "report" / name).write_text("my notes")
    with pytest.raises(TraceError, match=f"{name}.*{said}"), whole_folder(tmp_path / "report"):
        pytest.fail("must not be filled")
    assert (tmp_path / "report" / name).read_text() == "my notes"


def test_files_named_as_ours_in_a_folder_without_our_mark_stay(tmp_path):
    (tmp_path / "summary.md").write_text("my own")
    with pytest.raises(TraceError, match="did not write"), whole_folder(tmp_path):
        pytest.fail("must not be filled")


def test_what_is_not_a_report_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name, said in (
        ("mine", "thesis.tex"),
        ("file", "a file or a link is in the way"),
        ("link", "a file or a link"),
    ):
        with pytest.raises(TraceError, match=said), whole_folder(tmp_path / name):
            pytest.fail("must not be filled")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years"


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(TraceError, match="cannot write there"), whole_folder(tmp_path / "file" / "report"):
        pytest.fail("must not be filled")
