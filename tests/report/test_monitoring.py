"""`tracelib monitor`: promtool on the rules, Grafana's own types on the board, thresholds by hand."""

import json
import os
import re
import shutil
import subprocess

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.conftest import ROOT, SHARED
from tests.report.example import plain, typed
from tracelib.cli import main
from tracelib.report import monitoring
from tracelib.report.monitoring import OUTSIDE, board, defined, rules, thresholds

#: What the reports of our samples say: the server's threads in s (running, ready without a CPU or stopped by
#: a quota), the window in s, the GPUs' busy share, periods (all, run out) of the quota. `requests`: in the
#: server, minute by minute, as the workloads were (sample_traces/README.md).
SAMPLES = {
    "starved": {"ran": 4.756, "waited": 1.553, "window": 2.379, "busy": 0.663, "requests": "4x30"},
    "throttled": {"ran": 1.893, "waited": 1.841, "window": 2.050, "busy": 0.552, "requests": "2x30"},
    "tokenization": {"ran": 2.557, "waited": 0.0002, "window": 1.530, "busy": 0.269, "requests": "1x30"},
    "healthy": {"ran": 1.198, "waited": 0.0002, "window": 1.204, "busy": 0.918, "requests": "8x30"},
    "idle": {"ran": 3.007, "waited": 0.0001, "window": 3.006, "busy": 0.004, "requests": "0x3 1 0x26"},
}
PERIODS = {"throttled": (44, 44)}
#: Which alerts fire, with the labels by which they tell whose.
FIRE = {
    "starved": {"HostThreadsWaitForCpu", "VllmGpuIdleDespiteRequests"},
    "throttled": {"HostThreadsWaitForCpu", "ContainerCpuThrottled", "VllmGpuIdleDespiteRequests"},
    "tokenization": {"VllmGpuIdleDespiteRequests"},
    "healthy": set(),
    "idle": set(),
}


def promtool():
    program = shutil.which("promtool")
    if program is None:
        assert "TRACELIB_CI" not in os.environ, "promtool is not installed (Debian: prometheus)"
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return program


def counter(name, labels, per_second):
    return {"series": f"{name}{{{labels}}}", "values": f"0+{per_second * 60:.9g}x30"}


def gauge(name, labels, values):
    return {"series": f"{name}{{{labels}}}", "values": values}


def server(sample):
    """Return what the exporters would show of a server that is always as the sample was."""
    told, pod = SAMPLES[sample], f'namespace="llm",pod="{sample}"'
    all_periods, ran_out = PERIODS.get(sample, (0, 0))
    window = told["window"]
    host, box = f'instance="{sample}",cpu="0"', f'{pod},container="vllm"'
    return [
        counter("node_schedstat_running_seconds_total", host, told["ran"] / window),
        counter("node_schedstat_waiting_seconds_total", host, told["waited"] / window),
        counter("container_cpu_cfs_periods_total", box, all_periods / window),
        counter("container_cpu_cfs_throttled_periods_total", box, ran_out / window),
        gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", f'{pod},gpu="0"', f"{told['busy']}x30"),
        gauge("vllm:num_requests_running", f'{pod},engine="0"', told["requests"]),
        gauge("vllm:num_requests_waiting", f'{pod},engine="0"', "0x30"),
    ]


def firing(alert, labels, figure):
    told = {**labels, "alertname": alert, "alertstate": "firing", "severity": "warning", "tracelib": figure}
    inside = ",".join(f'{key}="{value}"' for key, value in told.items())
    return {"labels": f"ALERTS{{{inside}}}", "value": 1}


def whose(alert, sample):
    pod = {"namespace": "llm", "pod": sample}
    return {
        "HostThreadsWaitForCpu": ({"instance": sample}, "run_queue_wait"),
        "ContainerCpuThrottled": ({**pod, "container": "vllm"}, "throttled_periods"),
        "VllmGpuIdleDespiteRequests": (pod, "gpu_active"),
    }[alert]


def at(minutes, *samples):
    return {
        "expr": 'ALERTS{alertstate="firing"}',
        "eval_time": f"{minutes}m",
        "exp_samples": [firing(alert, *of) for alert, of in samples],
    }


def simulated(folder, tests, written=None):
    """Run `promtool test rules`; return what it prints, empty if all is as expected."""
    for name, text in (written or rules()).items():
        (folder / name).write_text(text)
    names = [str(path) for path in sorted(folder.glob("*.rules.yml"))]
    scenario = {"rule_files": names, "evaluation_interval": "1m", "tests": tests}
    (folder / "test.yml").write_text(yaml.safe_dump(scenario, sort_keys=False, width=1000))
    done = subprocess.run(
        [promtool(), "test", "rules", str(folder / "test.yml")], capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == ("FAILED" not in done.stdout + done.stderr)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rules")
    board_file = folder / "board.json"
    assert main(["monitor", "--prometheus-rules", str(folder), "--grafana", str(board_file)]) == 0
    return folder


def test_promtool_accepts_the_rules(written):
    files = sorted(map(str, written.glob("*.rules.yml")))
    assert len(files) == 5
    done = subprocess.run(
        [promtool(), "check", "rules", "--lint=all", "--lint-fatal", *files],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_starved_servers_fire_the_right_alerts_and_healthy_and_idle_ones_none(tmp_path):
    tests = [
        {
            "interval": "1m",
            "name": sample,
            "input_series": server(sample),
            "promql_expr_test": [
                at(3),  # not before it has lasted
                at(25, *((alert, whose(alert, sample)) for alert in sorted(FIRE[sample]))),
            ],
        }
        for sample in SAMPLES
    ]
    assert not simulated(tmp_path, tests)


def test_a_report_raises_the_bar_to_half_of_what_it_saw(tmp_path):
    """The throttled run lost all its periods: with its report a fifth of them is silent, and 60 % is not."""
    document = plain()
    document["quota"] |= {"throttled_share": 1.0}
    document["findings"][0]["id"] = "quota_throttling"
    own = rules(typed(document))
    box = 'namespace="llm",pod="{pod}",container="vllm"'
    tests = [
        {
            "interval": "1m",
            "input_series": [
                counter(f"container_cpu_cfs_{name}_total", box.replace("{pod}", pod), rate)
                for pod, share in (("some", 0.2), ("most", 0.6))
                for name, rate in (("periods", 10), ("throttled_periods", 10 * share))
            ],
            "promql_expr_test": [at(20, ("ContainerCpuThrottled", whose("ContainerCpuThrottled", "most")))],
        }
    ]
    assert not simulated(tmp_path, tests, own)
    assert 'pod="some"' in simulated(tmp_path, tests)  # by definition both


def engine(pod, prefix, ttft, queue, prefill):
    """Return ten requests a minute whose means are these seconds."""
    names = {
        "vllm": {"request_queue_time_seconds": queue, "request_prefill_time_seconds": prefill},
        "sglang": {"queue_time_seconds": queue, "per_stage_req_latency_seconds": prefill},
    }[prefix]
    return [
        counter(f"{prefix}:{name}_{what}", labels, rate)
        for name, mean in {"time_to_first_token_seconds": ttft, **names}.items()
        for what, rate in (("sum", mean / 6), ("count", 1 / 6))
        for labels in [f'namespace="llm",pod="{pod}"' + ',stage="prefill_forward"' * ("stage" in name)]
    ]


@pytest.mark.parametrize(
    ("prefix", "alert", "record"),
    [
        ("vllm", "VllmFirstTokenOutsideEngine", "vllm_ttft_outside_engine"),
        ("sglang", "SglangFirstTokenOutsideScheduler", "sglang_ttft_outside_scheduler"),
    ],
)
def test_time_to_first_token_outside_the_engine(tmp_path, prefix, alert, record):
    """A scraped vLLM 0.20: 2.413 s, of which 1.216 in the queue and 1.078 in prefill; then 0.7 s of 1.7 s."""
    series = [*engine("calm", prefix, 2.413, 1.216, 1.078), *engine("busy", prefix, 1.7, 0.5, 0.5)]
    outside = [
        {"labels": f'{{namespace="llm",pod="{pod}"}}', "value": value}
        for pod, value in (("busy", 0.7), ("calm", 0.119))
    ]
    tests = [
        {
            "interval": "1m",
            "input_series": series,
            "promql_expr_test": [
                {
                    "expr": f"round(namespace_pod:tracelib_{record}:seconds5m, 0.001)",
                    "eval_time": "20m",
                    "exp_samples": outside,
                },
                at(25, (alert, ({"namespace": "llm", "pod": "busy"}, "ttft_outside"))),
            ],
        }
    ]
    assert not simulated(tmp_path, tests)


def test_what_an_alert_says(tmp_path):
    labels = {"namespace": "llm", "pod": "throttled", "container": "vllm"}
    expected = {
        "exp_labels": {**labels, "severity": "warning", "tracelib": "throttled_periods"},
        "exp_annotations": {
            "summary": "The CPU limit stopped throttled in 100% of its periods",
            "description": "Threshold: 0.05 (as in tracelib check). Next: raise or remove the CPU limit, or "
            "start fewer threads.",
            "runbook_url": "docs/monitoring.md#containercputhrottled",
        },
    }
    told = {"eval_time": "20m", "alertname": "ContainerCpuThrottled", "exp_alerts": [expected]}
    tests = [{"interval": "1m", "input_series": server("throttled"), "alert_rule_test": [told]}]
    assert not simulated(tmp_path, tests)


def test_an_idle_server_whose_few_threads_wait_for_most_of_what_they_want_is_silent(tmp_path):
    check = [
        gauge("tracelib_check_run_queue_wait_ratio", 'instance="a"', "0.5x30"),
        gauge("tracelib_check_waiting_threads", 'instance="a"', "0.01x30"),
        gauge("tracelib_check_run_queue_wait_ratio", 'instance="b"', "0.5x30"),
        gauge("tracelib_check_waiting_threads", 'instance="b"', "3x30"),
        gauge("tracelib_check_role_busiest_thread_ratio", 'instance="a",role="api_server"', "0.99x30"),
        gauge("tracelib_check_role_busiest_thread_ratio", 'instance="a",role="worker"', "0.99x30"),  # polls
    ]
    fires = [
        ("ServerShortOfCpus", ({"instance": "b"}, "run_queue_wait")),
        ("ServerThreadFillsCpu", ({"instance": "a", "role": "api_server"}, "thread_busy")),
    ]
    assert not simulated(
        tmp_path, [{"interval": "1m", "input_series": check, "promql_expr_test": [at(20, *fires)]}]
    )


def at_fault(prefix, queue, cpu, cpu_labels):
    """Return a server of which everything is wrong, in pod `prefix` at the address of the same name."""
    pod, here = f'namespace="llm",pod="{prefix}"', f'instance="{prefix}",job="llm"'
    running = {"vllm": "vllm:num_requests_running", "sglang": "sglang:num_running_reqs"}[prefix]
    return [
        *engine(prefix, prefix, 1.7, 0.5, 0.5),
        gauge(running, f'{pod},{here},engine="0"', "0x30"),
        gauge(queue, f"{pod},{here}", "3x30"),
        gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", f'{pod},gpu="0"', "0.9x30"),
        gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", f'{pod},gpu="1"', "0.2x30"),
        counter(cpu, here + cpu_labels, 1.2),
    ]


def test_every_alert_can_fire(tmp_path):
    box, host = 'namespace="llm",pod="vllm",container="vllm"', 'instance="vllm"'
    series = [
        *at_fault("vllm", "vllm:num_requests_waiting", "process_cpu_seconds_total", ""),
        *at_fault(
            "sglang", "sglang:num_queue_reqs", "sglang:process_cpu_seconds_total", ',component="tokenizer"'
        ),
        counter("process_cpu_seconds_total", 'instance="other",job="other"', 1.5),  # not a server of ours
        counter("node_schedstat_running_seconds_total", f'{host},cpu="0"', 1),
        counter("node_schedstat_waiting_seconds_total", f'{host},cpu="0"', 1),
        counter("node_pressure_cpu_waiting_seconds_total", host, 0.5),
        counter("container_cpu_cfs_periods_total", box, 10),
        counter("container_cpu_cfs_throttled_periods_total", box, 5),
        counter("container_pressure_cpu_waiting_seconds_total", box, 0.5),
        gauge("tracelib_check_run_queue_wait_ratio", host, "0.5x30"),
        gauge("tracelib_check_waiting_threads", host, "2x30"),
        gauge("tracelib_check_throttled_periods_ratio", host, "0.5x30"),
        gauge("tracelib_check_role_busiest_thread_ratio", f'{host},role="api_server"', "1x30"),
    ]
    fired = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": "29m",
        "exp_samples": [{"labels": f'{{alertname="{alert["alert"]}"}}', "value": 1} for alert in alerts()],
    }
    assert not simulated(tmp_path, [{"interval": "1m", "input_series": series, "promql_expr_test": [fired]}])


def test_requests_that_wait_for_another_server_are_not_the_host_s_fault(tmp_path):
    pod = 'namespace="llm",pod="decode"'
    series = [
        gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", f'{pod},gpu="0"', "0x30"),
        gauge("vllm:num_requests_running", pod, "0x30"),
        gauge("vllm:num_requests_waiting", pod, "5x30"),
        gauge("vllm:num_requests_waiting_by_reason", f'{pod},reason="capacity"', "0x30"),
        gauge("vllm:num_requests_waiting_by_reason", f'{pod},reason="deferred"', "5x30"),
    ]
    assert not simulated(tmp_path, [{"interval": "1m", "input_series": series, "promql_expr_test": [at(29)]}])


# -------------------- names, runbooks, board
def texts():
    return "\n".join(rules().values())


def alerts(**how):
    groups = [group for text in rules(**how).values() for group in yaml.safe_load(text)["groups"]]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def runbooks(**how):
    return [alert["annotations"]["runbook_url"] for alert in alerts(**how)]


@pytest.mark.corpus
def test_every_metric_of_vllm_is_in_a_real_scrape():
    scrape = SHARED / "cases/tools/prometheus/vllm_metrics.txt"
    if not scrape.is_file():
        pytest.skip(f"{scrape} is absent")
    there = set(re.findall(r"^([\w:]+)[{ ]", scrape.read_text(), flags=re.MULTILINE))
    used = set(re.findall(r"\bvllm:\w+|\bprocess_cpu_seconds_total", texts()))
    assert len(used) >= 9
    assert used <= there


def test_every_metric_of_ours_is_one_that_check_exports():
    from tracelib.record.exporter import METRICS

    used = set(re.findall(r"\btracelib_check_\w+", texts()))
    assert used
    assert used <= set(METRICS)


def test_every_alert_leads_to_its_place_on_our_page():
    page = (ROOT / "docs/monitoring.md").read_text()
    titles = {title.lower() for title in re.findall(r"^#{2,4} (\w+)$", page, flags=re.MULTILINE)}
    anchors = {link.removeprefix("docs/monitoring.md#") for link in runbooks()}
    assert len(anchors) == len(alerts()) >= 12
    assert anchors <= titles
    assert "https://wiki/x#hostcpupressure" in runbooks(runbooks="https://wiki/x")


def within(part, whole):
    """Say whether all that `part` says stands in `whole`, which may say more."""
    if isinstance(part, dict):
        return all(key in whole and within(value, whole[key]) for key, value in part.items())
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(within, part, whole))
    return part == whole


def test_grafana_s_own_types_know_all_of_the_board(written):
    ours = json.loads((written / "board.json").read_text())
    known = json.loads(JSONEncoder().encode(Dashboard.from_json(ours)))
    assert within(ours, known)
    panels = [panel for panel in ours["panels"] if panel["type"] == "timeseries"]
    assert len(panels) == len(alerts())
    places = [[panel["gridPos"][side] for side in "xywh"] for panel in ours["panels"]]
    cells = [(a, b) for x, y, w, h in places for a in range(x, x + w) for b in range(y, y + h)]
    assert len(cells) == len(set(cells))  # none lies on another


def test_what_the_board_draws_prometheus_can_read(tmp_path):
    exprs = [panel["targets"][0]["expr"] for panel in json.loads(board())["panels"] if "targets" in panel]
    asked = {
        "groups": [{"name": "board", "rules": [{"record": f"r{n}", "expr": e} for n, e in enumerate(exprs)]}]
    }
    (tmp_path / "board.yml").write_text(yaml.safe_dump(asked))
    done = subprocess.run(
        [promtool(), "check", "rules", str(tmp_path / "board.yml")], capture_output=True, check=False
    )
    assert done.returncode == 0, done


# -------------------- thresholds
STATES_NS = ("running_ns", "runnable_ns", "throttled_ns")


def test_thresholds_by_hand():
    """Busy 0.7, found to be CPU-bound: half-way to 1. A part that no finding blames keeps its definition."""
    document = plain()
    document["verdict"]["state"] = "cpu_bound"
    document["scheduling"]["threads"] = [
        {"role": role, "blocked_ns": 0, "unknown_ns": 0, **dict(zip(STATES_NS, times, strict=True))}
        for role, times in (("worker", (60, 20, 20)), ("system", (1, 99, 0)))
    ]
    document["findings"][0]["id"] = "cpu_shortage"
    part = document["requests"]["parts"][0]
    document["requests"]["parts"] = [{**part, "part": name, "share": 0.1} for name in (*OUTSIDE, "queue")]
    limits = thresholds(typed(document))
    assert limits["gpu_active"].value == pytest.approx(0.85)
    assert limits["run_queue_wait"].value == pytest.approx(0.2)  # half of 40 of 100
    assert limits["ttft_outside"].value == pytest.approx(0.2)  # half of four tenths
    for name in ("throttled_periods", "cpu_pressure", "thread_busy"):
        assert limits[name] == defined()[name]
    document["verdict"]["state"], document["findings"] = "not_cpu_bound", []
    assert thresholds(typed(document)) == defined()


def test_definitions_are_the_product_s():
    """As docs/monitoring.md has them."""
    values = {name: limit.value for name, limit in defined().items()}
    assert values == {
        "gpu_active": 0.85, "run_queue_wait": 0.1, "cpu_pressure": 0.1,
        "throttled_periods": 0.05, "ttft_outside": 0.15, "thread_busy": 0.95,
    }  # fmt: skip
    assert set(values) == set(monitoring._data()["figure"])
    page = (ROOT / "docs/monitoring.md").read_text()
    rows = re.findall(r"^\|[^|]+\| (?:above|below) ([\d.]+) (%|CPUs) \|", page, flags=re.MULTILINE)
    told = [float(number) / (100 if unit == "%" else 1) for number, unit in rows]
    assert sorted(told) == sorted(values.values())


def test_names_of_findings_that_count_exist():
    from tracelib.findings.rules import RULES
    from tracelib.words import VERDICTS

    named = {name for figure in monitoring._data()["figure"].values() for name in figure["found_by"]}
    assert named <= {rule.id for rule in RULES} | set(VERDICTS)


def test_a_runbook_s_address_of_two_lines_is_refused(tmp_path, capsys):
    out = tmp_path / "rules"
    flags = ["--prometheus-rules", str(out), "--runbooks", "http://x\n  evil: yes"]
    assert main(["monitor", *flags]) == 2
    assert "a URL without control characters" in capsys.readouterr().err
    assert not out.exists()


def test_a_report_that_is_none_is_one_line_and_status_2(tmp_path, capsys):
    (tmp_path / "findings.json").write_text('{"schema": "other"}')
    assert main(["monitor", str(tmp_path), "--grafana", str(tmp_path / "b.json")]) == 2
    assert "findings.json" in capsys.readouterr().err
    assert main(["monitor"]) == 2
    assert "--prometheus-rules" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize("sample", SAMPLES)
def test_the_numbers_are_those_of_the_samples(sample):
    from tracelib.findings import diagnose
    from tracelib.options import Options
    from tracelib.report.notebook_cells import opened

    document = diagnose(opened(Options(traces=[str(ROOT / "sample_traces" / sample)]))[0])
    told = SAMPLES[sample]
    server_threads = [
        row for row in document.scheduling.threads if row.role in ("api_server", "engine", "worker")
    ]
    ran = sum(row.running_ns for row in server_threads) / 1e9
    waited = sum(row.runnable_ns + row.throttled_ns for row in server_threads) / 1e9
    busy = sum(device.busy_share for device in document.devices) / len(document.devices)
    assert (ran, waited) == pytest.approx((told["ran"], told["waited"]), abs=0.002)
    assert document.window.duration_ns / 1e9 == pytest.approx(told["window"], abs=0.002)
    assert busy == pytest.approx(told["busy"], abs=0.001)
    quota = document.quota
    assert PERIODS.get(sample) == (quota and (quota.nr_periods, quota.nr_throttled))


def test_a_pipe_or_a_device_is_not_a_report_and_is_not_opened(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "report").mkdir()
    os.mkfifo(tmp_path / "report" / "findings.json")
    for path in (tmp_path / "pipe", tmp_path / "report", "/dev/zero"):
        assert main(["monitor", str(path), "--prometheus-rules", str(tmp_path / "rules")]) == 2
        assert "a regular file" in capsys.readouterr().err
    assert not (tmp_path / "rules").exists()
