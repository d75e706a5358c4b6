"""CPUs: how many threads wanted one, what each thread did with its time, and what the CPU time went into."""

import numpy as np
import plotly.graph_objects as go
import polars as pl

from tracelib.analyses.capacity import cores_had
from tracelib.analyses.results import Results
from tracelib.analyses.scheduling import demand_at, tells_shortage
from tracelib.charts.phrases import NO_WAKEUPS, WORTH_A_WORD, lacked_cpu, thread_names
from tracelib.charts.theme import (
    CPU_STATES,
    INK,
    SINCE_START,
    finished,
    hatch,
    label,
    look,
    marker,
    rows_under_headings,
    safe,
    stairs,
)
from tracelib.intervals.cover import bin_borders, ms_since_start, weighted_mean
from tracelib.words import cause_label, counted, duration, role_name, share

ROWS = 24


def demand_chart(results: Results, bins: int = 400) -> go.Figure | None:
    """Return running and runnable threads stacked, as means of `bins` equal bins, with the CPUs as a line.

    None without scheduler events. What stands above the line is work that waited.
    """
    if results.demand.is_empty() or not results.demand["dur_ns"].sum():
        return None
    borders = bin_borders(results.window.start_ns, results.window.end_ns, bins)
    ms = (borders - borders[0]) / 1e6
    figure = go.Figure()
    for state in ("running", "runnable"):
        mean, appearance = weighted_mean(results.demand, state, borders), CPU_STATES[state]
        area = stairs(
            ms_since_start(borders),
            mean.astype(np.float32),
            stackgroup="demand",
            name=label("cpu_state", state),
            fillcolor=appearance.colour,
            fillpattern=hatch(appearance.pattern, appearance.colour, "rgba(255,255,255,0.6)", size=5),
            line={"width": 0, "shape": "hv", "color": appearance.colour},
            hovertemplate="%{y:.1f} threads at %{x:.0f} ms",
        )
        figure.add_trace(area)
    cpus, how = cores_had(results)
    if cpus is not None:
        for line in ({"color": "#FFFFFF", "width": 5}, {"color": "#1A1A1A", "width": 2.5, "dash": "dash"}):
            figure.add_scatter(
                x=[0, ms[-1]],
                y=[cpus, cpus],
                mode="lines",
                name=f"CPUs: {cpus:g} ({how})",
                hoverinfo="skip",
                line=line,
                showlegend="dash" in line,
            )
    figure.update_xaxes(title_text=SINCE_START, range=[0, float(ms[-1])])
    figure.update_yaxes(title_text="threads of the server", rangemode="tozero")
    figure.update_layout(margin={"t": 50})
    return finished(figure, _demand_sentence(results), _demand_table(results), 340)


def _time_short(results: Results) -> float:
    short = results.demand.filter(pl.col("runnable") > 0)
    return int(short["dur_ns"].sum()) / int(results.demand["dur_ns"].sum())


def _demand_sentence(results: Results) -> str:
    threads = counted(demand_at(results.demand, 0.95) or 0, "thread")
    if not tells_shortage(results.thread_states):
        ran = f"For 95 % of the recorded time at most {threads} of the server ran"
        return f"{ran}; how many more wanted a CPU {NO_WAKEUPS}."
    cpus, how = cores_had(results)
    have = (
        "CPUs of the host were not recorded" if cpus is None else f"{cpus:g} CPU{'s' * (cpus != 1)} ({how})"
    )
    return (
        f"For 95 % of the recorded time at most {threads} of the server wanted a CPU, against {have}; "
        f"for {share(_time_short(results))} of it at least one of them waited for a CPU."
    )


def _demand_table(results: Results) -> list[list[object]]:
    cpus, how = cores_had(results)
    quantiles = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1}
    rows: list[list[object]] = [[name, demand_at(results.demand, q)] for name, q in quantiles.items()]
    return [
        ["threads running or runnable", "value"],
        *rows,
        ["CPUs", how if cpus is None else f"{cpus:g} ({how})"],
        ["share of the recorded time in which a thread waited for a CPU", share(_time_short(results))],
    ]


def threads_chart(results: Results) -> go.Figure | None:
    """Return one bar per thread, cut into CPU states, who lacked a CPU longest first; None without any.

    Threads that only slept are left out; of the others, the :data:`ROWS` that ran or wanted to run most are
    drawn.
    """
    wanted = pl.sum_horizontal("running_ns", "runnable_ns", "throttled_ns")
    threads = _server_threads(results.scheduling).with_columns(wanted=wanted).filter(pl.col("wanted") > 0)
    if threads.is_empty():
        return None
    short = pl.sum_horizontal("runnable_ns", "throttled_ns")
    threads = (
        threads.sort("wanted", "thread", descending=[True, False])
        .head(ROWS)
        .sort(short, "wanted", "thread", descending=[True, True, False])
    )
    names = thread_names(results)
    figure = go.Figure()
    for state, appearance in CPU_STATES.items():
        ns = threads[f"{state}_ns"]
        if ns.sum():
            figure.add_bar(
                y=list(range(len(threads))),
                x=(ns / 1e6).to_list(),
                orientation="h",
                name=label("cpu_state", state),
                marker=marker(appearance),
                customdata=[duration(value) for value in ns],
                hovertemplate="%{customdata}<extra>%{fullData.name}</extra>",
            )
    figure.update_layout(barmode="stack", margin={"t": 50})
    labels = [safe(names.get(thread, "")) for thread in threads["thread"]]
    figure.update_yaxes(
        autorange="reversed", tickvals=list(range(len(threads))), ticktext=labels, showgrid=False
    )
    figure.update_xaxes(title_text="ms of the window", rangemode="tozero")
    return finished(
        figure, _threads_sentence(results, names), _threads_table(threads, names), 130 + 24 * len(threads)
    )


def _server_threads(scheduling: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose `role` is of the server; all of them where no role is known."""
    of_server = pl.col("role").is_not_null() & ~pl.col("role").is_in(["system", "recorder"])
    own = scheduling.filter(of_server)
    return scheduling if own.is_empty() else own


def _threads_sentence(results: Results, names: dict[int, str]) -> str:
    total = pl.sum_horizontal(f"{state}_ns" for state in CPU_STATES)
    threads = _server_threads(results.scheduling).with_columns(
        short=pl.col("runnable_ns") + pl.col("throttled_ns"), total=total
    )
    inferred = _inferred(
        int(threads["inferred_ns"].sum()), int((threads["total"] - threads["unknown_ns"]).sum())
    )
    worst = threads.sort("short", "thread", descending=[True, False]).row(0, named=True)
    if not worst["short"] and not tells_shortage(results.thread_states):
        return f"Whether threads of the server waited for a CPU {NO_WAKEUPS}.{inferred}"
    if not worst["short"]:
        unknown = int(threads["unknown_ns"].sum()) / int(threads["total"].sum())
        doubt = f" (not known for {share(unknown)} of their time)" if unknown >= WORTH_A_WORD else ""
        return f"No thread of the server was seen to wait for a CPU{doubt}.{inferred}"
    lacked = lacked_cpu(worst["runnable_ns"], worst["throttled_ns"])
    return (
        f"{names.get(worst['thread'], 'a thread')} {lacked} for {duration(worst['short'])}, "
        f"{_of_its_time(worst)}, more than any other thread of the server.{inferred}"
    )


def _of_its_time(thread: dict[str, int]) -> str:
    """Say which part of a thread's time it lacked a CPU; what nobody recorded is not part of it."""
    known = thread["total"] - thread["unknown_ns"]
    lacked, recorded = share(thread["short"] / known), known / thread["total"]
    if 1 - recorded < WORTH_A_WORD:
        return f"{lacked} of its time"
    return f"{lacked} of the time for which its states are known ({share(recorded)} of the window)"


def _inferred(inferred_ns: int, known_ns: int) -> str:
    """Say how much of the threads' time rests on switches that were not recorded; "" if none of it does."""
    if not inferred_ns:
        return ""
    return (
        f" Switches from idle are missing: {share(inferred_ns / known_ns)} of the threads' time is rebuilt "
        "from what they did next (wake-ups, samples, the next switch)."
    )


def _threads_table(threads: pl.DataFrame, names: dict[int, str]) -> list[list[object]]:
    header: list[object] = [
        "thread",
        *(label("cpu_state", state) for state in CPU_STATES),
        "moves between CPUs",
    ]
    body: list[list[object]] = [
        [
            names.get(row["thread"], ""),
            *(duration(row[f"{state}_ns"]) for state in CPU_STATES),
            row["migrations"],
        ]
        for row in threads.iter_rows(named=True)
    ]
    return [header, *body]


def cpu_time_chart(results: Results) -> go.Figure | None:
    """Return one bar per role and cause in CPU seconds, whiskers = 95 % interval; None without CPU samples.

    The :data:`ROWS` largest rows are drawn, grouped by role, the role that used most first.
    """
    if results.cpu_time.is_empty():
        return None
    rows = results.cpu_time.sort("cpu_ns", "role", "cause", descending=[True, False, False]).head(ROWS)
    rows = rows.with_columns(of_role=pl.col("cpu_ns").sum().over("role"))
    rows = rows.sort("of_role", "role", "cpu_ns", "cause", descending=[True, False, True, False])
    labels = [cause_label(cause, sub) for cause, sub in rows.select("cause", "sub_cause").iter_rows()]
    places, axis = rows_under_headings([role_name(role) for role in rows["role"]], labels)
    rows = rows.with_columns(place=pl.Series(places), label=pl.Series(labels, dtype=pl.String))
    total = int(results.cpu_time["cpu_ns"].sum())
    figure = go.Figure([_cause_bar(own, total) for _, own in rows.group_by("cause", maintain_order=True)])
    figure.update_xaxes(
        title_text="CPU seconds; whiskers: 95 % interval from the number of samples", rangemode="tozero"
    )
    figure.update_yaxes(**axis)
    figure.update_layout(barmode="overlay", showlegend=False)
    height = 80 + 22 * (places[-1] + 1)
    return finished(figure, _cpu_time_sentence(results), _cpu_time_table(rows), height)


def _cause_bar(own: pl.DataFrame, total_ns: int) -> go.Bar:
    """Return the bars of one cause, which share its look."""
    up, down = (
        (own[high] - own[low]).clip(lower_bound=0) * total_ns / 1e9
        for high, low in (("ci_high", "share"), ("share", "ci_low"))
    )
    return go.Bar(
        y=own["place"].to_list(),
        x=(own["cpu_ns"] / 1e9).to_list(),
        orientation="h",
        width=0.72,
        customdata=[
            f"{safe(row['label'])}: {duration(row['cpu_ns'])}, {share(row['share'])} of all CPU time, "
            f"{_interval(row)}"
            for row in own.iter_rows(named=True)
        ],
        error_x={
            "type": "data",
            "array": up.to_list(),
            "arrayminus": down.to_list(),
            "thickness": 1.2,
            "color": INK,
        },
        marker=marker(look("cause", own["cause"][0])),
        hovertemplate="%{customdata}<extra></extra>",
    )


def _interval(row: dict[str, float]) -> str:
    return f"95 % interval {share(row['ci_low'])} to {share(row['ci_high'])}"


def _cpu_time_sentence(results: Results) -> str:
    top = results.cpu_time.sort("cpu_ns", "role", "cause", descending=[True, False, False]).row(0, named=True)
    total = duration(int(results.cpu_time["cpu_ns"].sum()))
    what = f"{cause_label(top['cause'], top['sub_cause'])} ({role_name(top['role'])})"
    return f"The largest part of {total} of CPU time is {what}: {share(top['share'])}, {_interval(top)}."


def _cpu_time_table(rows: pl.DataFrame) -> list[list[str]]:
    body = [
        [
            role_name(row["role"]),
            row["label"],
            duration(row["cpu_ns"]),
            share(row["share"]),
            f"{share(row['ci_low'])} to {share(row['ci_high'])}",
        ]
        for row in rows.iter_rows(named=True)
    ]
    return [["role", "cause", "CPU time", "share of CPU time", "95 % interval"], *body]
