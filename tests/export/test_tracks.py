"""Slices that cross each other stand in layers in which none does."""

import polars as pl

from tracelib.export.tracks import nested_layers


def test_slices_that_cross_go_to_another_layer():
    slices = pl.DataFrame({"ts_ns": [0, 2, 5, 5, 10], "dur_ns": [10, 2, 10, 0, 1]})
    layers = [
        list(zip(rows.tolist(), closing.tolist(), strict=True)) for rows, closing in nested_layers(slices)
    ]
    assert layers == [
        [(0, False), (1, False), (1, True), (3, False), (3, True), (0, True), (4, False), (4, True)],
        [(2, False), (2, True)],
    ]
