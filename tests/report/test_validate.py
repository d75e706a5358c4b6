"""The contract of findings.json: its shape by the shipped schema, its sums by arithmetic."""

import jsonschema
import pytest

from tests.report.example import findings
from tracelib.report.validate import schema, validate

CHECK = jsonschema.Draft202012Validator(schema())
PARTS = [
    "devices",
    "host_time",
    "cpu_time",
    "launches",
    "collectives",
    "ipc",
    "scheduling",
    "requests",
    "capacity",
]


def complaints(document):
    return [error.json_path for error in CHECK.iter_errors(document)]


def test_the_schema_itself_is_sound_and_takes_the_example():
    jsonschema.Draft202012Validator.check_schema(schema())
    assert complaints(findings()) == []
    assert validate(findings()) == []


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_cannot_be_computed_is_null(part):
    assert complaints(findings(**{part: None})) == []
    assert validate(findings(**{part: None})) == []


@pytest.mark.parametrize("part", [*PARTS, "verdict", "window", "abstained", "health"])
def test_no_part_may_be_left_out(part):
    document = findings()
    del document[part]
    assert complaints(document)
    assert f"{part} is missing" in validate(document)


def test_nothing_may_be_added():
    assert complaints(findings(extra=1))
    assert validate(findings(extra=1)) == ["extra is not part of the contract"]
    document = findings()
    document["devices"][0]["temperature"] = 80
    assert complaints(document) == ["$.devices[0]"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda d: d["window"].update(duration_ns=999_999),
            "window: end - start is 1000000 ns, duration_ns says 999999",
        ),
        (
            lambda d: d["devices"][0]["gpu_time_ns"].update(idle=300_001),
            "devices[0]: states add up to 1000001 ns, the window is 1000000",
        ),
        (
            lambda d: d["devices"][1].update(lost_ns=1),
            "devices[1]: lost_ns is 1, idle and collective wait make 400000",
        ),
        (lambda d: d["devices"][1]["causes"].clear(), "devices[1]: causes add up to 0 ns, lost_ns is 400000"),
        (
            lambda d: d["sources"][0].update(file="/data/a.json"),
            "sources[0]: '/data/a.json' is a path, not a file's name",
        ),
    ],
)
def test_each_sum_that_is_off_is_named(change, said):
    document = findings()
    change(document)
    assert said in validate(document)


def test_one_nanosecond_is_enough():
    document = findings()
    document["devices"][0]["causes"][0]["ns"] += 1
    assert validate(document) == ["devices[0]: causes add up to 400001 ns, lost_ns is 400000"]
