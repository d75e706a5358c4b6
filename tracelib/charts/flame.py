"""CPU samples of one role as a flame chart that hangs from the root; widths are shares of the samples.

Drawn with plain bars: plotly's icicle trace needs the full bundle (4.8 MB, 1.5 MB packed), bars are in the
smallest one (1.2 MB). Pruned to a few hundred frames, bars also draw faster.
"""

import plotly.graph_objects as go
import polars as pl

from tracelib.analyses.results import Results
from tracelib.charts.theme import CAUSES, TABLE_ROWS, Look, finished, look, marker, safe
from tracelib.classify import stack_causes
from tracelib.words import cause_name, counted, plain, role_name, share

FRAMES = 400
DEPTH = 40
#: Characters that fit a frame as wide as the whole chart.
CHARACTERS = 150
UNNAMED = "[no call chain]"


def flame_chart(results: Results, role: str | None, frames: int = FRAMES) -> go.Figure | None:
    """Return a role's CPU samples in the window as at most `frames` frames; None without samples.

    A frame's colour is the cause to which most of the samples below it are charged.
    """
    weights = _weights(results, role)
    total = int(weights["n"].sum())
    if not total:
        return None
    tree = flame_tree(results.trace.stacks, weights, frames)
    figure = go.Figure([_bars(tree, cause, total) for cause in _causes(tree)])
    depth = max(tree["level"].to_list(), default=0) + 1
    figure.update_layout(barmode="overlay", bargap=0, margin={"t": 50})
    figure.update_xaxes(
        title_text=f"% of {counted(total, 'CPU sample')} ({role_name(role)})", range=[0, 100], showgrid=False
    )
    figure.update_yaxes(
        autorange=False, range=[depth - 0.5, -0.5], showticklabels=False, showgrid=False, zeroline=False
    )
    leaves = _leaves(results, weights)
    return finished(figure, _sentence(role, leaves, total), _table(leaves, total), 110 + 19 * depth)


def blamed_role(results: Results) -> str | None:
    """Return the role whose threads the GPUs lost most time to; where none was lost, that with most samples.

    None without any, or if it is not known.
    """
    roles = results.trace.threads.select("thread", "role")
    blamed = results.lost.join(roles, on="thread").group_by("role").agg(ns=pl.col("dur_ns").sum())
    sampled = results.cpu_time.drop_nulls("role").group_by("role").agg(ns=pl.col("cpu_ns").sum())
    rows = blamed if blamed.height else sampled
    first: list[str | None] = rows.sort("ns", "role", descending=[True, False])["role"].head(1).to_list()
    return first[0] if first else None


def _sentence(role: str | None, leaves: pl.DataFrame, total: int) -> str:
    symbol, n = leaves.select("symbol", "n").row(0)
    return (
        f"Of {counted(total, 'CPU sample')} in {role_name(role)} threads, {share(n / total)} are in "
        f"{plain(symbol, 60)} itself, more than in any other function."
    )


def _table(leaves: pl.DataFrame, total: int) -> list[list[object]]:
    body: list[list[object]] = [
        [row["symbol"], row["library"] or "", row["n"], share(row["n"] / total)]
        for row in leaves.head(TABLE_ROWS).iter_rows(named=True)
    ]
    return [["innermost frame", "library", "samples", "share"], *body]


def _weights(results: Results, role: str | None) -> pl.DataFrame:
    """Return `stack`, `n`, `cause` of the role's samples in the window; stack null = no call chain."""
    window = results.window
    inside = pl.col("ts_ns").is_between(window.start_ns, window.end_ns, closed="left")
    threads = results.trace.threads.filter(pl.col("role").eq_missing(pl.lit(role))).select("thread")
    stacks = (
        results.trace.samples.filter(inside)
        .join(threads, on="thread")
        .group_by("stack")
        .agg(n=pl.len().cast(pl.Int64))
    )
    cause = pl.col("worker_cause") if role == "worker" else pl.col("cause")
    causes = stack_causes(results.trace.stacks, results.rules).select("stack", cause.alias("cause"))
    return stacks.join(causes, on="stack", how="left").sort("stack")


def flame_tree(stacks: pl.DataFrame, weights: pl.DataFrame, frames: int) -> pl.DataFrame:
    """Return the heaviest `frames` frames of the tree that the call chains make from their roots.

    One row per frame: `node`, `parent` (-1 = root), `level` (0 = outermost), `symbol`, `n` (samples), `cause`
    (that of most of them), `left` (samples that lie left of it). A frame's children never weigh more than it
    does, so cutting the lightest ones leaves a tree.
    """
    chains = _chains(stacks).join(weights.select("stack", "n", "cause"), on="stack", how="inner")
    least = max(1, int(weights["n"].sum()) // 2000)
    active = weights.select("stack", parent=pl.lit(-1, pl.Int64))
    levels: list[pl.DataFrame] = []
    first = 0
    for level in range(DEPTH):
        here = chains.filter(pl.col("level") == level).join(active, on="stack")
        nodes = _nodes(here, least, first).with_columns(level=pl.lit(level))
        if nodes.is_empty():
            break
        levels.append(nodes)
        active = here.join(nodes, on=["parent", "symbol"]).select("stack", parent="node")
        first += len(nodes)
    tree = (
        pl.concat(levels)
        if levels
        else _nodes(chains.with_columns(parent=pl.lit(-1, pl.Int64)).clear(), 1, 0).with_columns(level=0)
    )
    kept = tree.sort("n", "level", "node", descending=[True, False, False]).head(frames)
    return _placed(kept.sort("level", "node"))


def _chains(stacks: pl.DataFrame) -> pl.DataFrame:
    """Return `stack`, `level` (0 = outermost), `symbol`.

    Frames without a symbol carry their library's name; neighbours of one such name are one frame.
    """
    outward = stacks.sort("stack", "depth", descending=[False, True]).select("stack", symbol=_frame_name())
    before = pl.col("symbol").shift(1).over("stack")
    folded = outward.filter(~(pl.col("symbol").str.starts_with("[") & pl.col("symbol").eq_missing(before)))
    return folded.with_columns(level=pl.int_range(pl.len(), dtype=pl.Int64).over("stack"))


def _frame_name() -> pl.Expr:
    """Return a frame's symbol, or "[libcuda.so.1]" where only the library is known."""
    symbol, file = (
        pl.col("symbol").cast(pl.String),
        pl.col("library").cast(pl.String).str.split("/").list.last(),
    )
    has_file = file.is_not_null() & ~file.str.starts_with("[")
    nameless = (symbol == "[unknown]") | symbol.is_null()
    return (
        pl.when(nameless & has_file)
        .then(pl.concat_str(pl.lit("["), file, pl.lit("]")))
        .otherwise(symbol.fill_null("[unknown]"))
    )


def _nodes(here: pl.DataFrame, least: int, first: int) -> pl.DataFrame:
    """Return one row per (parent, symbol) that weighs at least `least`: node, parent, symbol, n, cause."""
    by_cause = (
        here.group_by("parent", "symbol", "cause")
        .agg(pl.col("n").sum())
        .sort("n", "cause", descending=[True, False])
    )
    nodes = by_cause.group_by("parent", "symbol", maintain_order=True).agg(
        pl.col("n").sum(), pl.col("cause").first()
    )
    nodes = nodes.filter(pl.col("n") >= least).sort("parent", "n", "symbol", descending=[False, True, False])
    return nodes.with_columns(node=first + pl.int_range(pl.len(), dtype=pl.Int64)).select(
        "node", "parent", "symbol", "n", "cause"
    )


def _placed(tree: pl.DataFrame) -> pl.DataFrame:
    """Add `left`: where a frame begins; children stand from their parent's left edge, heaviest first."""
    begin: dict[int, int] = {-1: 0}
    lefts = []
    for node, parent, n in tree.select("node", "parent", "n").iter_rows():
        left = begin[parent]
        begin[parent] += n  # where the next sibling begins
        begin[node] = left
        lefts.append(left)
    return tree.with_columns(left=pl.Series(lefts, dtype=pl.Int64))


def _causes(tree: pl.DataFrame) -> list[str | None]:
    """Return the causes that occur, in the palette's order, then those of a user's rules, null last."""
    order = {cause: place for place, cause in enumerate(CAUSES)}
    present = tree["cause"].unique().to_list()
    return sorted(present, key=lambda cause: (cause is None, order.get(cause, len(order)), cause))


def _bars(tree: pl.DataFrame, cause: str | None, total: int) -> go.Bar:
    own = tree.filter(pl.col("cause").eq_missing(pl.lit(cause, pl.String)))
    appearance = look("cause", cause) if cause else Look("#C9C9C9")
    part = (own["n"] / total).to_list()
    fits = [
        safe(name, max(1, round(CHARACTERS * p))) if CHARACTERS * p >= 4 else ""
        for name, p in zip(own["symbol"], part, strict=True)
    ]
    paint = marker(appearance) | {"line": {"width": 0.6, "color": "rgba(255,255,255,0.7)"}}
    if "pattern" in paint:
        paint["pattern"] |= {"fgcolor": "rgba(255,255,255,0.35)"}
    return go.Bar(
        y=own["level"].to_list(),
        base=[100 * left / total for left in own["left"]],
        x=[100 * p for p in part],
        orientation="h",
        width=0.96,
        name=safe(cause_name(cause)) if cause else "no rule knows it",
        marker=paint,
        text=fits,
        textposition="inside",
        insidetextanchor="start",
        constraintext="none",
        textangle=0,
        textfont={"size": 11},
        customdata=[f"{safe(s, 120)}<br>{share(p)}" for s, p in zip(own["symbol"], part, strict=True)],
        hovertemplate="%{customdata}<extra>%{fullData.name}</extra>",
    )


def _leaves(results: Results, weights: pl.DataFrame) -> pl.DataFrame:
    innermost = results.trace.stacks.filter(pl.col("depth") == 0).select(
        "stack", pl.col("library").cast(pl.String), symbol=_frame_name()
    )
    named = weights.join(innermost, on="stack", how="left").with_columns(pl.col("symbol").fill_null(UNNAMED))
    return (
        named.group_by("symbol", "library")
        .agg(pl.col("n").sum())
        .sort("n", "symbol", descending=[True, False])
    )
