"""What lies beside the traces: cpu.stat, cpu.max, the request log, and what of it reaches the findings."""

import json
import os
import shutil
import statistics
from math import ceil, floor, log2
from pathlib import Path

import polars as pl
import pytest

from tracelib.align.ties import user_offset
from tracelib.analyses.requests import PARTS
from tracelib.analyses.results import analyse
from tracelib.analyses.throttling import Supply, cpu_max
from tracelib.companions import companions
from tracelib.errors import BadParameter, BadTrace
from tracelib.findings import diagnose, validate
from tracelib.loading import read_pid_map
from tracelib.report import asked
from tracelib.report.sections import per_role_table
from tracelib.slice_rules import load_rules


@pytest.fixture(scope="module")
def throttled(run_of):
    return run_of("throttled").folder, run_of("throttled").trace


@pytest.fixture(scope="module")
def diagnosed(throttled):
    folder, run = throttled
    found = companions([folder], run)
    results = analyse(run, requests_log=found.requests, supply=found.supply)
    return results, diagnose(results)


def test_cpu_stat_in_the_folder_is_found_and_counts_what_the_kernel_did(diagnosed):
    """270 periods, 226 of them run out, 46.66 s, 51.67 s of CPU time: the two files' own lines."""
    _, findings = diagnosed
    assert validate(findings) == []
    quota = findings.quota
    assert (quota.nr_periods, quota.nr_throttled) == (270, 226)
    assert (quota.throttled_usec, quota.usage_usec) == (46_664_283, 51_665_291)
    assert quota.throttled_share == pytest.approx(226 / 270)
    assert quota.since == "between two readings"
    assert quota.limited is None
    low, high = quota.cpus_by_counters
    assert low == pytest.approx(51.665291 / 27)
    assert high == pytest.approx(51.665291 / 22.6)
    assert low < 2 < high  # the capture was made with cpu.max "200000 100000"


def test_the_finding_and_the_report_say_it(diagnosed):
    _, findings = diagnosed
    finding = next(f for f in findings.findings if f.id == "quota_throttling")
    assert "226 of 270 periods" in finding.why
    assert "between 1.9 and 2.3 CPUs" in finding.why
    said = per_role_table(findings).html
    assert "226 of 270 periods" in said
    assert "46.7\N{NO-BREAK SPACE}s throttled" in said


def test_cpu_max_tells_the_size(throttled, tmp_path):
    folder, run = throttled
    for name in ("cpu.stat.before", "cpu.stat.after"):
        shutil.copy(folder / name, tmp_path)
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    findings = diagnose(analyse(run, supply=companions([tmp_path], run).supply))
    assert findings.quota.cpus == 2.0
    assert "cpu.max allows 2 CPUs" in next(f.why for f in findings.findings if f.id == "quota_throttling")
    assert "quota is 2 CPUs" in per_role_table(findings).html
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert companions([tmp_path], run).supply.limited is False
    (tmp_path / "run.toml").write_text(
        "[quota]\ncpu_stat_before = 'cpu.stat.before'\ncpu_stat_after = 'cpu.stat.after'\nseconds = 27.0\n"
    )
    assert companions([tmp_path], run).supply.cpus_used == pytest.approx(51.665291 / 27)


def test_without_them_the_quota_is_abstained_from(throttled, tmp_path):
    _, run = throttled
    findings = diagnose(analyse(run, supply=companions([tmp_path], run).supply))
    assert findings.quota is None
    assert "quota" in {a.id for a in findings.abstained}


def test_one_reading_counts_since_the_cgroup_was_made(throttled):
    folder, run = throttled
    supply = companions([], run, cpu_stat=[folder / "cpu.stat.after"]).supply
    assert supply.since == "since the cgroup was made"
    assert supply.counters["nr_periods"] == 270


def test_files_that_cannot_be_used_are_told(throttled, tmp_path):
    folder, run = throttled
    before, after = folder / "cpu.stat.before", folder / "cpu.stat.after"
    with pytest.raises(BadTrace, match="less than before"):
        companions([], run, cpu_stat=[after, before])
    with pytest.raises(BadParameter, match="two: before, after"):
        companions([], run, cpu_stat=[before, after, after])
    with pytest.raises(BadTrace, match="no nr_periods"):
        companions([], run, cpu_stat=[folder / "requests.jsonl"])
    with pytest.raises(BadParameter, match="absent"):
        companions([], run, cpu_stat=[tmp_path / "absent"])
    (tmp_path / "cpu.max").write_text("lots\n")
    with pytest.raises(BadParameter, match="max PERIOD"):
        companions([tmp_path], run)


def test_the_bounds_of_a_quota_by_hand():
    """10 periods of 100 ms, 4 run out, 1.2 s of CPU time: at least 1.2 CPUs, at most 3."""
    counters = {"usage_usec": 1_200_000, "nr_periods": 10, "nr_throttled": 4, "throttled_usec": 1}
    assert Supply(counters=counters).quota_bounds() == pytest.approx((1.2, 3.0))
    assert Supply(counters=counters, period_us=50_000).quota_bounds() == pytest.approx((2.4, 6.0))
    assert Supply(counters={**counters, "nr_throttled": 0}).quota_bounds() is None
    assert Supply(counters={**counters, "burst_usec": 5}).quota_bounds() is None
    for text in ("200000", "0 100000", "200000 0", "a b"):
        with pytest.raises(ValueError, match=r"."):
            cpu_max(text)


# ------------------------------------------------------------------------------------------------- the
# request log
def _wall_ns(folder):
    meta = json.loads((folder / "meta.json").read_text())
    return meta["realtime_ns"] - meta["monotonic_ns"]


def test_a_log_on_the_clock_that_perf_names_is_tied_through_it(throttled):
    folder, run = throttled
    log = companions([folder], run, requests=folder / "requests.jsonl", requests_clock="monotonic").requests
    first = json.loads((folder / "requests.jsonl").read_text().split("\n")[0])
    assert abs(log["arrived"][0] - first["arrived"] - _wall_ns(folder)) < 1_000_000
    assert log["prompt_tokens"][0] == first["prompt_tokens"]
    with pytest.raises(BadParameter, match=r"Did you mean 'monotonic'"):
        companions([folder], run, requests=folder / "requests.jsonl", requests_clock="monotonous")


def test_the_manifest_names_the_log_its_clock_and_the_title(throttled, tmp_path):
    folder, run = throttled
    shutil.copy(folder / "requests.jsonl", tmp_path)
    meta = json.loads((folder / "meta.json").read_text())
    (tmp_path / "run.toml").write_text(
        "title = 'throttled on purpose'\nticket = 'OPS-1'\n[quota]\ncpu_max = '200000 100000'\n"
        "[requests]\nfile = 'requests.jsonl'\nclock = 'monotonic'\n"
        f"[clocks]\nrealtime_ns = {meta['realtime_ns']}\nmonotonic_ns = {meta['monotonic_ns']}\n"
    )
    found = companions([tmp_path], run)
    said = asked({"traces": [str(tmp_path)]})
    assert (said.title, said.ticket) == ("throttled on purpose", "OPS-1")
    assert found.supply.quota_cpus == 2.0
    first = json.loads((folder / "requests.jsonl").read_text().split("\n")[0])
    assert found.requests["arrived"][0] == first["arrived"] + _wall_ns(folder)
    tokens = [
        json.loads(line)["prompt_tokens"] for line in (folder / "requests.jsonl").read_text().splitlines()
    ]
    assert found.supply.mean_input_tokens == pytest.approx(sum(tokens) / len(tokens))
    assert "request log" in found.supply.tokens_from
    assert companions([tmp_path], run, mean_input_tokens=99).supply.mean_input_tokens == 99


def test_a_log_s_clock_is_the_one_by_which_its_requests_fall_into_the_recording(throttled):
    folder, run = throttled
    near = companions([], run, requests=folder / "requests.jsonl")
    named = companions([], run, requests=folder / "requests.jsonl", requests_clock="monotonic")
    assert near.requests.equals(named.requests)
    assert (
        near.taken == "the request log is requests.jsonl, read as JSON; its times are of the monotonic clock"
    )
    assert not named.taken


def test_nanoseconds_since_boot_that_look_like_milliseconds_since_1970_are_told_by_the_recording(
    throttled, tmp_path
):
    _, run = throttled
    ties = run.sources.filter(run.sources["tied_by"].ne_missing("untied"))
    boot = 1_796_000_000_000  # ns, half an hour after boot; as ms it is a day in 2026
    late = run.replace(sources=ties.with_columns(offset_ns=pl.col("first_ns").min() - boot))
    (tmp_path / "log.jsonl").write_text(json.dumps({"id": 0, "arrived": boot, "first_token": boot + 5}))
    near = companions([], late, requests=tmp_path / "log.jsonl")
    assert near.requests["arrived"][0] == ties["first_ns"].min()


def test_a_log_next_to_the_traces_is_read_if_it_is_the_only_one(throttled, tmp_path):
    folder, run = throttled
    first = json.loads((folder / "requests.jsonl").read_text().split("\n")[0])
    for name in ("truth.csv", "requests-of-others.txt", ".requests.jsonl"):
        (tmp_path / name).write_text("no log")
    assert companions([tmp_path], run).requests is None
    assert "requests-of-others.txt was not read as a request log" in companions([tmp_path], run).remarks[0]
    (tmp_path / "client_Requests.jsonl").write_text(json.dumps(first))
    near = companions([tmp_path], run)
    assert near.requests["prompt_tokens"].to_list() == [first["prompt_tokens"]]
    assert near.taken.startswith("the request log is client_Requests.jsonl, found next to the traces")
    assert near.remarks == ()
    shutil.copy(tmp_path / "client_Requests.jsonl", tmp_path / "requests-2.jsonl")
    near = companions([tmp_path], run)
    assert near.requests is None
    assert "client_Requests.jsonl, requests-2.jsonl; --requests FILE says which" in near.remarks[0]


def test_a_log_of_another_time_is_abstained_from_with_the_way_out(throttled, tmp_path):
    _, run = throttled
    (tmp_path / "log.jsonl").write_text('{"id": 0, "arrived": 1, "first_token": 4}')
    log = companions([], run, requests=tmp_path / "log.jsonl").requests
    findings = diagnose(analyse(run, requests_log=log))
    assert findings.requests is None
    reason = next(a.reason for a in findings.abstained if a.id == "requests")
    assert f"none of the {log.height} requests" in reason
    assert "--requests-clock" in reason


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 2"),
        ("[1]", "line 2"),
        ('{"id": 1, "first_token": 5}', "arrived"),
        ('{"id": 1, "arrived": 5, "tokenize_start": 4, "tokenize_end": 6, "first_token": 7}', "arrived <= "),
        ('{"id": 1, "arrived": "x", "tokenize_start": 4, "tokenize_end": 6, "first_token": 7}', "line 2"),
    ],
)
def test_a_line_of_the_log_that_cannot_be_used_is_told_by_number(throttled, tmp_path, line, told):
    _, run = throttled
    good = '{"id": 0, "arrived": 1, "tokenize_start": 2, "tokenize_end": 3, "first_token": 4}'
    (tmp_path / "log.jsonl").write_text(f"{good}\n{line}\n")
    near = companions([], run, requests=tmp_path / "log.jsonl")
    assert near.requests["id"].to_list() == ["0"]
    assert told in near.remarks[0]


def test_a_log_that_is_not_there_is_told(throttled, tmp_path):
    with pytest.raises(BadTrace, match="No such file"):
        companions([], throttled[1], requests=tmp_path / "absent.jsonl")


@pytest.mark.parametrize("name", ["requests", "cpu_stat", "rules", "pid_map"])
@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
def test_a_file_without_an_end_is_refused_before_it_is_read(throttled, tmp_path, name, kind):
    path = tmp_path / "file" if kind != "device" else Path("/dev/zero")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "large":
        path.touch()
        os.truncate(path, (256 << 20) + 1)  # a hole: it takes no disk
    run = throttled[1]
    readers = {
        "rules": load_rules,
        "pid_map": read_pid_map,
        "requests": lambda file: companions([], run, requests=file),
        "cpu_stat": lambda file: companions([], run, cpu_stat=[file]),
    }
    with pytest.raises(BadParameter, match="at most" if kind == "large" else "a regular file"):
        readers[name](path)


def test_a_large_file_next_to_the_traces_is_not_read_unasked(throttled, tmp_path):
    path = tmp_path / "requests.bin"
    path.touch()
    os.truncate(path, (64 << 20) + 1)
    near = companions([tmp_path], throttled[1])
    assert near.requests is None
    assert near.remarks == ("requests.bin is too large to be read unasked; --requests FILE reads it",)


def test_an_offset_beyond_64_bits_is_refused(throttled, tmp_path):
    with pytest.raises(BadParameter, match="requests_offset"):
        companions([], throttled[1], requests_offset=10**23)
    with pytest.raises(BadParameter, match="offsets"):
        user_offset("worker", {"work*": -(10**23)})


def test_the_sum_of_a_request_s_parts_and_the_figures_over_them(throttled):
    """TTFT against the log's own times; quantiles and correlations against Python's statistics module."""
    folder, run = throttled
    log = companions([folder], run, requests=folder / "requests.jsonl", requests_clock="monotonic").requests
    results = analyse(run, requests_log=log)
    rows = results.requests
    said = {str(r["id"]): r for r in map(json.loads, (folder / "requests.jsonl").read_text().splitlines())}
    assert rows.height > 10
    for row in rows.iter_rows(named=True):
        own = said[row["id"]]
        assert row["ttft_ns"] == own["first_token"] - own["arrived"]
        assert row["tokenize_ns"] == own["tokenize_end"] - own["tokenize_start"]
        assert sum(row[part] or 0 for part in PARTS) == row["ttft_ns"]
        assert min(row[part] or 0 for part in PARTS) >= 0
    found = diagnose(results).requests
    ttft = sorted(rows["ttft_ns"].to_list())
    assert found.count == len(ttft)
    assert found.ttft_ns.max == ttft[-1]
    for q, name in ((0.5, "p50"), (0.95, "p95")):  # the nearest rank, one either way
        rank = q * (len(ttft) - 1)
        assert ttft[floor(rank)] <= getattr(found.ttft_ns, name) <= ttft[ceil(rank)]
    for part in found.parts:
        values = rows[f"{part.part}_ns"].to_list()
        if len(set(values)) < 2:
            assert part.correlation_with_ttft is None
            continue
        expected = statistics.correlation(
            [float(v) for v in values], [float(v) for v in rows["ttft_ns"].to_list()]
        )
        assert part.correlation_with_ttft == pytest.approx(expected, abs=1e-9)


def test_the_gpu_s_lost_time_of_each_request_is_shared_out_by_cause(throttled):
    """Each request's causes are the pieces of loss between tokenizer and first token, counted one by one."""
    folder, run = throttled
    log = companions([folder], run, requests=folder / "requests.jsonl", requests_clock="monotonic").requests
    results = analyse(run, requests_log=log)
    gpu = results.lost["gpu"].min()
    pieces = results.lost.filter(pl.col("gpu") == gpu).select("ts_ns", "dur_ns", "cause").rows()
    ends = dict(log.select("id", "tokenize_end").iter_rows())
    for row, request in enumerate(results.requests.iter_rows(named=True)):
        found = dict(results.request_causes.filter(pl.col("row") == row).select("cause", "ns").iter_rows())
        assert sum(found.values()) >= request["gpu_wait_ns"] + request["gpu_idle_ns"]
        begin, end, by_hand = ends[request["id"]], request["first_token_ns"], {}
        for at, length, cause in pieces:
            inside = min(at + length, end) - max(at, begin)
            if inside > 0:
                by_hand[cause] = by_hand.get(cause, 0) + inside
        assert found == by_hand
    said = diagnose(results).requests
    assert said.outside_window == log.height - results.first_tokens.height
    assert sum(c.total_ns for c in said.lost_by_cause) == results.request_causes["ns"].sum()
    assert [c.total_ns for c in said.lost_by_cause] == sorted(
        (c.total_ns for c in said.lost_by_cause), reverse=True
    )


def test_an_id_that_is_used_again_is_another_request(throttled):
    folder, run = throttled
    log = companions([folder], run, requests=folder / "requests.jsonl", requests_clock="monotonic").requests
    same = log.with_columns(id=pl.lit("x"))
    one, other = (analyse(run, requests_log=each).requests.drop("id") for each in (log, same))
    assert one.equals(other)


def test_capacity_takes_the_quota_and_the_log_s_input_lengths(throttled, tmp_path):
    """Two GPUs; the rule worked out from the log's prompt_tokens; the quota of the capture."""
    folder, run = throttled
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    found = companions([tmp_path], run, requests=folder / "requests.jsonl", requests_clock="monotonic")
    capacity = diagnose(analyse(run, requests_log=found.requests, supply=found.supply)).capacity
    tokens = [
        json.loads(line)["prompt_tokens"] for line in (folder / "requests.jsonl").read_text().splitlines()
    ]
    rows = {row.estimate: row for row in capacity.estimates}
    assert rows["article's rule"].cores == pytest.approx(2 * (2 + log2(statistics.mean(tokens) / 1024)))
    assert "request log" in rows["article's rule"].source
    assert (rows["cores that the server had"].cores, rows["cores that the server had"].source) == (
        2.0,
        "its CPU quota (cpu.max)",
    )
    assert all(row.source and (row.cores is None) == bool(row.why_not) for row in rows.values())
    assert rows["measured demand, p50"].cores <= rows["measured demand, p99"].cores
    spin = rows["of it busy polling, mean"].cores
    assert rows["demand without busy polling, mean"].cores == pytest.approx(
        rows["measured demand, mean"].cores - spin
    )


def test_gpu_idle_of_a_request_is_the_time_in_which_nothing_ran(throttled):
    """A second computation over plain lists: no operation on GPU 0 from a step's arrival to its end."""
    folder, run = throttled
    log = companions([folder], run, requests=folder / "requests.jsonl", requests_clock="monotonic").requests
    results = analyse(run, requests_log=log)
    ops = sorted(
        (start, start + dur)
        for start, dur in run.gpu_ops.filter(pl.col("gpu") == run.gpu_ops["gpu"].min())
        .select("ts_ns", "dur_ns")
        .iter_rows()
    )
    for row in results.requests.iter_rows(named=True):
        at, until, idle = (
            row["tokenized_ns"] + row["queue_ns"] + row["unknown_ns"] + row["broadcast_ns"],
            row["first_token_ns"] - row["back_ns"],
            0,
        )
        for start, end in ops:
            if start >= until:
                break
            idle += max(0, start - at)
            at = max(at, end)
        idle += max(0, until - at)
        assert row["gpu_idle_ns"] == idle
