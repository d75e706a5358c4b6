"""Prometheus rules and a Grafana board that watch for what a report found.

monitoring.toml says what is watched. From where on it is too much is defined where the findings and `tracelib
check` define it, or follows from a report's own figures (docs/monitoring.md).
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tracelib.data import data
from tracelib.errors import BadTrace
from tracelib.findings import Document, read
from tracelib.findings.figures import median_of
from tracelib.findings.rules import RULES
from tracelib.findings.verdict import Thresholds
from tracelib.options import regular
from tracelib.record.check import SATURATED, SHORTAGE, THROTTLED_PERIODS, WAITING
from tracelib.words import SERVER

#: Where the runbooks are if nobody says: in a checkout.
RUNBOOKS = "docs/monitoring.md"
#: Parts of a time to first token that neither the engine's queue nor its prefill holds.
OUTSIDE = ("before_tokenize", "tokenize", "api_server", "back")
BY_DEFINITION = "the findings' definitions"
_GRID = {"w": 12, "h": 8}


class Threshold(NamedTuple):
    """From where on a figure is too much (or too little), and why there."""

    value: float
    why: str

    @property
    def text(self) -> str:
        """Return the value as rules and sentences have it."""
        return f"{self.value:.3g}"


@cache
def _data() -> dict[str, Any]:
    tables: dict[str, Any] = data(__file__, "monitoring.toml")
    return tables


def defined() -> dict[str, Threshold]:
    """Return the threshold of each figure as findings, verdict and `tracelib check` define it."""
    gpu_bound = next(rule.threshold for rule in RULES if rule.id == "gpu_bound")
    return {
        "gpu_active": Threshold(gpu_bound, "as in the finding gpu_bound"),
        "run_queue_wait": Threshold(SHORTAGE, "as in tracelib check"),
        "cpu_pressure": Threshold(SHORTAGE, "as in tracelib check"),
        "throttled_periods": Threshold(THROTTLED_PERIODS, "as in tracelib check"),
        "ttft_outside": Threshold(Thresholds.cpu_bound, "as in the verdict cpu_bound"),
        "thread_busy": Threshold(SATURATED, "as in tracelib check"),
    }


def thresholds(report: Document | None = None) -> dict[str, Threshold]:
    """Return the threshold of each figure: half-way between a healthy server and `report`.

    Where there is no report, or it did not find the figure at fault, as it is defined.
    """
    limits = defined()
    if report is None:
        return limits
    found = {report.verdict.state, *(finding.id for finding in report.findings)}
    for name, value in _figures(report).items():
        about = _data()["figure"][name]
        if value is not None and found & set(about["found_by"]):
            half = (about["healthy"] + value) / 2
            limits[name] = Threshold(half, f"half-way to the report's {value:.3g}")
    return limits


def _figures(report: Document) -> dict[str, float | None]:
    """Return what the report says of the figures that a live server shows too; None = not recorded."""
    server = [row for row in report.scheduling.threads if row.role in SERVER] if report.scheduling else []
    told = [row for row in server if row.running_ns is not None and row.runnable_ns is not None]
    waited = sum((row.runnable_ns or 0) + (row.throttled_ns or 0) for row in told)
    wanted = waited + sum(row.running_ns or 0 for row in told)
    parts = report.requests.parts if report.requests else None
    return {
        "gpu_active": median_of(device.busy_share for device in report.devices or ()),
        "run_queue_wait": waited / wanted if wanted else None,
        "throttled_periods": report.quota.throttled_share if report.quota else None,
        "ttft_outside": sum(row.share for row in parts if row.part in OUTSIDE) if parts else None,
    }


def report_of(path: Path) -> Document:
    """Return the findings of the report at `path`: its folder, or its findings.json.

    Raises OSError if there is none; BadParameter if it is a pipe or a device; BadTrace if it is not what a
    report holds.
    """
    file = path / "findings.json" if path.is_dir() else path
    try:
        return read(regular(file, "report").read_bytes())
    except msgspec.DecodeError as error:
        raise BadTrace(file, "findings.json", "", str(error), advice="Give a report's folder.") from None


# -------------------- the rules
def rules(report: Document | None = None, runbooks: str = RUNBOOKS) -> dict[str, str]:
    """Return Prometheus's rule files: name -> YAML. `runbooks`: where docs/monitoring.md can be read."""
    limits = thresholds(report)
    origin = BY_DEFINITION if report is None else "a report, and " + BY_DEFINITION
    template = _environment().get_template("rules.yml.j2")
    return {
        f"tracelib-{name}.rules.yml": template.render(
            name=name,
            title=group["title"],
            origin=origin,
            records=group.get("record", ()),
            alerts=[_alert(alert, limits[alert["figure"]], runbooks) for alert in group["alert"]],
        )
        for name, group in _data()["group"].items()
    }


def _alert(alert: Mapping[str, Any], limit: Threshold, runbooks: str) -> dict[str, Any]:
    expr = f"{alert['value']} {alert['side']} {limit.text}"
    if "given" in alert:
        given = alert["given"].strip().replace("{waiting_threads}", f"{WAITING:g}")
        expr += f"\nand on ({', '.join(alert.get('on', alert['by']))})\n({given})"
    return {**alert, "expr": expr, "threshold": limit, "runbook": f"{runbooks}#{alert['name'].lower()}"}


@cache
def _environment() -> Environment:
    return Environment(  # noqa: S701  (YAML, of our own words only)
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


# -------------------- the board
def board(report: Document | None = None, runbooks: str = RUNBOOKS) -> str:
    """Return a Grafana dashboard as JSON: a row a group, a panel an alert, with its threshold as a line."""
    limits = thresholds(report)
    return json.dumps(
        {
            "uid": "tracelib-host",
            "title": "tracelib: is the host the limit?",
            "tags": ["tracelib"],
            "editable": True,
            "refresh": "30s",
            "schemaVersion": 36,
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "templating": {"list": [_DATASOURCE]},
            "panels": list(_panels(limits, runbooks)),
        },
        indent=1,
    )


_DATASOURCE = {"name": "datasource", "type": "datasource", "query": "prometheus", "hide": 0}


def _panels(limits: Mapping[str, Threshold], runbooks: str) -> Iterator[dict[str, Any]]:
    top, number = 0, 0
    for group in _data()["group"].values():
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        yield {
            "id": (number := number + 1),
            "type": "row",
            "title": group["title"],
            "collapsed": False,
            "panels": [],
            "gridPos": place,
        }
        top += 1
        for at, alert in enumerate(group["alert"]):
            across, down = at % 2, at // 2
            place = {"x": across * _GRID["w"], "y": top + down * _GRID["h"], **_GRID}
            yield _panel(alert, limits[alert["figure"]], runbooks) | {
                "id": (number := number + 1),
                "gridPos": place,
            }
        top += -(-len(group["alert"]) // 2) * _GRID["h"]


def _panel(alert: Mapping[str, Any], limit: Threshold, runbooks: str) -> dict[str, Any]:
    datasource = {"type": "prometheus", "uid": "${datasource}"}
    low, high = ("green", "red") if alert["side"] == ">" else ("red", "green")
    steps = [{"color": low, "value": None}, {"color": high, "value": float(limit.text)}]
    means = _data()["figure"][alert["figure"]]["means"]
    return {
        "type": "timeseries",
        "title": alert["panel"],
        "description": f"{means}. Alert {alert['name']}: {runbooks}#{alert['name'].lower()}",
        "datasource": datasource,
        "fieldConfig": {
            "defaults": {
                "unit": alert.get("unit", "percentunit"),
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
                "custom": {"thresholdsStyle": {"mode": "line"}},
            },
            "overrides": [],
        },
        "targets": [
            {
                "refId": "A",
                "datasource": datasource,
                "expr": re.sub(r"\s*\n\s*", " ", alert["value"]),
                "legendFormat": " ".join(f"{{{{{label}}}}}" for label in alert["by"]),
            }
        ],
    }
