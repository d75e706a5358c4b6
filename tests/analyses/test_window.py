"""The window that every figure is about."""

import pytest

from tests.analyses.server_by_hand import call, op, run
from tracelib.analyses.results import analyse
from tracelib.analyses.window import Window


def test_the_window_can_be_given_and_its_name_told():
    results = run([op(0, 10, 1), op(1000, 2000, 2)], [call(0, 1, 1), call(990, 995, 2)])
    assert results.window == Window(0, 2000, results.window.why)
    with pytest.raises(Exception, match="window"):
        analyse(results.trace, window_seconds=(5, 6))
