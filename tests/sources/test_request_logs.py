"""Each form of a request log, as its writer writes it, and what cannot be used of one."""

from __future__ import annotations

import gzip
import json

import polars as pl
import pytest

from tracelib.errors import BadTrace
from tracelib.sources.request_logs import read_request_log

EPOCH = 1_796_084_957_889_918_525
SECOND = 10**9


def read(tmp_path, content, **how):
    path = tmp_path / "requests"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_request_log(path, **how)


def times(log):
    return list(log.rows.select("id", "arrived", "first_token").iter_rows())


LINE = {"id": "a", "arrived": EPOCH, "first_token": EPOCH + 247_000_000, "prompt_tokens": 1712}
RIGHT = [("a", EPOCH, EPOCH + 247_000_000)]


def test_lines_of_json_a_list_and_a_packed_file(tmp_path):
    for content in (
        json.dumps(LINE),
        json.dumps(LINE) + "\n\n",
        json.dumps([LINE]),
        gzip.compress(json.dumps(LINE).encode()),
    ):
        log = read(tmp_path, content)
        assert times(log) == RIGHT
        assert log.rows["prompt_tokens"].to_list() == [1712]
        assert (log.form, log.clock, log.remarks) == ("JSON", "realtime", ())


def test_csv_and_parquet(tmp_path):
    text = f"request_id,arrival_time,ttft_ms,input_tokens\na,{EPOCH},247,1712\n"
    assert times(read(tmp_path, text)) == RIGHT
    pl.DataFrame([LINE]).write_parquet(tmp_path / "requests")
    assert times(read_request_log(tmp_path / "requests")) == RIGHT


@pytest.mark.parametrize(
    ("arrived", "ns"),
    [
        (1_796_084_957, 1_796_084_957 * SECOND),
        (1_796_084_957.5, 1_796_084_957_500_000_000),
        (1_796_084_957_889, 1_796_084_957_889_000_000),
        (1_796_084_957_889_918, 1_796_084_957_889_918_000),
        ("2026-12-01T09:00:00Z", 1_796_115_600 * SECOND),
        ("2026-12-01T10:00:00.25+01:00", 1_796_115_600 * SECOND + 250_000_000),
        (45_744_231_666, 45_744_231_666),  # of another clock: whole ns
        (45.5, 45_500_000_000),  # or seconds with a fraction
    ],
)
def test_the_unit_shows(tmp_path, arrived, ns):
    log = read(tmp_path, json.dumps({"id": 1, "arrived": arrived, "ttft_ms": 2}))
    assert times(log) == [("1", ns, ns + 2_000_000)]


def test_whole_numbers_of_another_clock_are_ns_even_where_they_look_like_ms_since_1970(tmp_path):
    """A machine that has been up for half an hour."""
    line = json.dumps({"id": 1, "arrived": 1_796_084_957_889, "ttft_ms": 2})
    assert times(read(tmp_path, line, epoch=False))[0][1] == 1_796_084_957_889


def test_opentelemetry_spans_of_a_server(tmp_path):
    """As the collector's file exporter writes vLLM's: a batch of spans a line, int64 as text."""
    span = {
        "name": "llm_request",
        "spanId": "00f067aa0ba902b7",
        "startTimeUnixNano": str(EPOCH),
        "endTimeUnixNano": str(EPOCH + SECOND),
        "attributes": [
            {"key": "gen_ai.request.id", "value": {"stringValue": "a"}},
            {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.247}},
            {"key": "gen_ai.latency.time_in_queue", "value": {"doubleValue": 0.1}},
            {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "1712"}},
        ],
    }
    other = {"name": "GET /health", "startTimeUnixNano": str(EPOCH), "endTimeUnixNano": str(EPOCH)}
    batch = {"resourceSpans": [{"scopeSpans": [{"spans": [other, span]}]}]}
    log = read(tmp_path, json.dumps(batch) + "\n" + json.dumps({"resourceSpans": []}) + "\n")
    assert times(log) == RIGHT
    assert log.form == "OpenTelemetry spans"
    assert log.rows.select("scheduled", "finished", "prompt_tokens").row(0) == (
        EPOCH + 100_000_000,
        EPOCH + SECOND,
        1712,
    )


def test_a_load_generator_s_detailed_result(tmp_path):
    result = {
        "ttfts": [0.25, 0.0],
        "start_times": [185.5, 186.0],
        "input_lens": [1712, 10],
        "errors": ["", "Connection reset"],
    }
    log = read(tmp_path, json.dumps(result))
    assert times(log) == [("0", 185_500_000_000, 185_750_000_000)]
    assert (log.form, log.clock) == ("vllm bench serve", "monotonic")
    assert log.remarks == ("1 request of the log failed",)
    del result["start_times"]
    with pytest.raises(BadTrace, match="no start_times"):
        read(tmp_path, json.dumps(result))


def test_genai_perf_s_profile_export(tmp_path):
    request = {"timestamp": EPOCH, "response_timestamps": [EPOCH + 247_000_000, EPOCH + SECOND]}
    log = read(tmp_path, json.dumps({"experiments": [{"experiment": {}, "requests": [request]}]}))
    assert times(log) == [("1", EPOCH, EPOCH + 247_000_000)]
    assert log.rows["finished"].to_list() == [EPOCH + SECOND]


def test_what_cannot_be_used_is_counted_and_named(tmp_path):
    lines = [
        json.dumps(LINE),
        "not JSON",
        json.dumps({"id": "b", "arrived": EPOCH}),
        json.dumps({**LINE, "status": 503}),
        json.dumps({**LINE, "first_token": EPOCH - 1}),
        '{"id": "c", "arr',
    ]
    log = read(tmp_path, "\n".join(lines))
    assert times(log) == RIGHT
    assert log.remarks == (
        "3 lines of the request log left out, the first at line 2: not a JSON object",
        "1 request of the log failed",
        "1 request of the log had no first token yet",
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "neither JSON nor CSV"),
        ("a log of something\n", "neither JSON nor CSV"),
        (json.dumps({"id": "a", "first_token": 3}), "no column 'arrived'"),
        (json.dumps({"arrived": 1, "first_token": 3}), "no column 'id'"),
        (json.dumps({"id": "a", "arrived": 1}), "1 request, none with a first token"),
        ("id,arrived,first_token\na,yesterday,3\n", "yesterday"),
        (b"PAR1, and no more", "Parquet"),
        (b"\x1f\x8bgz", "Not a gzipped file|Compressed file|stream"),
    ],
)
def test_a_log_of_which_nothing_can_be_used_says_why(tmp_path, content, why):
    with pytest.raises(BadTrace, match=why):
        read(tmp_path, content)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadTrace, match="No such file"):
        read_request_log(tmp_path / "none")
