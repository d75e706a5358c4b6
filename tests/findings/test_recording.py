"""Where its evidence is missing a rule abstains (each rule's case says so), and only there."""

from tests.findings.cases import no_gpu
from tests.findings.test_launching import inside
from tests.findings.test_server import busy
from tracelib.findings import diagnose
from tracelib.findings.recording import CHECKS
from tracelib.findings.rules import RULES

NAMES = {rule.id for rule in RULES}


def test_without_any_gpu_every_rule_abstains():
    sheet = inside("aten::mm", "op")
    no_gpu(sheet)
    assert {row.id for row in diagnose(sheet.results()).abstained} >= NAMES


def test_where_no_gpu_time_was_lost_nothing_is_abstained_from():
    """A full GPU: whatever was not recorded cost less than a hundredth of the time."""
    sheet = busy(0.99)
    sheet.slices = [row for row in sheet.slices if row.get("correlation") is not None]
    document = diagnose(sheet.results())
    assert {row.id for row in document.abstained} & NAMES <= {"cpu_shortage", "quota_throttling"}


def test_every_check_is_some_rules():
    assert set(CHECKS) == {name for rule in RULES for name in rule.abstains_without}
