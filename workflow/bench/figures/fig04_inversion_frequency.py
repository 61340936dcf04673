"""Figure 4: what updating the factors less often saves in time, and what it costs in loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.common_steps import by_seed, last_common_values
from workflow.bench.analysis.estimates import BOOTSTRAP_MINIMUM, estimate
from workflow.bench.figures import _style as style
from workflow.bench.figures._curves import ended
from workflow.bench.results.tables import NoDataError, Results, published

EXPERIMENTS = ("autoencoder_inversion", "bert_inversion")
PROBES = ("iteration_time",)
PUBLISHED = ("iteration_time_ms",)

#: Column of panels -> the experiment of its losses, and the model whose iteration times the paper published.
WORKLOADS = {
    "autoencoder": ("autoencoder_inversion", "Autoencoder"),
    "bert": ("bert_inversion", "BERT-Large-Uncased"),
}


def _labels(frame: pd.DataFrame) -> list[str]:
    return style.in_order(frame["optimizer"])


def _draw_times(axes: Axes, times: pd.DataFrame, of_paper: pd.DataFrame) -> set[str]:
    """Measured mean iteration time over the period, filled, and the paper's, hollow; both in ms, log-log."""
    for optimizer, rows in of_paper.groupby("optimizer"):
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
    for label in _labels(times):
        look = style.style_of(label)
        rows = times[times["optimizer"] == label]
        at = sorted({float(period) for period in rows["inverse_update_period"]})
        summaries = [
            estimate(rows.loc[rows["inverse_update_period"] == period, "iteration_ms"].to_numpy(float)) for period in at
        ]
        axes.plot(
            at, [summary.value for summary in summaries], color=look.color, linestyle=look.line, marker=look.marker
        )
        low, high = [summary.low for summary in summaries], [summary.high for summary in summaries]
        axes.fill_between(at, low, high, color=look.color, alpha=0.18, linewidth=0)
    axes.set_yscale("log")
    style.plain_log_ticks(axes)
    return set(_labels(times)) | {str(name).lower() for name in of_paper["optimizer"]}


def _draw_losses(axes: Axes, metrics: pd.DataFrame) -> tuple[set[str], float]:
    """Last validation loss at equal iterations over the period; returns the labels drawn and the iteration."""
    last, step = last_common_values(metrics)
    labels = _labels(last)
    # Methods are set a little apart, or their error bars would hide each other.
    shifts = 10 ** (0.045 * (np.arange(len(labels)) - (len(labels) - 1) / 2))
    for label, shift in zip(labels, shifts, strict=True):
        look = style.style_of(label)
        points: list[tuple[float, ...]] = []
        of_label = last[last["optimizer"] == label]
        for period in sorted({float(period) for period in of_label["inverse_update_period"].dropna()}):
            values = np.array(list(by_seed(of_label[of_label["inverse_update_period"] == period]).values()))
            finite = values[np.isfinite(values)]
            if len(finite):
                summary = estimate(finite)
                points.append((period * shift, summary.value, summary.low, summary.high))
            if len(finite) < len(values):
                axes.annotate(
                    f"× {len(values) - len(finite)} of {len(values)} failed",
                    (period * shift, 0.98),
                    xycoords=("data", "axes fraction"),
                    ha="center",
                    va="top",
                    fontsize=6,
                    color=look.color,
                    rotation=90,
                )
        if not points:
            continue
        at, value, low, high = np.array(points).T
        axes.plot(at, value, color=look.color, linestyle=look.line, marker=look.marker)
        axes.vlines(at, low, high, color=look.color, linewidth=1.6, alpha=0.55)
    return set(labels), step


def make(results: Results, folder: Path) -> list[Path]:
    """Draw (a) the mean iteration time and (b) the test loss over the inverse update period, by workload.

    Raises NoDataError where neither the probe nor one of the two experiments has results.
    """
    times = results.probe("iteration_time")
    of_paper = published("iteration_time_ms")
    experiments = {name: results.metrics(experiment) for name, (experiment, _) in WORKLOADS.items()}
    if times.empty and all(metrics.empty for metrics in experiments.values()):
        raise NoDataError(
            f"neither probes/iteration_time.csv nor {' nor '.join(f'{e}.csv' for e in EXPERIMENTS)} "
            f"has results in {results.root}."
        )
    figure, axes = style.new_figure(2, len(WORKLOADS), height=4.3, sharex="col")
    drawn: set[str] = set()
    absent = [] if not times.empty else ["probe iteration_time"]
    steps: list[str] = []
    for column, (workload, (experiment, model)) in enumerate(WORKLOADS.items()):
        upper, lower = axes[0, column], axes[1, column]
        upper.set_title(style.workload_name(workload))
        drawn |= _draw_times(upper, times[times["workload"] == workload], of_paper[of_paper["model"] == model])
        metrics = experiments[workload]
        losses = ended(metrics, "validation", "loss")
        failed = metrics[metrics["split"].isna()]
        try:
            labels, step = _draw_losses(lower, pd.concat([losses, failed]) if len(failed) else losses)
            drawn |= labels
            steps.append(f"{style.workload_name(workload)} after {step:g} iterations")
        except NoDataError:
            reasons = results.runs(experiment).get("reason", pd.Series(dtype=str)).dropna()
            style.say(lower, str(reasons.iloc[0]) if len(reasons) else f"{experiment} has no finished run")
            if metrics.empty:
                absent.append(experiment)
        style.period_axis(lower, set(of_paper["inverse_update_period"]) | set(times["inverse_update_period"]))
        lower.set_xlabel("inverse update period (iterations)")
    axes[0, 0].set_ylabel("(a) mean iteration time (ms)")
    axes[1, 0].set_ylabel("(b) validation loss")
    handles: list[Any] = [style.method_handle(label) for label in style.in_order(drawn)]
    handles.append(style.published_handle("published (paper's models and GPUs)"))
    handles.append(style.bar_handle("95 % interval"))
    runs = pd.concat([results.runs(experiment) for experiment in EXPERIMENTS], ignore_index=True)
    notes = ["(a) " + _probe_note(times)] if not times.empty else []
    if steps:
        notes.append(f"(b) last evaluation at equal iterations: {', '.join(steps)}")
    style.finish(figure, handles, caption(results, runs, notes=notes, absent=absent), columns=2)
    return style.save(figure, folder, "fig04_inversion_frequency")


def _probe_note(times: pd.DataFrame) -> str:
    """What was timed here and what was not, for the caption."""
    repeats = times.groupby(["workload", "optimizer", "inverse_update_period"]).size()
    combined = sorted(times.loc[times["estimate"] == "combined", "inverse_update_period"].unique())
    summary = "median" if repeats.min() >= BOOTSTRAP_MINIMUM else "mean"
    text = f"{summary} of {repeats.min()} repeats, no other job of the pipeline beside them"
    if combined:
        text += (
            f"; periods {', '.join(f'{period:g}' for period in combined)}: steps timed with and "
            "without an update, combined at their true share"
        )
    return f"{text}; hollow: as published"
