"""Figure 4: iteration time and loss over the inverse update period."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from workflow.bench.analysis.common_steps import last_common_values
from workflow.bench.analysis.estimates import estimate, median_minimum, shown_level
from workflow.bench.figures import _legend
from workflow.bench.figures import _style as style
from workflow.bench.figures._axes import explain_empty, period_axis, plain_log_ticks
from workflow.bench.figures._captions import caption, precisions
from workflow.bench.figures._curves import losses_to_compare
from workflow.bench.figures._page import save
from workflow.bench.results.tables import NoDataError, Results, published

EXPERIMENTS = ("autoencoder_inversion", "bert_inversion")
PROBES = ("iteration_time",)
PUBLISHED = ("iteration_time_ms",)

WORKLOADS: Final = {
    "autoencoder": ("autoencoder_inversion", "Autoencoder"),
    "bert": ("bert_inversion", "BERT-Large-Uncased"),
}
"""The columns of panels: the experiment with the losses, and the paper's model with published iteration times.

Workloads without times and runs have no column.
"""


def make(results: Results, folder: Path) -> list[Path]:
    """Draw (a) the mean iteration time and (b) the validation loss over the inverse update period, by workload.

    Raises:
        NoDataError: neither the probe nor one of the two experiments has results.
    """
    times = results.probe("iteration_time")
    paper = published("iteration_time_ms")
    metrics = {experiment: results.metrics(experiment) for experiment in EXPERIMENTS}
    if times.empty and all(frame.empty for frame in metrics.values()):
        raise NoDataError(
            f"neither probes/iteration_time.csv nor {' nor '.join(f'{e}.csv' for e in EXPERIMENTS)} "
            f"has results in {results.root}."
        )
    shown = {
        workload: (experiment, model)
        for workload, (experiment, model) in WORKLOADS.items()
        if (times["workload"] == workload).any() or len(results.runs(experiment))
    }
    figure, axes = style.new_figure(2, len(shown), height=4.3, sharex="col")
    periods = set(paper["inverse_update_period"]) | set(times["inverse_update_period"])
    labels = set()
    steps: list[str] = []
    for (upper, lower), (workload, (experiment, model)) in zip(axes.T, shown.items(), strict=True):
        upper.set_title(style.workload_name(workload))
        labels |= _draw_published(upper, paper[paper["model"] == model])
        labels |= _draw_times(upper, times[times["workload"] == workload])
        try:
            last, step = last_common_values(losses_to_compare(metrics[experiment]))
            labels |= _draw_losses(lower, last)
            steps.append(f"{style.workload_name(workload)} after {step:g} iterations")
        except NoDataError:
            reasons = results.runs(experiment)["reason"].dropna()
            explain_empty(lower, str(reasons.iloc[0]) if len(reasons) else f"{experiment} has no finished run")
        period_axis(lower, periods)
        lower.set_xlabel("inverse update period (iterations)")
    axes[0, 0].set_ylabel("(a) mean iteration time (ms)")
    axes[1, 0].set_ylabel("(b) validation loss")
    legend = [
        *(_legend.line_entry(style.style_of(label)) for label in style.in_order(labels)),
        *(
            _legend.hollow_entry(f"{style.paper_name(name)}, published", marker=style.style_of(name.lower()).marker)
            for name in paper["optimizer"].unique()
        ),
        _legend.bar_entry(f"{shown_level()} interval"),
        Line2D([], [], color=style.GUIDE, marker=".", markersize=4, linestyle="none", label="one run"),
    ]
    notes = ["(a) " + _time_note(times), *precisions(times)] if not times.empty else []
    if steps:
        notes.append(f"(b) last evaluation at equal iterations: {', '.join(steps)}")
    absent = [] if not times.empty else ["probe iteration_time"]
    absent += [experiment for experiment, frame in metrics.items() if frame.empty]
    runs = pd.concat([results.runs(experiment) for experiment in EXPERIMENTS], ignore_index=True)
    text = caption(results, runs, notes=notes, absent=absent)
    return save(figure, folder, "fig04_inversion_frequency", legend=legend, caption=text)


def _draw_estimates(axes: Axes, rows: pd.DataFrame, x: str, y: str, **look: Any) -> None:
    """Draw a line per label over ``x`` with our own estimates (`analysis.estimates`) and their intervals."""
    if rows.empty:
        return
    sns.lineplot(
        rows,
        x=x,
        y=y,
        hue="optimizer",
        style="optimizer",
        estimator=lambda values: estimate(values).value,
        errorbar=lambda values: _interval(values) if len(values) >= median_minimum() else (np.nan, np.nan),
        **style.seaborn_looks({label: style.style_of(label) for label in style.in_order(rows["optimizer"])}),
        **look,
        markersize=5,
        markeredgewidth=0.4,
        legend=False,
        ax=axes,
    )


def _interval(values: pd.Series) -> tuple[float, float]:
    summary = estimate(values.to_numpy(float))
    return summary.low, summary.high


def _draw_published(axes: Axes, paper: pd.DataFrame) -> set[str]:
    """Draw the paper's iteration times, hollow, and return their labels."""
    for optimizer, rows in paper.groupby("optimizer"):
        look = style.style_of(str(optimizer).lower())
        axes.plot(
            rows["inverse_update_period"],
            rows["iteration_ms"],
            color=look.color,
            linestyle="-",
            linewidth=0.6,
            alpha=0.7,
            marker=look.marker,
            markersize=5,
            markerfacecolor="white",
            markeredgewidth=1.1,
        )
    return {str(name).lower() for name in paper["optimizer"]}


def _draw_times(axes: Axes, times: pd.DataFrame) -> set[str]:
    """Draw the measured mean iteration time over the period, in ms on a log axis, and return the labels."""
    _draw_estimates(axes, times, "inverse_update_period", "iteration_ms", err_kws={"alpha": 0.18, "linewidth": 0})
    # Not before the lines are drawn: on a logarithmic axis seaborn passes logarithms to the estimator.
    axes.set_yscale("log")
    plain_log_ticks(axes)
    axes.set_ylabel("")
    return set(times["optimizer"])


def _draw_losses(axes: Axes, last: pd.DataFrame) -> set[str]:
    """Draw the last validation loss over the period, count the runs that broke down, and return the labels."""
    labels = style.in_order(last["optimizer"])
    # Methods are set a little apart, or their intervals would hide each other.
    shifts = dict(zip(labels, 10 ** (0.045 * (np.arange(len(labels)) - (len(labels) - 1) / 2)), strict=True))
    last = last.dropna(subset="inverse_update_period")
    last = last.assign(x=last["inverse_update_period"].astype(float) * last["optimizer"].map(shifts))
    finite = last[np.isfinite(last["value"].astype(float))]
    _draw_estimates(axes, finite, "x", "value", err_style="bars", err_kws={"elinewidth": 1.2})
    axes.set_ylabel("")
    for (label, _), rows in finite.groupby(["optimizer", "x"]):
        if len(rows) < median_minimum():
            values = rows["value"].astype(float)
            axes.plot(rows["x"], values, ".", color=style.style_of(str(label)).color, markersize=4, alpha=0.7)
    for (label, x), rows in last.groupby(["optimizer", "x"]):
        failed = int((rows["value"] == math.inf).sum())
        if failed:
            axes.annotate(
                f"× {failed} of {len(rows)} failed",
                (x, 0.98),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="top",
                fontsize=6,
                color=style.style_of(str(label)).color,
                rotation=90,
            )
    return set(labels)


def _time_note(times: pd.DataFrame) -> str:
    """Return the caption's sentence on the timing."""
    repeats = times.groupby(["workload", "optimizer", "inverse_update_period"]).size()
    combined = sorted(times.loc[times["estimate"] == "combined", "inverse_update_period"].unique())
    summary = "median" if repeats.min() >= median_minimum() else "mean"
    text = f"{summary} of {repeats.min()} repeats, while no other job of the pipeline ran"
    if combined:
        text += (
            f"; periods {', '.join(f'{period:g}' for period in combined)}: steps timed with and "
            "without an update, combined at their true share"
        )
    return f"{text}; hollow: as published, for the paper's models on its GPUs"
