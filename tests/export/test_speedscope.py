"""What speedscope is given balances, and weighs what was sampled."""

import json

import polars as pl
import pytest

from tracelib.export.viewers import write_speedscope
from tracelib.words import ROLES


def test_speedscope_s_profiles_balance_and_weigh_what_was_sampled(results, findings, tmp_path):
    write_speedscope(results, findings, tmp_path / "run.json")
    document = json.loads((tmp_path / "run.json").read_text())
    frames = document["shared"]["frames"]
    for profile in document["profiles"]:
        if profile["type"] == "sampled":
            (role,) = [r for r in ROLES if profile["name"] == f"CPU samples: {ROLES[r].name}"]
            own = results.trace.samples.join(
                results.trace.threads.filter(pl.col("role") == role), on="thread"
            )
            assert (
                sum(profile["weights"])
                == own.filter(pl.col("stack").is_not_null())["period"].sum()
                == profile["endValue"]
            )
            assert all(0 <= frame < len(frames) for stack in profile["samples"] for frame in stack)
            continue
        pending = []
        at = profile["startValue"]
        for event in profile["events"]:
            assert event["at"] >= at
            at = event["at"]
            pending.append(event["frame"]) if event["type"] == "O" else (
                pending.pop() == event["frame"] or pytest.fail("crossed")
            )
        assert pending == []
        assert at == profile["endValue"]
    assert {p["type"] for p in document["profiles"]} == {"sampled", "evented"}
