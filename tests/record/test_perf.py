"""perf record, as this machine permits it."""

import pytest

from tracelib.record import perf


@pytest.mark.parametrize(("cpus", "expected"), [(1, 4096), (32, 4096), (33, 2048), (192, 512), (100_000, 1)])
def test_perf_buffers_are_a_power_of_two_within_512_mb(cpus, expected):
    assert perf.pages(cpus) == expected
