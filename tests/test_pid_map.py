"""A map of ids, as people and scripts write it."""

import pytest

from tracelib.errors import BadTrace
from tracelib.loading import read_pid_map


def test_a_map_is_read_as_people_and_the_kernel_write_it(tmp_path):
    path = tmp_path / "map"
    path.write_text(
        "# of the pod\n1 4155\n\n7   4160  # its tokenizer\nworker_TP1* 1 4290\n"
        "/proc/4301/task/4302/status:NSpid:\t4302\t12\t3\n/proc/88/task/88/status:NSpid:\t88\n"
        "NSpid:\t90\t90\n"
    )
    assert read_pid_map(path) == {"*": {1: 4155, 7: 4160, 3: 4302, 90: 90}, "worker_TP1*": {1: 4290}}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1", "not an entry"),
        ("a b", "not an entry"),
        ("1 2 3 4", "not an entry"),
        ("NSpid: x", "not an entry"),
        ("\N{SUPERSCRIPT TWO} 1", "not an entry"),
        ("1 99999999999999999999", "not an entry"),
        ("1 5", "according to another line"),
    ],
)
def test_a_line_that_is_not_an_entry_is_named_by_its_number(tmp_path, line, reason):
    path = tmp_path / "map"
    path.write_text(f"1 4\n{line}\n")
    with pytest.raises(BadTrace, match=rf"line 2.*{reason}"):
        read_pid_map(path)
    with pytest.raises(BadTrace, match="No such file"):
        read_pid_map(tmp_path / "absent")
