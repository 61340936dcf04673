"""Figure 4: iteration time and loss over the inverse update period."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.curves import last_common_values
from workflow.bench.analysis.estimates import estimate, median_minimum, paired_ratio
from workflow.bench.figures import _forest as forest
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
"""The rows of panels: the experiment with the losses, and the paper's model with published iteration times.

Workloads without times and runs have no row.
"""
_METHODS: Final = ("kaisa", "mkor")
_EQUAL_MEMORY: Final = "_equal_memory"
"""The end of the labels whose factors fade equally fast in steps at every period.

A decay is applied once in an update: with one for all periods a loss shows a method's memory more than its period.
"""
_PAPER_LOOK: Final[Any] = {"markerfacecolor": "white", "markeredgewidth": 1.1, "linestyle": "-", "linewidth": 0.6}


def make(results: Results, folder: Path) -> list[Path]:
    """Draw (a) the mean iteration time and (b) the last validation loss over the inverse update period, by workload."""
    times, paper = results.probe("iteration_time"), published("iteration_time_ms")
    times = times[times["optimizer"].isin(_METHODS)]
    metrics = {experiment: results.metrics(experiment) for experiment in EXPERIMENTS}
    if times.empty and all(frame.empty for frame in metrics.values()):
        files = " nor ".join(f"{name}.csv" for name in ("probes/iteration_time", *EXPERIMENTS))
        raise NoDataError(f"neither {files} has results in {results.root}.")
    shown = {
        workload: (experiment, model)
        for workload, (experiment, model) in WORKLOADS.items()
        if (times["workload"] == workload).any() or len(results.runs(experiment))
    }
    figure, axes = page.new_figure(len(shown), 2, height=0.5 + 1.75 * len(shown), sharex="col")
    losses: dict[str, pd.DataFrame] = {}
    steps: list[str] = []
    for (left, right), (workload, (experiment, model)) in zip(axes, shown.items(), strict=True):
        runs_of = results.runs(experiment)
        name = styles.data_title(runs_of) if len(runs_of) else styles.workload_name(workload)
        left.set_title(f"(a) {name}")
        _draw_times(left, times[times["workload"] == workload], paper[paper["model"] == model])
        try:
            last, step = last_common_values(panels.losses_to_compare(metrics[experiment]))
            losses[name] = of_methods(last)
            _draw_losses(right, losses[name])
            right.set_title("(b) equal memory in steps" if has_equal_memory(last) else "(b) one decay for all periods")
            steps.append(f"{styles.workload_name(workload)} after {step:g} iterations")
        except NoDataError:
            reasons = runs_of["reason"].dropna()
            panels.explain_empty(right, str(reasons.iloc[0]) if len(reasons) else f"{experiment} has no finished run")
    _finish(axes, {*map(float, paper["inverse_update_period"]), *map(float, times["inverse_update_period"])})
    text = page.caption(
        results,
        pd.concat([results.runs(experiment) for experiment in EXPERIMENTS], ignore_index=True),
        notes=_notes(times, steps),
        absent=[
            *([] if len(times) else ["probe iteration_time"]),
            *(experiment for experiment, frame in metrics.items() if frame.empty),
        ],
    )
    drawn = {*_METHODS} & {label for frame in (times, *losses.values()) for label in frame["optimizer"]}
    legend = _legend(drawn, paper)
    if any(panel.collections for panel in axes.flat):
        legend.append(page.bar_entry())
    message = _message(times[times["workload"].isin(shown)], losses)
    reading = "Hollow: the paper's times, of its model on its GPUs."
    return page.save(figure, folder, "fig04_inversion_frequency", legend, text, message, reading)


def has_equal_memory(last: pd.DataFrame) -> bool:
    """Return whether losses have labels of equal memory."""
    return bool(last["optimizer"].str.endswith(_EQUAL_MEMORY).any())


def of_methods(last: pd.DataFrame) -> pd.DataFrame:
    """Return the losses of `_METHODS`: under these names those of equal memory, if there are any."""
    names = {f"{label}{_EQUAL_MEMORY}" if has_equal_memory(last) else label: label for label in _METHODS}
    chosen = last[last["optimizer"].isin(names)]
    return chosen.assign(optimizer=chosen["optimizer"].map(names))


def _finish(axes: np.ndarray, periods: Collection[float]) -> None:
    """Set the axes of periods, and name all axes."""
    for left, right in axes:
        left.set_ylabel("iteration time (ms)")
        right.set_ylabel("last validation loss")
    for panel in axes[-1]:
        panel.set_xscale("log")
        panels.fixed_ticks(panel.xaxis, periods)
        panel.set_xlim(min(periods) / 1.6, max(periods) * 1.6)
        panel.set_xlabel("inverse update period (iterations)")


def _legend(drawn: Collection[str], paper: pd.DataFrame) -> list[Artist]:
    """Return the entries of our methods and the paper's."""
    looks = [styles.style_of(name.lower()) for name in sorted(paper["optimizer"].unique())]
    papers = [page.line_entry(look, label=f"{look.short}, the paper's GPUs", **_PAPER_LOOK) for look in looks]
    return [*page.entries_of(drawn), *papers]


def _message(times: pd.DataFrame, losses: Mapping[str, pd.DataFrame]) -> str:
    """Return the title: what an update in every step costs, and of one workload gives, over one at a longer period."""
    periods = [frame["inverse_update_period"].max() for frame in (times, *losses.values())]
    longest = min((period for period in periods if period > 1), default=0)
    took = _ratios([rows for _, rows in times.groupby("workload")], "iteration_ms", "repeat", longest)
    if not took:
        return ""
    costs = f"update in every step ÷ one in {longest:,.0f}: iteration time {took}"
    if len(losses) != 1 or times["workload"].nunique() > 1:
        return f"An {costs}"
    ((name, last),) = losses.items()
    gained = _ratios([last], "value", "seed", longest)
    return f"{name}, an {costs}{'; last loss, by seed, ' if gained else ''}{gained}"


def _ratios(frames: Sequence[pd.DataFrame], column: str, unit: str, longest: float) -> str:
    """Return by method the least and the most of the frames' values at period 1 over those at ``longest``, as text.

    unit: the column by which values are paired.
    """
    phrases = []
    for label in _METHODS:
        found = []
        for frame in frames:
            of_label = frame[frame["optimizer"] == label]
            often, rarely = (
                {int(key): float(value) for key, value in zip(rows[unit], rows[column], strict=True)}
                for rows in (of_label[of_label["inverse_update_period"] == period] for period in (1, longest))
            )
            if ratio := paired_ratio(often, rarely):
                found.append(ratio)
        if found:
            span = page.span(f"{value:.2f}" for value in sorted(ratio.value for ratio in found))
            remark = max((forest.undecided(ratio) for ratio in found), key=len)
            phrases.append(f"{styles.style_of(label).short} {span}{remark}")
    return ", ".join(phrases)


def _notes(times: pd.DataFrame, steps: Sequence[str]) -> list[str]:
    """Return the caption's sentences on times and losses."""
    notes = ["(a) " + _time_note(times), *page.precisions(times)] if len(times) else []
    if steps:
        notes.append(
            f"(b) last evaluation at equal iterations: {', '.join(steps)}. Equal memory in steps: a factor's decay is "
            "applied once in an update, and chosen so that at every period a past step weighs equally"
        )
    return notes


def _draw_estimates(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    """Draw a line per label over the period with the estimates (`analysis.estimates`) of a column."""
    labels = styles.in_order(rows["optimizer"])
    # A little apart, or their intervals would hide each other.
    for label, place in panels.places_beside(labels, 0.1).items():
        by_period = rows[rows["optimizer"] == label].groupby("inverse_update_period")[column]
        estimates = {float(str(period)): estimate(values.to_numpy(float)) for period, values in by_period}
        panels.draw_estimates(axes, estimates, label, place)


def _draw_times(axes: Axes, times: pd.DataFrame, paper: pd.DataFrame) -> None:
    """Draw the paper's iteration times, hollow, and the measured ones over the period, in ms on a log axis."""
    for optimizer, rows in paper.groupby("optimizer"):
        look = styles.style_of(str(optimizer).lower())
        drawing = {"color": look.color, "marker": look.marker, "markersize": 5, **_PAPER_LOOK}
        axes.plot(rows["inverse_update_period"], rows["iteration_ms"], **drawing)
    _draw_estimates(axes, times, "iteration_ms")
    axes.set_yscale("log")
    panels.plain_log_ticks(axes)


def _draw_losses(axes: Axes, last: pd.DataFrame) -> None:
    """Draw the last validation loss over the period, and count the runs that broke down."""
    is_finite = np.isfinite(last["value"].astype(float))
    _draw_estimates(axes, last[is_finite], "value")
    for (label, period), rows in last.groupby(["optimizer", "inverse_update_period"]):
        if failed := int((rows["value"] == math.inf).sum()):
            look: dict[str, Any] = {"ha": "center", "va": "top", "color": styles.style_of(str(label)).color}
            text = f"× {failed} of {len(rows)} failed"
            panels.annotate(axes, text, (float(str(period)), 0.98), ("data", "axes fraction"), rotation=90, **look)


def _time_note(times: pd.DataFrame) -> str:
    """Return the caption's sentence on the timing."""
    repeats = times.groupby(["workload", "optimizer", "inverse_update_period"]).size()
    combined = sorted(times.loc[times["estimate"] == "combined", "inverse_update_period"].unique())
    summary = "median" if repeats.min() >= median_minimum() else "mean and t interval"
    text = f"{summary} of {repeats.min()} repeats, while no other job of the pipeline ran"
    if combined:
        text += (
            f"; periods {', '.join(f'{period:g}' for period in combined)}: steps timed with and "
            "without an update, combined at their true share"
        )
    return f"{text}; hollow: the paper's times, of its models on its GPUs"
