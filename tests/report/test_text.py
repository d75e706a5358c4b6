"""Untrusted text: escaped and redacted before it reaches HTML, Markdown or a terminal."""

import pytest

from tracelib.report import sections
from tracelib.report.redact import Redactor
from tracelib.report.sections.html import esc
from tracelib.report.ticket import escaped

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a\x1b[31mred\x07",
    "\u202eevil\u202c",
    "[x](javascript:alert(1))",
    "**bold** | cell | #1 @everyone https://example.com",
    "void at::native::kernel<2, Foo<int>>(long*)",
    "'\"`$(rm -rf)`",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_html_shows_it_and_runs_nothing(text):
    shown = str(esc(text))
    assert "<" not in shown.replace("&lt;", "")
    assert "\x1b" not in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_cannot_be_marked_up(text):
    shown = escaped(text)
    assert "<" not in shown
    assert "\n" not in shown
    assert "\x1b" not in shown
    assert "](" not in shown.replace("\\](", "")
    assert "@everyone" not in shown


def test_numbers_keep_their_digits():
    assert escaped("44.4 %") == "44.4 %"
    assert escaped("1. first") == "\\1. first"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_in_every_field_of_a_document(text):
    finding = {
        "id": "x",
        "cause": "ipc",
        "claim": text,
        "exposed_ns": 1,
        "exposed_share": 0.1,
        "confidence": "high",
        "why": text,
        "evidence": [{"ts_ns": 0, "dur_ns": 1, "who": text, "what": text, "value": text}],
        "disproof": text,
        "advice": [text],
        "verify": [text],
        "change": "code",
        "gain_ns": 1,
        "gain_share": 0.1,
        "place": text,
    }
    shown = sections.findings_list({"findings": [finding], "window": {"start_ns": 0}}).html
    assert "<script" not in shown
    assert "<img" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("/home/alice/models/llama.py", "alice"),
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz", "hf_abcdefghijklmnop"),
        ("sk-proj-abcdefghijklmnop1234", "abcdefghijklmnop"),
        ("connect 10.20.30.40:8000", "10.20.30.40"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+ghi", "abc/def"),
        ("mail bob@corp.example.com", "bob@"),
        ("A=1\0PATH=/usr/bin\0SECRET_THING=xyz", "xyz"),
        ("gpu-node-17.prod.internal", "gpu-node-17"),
    ],
)
def test_private_parts_are_removed_and_counted(text, gone):
    redactor = Redactor()
    assert gone not in redactor.text(text, recorded=True)
    assert sum(redactor.counts.values()) >= 1
    assert redactor.summary().startswith("Removed")


def test_names_that_rules_need_survive_redaction():
    redactor = Redactor()
    for name in (
        "shm_broadcast.dequeue",
        "aten::mm",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "worker_TP0",
        "cudaLaunchKernel",
    ):
        assert redactor.text(name, recorded=True) == name
