"""Panels with one row a method: final losses beside the base optimizer's, and what runs took to a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.estimates import paired_difference
from workflow.bench.analysis.time_to_target import reaching
from workflow.bench.figures import _style as style


def base_of(runs: pd.DataFrame) -> str | None:
    """The label of the first-order optimizer that the second-order runs of one workload wrap, if it ran itself."""
    for hyperparameters in runs.loc[runs["update_rule"].notna(), "hyperparameters"].dropna():
        base = hyperparameters.get("base", "sgd")
        if base in set(runs["optimizer"]):
            return str(base)
    return None


def name_rows(axes: Axes, names: Iterable[str]) -> None:
    """A row for each name, from above; empty names where a panel to the left has them already."""
    shown = list(names)
    axes.set_yticks(range(len(shown)), shown, fontsize=7)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def draw_differences(axes: Axes, finals: Mapping[str, Mapping[int, float]], base: str, rows: Sequence[str]) -> None:
    """One row a method: final loss minus the base optimizer's, paired by seed, small dots the seeds.

    finals: by label, what `results.by_seed` gives of `results.last_common_values`; a row without any stays empty, and
    the base optimizer's own has its mark at 0.
    """
    axes.axvline(0, color="#444444", linewidth=0.8)
    for place, label in enumerate(rows):
        look = style.style_of(label)
        if label == base:
            axes.plot(0, place, marker=look.marker, color=look.color, markersize=5)
        if label == base or label not in finals:
            continue
        pairs = {seed: value - finals[base][seed] for seed, value in finals[label].items() if seed in finals[base]}
        finite = [difference for difference in pairs.values() if np.isfinite(difference)]
        axes.plot(finite, [place + 0.26] * len(finite), ".", color=look.color, markersize=3, alpha=0.75)
        summary = paired_difference(finals[label], finals[base])
        if summary is not None:
            axes.hlines(place, summary.low, summary.high, color=look.color, linewidth=2.2, alpha=0.55)
            axes.plot(summary.value, place, marker=look.marker, color=look.color, markersize=5)
        if len(finite) < len(pairs):
            axes.annotate(
                f"× {len(pairs) - len(finite)} of {len(pairs)} did not finish",
                (0.985, place - 0.36),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="center",
                fontsize=6.5,
                color=look.color,
            )
    name_rows(axes, [style.style_of(label).name for label in rows])
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(f"final loss − {style.style_of(base).name}'s")


def draw_reaching(axes: Axes, took: Mapping[str, Mapping[int, float]], end: float) -> None:
    """One row a label: dots are runs, the mark is their summary with its interval.

    took: by label, what `statistics.to_target` gives.  end: where on the axis runs that never got there are counted.
    """
    for row, (label, by_seed) in enumerate(took.items()):
        found, look = reaching(by_seed), style.style_of(label)
        if found is None:
            continue
        there = [value for value in by_seed.values() if math.isfinite(value)]
        axes.plot(there, [row + 0.27] * len(there), ".", color=look.color, markersize=3, alpha=0.75)
        if math.isfinite(found.took.value):
            if found.took.has_interval:
                axes.hlines(row, found.took.low, found.took.high, color=look.color, linewidth=2.2, alpha=0.55)
            axes.plot(found.took.value, row, marker=look.marker, color=look.color, markersize=5)
        if found.censored:
            axes.annotate(
                f"{found.censored} of {found.took.n} never \N{RIGHTWARDS ARROW}",
                (end, row - 0.3 if there else row),
                xytext=(-2, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=6.5,
                color=look.color,
            )
