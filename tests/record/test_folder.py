"""What a recording writes down."""

import time

from tracelib.record.folder import read_clocks


def test_all_clocks_are_read_at_one_moment():
    reading = read_clocks()
    before, after = time.time_ns(), time.monotonic_ns()
    offset = before - after  # wall time less monotonic, here and now
    assert abs(reading.at["realtime"] - reading.at["monotonic"] - offset) < 5_000_000
    assert 0 < reading.error_ns < 1_000_000
    assert reading.at["tai"] - reading.at["realtime"] in range(
        -1_000_000, 60 * 10**9
    )  # 0 or the leap seconds
