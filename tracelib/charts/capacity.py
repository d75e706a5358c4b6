"""The cores that a server needs by several estimates, and what changes to it would have given back."""

from typing import Any

import plotly.graph_objects as go
import polars as pl

from tracelib.analyses.capacity import RECOMMENDED
from tracelib.charts.theme import INK, finished, safe
from tracelib.words import NOT_KNOWN, counted, duration, share

HAD = "cores that the server had"
MEASURED = "#0072B2"
CLAIMED = "#E69F00"
#: A window that is longer by less than this share is as good.
LITTLE = 0.01
#: A number of cores that is exceeded for this share of the time is enough.
RARELY = 0.05
IS_OWN = pl.col("source").str.starts_with("this run")


def capacity_chart(estimates: pl.DataFrame) -> go.Figure | None:
    """Return the known estimates as bars, ours and those of others in two colours, and what there was.

    `estimates` is the frame of :func:`tracelib.analyses.capacity.capacity`. None where nothing is known.
    """
    known = estimates.filter(pl.col("cores").is_not_null())
    bars = known.filter(pl.col("estimate") != HAD)
    if bars.is_empty():
        return None
    figure = go.Figure()
    for name, colour, pattern, own in (
        ("measured in this run", MEASURED, "", bars.filter(IS_OWN)),
        ("someone else's rule, not measured here", CLAIMED, "/", bars.filter(~IS_OWN)),
    ):
        figure.add_bar(
            y=[safe(estimate) for estimate in own["estimate"]],
            x=own["cores"].to_list(),
            orientation="h",
            name=name,
            marker={"color": colour, "pattern": {"shape": pattern}},
            text=[f"{cores:.3g}" for cores in own["cores"]],
            textposition="outside",
            cliponaxis=False,
            customdata=[safe(source) for source in own["source"]],
            hovertemplate="%{x:.1f} cores: %{customdata}<extra></extra>",
        )
    had = _had(known)
    if had is not None:
        line = {"dash": "dash", "color": INK, "width": 2}
        figure.add_vline(x=had, line=line)
        # In the legend, where no bar lies over it.
        figure.add_scatter(x=[None], y=[None], mode="lines", name=f"the server had {had:g}", line=line)
    figure.update_xaxes(title_text="cores (or threads that want one)", rangemode="tozero")
    order = [safe(estimate) for estimate in bars["estimate"]][::-1]
    figure.update_yaxes(categoryorder="array", categoryarray=order, showgrid=False)
    figure.update_layout(margin={"t": 70})
    return finished(figure, _sentence(known), _table(estimates), 150 + 34 * len(bars))


def _had(known: pl.DataFrame) -> float | None:
    own = known.filter(pl.col("estimate") == HAD)["cores"]
    return float(own[0]) if len(own) else None


def _sentence(known: pl.DataFrame) -> str:
    had = _had(known)
    have = "How many cores the server had was not recorded"
    if had is not None:
        have = f"The server had {had:g} {'core' if had == 1 else 'cores'}"
    advised = dict(known.select("estimate", "cores").iter_rows()).get(RECOMMENDED)
    number = "" if advised is None else f"{advised:g} are recommended. "
    p95 = dict(known.select("estimate", "cores").iter_rows()).get("measured demand, p95")
    measured = "its demand was not measured"
    if p95 is not None:
        measured = f"for 95 % of the time at most {p95:g} of its threads were running or ready to run"
    claims = known.filter(~IS_OWN & (pl.col("estimate") != HAD))["cores"].to_list()
    rules = ""
    if claims:
        rules = f"; others' rules ask for {min(claims):.3g} to {max(claims):.3g} ({len(claims)} of them)"
    return f"{number}{have}; {measured}{rules}."


def _table(estimates: pl.DataFrame) -> list[list[object]]:
    body: list[list[object]] = [
        [
            row["estimate"],
            NOT_KNOWN if row["cores"] is None else f"{row['cores']:.3g}",
            row["source"],
            row["why_not"],
        ]
        for row in estimates.iter_rows(named=True)
    ]
    return [["estimate", "cores", "whose figure", "why it is not known"], *body]


def demand_curve_chart(curve: pl.DataFrame) -> go.Figure | None:
    """Return how often the server wanted more than each number of cores, and how much of its demand that was.

    `curve` is the frame of :func:`tracelib.analyses.capacity.demand_curve`. None where demand is not known.
    """
    if curve.is_empty():
        return None
    figure = go.Figure()
    for name, column, colour, dash in (
        ("of the time more threads wanted a CPU", "exceeded", MEASURED, "solid"),
        ("of the wanted CPU time is above it", "unmet", CLAIMED, "dash"),
    ):
        figure.add_scatter(
            x=curve["cores"].to_list(),
            y=(curve[column] * 100).to_list(),
            mode="lines+markers",
            name=name,
            line={"color": colour, "dash": dash, "width": 2},
            hovertemplate="%{x} cores: %{y:.1f} %<extra>%{fullData.name}</extra>",
        )
    figure.add_hline(y=5, line={"dash": "dot", "color": INK, "width": 1})
    figure.update_xaxes(title_text="cores")
    figure.update_yaxes(title_text="%", rangemode="tozero")
    figure.update_layout(margin={"t": 50})
    rare = curve.filter(pl.col("exceeded") <= RARELY)["cores"]
    body = [[row[0], share(row[1]), share(row[2])] for row in curve.iter_rows()]
    few = f"{rare[0]} {'core' if rare[0] == 1 else 'cores'}"
    sentence = (
        f"More than {few} were wanted for at most 5 % of the time, more than {curve['cores'][-1]} never."
    )
    head = ["cores", "of the time more threads wanted one", "of the wanted CPU time is above it"]
    return finished(figure, sentence, [head, *body], 340)


def at_cores_chart(replayed: pl.DataFrame) -> go.Figure | None:
    """Return how long the run would have taken on other numbers of cores, and its first tokens.

    `replayed` is the frame of :func:`tracelib.analyses.whatif.at_cores`. None where none can be replayed.
    """
    known = replayed.drop_nulls("window_ns")
    if known.is_empty():
        return None
    figure = go.Figure()
    names = [counted(number, "core") for number in known["cores"]]
    bars = {"window": ("window_ns", MEASURED, ""), "mean time to first token": ("ttft_mean_ns", CLAIMED, "/")}
    shown = {name: bar for name, bar in bars.items() if known[bar[0]].null_count() < known.height}
    for name, (column, colour, pattern) in shown.items():
        figure.add_bar(
            y=names,
            x=(known[column] / 1e6).to_list(),
            orientation="h",
            name=name,
            marker={"color": colour, "pattern": {"shape": pattern}},
            text=[duration(ns) for ns in known[column]],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{y}: %{text}<extra>%{fullData.name}</extra>",
        )
    widest = 1.3 * float(known["window_ns"].cast(pl.Float64).to_numpy().max()) / 1e6
    figure.update_xaxes(title_text="ms", range=[0, widest])  # with room for the labels beside the bars
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], showgrid=False)
    figure.update_layout(margin={"t": 70 if len(shown) > 1 else 20}, barmode="group")
    height = 130 + (24 * len(shown) + 8) * len(names)
    return finished(figure, at_cores_words(replayed), at_cores_table(replayed), height)


def at_cores_words(replayed: pl.DataFrame) -> str:
    """Return from which number of cores on the replay gains nothing more, or why there is none."""
    known = replayed.drop_nulls("window_ns")
    if known.is_empty():
        why = replayed["why_not"][0] if replayed.height else "no number of cores is known"
        return f"Not replayed on other numbers of cores: {why}."
    enough = known.filter(pl.col("window_ns") <= (1 + LITTLE) * pl.col("window_ns").min()).row(0, named=True)
    ttft = ""
    if enough["ttft_p50_ns"] is not None:
        ttft = f", TTFT p50 {duration(enough['ttft_p50_ns'])}"
    return (
        f"Replayed on {counted(enough['cores'], 'core')} the run takes {duration(enough['window_ns'])}"
        f"{ttft}; more cores than those do not shorten it by another {share(LITTLE)}."
    )


def at_cores_table(replayed: pl.DataFrame) -> list[list[str]]:
    """Return the frame of :func:`tracelib.analyses.whatif.at_cores` as text, its heads first."""
    head, *rows = gains_table(replayed.with_columns(scenario=pl.col("cores").cast(pl.String)))
    return [["cores", *head[1:]], *rows]


def what_if_chart(replayed: pl.DataFrame) -> go.Figure | None:
    """Return what each scenario would have given back, of the window and of the time to first token.

    `replayed` is the frame of :func:`tracelib.analyses.whatif.what_if`. None where no scenario can be
    replayed.
    """
    first = replayed.row(0, named=True)
    known = replayed.slice(1).filter(pl.col("window_ns").is_not_null()).sort("gained_ns", descending=True)
    if known.is_empty():
        return None
    figure = go.Figure()
    names = [safe(name) for name in known["scenario"]]
    bars = {"of the window": (known["gained_ns"], MEASURED, "")}
    if first["ttft_mean_ns"] is not None:
        bars["of the mean time to first token"] = (
            first["ttft_mean_ns"] - known["ttft_mean_ns"],
            CLAIMED,
            "/",
        )
    for name, (gained, colour, pattern) in bars.items():
        figure.add_bar(
            y=names,
            x=(gained / 1e6).to_list(),
            orientation="h",
            name=name,
            marker={"color": colour, "pattern": {"shape": pattern}},
            text=[_signed(ns) for ns in gained],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{text}<extra></extra>",
        )
    widest = [1.3 * float(ns) / 1e6 for gained, _, _ in bars.values() for ns in gained]
    span = [min(0.0, *widest), max(0.0, *widest)]  # with room for the labels beside the bars
    figure.update_xaxes(title_text="ms that it would have given back", range=span)
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], showgrid=False)
    figure.update_layout(margin={"t": 70 if len(bars) > 1 else 20}, barmode="group")
    return finished(figure, _gains(first, known), gains_table(replayed), 150 + 56 * len(names))


def _signed(ns: int) -> str:
    return f"{'-' if ns < 0 else ''}{duration(abs(ns))}"


def _gains(first: dict[str, Any], known: pl.DataFrame) -> str:
    best = known.row(0, named=True)
    gained = best["gained_ns"] / first["window_ns"]
    less = f"{share(abs(gained))} {'less' if gained >= 0 else 'more'}"
    ttft = ""
    if first["ttft_mean_ns"] is not None:
        before, after = (duration(row["ttft_mean_ns"]) for row in (first, best))
        ttft = f", and the mean time to first token {after} instead of {before}"
    error = abs(first["gained_ns"]) / (first["window_ns"] + first["gained_ns"])
    return (
        f"Replayed with {best['scenario']}, the window of {duration(first['window_ns'])} takes "
        f"{duration(best['window_ns'])} ({less}){ttft}; replayed unchanged, it is off by {share(error)}."
    )


def gains_table(replayed: pl.DataFrame) -> list[list[str]]:
    """Return the frame of :func:`tracelib.analyses.whatif.what_if` as text, its heads first."""
    columns = ("window_ns", "gained_ns", "lost_ns", "ttft_p50_ns", "ttft_mean_ns")
    body = [
        [
            str(row["scenario"]),
            *(NOT_KNOWN if row[name] is None else _signed(row[name]) for name in columns),
            str(row["why_not"]),
        ]
        for row in replayed.iter_rows(named=True)
    ]
    heads = ["window", "gained", "lost GPU time", "TTFT p50", "TTFT mean", "why it is not known"]
    return [["scenario", *heads], *body]
