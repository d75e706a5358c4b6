"""Parameters stand once: what is written out elsewhere says the same; values are read as people type them."""

import dataclasses
import inspect
import os
from pathlib import Path

import pytest

from tracelib.analyses.results import analyse
from tracelib.companions import companions
from tracelib.errors import BadParameter
from tracelib.loading import load
from tracelib.options import OPTIONS, Options, compared, injected, name_of, seconds

#: Parameters that are about the loading or the loaded, not about the run.
OWN = {
    load: {"paths", "host", "progress", "cache"},
    companions: {"run"},
    analyse: {
        "trace",
        "window_seconds",
        "rules_path",
        "requests_log",
        "supply",
    },  # files and texts are read by then
}


def test_each_field_has_its_words():
    assert list(OPTIONS) == [each.name for each in dataclasses.fields(Options)]


@pytest.mark.parametrize("function", OWN, ids=lambda function: function.__name__)
def test_functions_for_users_take_the_options_by_their_names(function):
    arguments = inspect.signature(function).parameters
    assert set(arguments) - OWN[function] <= set(OPTIONS)
    for name in set(arguments) - OWN[function] - {"traces"}:
        default = arguments[name].default
        assert default == OPTIONS[name].default or (not default and not OPTIONS[name].default), name
        assert name in function.__doc__


def test_each_option_of_a_report_reaches_the_run():
    """What neither `load` nor `companions` takes is read by name where a run is opened."""
    by_name = {"title", "ticket", "window", "window_of", "rules", "redact", "cpu_bound"}
    taken = {*Options().arguments_of(load), *Options().arguments_of(companions), *by_name}
    assert set(Options().taken_by("report")) == taken


def test_values_are_of_the_option_s_type():
    options = Options.of(
        {"traces": "run1", "cpu_stat": (Path("a"), "b"), "roles": None, "x": 1, "cpu_bound": 1}
    )
    assert options == Options(traces=["run1"], cpu_stat=["a", "b"], cpu_bound=1)
    for name, value in (
        ("requests", os),
        ("window", 3),
        ("redact", "no"),
        ("redact", True),
        ("requests_offset", 1.5),
    ):
        with pytest.raises(
            BadParameter, match=f"{name}=.*Allowed: (a text|strict, standard, off|a whole number)"
        ):
            Options.of({name: value})


def test_files_are_renamed_wherever_they_stand():
    options = Options(traces=["a", "b"], pid_map="c", window="1:2")
    assert options.files() == ["a", "b", "c"]
    assert options.with_files(str.upper) == Options(traces=["A", "B"], pid_map="C", window="1:2")


def test_a_report_names_files_and_not_paths_and_only_what_was_said():
    options = Options(traces=["/data/a", "b"], rules="/etc/rules.toml", title="x", redact="off")
    shown = {"traces": ["a", "b"], "rules": "rules.toml", "redact": "off", "cpu_bound": 0.15}
    assert options.shown() == shown


def test_runs_are_compared_each_with_its_own_log():
    values = {"runs": {"2": "a", "16": ["b", "c"]}, "requests": {"2": "log"}, "requests_offsets": {"2": 5}}
    runs = compared({**values, "window": "1:2", "cores": {}})
    assert runs["2"] == Options(traces=["a"], requests="log", requests_offset=5, window="1:2")
    assert runs["16"] == Options(traces=["b", "c"], window="1:2")
    with pytest.raises(BadParameter, match=r"3.*2, 16"):
        compared({**values, "requests": {"3": "log"}})


@pytest.mark.parametrize(
    ("name", "value"),
    [("cpu_bound", 15), ("cpu_bound", -0.1), ("cpu_bound", float("nan")), ("mean_input_tokens", -1)],
)
def test_numbers_that_make_no_sense_are_refused(name, value):
    with pytest.raises(BadParameter, match=f"{name}=.*a number from 0 to"):
        Options.of({name: value})


def test_a_parameter_that_papermill_set_and_the_notebook_does_not_have_is_refused():
    """papermill puts what it sets into a cell behind the parameters', and runs on with the default."""
    first, typo = 'traces: list = []\nwindow: str = ""', '# Parameters\ntrace = "run1"\n'
    with pytest.raises(BadParameter, match=r"trace.*Did you mean 'traces'"):
        injected({"In": ["", first, typo, "setup"], "trace": "run1"})
    fine = {"In": ["", first, '# Parameters\ntraces = ["run1"]\n', "setup"], "traces": ["run1"]}
    assert injected(fine) is fine
    assert injected({"traces": []}) == {"traces": []}


def test_without_traces_nothing_is_reported():
    with pytest.raises(BadParameter, match="traces"):
        load(Options().traces)
    with pytest.raises(BadParameter, match="runs"):
        compared({"runs": {}})


def test_windows():
    assert seconds("") is None
    assert seconds("0.5:2") == (0.5, 2.0)
    for text in ("2", "2:1", "a:b", "1:2:3", "1:1", "-1:2", "0:inf", "nan:2"):
        with pytest.raises(BadParameter):
            seconds(text)


def test_names():
    assert name_of("/data/run-7") == "run-7"
    assert name_of(["/d/a", "/d/b", "/d/c", "/d/d", "/d/e"]) == "a, b, c and 2 more"
