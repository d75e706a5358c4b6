"""Ledger 4: where a request's time to first token went (ATTRIBUTION.md).

Requests are told apart by a request log, or not at all: a trace without ids cannot say which tokenization belongs to
which first token.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl

from tracelib.errors import BadTrace
from tracelib.intervals import overlay

if TYPE_CHECKING:
    from pathlib import Path

    from tracelib.analyses.window import Window

__all__ = ["REQUESTS", "REQUEST_LOG", "request_log", "requests"]

REQUEST_LOG = ("id", "arrived", "tokenize_start", "tokenize_end", "first_token")

REQUESTS = pl.Schema({
    "id": pl.String(), "arrived_ns": pl.Int64(), "first_token_ns": pl.Int64(), "ttft_ns": pl.Int64(), "before_tokenize_ns": pl.Int64(),
    "tokenize_ns": pl.Int64(), "gpu_useful_ns": pl.Int64(), "gpu_wait_ns": pl.Int64(), "gpu_idle_ns": pl.Int64(), "unknown_ns": pl.Int64(),
    "prompt_tokens": pl.Int64(),
})  # fmt: skip


def request_log(path: Path, offset_ns: int = 0) -> pl.DataFrame:
    """Return a request log (JSON lines) with `offset_ns` added to its times; empty lines are skipped.

    One row per request: `id` (String), `arrived`, `tokenize_start`, `tokenize_end`, `first_token` (Int64, ns),
    `prompt_tokens` (Int64: its input; null = not logged). As in the file.

    Raises
    ------
    BadTrace
        The file cannot be opened, a line is no JSON, a column is missing, or its times are not in that order; the message
        names the line.

    """
    rows: list[dict[str, object]] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            times = {name: int(record[name]) + offset_ns for name in REQUEST_LOG[1:]}
            tokens = record.get("prompt_tokens")
            rows.append(
                {"id": str(record["id"]), **times, "prompt_tokens": None if tokens is None else int(tokens)}
            )
        except (ValueError, TypeError) as error:
            raise BadTrace(path, "request log", f"line {number}", str(error), line) from error
        except KeyError as error:
            columns = ", ".join(REQUEST_LOG)
            raise BadTrace(
                path,
                "request log",
                f"line {number}",
                f"no column {error}",
                line,
                f"It needs {columns}, in ns.",
            ) from error
        if list(times.values()) != sorted(times.values()):
            order = " <= ".join(REQUEST_LOG[1:])
            raise BadTrace(path, "request log", f"line {number}", f"its times must be {order}", line)
    integers = dict.fromkeys((*REQUEST_LOG[1:], "prompt_tokens"), pl.Int64)
    return pl.DataFrame(rows, schema={"id": pl.String, **integers})


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BadTrace(path, "request log", "", error.strerror or str(error)) from error


def requests(log: pl.DataFrame | None, window: Window, gpu_states: pl.DataFrame) -> pl.DataFrame:
    """Return the time to first token of each request that lies in the window, split into parts that add up to it.

    Takes a log on the aligned timeline (None = there is none) and the frame `gpu_states`; of several GPUs the first
    stands for all, since they work in step.

    One row per request: `id` (String), `arrived_ns`, `first_token_ns`, `ttft_ns` (Int64), then the parts in ns:
    `before_tokenize_ns` (arrival to tokenizer), `tokenize_ns`, and from there to the first token the GPU's time in
    `gpu_useful_ns`, `gpu_wait_ns` (waiting in a collective), `gpu_idle_ns`, `unknown_ns` (collectives whose waiting cannot
    be told); and `prompt_tokens` (Int64: its input; null = not logged). Sorted by `arrived_ns`.
    """
    if log is None or log.is_empty():
        return pl.DataFrame(schema=REQUESTS)
    within = (pl.col("arrived") >= window.start_ns) & (pl.col("first_token") <= window.end_ns)
    inside = log.filter(within).with_row_index("row")  # a log may use an id again
    gpu = gpu_states.filter(pl.col("gpu") == gpu_states["gpu"].min())
    after = inside.select(
        "row",
        ts_ns="tokenize_end",
        dur_ns=pl.col("first_token") - pl.col("tokenize_end"),
        gpu=pl.lit(gpu_states["gpu"].min(), pl.Int32),
    )
    spent = overlay(after, gpu, "gpu").with_columns(part=_part_of(pl.col("state").cast(pl.String)))
    parts = spent.group_by("row").agg(
        pl.col("dur_ns").filter(pl.col("part") == part).sum().alias(f"{part}_ns")
        for part in ("gpu_useful", "gpu_wait", "gpu_idle", "unknown")
    )
    made = inside.select(
        "row", "id", "prompt_tokens", arrived_ns="arrived", first_token_ns=pl.col("first_token"), ttft_ns=pl.col("first_token") - pl.col("arrived"),
        before_tokenize_ns=pl.col("tokenize_start") - pl.col("arrived"), tokenize_ns=pl.col("tokenize_end") - pl.col("tokenize_start"),
    ).join(parts, on="row", how="left").with_columns(pl.col(parts.columns).exclude("row").fill_null(0))  # fmt: skip
    return made.select(list(REQUESTS)).match_to_schema(REQUESTS).sort("arrived_ns")


def _part_of(state: pl.Expr) -> pl.Expr:
    useful = state.is_in(["compute", "copy", "collective_transfer"])
    return (
        pl.when(useful).then(pl.lit("gpu_useful")).when(state == "collective_wait").then(pl.lit("gpu_wait"))
        .when(state == "idle").then(pl.lit("gpu_idle")).otherwise(pl.lit("unknown"))
    )  # fmt: skip
