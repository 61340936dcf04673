"""Figure 4: iteration time, and loss over that of the longest period, over the inverse update period."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.curves import last_common_values
from workflow.bench.analysis.estimates import Estimate, estimate, median_minimum, paired_ratio
from workflow.bench.analysis.wording import in_words
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
    """Draw (a) the mean iteration time and (b) ratios of the last validation loss over the period, by workload."""
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
    losses, compared = _losses({workload: metrics[experiment] for workload, (experiment, _) in shown.items()})
    figure, axes = page.new_figure(len(shown), 2 if losses else 1, height=0.5 + 1.75 * len(shown), sharex="col")
    longest = _longest(losses.values())
    for (left, *right), (workload, (experiment, model)) in zip(axes, shown.items(), strict=True):
        runs_of = results.runs(experiment)
        left.set_title(f"(a) {styles.data_title(runs_of) if len(runs_of) else styles.workload_name(workload)}")
        _draw_times(left, times[times["workload"] == workload], paper[paper["model"] == model])
        for panel in right:
            if workload in losses:
                _draw_losses(panel, losses[workload], longest)
            else:
                reasons = runs_of["reason"].dropna()
                panels.explain_empty(panel, str(reasons.iloc[0]) if len(reasons) else f"{experiment} has no losses")
    every = pd.concat([frame["inverse_update_period"] for frame in (paper, times, *losses.values())])
    _finish(axes, longest, {*every.astype(float)})
    text = page.caption(
        results,
        pd.concat([results.runs(experiment) for experiment in EXPERIMENTS], ignore_index=True),
        notes=_notes(times, compared),
        absent=[
            *([] if len(times) else ["probe iteration_time"]),
            *(experiment for experiment, frame in metrics.items() if frame.empty),
        ],
    )
    drawn = {*_METHODS} & {label for frame in (times, *losses.values()) for label in frame["optimizer"]}
    legend = _legend(drawn, paper)
    if any(panel.collections for panel in axes.flat):
        legend.append(page.bar_entry())
    message = _message(times[times["workload"].isin(shown)], longest)
    reading = "Hollow: the paper's times, of its model on its GPUs." + (" Above 1: a worse loss." if losses else "")
    return page.save(figure, folder, "fig04_inversion_frequency", legend, text, message, reading)


def _losses(metrics: Mapping[str, pd.DataFrame]) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Return by workload the last losses of `_METHODS`, where runs finished, and what they are in words."""
    losses, compared = {}, []
    for workload, rows in metrics.items():
        try:
            last, step = last_common_values(panels.losses_to_compare(rows))
        except NoDataError:
            continue
        if _longest([chosen := of_methods(last)]) == 0:
            continue
        losses[workload] = chosen
        memory = "equal memory in steps" if has_equal_memory(last) else "one decay for all periods"
        compared.append(f"{styles.workload_name(workload)} after {step:g} iterations, {memory}")
    return losses, compared


def _longest(frames: Iterable[pd.DataFrame]) -> float:
    """Return the longest period of the frames' rows; 0 without one that is longer than 1."""
    periods = [float(frame["inverse_update_period"].max()) for frame in frames]
    return min((period for period in periods if period > 1), default=0.0)


def has_equal_memory(last: pd.DataFrame) -> bool:
    """Return whether losses have labels of equal memory."""
    return bool(last["optimizer"].str.endswith(_EQUAL_MEMORY).any())


def of_methods(last: pd.DataFrame) -> pd.DataFrame:
    """Return the losses of `_METHODS`: under these names those of equal memory, if there are any."""
    names = {f"{label}{_EQUAL_MEMORY}" if has_equal_memory(last) else label: label for label in _METHODS}
    chosen = last[last["optimizer"].isin(names)]
    return chosen.assign(optimizer=chosen["optimizer"].map(names))


def _finish(axes: np.ndarray, longest: float, periods: Collection[float]) -> None:
    """Set the axes of periods, name all axes, and give the ratios of losses one scale, on which a flat line is flat."""
    names = ("iteration time (ms)", f"loss ÷ that at period {longest:g}")
    for column, name, most in zip(axes.T, names, (math.inf, longest), strict=False):
        shown = [period for period in periods if period <= most]
        column[-1].set_xscale("log")
        panels.fixed_ticks(column[-1].xaxis, shown)
        column[-1].set_xlim(min(shown) / 1.6, max(shown) * 1.6)
        column[-1].set_xlabel("inverse update period (iterations)")
        for panel in column:
            panel.set_ylabel(name)
    ratios = [panel for panel in axes[:, 1:].flat if panel.has_data()]
    limits = [limit for panel in ratios for limit in panel.get_ylim()]
    for panel in ratios:
        panel.set_ylim(min(limits), max(limits))


def _legend(drawn: Collection[str], paper: pd.DataFrame) -> list[Artist]:
    """Return the entries of our methods and the paper's."""
    looks = [styles.style_of(name.lower()) for name in sorted(paper["optimizer"].unique())]
    papers = [page.line_entry(look, label=f"{look.short}, the paper's GPUs", **_PAPER_LOOK) for look in looks]
    return [*page.entries_of(drawn), *papers]


def _message(times: pd.DataFrame, longest: float) -> str:
    """Return the title: how much longer an update in every step makes an iteration, over the panels' workloads.

    longest: the period of the losses, with which every step is compared; 0 if there are none.
    """
    rarely = longest or _longest([times])
    phrases = []
    for label in _METHODS:
        ratios = [
            found[1.0]
            for _, rows in times[times["optimizer"] == label].groupby("workload")
            if 1.0 in (found := _over(rows, "iteration_ms", "repeat", rarely))
        ]
        if ratios:
            span = page.span(f"{value:.2f}" for value in sorted(ratio.value for ratio in ratios))
            remark = max((forest.undecided(ratio) for ratio in ratios), key=len)
            phrases.append(f"{span} times as long with {styles.style_of(label).short}{remark}")
    start = f"An update in every step, not in one of {rarely:,.0f}, makes an iteration"
    return f"{start} {in_words(phrases)}" if phrases else ""


def _over(rows: pd.DataFrame, column: str, unit: str, longest: float) -> dict[float, Estimate]:
    """Return by period the estimates of a label's values over those at the longest period, paired by ``unit``."""
    by_period = {
        float(str(period)): dict(zip(of_period[unit].astype(int), of_period[column].astype(float), strict=True))
        for period, of_period in rows.groupby("inverse_update_period")
    }
    base = by_period.get(longest, {})
    return {period: ratio for period, values in by_period.items() if (ratio := paired_ratio(values, base))}


def _notes(times: pd.DataFrame, compared: Sequence[str]) -> list[str]:
    """Return the caption's sentences on times and losses."""
    notes = ["(a) " + _time_note(times), *page.precisions(times)] if len(times) else []
    if compared:
        notes.append(
            f"(b) last evaluation at equal iterations, paired by seed: {'; '.join(compared)}. A factor's decay is "
            "applied once in an update; for equal memory it is such that a past step weighs equally at every period"
        )
    return notes


def _draw(axes: Axes, by_label: Mapping[str, Mapping[float, Estimate]]) -> None:
    """Draw a line per label with its estimates over the period."""
    # A little apart, or their intervals would hide each other.
    for label, place in panels.places_beside(styles.in_order(by_label), 0.1).items():
        panels.draw_estimates(axes, by_label[label], label, place)


def _draw_times(axes: Axes, times: pd.DataFrame, paper: pd.DataFrame) -> None:
    """Draw the paper's iteration times, hollow, and the measured ones over the period, in ms on a log axis."""
    for optimizer, rows in paper.groupby("optimizer"):
        look = styles.style_of(str(optimizer).lower())
        drawing = {"color": look.color, "marker": look.marker, "markersize": 5, **_PAPER_LOOK}
        axes.plot(rows["inverse_update_period"], rows["iteration_ms"], **drawing)
    _draw(
        axes,
        {
            str(label): {
                float(str(period)): estimate(of_period["iteration_ms"].to_numpy(float))
                for period, of_period in rows.groupby("inverse_update_period")
            }
            for label, rows in times.groupby("optimizer")
        },
    )
    axes.set_yscale("log")
    panels.plain_log_ticks(axes)


def _draw_losses(axes: Axes, last: pd.DataFrame, longest: float) -> None:
    """Draw the last validation loss over that at the longest period, and count the runs that broke down."""
    last = last[last["inverse_update_period"] <= longest]
    finite = last[np.isfinite(last["value"].astype(float))]
    _draw(axes, {str(label): _over(rows, "value", "seed", longest) for label, rows in finite.groupby("optimizer")})
    axes.axhline(1, color=page.GUIDE, linewidth=0.8, zorder=1)
    axes.set_title("(b) last loss, paired by seed")
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
