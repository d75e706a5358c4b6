"""A user's own rules: read, checked, and put before tracelib's."""

import pytest

from tracelib.errors import BadParameter, BadTrace
from tracelib.slice_rules import CAUSES, load_rules


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("[[slice]]\nname = '('\ncause = 'ipc'", BadTrace, "not a valid regular expression"),
        ("[[slice]]\nname = 'x'\ncause = 'tokenisation'", BadParameter, "Did you mean 'tokenization'"),
        ("[[slice]]\nname = 'x'\ncuase = 'ipc'", BadParameter, "Did you mean 'cause'"),
        ("[[slice]]\nname = 'x'\nweak = 'yes'", BadParameter, "bool"),
        ("[[slice]]\nname = 'x'\ncategory = ['pyhton']", BadParameter, "Did you mean 'python'"),
        ("[[step]]\nname = '(?P<prefil>[0-9]+)'", BadParameter, "Did you mean 'prefill'"),
        ("[[slice]]\ncause = 'ipc'", BadParameter, "name"),
        ("[[stack]]\ncause = 'ipc'", BadParameter, "symbol or library"),
        ("[[slices]]\nname = 'x'", BadParameter, "Did you mean 'slice'"),
        ("[[slice", BadTrace, "not valid TOML"),
        ("slice = 5", BadParameter, "[[slice]] before each rule"),
        ("slice = " + "[" * 5000, BadTrace, "nested too deep"),
    ],
)
def test_mistakes_in_a_users_rules(tmp_path, text: str, error: type[Exception], says: str) -> None:
    extra = tmp_path / "mine.toml"
    extra.write_text(text)
    with pytest.raises(error) as caught:
        load_rules(extra)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_rules_file(tmp_path) -> None:
    with pytest.raises(BadTrace, match="rules"):
        load_rules(tmp_path / "absent.toml")


def test_own_rules_are_sound() -> None:
    rules = load_rules()
    assert {r.cause for r in rules.slices} | {r.cause for r in rules.stacks} <= {None, *CAUSES}
    assert all(r.cause != "spin" for r in rules.slices), "spin is of CPU time, not of lost GPU time"
