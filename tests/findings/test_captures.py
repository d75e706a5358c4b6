"""What the reference captures must lead to, by what their README and their own logs say of them."""

import json

import jsonschema
import polars as pl
import pytest

from tracelib.findings import schema, validate

pytestmark = pytest.mark.corpus


@pytest.mark.parametrize(("name", "first"), [("starved", "cpu_shortage"), ("throttled", "quota_throttling")])
def test_lack_of_cpus_is_what_to_fix_first(run_of, name, first):
    rows = run_of(name).document.findings
    assert rows[0].id == first
    assert rows[0].place.startswith("First, because it needs no change to the server")
    assert {"cpu_shortage", "quota_throttling"} & {row.id for row in rows} == {first}


def test_no_cpu_is_missed_where_there_were_sixteen(run_of):
    """Idle OpenMP threads do poll for 4 ms on CPUs that launching threads want, but that costs little."""
    found = {row.id: row.exposed_share for row in run_of("healthy").document.findings}
    assert not found.keys() & {"cpu_shortage", "quota_throttling", "tokenization_starves"}
    assert found.get("busy_wait", 0) < 0.015


def test_the_verdict_counts_the_cpus_that_the_run_was_given(run_of, captures):
    given = json.loads((captures / "starved" / "meta.json").read_text())["cpus"]
    assert (
        f"the server's {len(given)} CPUs (of the host's 32) were all busy"
        in run_of("starved").document.verdict.sentence
    )


def test_the_quota_is_sized_from_its_stops(run_of):
    """`cpu.max` was 200000 100000 (the captures' README): two CPUs."""
    used = run_of("throttled").results.quota_use["cpus"]
    assert used.len() >= 10
    assert used.median() == pytest.approx(2.0, rel=0.05)


def test_who_ran_instead_adds_up_to_the_shortage_and_is_mostly_the_tokenizers(run_of):
    """With two CPUs and six tokenizer threads; the names are the threads' own."""
    results = run_of("starved").results
    short = results.lost.filter(pl.col("cpu_state") == "runnable")
    assert results.cpu_contention["dur_ns"].sum() == short["dur_ns"].sum()
    names = results.cpu_contention.join(
        results.trace.threads.select(by="thread", name="name"), on="by", how="left"
    )
    tokenizers = names.filter(pl.col("name") == "tokenizer")["dur_ns"].sum()
    assert tokenizers > 0.5 * short["dur_ns"].sum()


@pytest.mark.parametrize("name", ["starved", "throttled", "healthy"])
def test_polling_never_exceeds_the_time_on_a_cpu(run_of, name):
    load = run_of(name).results.thread_load
    assert (load["spinning_ns"] <= load["running_ns"]).all()
    assert (load["working_ns"] + load["spinning_ns"] == load["running_ns"]).all()
    assert load["running_ns"].max() <= run_of(name).results.window.duration_ns


@pytest.mark.parametrize("name", ["starved", "throttled", "healthy"])
def test_each_finding_is_complete_and_the_document_keeps_its_schema(run_of, name):
    document = run_of(name).document
    jsonschema.Draft202012Validator(schema()).validate(json.loads(document.to_json()))
    assert validate(document) == []
    for row in document.findings:
        assert row.evidence, row.id
        assert all((row.claim, row.why, row.disproof, row.advice, row.verify, row.place)), row.id
        assert row.bound_ns is None or 0 <= row.bound_ns <= row.exposed_ns, row.id
        assert (row.gain_ns is None) == (row.bound_ns is None), row.id
        assert row.gain_ns is None or (row.replay is None) == (row.not_replayed is not None), row.id
