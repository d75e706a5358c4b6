"""Interval algebra on frames: union, overlay, innermost slice, and nothing else.

Intervals are half-open, `[ts_ns, ts_ns + dur_ns)`, in integer nanoseconds. Every function works per key (a
thread, a GPU): rows of different keys never touch, and rows whose key is null belong to none. A *timeline* is
a frame whose intervals are disjoint and sorted per key.

`overlay` is intersection (the parts that a row of the timeline covers), subtraction (the parts that none
covers) and the state at a moment in one; summed up per row, `innermost` is the self time of nested slices.

How it is fast: few keys are laid one after the other on a single line (`by_key.on_line`), so that one binary
search serves all of them; what stands in order already is not sorted again; NumPy does the work, on some ten
thousand rows at a time, since memory that was never used before costs more than what is done with it; and no
Python loop runs per row. `tests/test_intervals.py` holds a brute-force oracle for each function,
`benchmarks/intervals.py` the measurements.
"""

from tracelib.intervals.by_key import begin, each, end, in_order, in_parts, key_by_key, order_of, whole_keys
from tracelib.intervals.cover import (
    beneath,
    clip,
    fill,
    layered,
    merge_equal,
    merge_near,
    overlay,
    under,
    union,
)
from tracelib.intervals.nesting import innermost, outermost
