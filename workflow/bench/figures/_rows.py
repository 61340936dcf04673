"""Panels with one row per method: differences from the base optimizer, and times to a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from workflow.bench.analysis.common_steps import by_seed, last_common_values
from workflow.bench.analysis.estimates import Estimate, median_minimum, paired_difference
from workflow.bench.analysis.time_to_target import reaching
from workflow.bench.figures import _style as style
from workflow.bench.figures._axes import explain_empty
from workflow.bench.results.tables import NoDataError


def base_of(runs: pd.DataFrame) -> str | None:
    """Return the label of the first-order optimizer that the second-order runs of a workload wrap.

    None if that optimizer has no run.
    """
    for hyperparameters in runs.loc[runs["update_rule"].notna(), "hyperparameters"].dropna():
        base = hyperparameters.get("base", "sgd")
        if base in set(runs["optimizer"]):
            return str(base)
    return None


def name_rows(axes: Axes, names: Iterable[str]) -> None:
    """Set up one row per name, the first on top; names are empty if a panel to the left shows them."""
    shown = list(names)
    axes.set_yticks(range(len(shown)), shown, fontsize=7)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def draw_estimate(
    axes: Axes, estimate: Estimate, row: float, label: str, *, runs: Sequence[float] | None = None
) -> None:
    """Draw a method's marker at the value of an estimate, and its interval as a bar.

    runs: the values of the runs, if they are dots (`draw_runs`). Fewer than `median_minimum` of them have no bar, since
    a t interval of two or three fills the panel and says less than they do; the marker is then at their median.
    """
    look, value = style.style_of(label), estimate.value
    if runs is not None and estimate.n < median_minimum():
        value = float(np.median(runs))
    elif estimate.has_interval:
        axes.hlines(row, estimate.low, estimate.high, color=look.color, linewidth=2.2, alpha=0.55)
    axes.plot(value, row, marker=look.marker, color=look.color, markersize=5)


def draw_runs(axes: Axes, values: Sequence[float], row: float, label: str, *, below: float = 0.26) -> None:
    """Draw one dot per run, a part of a row below the row's marker."""
    axes.plot(values, [row + below] * len(values), ".", color=style.style_of(label).color, markersize=3, alpha=0.75)


def draw_differences(
    axes: Axes, losses: pd.DataFrame, base: str | None, labels: Sequence[str], *, most_ticks: int = 5
) -> None:
    """Draw one row per label: the final loss minus the base optimizer's, paired by seed; small dots are the seeds.

    A panel without differences gives the reason.

    Args:
        axes: the panel.
        losses: evaluations of one metric, and one row of each run that broke down before its first evaluation.
        base: label of the base optimizer, whose own row has its marker at 0; None if it did not run.
        labels: the rows from top to bottom.
        most_ticks: of the axis of differences; in a narrow panel the labels of more would touch.
    """
    try:
        last, step = last_common_values(losses)
    except NoDataError as error:
        explain_empty(axes, str(error))
        return
    finals = {str(label): by_seed(rows) for label, rows in last.groupby("optimizer")}
    if base is None or base not in finals:
        explain_empty(axes, "the base optimizer has no run to pair with")
        return
    axes.axvline(0, color=style.GUIDE, linewidth=0.8)
    for row, label in enumerate(labels):
        if label == base:
            look = style.style_of(label)
            axes.plot(0, row, marker=look.marker, color=look.color, markersize=5)
        elif label in finals:
            _draw_difference(axes, finals[label], finals[base], row, label)
    name_rows(axes, [style.style_of(label).name for label in labels])
    # Fixed, since `_page.arrange` wants three ticks of a locator that chooses; 0 and another one are a scale, too.
    low, high = axes.get_xlim()
    ticks = MaxNLocator(most_ticks - 1, steps=[1, 2, 2.5, 4, 5, 10]).tick_values(low, high)
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))
    axes.set_xlabel(f"loss − {style.style_of(base).name.partition(' (')[0]}'s, iteration {step:g}")


def _draw_difference(
    axes: Axes, losses: Mapping[int, float], base_losses: Mapping[int, float], row: int, label: str
) -> None:
    """Draw the differences of one label, and count its runs that broke down, whose loss is infinite."""
    differences = [value - base_losses[seed] for seed, value in losses.items() if seed in base_losses]
    finite = [difference for difference in differences if math.isfinite(difference)]
    draw_runs(axes, finite, row, label)
    summary = paired_difference(losses, base_losses)
    if summary is not None:
        draw_estimate(axes, summary, row, label, runs=differences)
    if len(finite) < len(differences):
        write_beside(axes, row, f"{len(finite)} of {len(differences)}", "finished")


def write_beside(axes: Axes, row: float, text: str, header: str) -> None:
    """Write a text to the right of a row, outside of the panel, and once the header above all of them."""
    place: dict[str, Any] = {"xytext": (3, 0), "textcoords": "offset points", "fontsize": 6, "color": style.SOFT}
    axes.annotate(text, (1, row), xycoords=("axes fraction", "data"), va="center", **place)
    if header not in {written.get_text() for written in axes.texts}:
        place["xytext"] = (3, 1.5)
        axes.annotate(header, (1, 1), xycoords="axes fraction", va="bottom", **place)


def draw_times_to_target(axes: Axes, took: Mapping[str, Mapping[int, float]]) -> None:
    """Draw one row per label: dots are runs, the marker is their estimate with its interval.

    To the right stands how many of a label's runs reached the target, if not all of them.

    Args:
        axes: the panel.
        took: time or steps to the target by label and seed, infinite for a run that never reached it.
    """
    for row, (label, times) in enumerate(took.items()):
        summary = reaching(times)
        if summary is None:
            continue
        reached = [value for value in times.values() if math.isfinite(value)]
        draw_runs(axes, reached, row, label)
        if math.isfinite(summary.took.value):
            draw_estimate(axes, summary.took, row, label, runs=list(times.values()))
        if summary.censored:
            write_beside(axes, row, f"{summary.reached} of {summary.took.n}", "reached")
