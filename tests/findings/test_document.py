"""The contract of findings.json: its shape by the shipped schema, its sums by arithmetic."""

import copy
import json
import pickle
import re
from dataclasses import replace

import jsonschema
import msgspec
import polars as pl
import pytest

from tests.conftest import ROOT
from tests.findings.sheet import MS, Sheet
from tests.report.example import findings, plain, typed
from tracelib import analyse, load
from tracelib.analyses.requests import FIRST_TOKENS, REQUESTS
from tracelib.analyses.requests import PARTS as REQUEST_PARTS
from tracelib.findings import diagnose, read, schema, validate
from tracelib.findings.requests import requests_part, without_log
from tracelib.report import sections

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
    assert complaints(plain()) == []
    assert validate(findings()) == []


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_cannot_be_computed_is_null(part):
    assert complaints(plain(**{part: None})) == []
    assert validate(findings(**{part: None})) == []


@pytest.mark.parametrize("part", [*PARTS, "verdict", "window", "abstained", "health"])
def test_no_part_may_be_left_out(part):
    document = plain()
    del document[part]
    assert complaints(document)
    with pytest.raises(msgspec.ValidationError, match=f"missing required field `{part}`"):
        read(json.dumps(document))


def test_nothing_may_be_added():
    assert complaints(plain(extra=1))
    with pytest.raises(msgspec.ValidationError, match="unknown field `extra`"):
        read(json.dumps(plain(extra=1)))
    document = plain()
    document["devices"][0]["temperature"] = 80
    assert complaints(document) == ["$.devices"]


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
    document = plain()
    change(document)
    assert said in validate(typed(document))


def test_one_nanosecond_is_enough():
    document = plain()
    document["devices"][0]["causes"][0]["ns"] += 1
    assert validate(typed(document)) == ["devices[0]: causes add up to 400001 ns, lost_ns is 400000"]


def test_what_is_written_is_what_is_read():
    assert json.loads(findings().to_json()) == plain()
    assert list(json.loads(findings().to_json())) == list(schema()["properties"])
    assert read(findings().to_json()) == findings()


# -------------------- as Jupyter shows it
def test_the_document_the_verdict_and_a_finding_show_themselves():
    document = findings()
    page = document._repr_html_()
    assert sections.verdict(document).html in page
    assert sections.findings_list(document).html in page
    times = re.findall(r"[+]\d+\.\d{6}\xa0s", document.findings[0]._repr_html_())
    assert times
    assert set(times) <= set(re.findall(r"[+]\d+\.\d{6}\xa0s", page))  # after the window's start, too
    shown = msgspec.structs.replace(document.verdict, sentence="<b>x</b>")._repr_html_()
    assert "&lt;b&gt;x" in shown
    assert "high confidence" in shown


def test_what_diagnose_returns_is_such_a_document():
    made = diagnose(analyse(load(ROOT / "sample_traces" / "launch_nsys")))
    for part in (made, made.verdict, *made.findings):
        assert part._repr_html_().startswith("<")
    assert made.findings
    assert complaints(json.loads(made.to_json())) == []
    assert read(made.to_json()) == made
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made


@pytest.mark.parametrize(("number", "slow"), [(2, "max 400 ms"), (19, "max 400 ms"), (20, "p95 200 ms")])
def test_of_few_requests_the_slow_end_is_their_maximum(number, slow):
    """All but one take 200 ms. Of the API server's half of it 71 % are without a CPU, 37 % tokenizing."""
    rows = [
        dict.fromkeys(REQUEST_PARTS, 0)
        | {"id": f"{n}", "arrived_ns": 0, "ttft_ns": ttft, "first_token_ns": ttft, "gpu_useful_ns": ttft // 2}
        | {"api_server_ns": ttft // 2, "api_no_cpu_ns": ttft * 71 // 200}
        | {"api_tokenizing_ns": ttft * 37 // 200}
        for n, ttft in enumerate([400 * MS] + [200 * MS] * (number - 1))
    ]
    sheet = Sheet()
    sheet.kernel(0, 1)
    whole = pl.DataFrame(rows, schema=REQUESTS)
    came = whole.select(list(FIRST_TOKENS))
    said = requests_part(replace(sheet.results(), requests=whole, first_tokens=came))
    said, told = said.sentence, said.detail
    assert said.startswith(f"Time to first token of {number} requests: p50 200 ms, {slow}. On average: ")
    assert (
        "For 71 % of the API server's part one of its threads was ready and had no CPU; for 37 % a prompt "
        "was being tokenized (the two may overlap)." in told
    )


def test_the_time_to_first_token_is_of_all_that_had_it_in_the_window_its_parts_of_those_that_lie_in_it():
    """Two requests of 100 ms lie in the window whole; two of 300 ms had arrived before it."""
    rows = [
        dict.fromkeys(REQUEST_PARTS, 0)
        | {"id": f"{n}", "arrived_ns": n, "first_token_ns": n + 100 * MS, "ttft_ns": 100 * MS}
        | {"gpu_useful_ns": 100 * MS}
        for n in range(2)
    ]
    whole = pl.DataFrame(rows, schema=REQUESTS)
    before = whole.select(arrived_ns=pl.col("arrived_ns") - 200 * MS, first_token_ns=pl.col("first_token_ns"))
    before = before.with_columns(ttft_ns=pl.col("first_token_ns") - pl.col("arrived_ns"))
    sheet = Sheet()
    sheet.kernel(0, 1)
    results = replace(
        sheet.results(),
        requests=whole,
        first_tokens=pl.concat([before, whole.select(list(FIRST_TOKENS))]),
        requests_outside={"whose first token came after the window": 3},
    )
    said = requests_part(results)
    assert said.sentence == (
        "Time to first token of the 4 requests that had it in the window: p50 100 ms, max 300 ms. "
        "On average of the 2 that also arrived in it (p50 100 ms, max 100 ms): 100 % GPU useful."
    )
    assert said.detail == "Not counted: 3 whose first token came after the window."
    assert (said.count, said.whole, said.outside_window, said.ttft_ns.max) == (4, 2, 3, 300 * MS)
    alone = requests_part(replace(results, requests=whole.clear()))
    assert (alone.count, alone.whole, alone.parts) == (4, 0, None)
    assert "where their time went is not known" in alone.sentence


def test_without_a_log_the_trace_says_what_it_shows_of_requests():
    """Three steps of 4 ms take in 2 prompts of 100 tokens, one decodes 5 answers; 6 ms are tokenization."""
    sheet = Sheet()
    for n in range(4):
        at = 10.0 * n
        sheet.kernel(at, at + 5, call=(at - 0.02, at - 0.01))
        name = "execute_context_2(100)_generation_0(0)" if n < 3 else "execute_context_0(0)_generation_5(5)"
        sheet.doing(sheet.workers[0], at, at + 4, name, "annotation")
    sheet.doing(sheet.api, 2, 8, "tokenize")
    results = sheet.results()
    head, prompts, depth, tokenizer = without_log(results)
    assert head.startswith("Without a request log")
    assert prompts.startswith(
        "3 of a worker's 4 steps took in prompts: 6 prompts, whole or in part, of 300 tok"
    )
    assert "in such a step for 4.00 ms" in prompts
    assert depth.startswith(
        "A step decoded 0 answers at the median, 5 at most. 3 steps had as many tokens as"
    )
    assert tokenizer.startswith("Tokenizers were at work for 6.00 ms, ")
    unnamed = replace(results, step_tokens=results.step_tokens.clear())
    assert without_log(unnamed) == [head, tokenizer]
