"""Each form of a request log, as its writer writes it, and what cannot be used of one."""

from __future__ import annotations

import gzip
import json

import polars as pl
import pytest

from tests.conftest import ROOT
from tracelib.errors import BadTrace
from tracelib.sources.request_logs import TIMES, read_request_log

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
        gzip.compress(json.dumps(LINE).encode(), mtime=0),
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


FILES = ROOT / "tests" / "sources" / "request_logs"


def test_aiperf_s_own_records():
    """AIPerf 0.13 against a server that answers its third request with 503; times by its own first line."""
    log = read_request_log(FILES / "aiperf.jsonl")
    assert (log.form, log.clock) == ("AIPerf", "realtime")
    assert log.remarks == ("1 request of the log failed",)
    assert log.rows.height == 2
    assert log.rows.row(0, named=True) == {
        "id": "28c71f40-151b-4bae-a929-fb078b7ecf4d",
        "arrived": 1796129254155133806,
        "tokenize_start": None,
        "tokenize_end": None,
        "scheduled": None,
        "first_token": 1796129254155133806 + 301_566_649,
        "finished": 1796129254546763745,
        "prompt_tokens": 50,
    }


@pytest.mark.parametrize("notation", ["text", "json"])
def test_sglang_s_own_request_log(notation):
    """Written by the RequestLogger of SGLang 0.5.23: one request whole, one without metrics, one as older
    releases tell it; the answers' texts look like fields.
    """
    log = read_request_log(FILES / f"sglang_{notation}.log")
    assert (log.form, log.clock) == ("SGLang's request log", "realtime")
    assert len(log.remarks) == 1
    assert "1 line of the request log left out" in log.remarks[0]
    assert "--enable-metrics" in log.remarks[0]
    since = ((pl.col(*TIMES) - EPOCH) / 1e6).round(2)  # ms; the log's floats resolve 0.2 us
    assert log.rows.select("id", since, "prompt_tokens").rows() == [
        ("a", 0, None, 30, 100, 247, 500, 1712),
        ("c", 0, None, 30, 100, 240, 500, 1712),
    ]


def test_sglang_s_metrics_file(tmp_path):
    told = {"request_parameters": "{}", "id": "a", "prompt_tokens": 1712, "first_token_latency": 0.25}
    log = read(tmp_path, json.dumps({**told, "request_received_ts": 1796084957.5}) + "\n{")
    assert times(log) == [("a", 1796084957_500_000_000, 1796084957_750_000_000)]
    assert log.remarks == ("1 line of the request log left out, the first at line 2: not a JSON object",)


def test_an_access_log_with_the_first_token(tmp_path):
    """The line is written when the answer ends: it came 0.5 s before."""
    line = '10.0.0.1 - - [01/Dec/2026:09:00:00 +0000] "POST /v1/completions HTTP/1.1" {} 812 "-" "curl/8" {}'
    told = "msec=1796084957.500 request_time=0.500 ttft_ms=247 request_id=a"
    dated = "INFO: 2026-12-01T09:00:00.250+00:00 10.0.0.1:5 -"
    uvicorn = f'{dated} "POST /generate HTTP/1.1" 200 OK duration=0.25 ttft=0.125'
    lines = ["started", line.format(200, told), uvicorn, line.format(503, told), line.format(200, "rt=0.5")]
    log = read(tmp_path, "\n".join(lines))
    second = 1_796_115_600 * SECOND
    assert [(arrived, first) for _, arrived, first in times(log)] == [
        (1796084957_000_000_000, 1796084957_247_000_000),
        (second, second + 125_000_000),
    ]
    assert log.form == "access log"
    assert log.remarks == (
        (
            "1 line of the request log left out, the first at line 5: "
            "no ttft=: how long the answer took does not tell when its first token came"
        ),
        "1 request of the log failed",
    )


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        ("request_time=0.5 ttft=0.1", "no time finer than a second"),
        ("msec=1796084957.500 ttft=0.1", "no duration"),
        ("msec=1796084957.500 request_time=0.5", "does not tell when its first token came"),
    ],
)
def test_an_access_log_that_does_not_tell_enough_says_what_is_missing(tmp_path, tail, why):
    with pytest.raises(BadTrace, match=why):
        read(tmp_path, f'- [01/Dec/2026:09:00:00 +0000] "POST /v1/completions HTTP/1.1" 200 8 {tail}')


def test_a_bad_record_inside_a_document_does_not_end_the_others(tmp_path):
    good = {"timestamp": EPOCH, "response_timestamps": [EPOCH + 247_000_000]}
    whole = {"experiments": [{"requests": [{"response_timestamps": [3]}, "no request", good]}]}
    log = read(tmp_path, json.dumps(whole))
    assert times(log) == [("3", EPOCH, EPOCH + 247_000_000)]
    assert "2 lines of the request log left out, the first at the log request 1" in log.remarks[0]


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
        ("id,arrived,first_token\na,yesterday,3\n", "arrived is not a time"),
        (b"PAR1, and no more", "Parquet"),
        ("[" * 50_000, "not a JSON object"),
        ('id,arrived,first_token\na,1,"' + "x" * 140_000, "field limit"),
        (gzip.compress(b"0123456789" * 99, mtime=0)[:10] + b"\xff" * 40, "invalid"),
        (json.dumps({"start_times": 5, "ttfts": 6}), "of another kind"),
        (json.dumps({"resourceSpans": [5]}), "of another kind"),
        (json.dumps({"experiments": [{"requests": [{}]}]}), "no column 'timestamp'"),
        *(
            (json.dumps({**LINE, name: 10**30}), f"{name} is a number beyond")
            for name in ("arrived", "finished")
        ),
        (json.dumps({**LINE, "prompt_tokens": 1e30}), "prompt_tokens is a number beyond"),
        (json.dumps({"id": "a", "arrived": 1, "ttft_s": 1e30}), "a time is beyond"),
        (b"\x1f\x8bgz", "Not a gzipped file|Compressed file|stream"),
    ],
)
def test_a_log_of_which_nothing_can_be_used_says_why(tmp_path, content, why):
    with pytest.raises(BadTrace, match=why):
        read(tmp_path, content)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadTrace, match="No such file"):
        read_request_log(tmp_path / "none")


SAID = "the divorce letter"


@pytest.mark.parametrize(
    "content",
    [
        *(
            json.dumps({**LINE, name: value})
            for name in ("arrived", "prompt_tokens")
            for value in (SAID, [SAID])
        ),
        json.dumps({"id": "a", "arrived": EPOCH, "ttft_ms": SAID}),
        json.dumps({"why not": SAID}),
        json.dumps({"experiments": [{"requests": [{"timestamp": SAID, "response_timestamps": [3]}]}]}),
        json.dumps({"start_times": [SAID], "ttfts": [SAID]}),
        f"id,arrived,first_token\n{SAID},{SAID},{SAID}\n",
        SAID,
    ],
)
def test_no_value_of_a_record_stands_in_what_is_said_of_it(tmp_path, content):
    with pytest.raises(BadTrace) as refused:
        read(tmp_path, content)
    assert SAID not in str(refused.value)


def test_a_field_that_is_too_long_ends_no_other_line(tmp_path):
    text = f"id,arrived,first_token\na,1,{'x' * 140_000}\nb,4,5\n"
    log = read(tmp_path, text)
    assert times(log) == [("b", 4, 5)]
    assert "first at line 2: field larger" in log.remarks[0]


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_a_log_is_read_up_to_a_bound(tmp_path, monkeypatch, pack):
    line = json.dumps(LINE).encode()
    monkeypatch.setattr("tracelib.sources.request_logs.MOST_BYTES", len(line))
    assert times(read(tmp_path, pack(line))) == RIGHT
    with pytest.raises(BadTrace, match=r"more than 0 MiB of text\. Cut it"):
        read(tmp_path, pack(line + b"\n"))


def test_of_parquet_only_the_columns_of_a_log_are_read_and_so_many_rows(tmp_path, monkeypatch):
    frame = pl.DataFrame([{**LINE, "prompt": SAID}] * 2)
    frame.write_parquet(tmp_path / "requests")
    assert times(read_request_log(tmp_path / "requests")) == RIGHT * 2
    monkeypatch.setattr("tracelib.sources.request_logs.MOST_ROWS", 1)
    with pytest.raises(BadTrace, match="more than 1 rows"):
        read_request_log(tmp_path / "requests")
