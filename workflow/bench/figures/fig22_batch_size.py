"""Figure 22 (ours): iterations to one target over the batch size, and the speedup over the reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.batch_sizes import Batches, batches, sentences
from workflow.bench.analysis.estimates import mean_ratio
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import Results

EXPERIMENTS = ("batch_size",)

_APART: Final = 0.025
"""The distance of two labels at one size, in the logarithm of the size."""
_BOUND: Final = "^"
_NOTES: Final = (
    "Above: iterations at which the smoothed metric crosses the target, the same at all sizes; geometric mean over "
    "seeds and tuning studies, t interval over studies. Hollow triangles: a run did not reach the target and counts "
    "with its budget, so that the mean is a lower bound. Dashed: half as many iterations at twice the batch",
    "Below: the reference's iterations over those of the optimizer, paired by study, above 1 in its favor; without "
    "optimizers of which a run did not reach the target at that size",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw a column for each workload: iterations above, speedups below."""
    found, left_out = batches(results)
    runs = results.some_runs(EXPERIMENTS[0])
    figure, axes = page.new_figure(2, len(found), height=4.0, sharex="col", height_ratios=(1.25, 1))
    for (upper, lower), of_workload in zip(axes.T, found, strict=True):
        rows = runs[runs["workload"] == of_workload.workload]
        title = styles.data_title(rows, width=66 // len(found))  # 66 letters in all panels
        upper.set_title(f"{title}\n{of_workload.target.describe()}")
        _draw_iterations(upper, of_workload)
        _draw_speedups(lower, of_workload)
        lower.set_xlabel("batch size")
        panels.fixed_ticks(lower.xaxis, of_workload.sizes)
    axes[0, 0].set_ylabel("iterations to the target")
    legend = page.entries_of(label for of_workload in found for label in of_workload.arrivals)
    legend += [
        page.hollow_entry("lower bound", _BOUND),
        page.guide_entry("proportional", linestyle=page.MODEL_LINE, linewidth=0.8),
        page.bar_entry(),
    ]
    notes = [*_NOTES, *sentences(found, styles.workload_name, lambda label: styles.style_of(label).name)]
    notes += [f"Not shown: {'; '.join(left_out)}"] if left_out else []
    text = page.caption(results, runs, notes=notes, summarized=False)
    reading = "Below: where a line rises, the optimizer gains more from a large batch than the reference."
    return page.save(figure, folder, "fig22_batch_size", legend, text, _message(found), reading)


def _message(found: Sequence[Batches]) -> str:
    """Return the title: the reference's iterations over MKOR's at the smallest and the largest batch, by workload."""
    phrases = []
    for one in found:
        ends = [one.ratios("mkor", size) if "mkor" in one.arrivals else {} for size in (one.sizes[0], one.sizes[-1])]
        if one.reference is not None and all(ends):
            first, last = (mean_ratio([-log for log in logs.values()]).value for logs in ends)
            sizes = f"{first:.2f} at {one.sizes[0]:,}, {last:.2f} at {one.sizes[-1]:,}"
            reference, workload = styles.style_of(one.reference).name, styles.workload_name(one.workload)
            phrases.append(f"{reference}'s {sizes} ({workload}: {one.decision('mkor')})")
    return f"Iterations over MKOR's by batch: {', '.join(phrases)}" if phrases else ""


def _draw_iterations(axes: Axes, of_workload: Batches) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for label, place in panels.places_beside(styles.in_order(of_workload.arrivals), _APART).items():
        arrivals = of_workload.arrivals[label]
        whole = {size: one.iterations for size, one in arrivals.items() if not one.is_censored}
        panels.draw_estimates(axes, whole, label, place)
        bounds = {size: one.iterations for size, one in arrivals.items() if one.is_censored}
        hollow = {"marker": _BOUND, "markerfacecolor": "white", "linestyle": "none"}
        panels.draw_estimates(axes, bounds, label, place, **hollow)
    _draw_proportional(axes, of_workload)
    panels.plain_log_ticks(axes)


def _draw_proportional(axes: Axes, of_workload: Batches) -> None:
    """Draw the line on which twice the batch takes half the iterations, from the largest number at the left."""
    sizes = np.array(of_workload.sizes, float)
    highest = max(one.iterations.value for by_size in of_workload.arrivals.values() for one in by_size.values())
    low, high = axes.get_ylim()
    axes.plot(sizes, highest * sizes[0] / sizes, color=page.GUIDE, linestyle=page.MODEL_LINE, linewidth=0.8, zorder=1)
    axes.set_ylim(low, high)


def _draw_speedups(axes: Axes, of_workload: Batches) -> None:
    reference = of_workload.reference
    if reference is None:
        panels.explain_empty(axes, "neither the base optimizer nor NadamW reaches the target in all runs")
        return
    axes.set_yscale("log")
    axes.axhline(1, color=page.GUIDE, linewidth=0.8)
    for label, place in panels.places_beside(styles.in_order(of_workload.arrivals), _APART).items():
        ratios = {size: of_workload.ratios(label, size) for size in of_workload.sizes}
        speedups = {size: mean_ratio([-log for log in logs.values()]) for size, logs in ratios.items() if logs}
        if label != reference:
            panels.draw_estimates(axes, speedups, label, place)
    axes.set_ylabel(f"speedup in iterations\nover {styles.style_of(reference).name}")
    panels.plain_log_ticks(axes)
