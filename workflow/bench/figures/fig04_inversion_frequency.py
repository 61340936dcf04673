"""Figure 4: iteration time and loss over the inverse update period."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.curves import last_common_values
from workflow.bench.analysis.estimates import estimate, median_minimum
from workflow.bench.analysis.wording import in_words
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
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
    """Draw (a) the mean iteration time and (b) the validation loss over the inverse update period, by workload."""
    times = results.probe("iteration_time")
    paper = published("iteration_time_ms")
    metrics = {experiment: results.metrics(experiment) for experiment in EXPERIMENTS}
    if times.empty and all(frame.empty for frame in metrics.values()):
        files = " nor ".join(f"{name}.csv" for name in ("probes/iteration_time", *EXPERIMENTS))
        raise NoDataError(f"neither {files} has results in {results.root}.")
    shown = {
        workload: (experiment, model)
        for workload, (experiment, model) in WORKLOADS.items()
        if (times["workload"] == workload).any() or len(results.runs(experiment))
    }
    figure, axes = page.new_figure(2, len(shown), height=4.3, sharex="col")
    periods = sorted({*map(float, paper["inverse_update_period"]), *map(float, times["inverse_update_period"])})
    labels = {name.lower() for name in paper["optimizer"]}
    steps: list[str] = []
    for (upper, lower), (workload, (experiment, model)) in zip(axes.T, shown.items(), strict=True):
        runs_of = results.runs(experiment)
        upper.set_title(styles.data_title(runs_of) if len(runs_of) else styles.workload_name(workload))
        _draw_times(upper, times[times["workload"] == workload], paper[paper["model"] == model])
        labels |= set(times.loc[times["workload"] == workload, "optimizer"])
        try:
            last, step = last_common_values(panels.losses_to_compare(metrics[experiment]))
            _draw_losses(lower, last)
            labels |= set(last["optimizer"])
            steps.append(f"{styles.workload_name(workload)} after {step:g} iterations")
        except NoDataError:
            reasons = results.runs(experiment)["reason"].dropna()
            reason = str(reasons.iloc[0]) if len(reasons) else f"{experiment} has no finished run"
            panels.explain_empty(lower, reason)
        lower.set_xscale("log")
        panels.fixed_ticks(lower.xaxis, periods)
        lower.set_xlim(periods[0] / 1.6, periods[-1] * 1.6)
        lower.set_xlabel("inverse update period (iterations)")
    axes[0, 0].set_ylabel("(a) mean iteration time (ms)")
    axes[1, 0].set_ylabel("(b) validation loss")
    legend = page.entries_of(labels)
    for name in paper["optimizer"].unique():
        look = styles.style_of(name.lower())
        # The paper's own name, but KFAC's as in the legend.
        legend.append(page.hollow_entry(f"{look.name if name == 'KAISA' else name}, published", look.marker))
    legend += [page.bar_entry(), page.guide_entry("one run", marker=".", markersize=4, linestyle="none")]
    notes = ["(a) " + _time_note(times), *page.precisions(times)] if not times.empty else []
    if steps:
        notes.append(f"(b) last evaluation at equal iterations: {', '.join(steps)}")
    absent = [] if not times.empty else ["probe iteration_time"]
    absent += [experiment for experiment, frame in metrics.items() if frame.empty]
    runs = pd.concat([results.runs(experiment) for experiment in EXPERIMENTS], ignore_index=True)
    text = page.caption(results, runs, notes=notes, absent=absent)
    reading = "Hollow: as published, for the paper's model on its GPUs."
    message = _message(times[times["workload"].isin(shown)])
    return page.save(figure, folder, "fig04_inversion_frequency", legend, text, message, reading)


def _message(times: pd.DataFrame) -> str:
    """Return the title: how much longer an iteration takes at period 1 than at the longest, of KFAC and of MKOR."""
    mean = times.groupby(["optimizer", "workload", "inverse_update_period"])["iteration_ms"].mean()
    phrases = []
    for label in ("kaisa", "mkor"):
        if label not in mean.index:
            continue
        by_workload = mean[label].unstack()
        ratios = (by_workload[by_workload.columns.min()] / by_workload[by_workload.columns.max()]).dropna()
        if len(ratios):
            name = styles.style_of(label).short
            phrases.append(f"{page.span(f'{ratio:.1f}' for ratio in sorted(ratios))} ({name})")
    longest = f"{times['inverse_update_period'].max():,.0f}"
    times_as_long = f"{in_words(phrases)} times as long as one in {longest} steps" if phrases else ""
    return f"An update in every step makes an iteration {times_as_long}" if phrases else ""


def _draw_estimates(axes: Axes, rows: pd.DataFrame, x: str, y: str, **look: Any) -> None:
    """Draw a line per label over ``x`` with our own estimates (`analysis.estimates`) and their intervals."""

    def interval(values: pd.Series) -> tuple[float, float]:
        summary = estimate(values.to_numpy(float))
        return (summary.low, summary.high) if len(values) >= median_minimum() else (math.nan, math.nan)

    if rows.empty:
        return
    by_method = page.seaborn_looks({label: styles.style_of(label) for label in styles.in_order(rows["optimizer"])})
    lines: dict[str, Any] = {"x": x, "y": y, "hue": "optimizer", "style": "optimizer", "legend": False, "ax": axes}
    lines |= by_method | look | {"markersize": 5, "markeredgewidth": 0.4}
    sns.lineplot(rows, estimator=lambda values: estimate(values).value, errorbar=interval, **lines)


def _draw_times(axes: Axes, times: pd.DataFrame, paper: pd.DataFrame) -> None:
    """Draw the paper's iteration times, hollow, and the measured ones over the period, in ms on a log axis."""
    for optimizer, rows in paper.groupby("optimizer"):
        look = styles.style_of(str(optimizer).lower())
        marker: dict[str, Any] = {"marker": look.marker, "markersize": 5, "markeredgewidth": 1.1}
        drawing = marker | {"markerfacecolor": "white", "linestyle": "-", "linewidth": 0.6, "alpha": 0.7}
        axes.plot(rows["inverse_update_period"], rows["iteration_ms"], color=look.color, **drawing)
    _draw_estimates(axes, times, "inverse_update_period", "iteration_ms", err_kws={"alpha": 0.18, "linewidth": 0})
    # Not before the lines are drawn: on a logarithmic axis seaborn passes logarithms to the estimator.
    axes.set_yscale("log")
    panels.plain_log_ticks(axes)
    axes.set_ylabel("")


def _draw_losses(axes: Axes, last: pd.DataFrame) -> None:
    """Draw the last validation loss over the period, and count the runs that broke down."""
    labels = styles.in_order(last["optimizer"])
    # Methods are set a little apart, or their intervals would hide each other.
    shifts = dict(zip(labels, 10 ** (0.045 * (np.arange(len(labels)) - (len(labels) - 1) / 2)), strict=True))
    last = last.dropna(subset="inverse_update_period")
    last = last.assign(x=last["inverse_update_period"].astype(float) * last["optimizer"].map(shifts))
    finite = last[np.isfinite(last["value"].astype(float))]
    _draw_estimates(axes, finite, "x", "value", err_style="bars", err_kws={"elinewidth": 1.2})
    axes.set_ylabel("")
    for (label, _), rows in last.groupby(["optimizer", "x"]):
        at = float(rows["x"].iloc[0])
        color, values = styles.style_of(str(label)).color, rows["value"].astype(float)
        ended = values[np.isfinite(values)]
        if len(ended) < median_minimum():
            axes.plot([at] * len(ended), ended, ".", color=color, markersize=4, alpha=0.7)
        if failed := int((values == math.inf).sum()):
            look: dict[str, Any] = {"ha": "center", "va": "top", "color": color, "rotation": 90}
            text = f"× {failed} of {len(rows)} failed"
            panels.annotate(axes, text, (at, 0.98), ("data", "axes fraction"), **look)


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
