"""The sentence beside a chart, what it calls GPUs and threads, and the figure that carries it in a notebook.

A sentence is computed from the very frames that its chart draws, and never claims more than they hold: what
was not recorded is called not recorded.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.gpu_time import USEFUL
from tracelib.analyses.results import Results
from tracelib.analyses.scheduling import WAITS_FOR_CPU, tells_shortage
from tracelib.data import data
from tracelib.findings.finding import accuses_host, quantile, share_of, spent
from tracelib.words import cause_name, duration, plain, role_name, share

WORDS = data(__file__, "words.toml")
NAME_CHARACTERS = 60
AS_MONITORED = "busy, as monitoring shows it"
#: A share that is not known is worth a word from here on.
WORTH_A_WORD = 0.01
NO_WAKEUPS = "was not recorded (that takes wake-up events)"


def gpu_names(results: Results) -> dict[int, str]:
    """Return "rank 0" per GPU where ranks are known and differ, else "GPU 0", else with its host."""
    gpus = results.trace.gpus
    for name in (
        pl.concat_str(pl.lit("rank "), "rank"),
        pl.concat_str(pl.lit("GPU "), "device"),
        pl.concat_str(pl.lit("GPU "), "device", pl.lit(" of "), "host"),
    ):
        names = gpus.select(name.alias("name"))["name"]
        if names.null_count() == 0 and names.n_unique() == len(names):
            shown = [plain(name, NAME_CHARACTERS) for name in names]
            return dict(zip(gpus["gpu"].to_list(), shown, strict=True))
    return {gpu: f"GPU #{gpu}" for gpu in gpus["gpu"].to_list()}


def thread_names(results: Results) -> dict[int, str]:
    """Return "worker rank 0", "API server / tokenizer", … per thread."""
    return {
        row["thread"]: _thread_name(row["role"], row["rank"], row["name"] or row["process"])
        for row in results.trace.threads.iter_rows(named=True)
    }


def _thread_name(role: str | None, rank: int | None, name: str | None) -> str:
    if role is None:
        return plain(name or "unnamed thread", NAME_CHARACTERS)
    who = role_name(role) + ("" if rank is None else f" rank {rank}")
    return who if name is None else f"{who} / {plain(name, 30)}"


def launch_threads(results: Results) -> dict[int, int]:
    """Return per GPU the thread that launched most of its work; GPUs for which none is known are left out."""
    launched = (
        results.launches.filter(pl.col("call_thread").is_not_null())
        .group_by("gpu", "call_thread")
        .len()
        .sort("len", "call_thread", descending=[True, False])
        .unique("gpu", keep="first", maintain_order=True)
    )
    return dict(zip(launched["gpu"].to_list(), launched["call_thread"].to_list(), strict=True))


def p50_p95_max(ns: pl.Series) -> list[str]:
    """Return the median, the 95th percentile and the maximum of times, in words."""
    return [duration(quantile(ns, q)) for q in (0.5, 0.95, 1)]


def gpu_shares(gpu_time: pl.DataFrame) -> pl.DataFrame:
    """Return per GPU `useful`, `busy`, `doubtful` (shares of the window) and `spin_ns`.

    `doubtful` is time in collectives whose waiting cannot be told from their transfer.
    """
    state, ns = pl.col("state").cast(pl.String), pl.col("ns")
    total = ns.sum()
    return (
        gpu_time.group_by("gpu")
        .agg(
            useful=ns.filter(state.is_in(USEFUL)).sum() / total,
            busy=1 - ns.filter(state == "idle").sum() / total,
            doubtful=ns.filter(state == "collective").sum() / total,
            spin_ns=ns.filter(state == "collective_wait").sum(),
        )
        .sort("gpu")
    )


def useful_and_busy(results: Results, gpu_time: pl.DataFrame) -> str:
    """Say how much of GPU time was useful work and how much looked busy."""
    names, shares = gpu_names(results), gpu_shares(gpu_time)
    at_least = "at least " if (shares["doubtful"].max() or 0) > 0 else ""  # type: ignore[operator]
    worst = shares.sort("useful", "gpu").row(0, named=True)
    least = share(worst["useful"])
    mean = shares.select(pl.col("useful", "busy").mean()).row(0, named=True)
    useful = share(mean["useful"])
    gpus = "the GPU" if len(shares) == 1 else f"the {len(shares)} GPUs"
    who = f" ({names.get(worst['gpu'], 'one')} least, for {least} of its own)" if least != useful else ""
    return (
        f"{gpus} did useful work for {at_least}{useful} of GPU time{who} "
        f"and looked busy for {share(mean['busy'])}"
    )


def charged_to(lost: pl.DataFrame, ns: str, whole_ns: int) -> str:
    """Say which two causes took most of the lost time in the column `ns`, as shares of GPU time."""
    parts = lost.group_by(pl.col("cause").cast(pl.String)).agg(pl.col(ns).sum()).filter(pl.col(ns) > 0)
    if parts.is_empty():
        return "no GPU time was lost"
    most = parts.sort(ns, "cause", descending=[True, False]).head(2).select("cause", ns)
    return "most was lost to " + " and ".join(
        f"{cause_name(cause)} ({share(part / whole_ns)})" for cause, part in most.iter_rows()
    )


def shortage_of_cpus(results: Results) -> str:
    """Say for how much of GPU time the thread that a GPU waited for lacked a CPU, and why."""
    state = pl.col("cpu_state").cast(pl.String)
    ready, stopped = (spent(results.lost.filter((state == name) & accuses_host())) for name in WAITS_FOR_CPU)
    unknown = spent(results.lost.filter(state == "unknown"))
    if results.thread_states.is_empty() or unknown == spent(results.lost):
        return "whether the blamed thread had a CPU was not recorded"
    if not tells_shortage(results.thread_states):
        return f"whether the blamed thread wanted a CPU and had none {NO_WAKEUPS}"
    doubt = f" (not known for {share_in(results, unknown)})" if unknown else ""
    if not ready + stopped:
        return f"the blamed thread was never seen without a CPU{doubt}"
    return f"for {share_in(results, ready + stopped)} the blamed thread {lacked_cpu(ready, stopped)}{doubt}"


def share_in(results: Results, ns: int) -> str:
    """Return a share of GPU time in words."""
    return share(share_of(results, ns))


def lacked_cpu(ready_ns: int, stopped_ns: int) -> str:
    """Say why a thread lacked a CPU: all were taken, a quota had stopped it, or now one, now the other."""
    if not stopped_ns:
        return "wanted a CPU and had none"
    if not ready_ns:
        return "was stopped by a CPU quota"
    by_quota = share(stopped_ns / (ready_ns + stopped_ns))
    return f"wanted a CPU and had none or was stopped by a quota (the quota: {by_quota} of this)"


if TYPE_CHECKING:
    import plotly.graph_objects as go

#: The mimetype under which JupyterLab draws plotly figures by itself.
PLOTLY = "application/vnd.plotly.v1+json"
#: Marks the output that repeats a figure's caption: the report's page has it as the figure's own.
CAPTION = "tracelib_caption"
#: Why a chart of several runs is not drawn.
OF_RUNS: dict[str, str] = WORDS["of_runs"]
#: Charts that need a GPU, and nothing else that `Results.missing` explains.
_OF_GPUS = ("causes", "kernels", "staircase", "states", "worst")
_NO_GPU = "no GPU operation was read"


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure of :mod:`tracelib.charts`, whose sentence stands in ``layout.meta``."""

    figure: go.Figure

    @property
    def sentence(self) -> str:
        """Return what the chart shows, in one sentence."""
        return str(self.figure.layout.meta["sentence"])

    def __repr__(self) -> str:
        return self.sentence

    def _ipython_display_(self) -> None:
        from IPython.display import display  # noqa: PLC0415 (inside a notebook only)

        if os.environ.get("PLOTLY_RENDERER") == "plotly_mimetype":
            # That renderer's output, without plotly's import of all its renderers and of what they need.
            figure = {PLOTLY: json.loads(self.figure.to_json(validate=False, remove_uids=False))}
            display(figure, raw=True)  # type: ignore[no-untyped-call]
        else:
            display(self.figure)  # type: ignore[no-untyped-call]
        caption = {"text/html": f"<p><i>{html.escape(self.sentence)}</i></p>", "text/plain": self.sentence}
        display(caption, raw=True, metadata={CAPTION: True})  # type: ignore[no-untyped-call]


@dataclass(frozen=True, repr=False)
class NoChart:
    """A line of text in the place of a chart that cannot be drawn."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<p class="empty">{html.escape(self.text)}</p>'


def draw(
    chart: Callable[..., go.Figure | None], results: Results | pl.DataFrame, *of: object
) -> CaptionedFigure | NoChart:
    """Return the chart with its sentence, or a line that says why there is none.

    `results`: what the chart takes, most often the results of a run. `of`: its other arguments (a cause,
    a role).
    """
    figure = chart(results, *of)
    if figure is not None:
        return CaptionedFigure(figure)
    name = chart.__name__.removesuffix("_chart")
    what = " of ".join(plain(word, 60).replace("_", " ") for word in (name, *of))
    return NoChart(f"No chart of {what}: {_reason(name, results)}.")


def _reason(name: str, results: Results | pl.DataFrame) -> str:
    if isinstance(results, pl.DataFrame):
        return OF_RUNS.get(name, "none of the runs holds what it takes")
    if name in _OF_GPUS and results.gpu_states.is_empty():
        return f"{_NO_GPU} (torch.profiler on every worker, or nsys profile -t cuda,nvtx)"
    return results.missing.get(WORDS["frames"].get(name, name), "nothing of this kind in the window")
