"""Whatever is missing from the files: no rule fails, none claims what only the missing part tells."""

import dataclasses
import json
from itertools import combinations

import jsonschema
import polars as pl
import pytest

from tests.findings.sheet import ANY_SIZE, Sheet
from tracelib.errors import MissingEvents
from tracelib.findings import diagnose, schema, validate

PARTS = ("ops", "slices", "samples", "on_cpu")
#: What only scheduler events tell.
SCHEDULED = {
    "cpu_shortage",
    "quota_throttling",
    "tokenization_starves",
    "single_thread_saturated",
    "busy_wait",
    "gil_contention",
}


def everything():
    """Two ranks that want a CPU, a tokenizer that takes it, polling helpers, long ops, late collectives."""
    sheet = Sheet(ranks=2)
    tokenizer, helper = (
        sheet.thread("api_server", "tokenizer", pid=300),
        sheet.thread("worker", "worker_TP0", pid=100),
    )
    for n in range(4):
        begin = 100 * n
        sheet.doing(sheet.engine, begin, begin + 10, "engine.schedule")
        sheet.doing(tokenizer, begin + 5, begin + 45, "tokenize")
        sheet.runs(tokenizer, begin + 5, begin + 45, cpu=0)
        for rank in (0, 1):
            sheet.doing(rank, begin + 1, begin + 12, "shm_broadcast.dequeue")
            sheet.doing(rank, begin + 12, begin + 70 + rank, "aten::mm", "op")
            sheet.kernel(begin + 72 + 8 * rank, begin + 81, rank=rank)
            sheet.sampled(rank, begin + 50, begin + 70, ("at::x", "/x/libtorch_cpu.so"))
        sheet.runs(0, begin, begin + 5, cpu=0)
        sheet.ready(0, begin + 5, begin + 45, cpu=0)
        sheet.runs(0, begin + 45, begin + 100, cpu=0)
        sheet.runs(1, begin, begin + 100, cpu=1)
        sheet.runs(helper, begin, begin + 30, cpu=2)
        sheet.sampled(helper, begin, begin + 30, ("[unknown]", "/x/libgomp.so.1"))
        sheet.all_reduce([begin + 85.0, begin + 90.0], begin + 95, n)
    return sheet


@pytest.mark.parametrize(
    "gone", [c for r in range(5) for c in combinations(PARTS, r)], ids=lambda gone: "no " + " ".join(gone)
)
def test_any_part_can_be_missing(gone):
    sheet = everything()
    for part in gone:
        getattr(sheet, part).clear()
    if len(gone) == len(PARTS):
        with pytest.raises(MissingEvents):
            sheet.results()
        return
    document = diagnose(sheet.results())
    jsonschema.Draft202012Validator(schema()).validate(json.loads(document.to_json()))
    assert validate(document) == []
    found = {row.id for row in document.findings}
    if "ops" in gone:
        assert not found
        assert document.verdict.state == "insufficient"
    if "on_cpu" in gone:
        assert not found & SCHEDULED
    if not gone:
        assert {"cpu_shortage", "tokenization_starves", "launch_bound"} <= found


def test_gpus_that_did_hardly_anything_have_a_verdict():
    sheet = Sheet()
    for begin in (0, 990):
        sheet.kernel(begin, begin + 1)
    document = diagnose(sheet.results(), thresholds=ANY_SIZE)
    assert document.verdict.state == "insufficient"
    assert "for 99.8 % of GPU time the GPUs were idle" in document.verdict.sentence


def test_what_was_lost_is_the_first_reason_and_makes_no_verdict_sure():
    results = everything().results()
    sure = diagnose(results, thresholds=ANY_SIZE).verdict
    row = (0, "error", "compressed data ends early", "Copy it again.")
    lost = pl.DataFrame([row], schema=results.trace.health.schema, orient="row")
    damaged = dataclasses.replace(
        results, trace=results.trace.replace(health=pl.concat([results.trace.health, lost]))
    )
    said = diagnose(damaged, thresholds=ANY_SIZE).verdict
    first, *rest = said.why
    assert first.startswith(
        "parts of the recording are lost: files are damaged, cut short or cannot be opened"
    )
    assert first.endswith("(1 error under Trace health)")
    assert rest == sure.why
    assert said.confidence == ("medium" if sure.confidence == "high" else sure.confidence)
    assert said.state == sure.state


@pytest.mark.parametrize("shift_ms", [-500, 86_400_000 * 20_000])
def test_no_shift_of_all_clocks_changes_what_is_found(shift_ms):
    before, after = diagnose(everything().results()), diagnose(shifted(everything(), shift_ms))
    kept = ("id", "claim", "exposed_ns", "gain_ns", "confidence", "place")
    assert [[getattr(row, k) for k in kept] for row in before.findings] == [
        [getattr(row, k) for k in kept] for row in after.findings
    ]
    assert before.verdict == after.verdict


def shifted(sheet, shift_ms):
    by = shift_ms * 1_000_000
    for rows in (sheet.ops, sheet.slices, sheet.samples):
        for row in rows:
            row["ts_ns"] += by
    for spans in sheet.on_cpu.values():
        spans[:] = [(start + by, end + by, state, cpu) for start, end, state, cpu in spans]
    return sheet.results()
