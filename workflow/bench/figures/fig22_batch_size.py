"""Figure 22 (ours): the speedup in iterations over the reference, over the batch size."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.batch_sizes import Batches, batches, sentences
from workflow.bench.analysis.estimates import Estimate, mean_ratio
from workflow.bench.analysis.wording import in_words
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import Results

EXPERIMENTS = ("batch_size",)

_SHOWN: Final = ("kaisa", "foof", "muon", "mkor")
"""The labels that have a line; the table batch_size has all."""
_APART: Final = 0.06
"""The distance of two labels at one size, in the logarithm of the size."""
_GAP: Final = Estimate(math.nan, math.nan, math.nan, 0, "geometric mean", "none", is_ratio=True)
"""What stands at a size without a speedup: a line ends before it."""
_NOTES: Final = (
    "The reference's iterations to the target, the same at all sizes, over those of the optimizer, paired by study, "
    "above 1 in its favor: geometric mean over seeds and tuning studies, t interval over studies. Hollow: a run "
    "of the optimizer did not reach the target and counts with its budget, so that the speedup is at most this. "
    "The table batch_size has all optimizers and the iterations",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw a panel for each workload."""
    found, left_out = batches(results)
    runs = results.some_runs(EXPERIMENTS[0])
    figure, (axes,) = page.new_figure(1, len(found), height=2.7)
    for panel, of_workload in zip(axes, found, strict=True):
        title = styles.data_title(runs[runs["workload"] == of_workload.workload], width=33)
        panel.set_title(f"{title}\n{of_workload.target.describe()}", fontsize=7.5)
        panel.set_xscale("log")
        _draw(panel, of_workload)
        panel.set_xlabel("batch size")
        panels.fixed_ticks(panel.xaxis, of_workload.sizes)
    shown = {label for of_workload in found for label in _shown(of_workload)}
    bound = page.hollow_entry("at most: a run missed the target", markersize=5.5)
    legend = [*page.entries_of(shown), bound, page.bar_entry()]
    notes = [*_NOTES, *sentences(found, styles.workload_name, lambda label: styles.style_of(label).name)]
    notes += [f"Not shown: {'; '.join(left_out)}"] if left_out else []
    text = page.caption(results, runs, notes=notes, summarized=False)
    reading = "Above 1: fewer iterations than the reference; where a line rises, the gain grows with the batch."
    return page.save(figure, folder, "fig22_batch_size", legend, text, _message(found), reading)


def _shown(of_workload: Batches) -> list[str]:
    """Return the labels of a workload that have a line, in the order of all legends."""
    return styles.in_order(
        label for label in _SHOWN if label in of_workload.arrivals and label != of_workload.reference
    )


def _message(found: Iterable[Batches]) -> str:
    """Return the title: what the reference needs over what MKOR needs, from the least to the most of the batches.

    It is of the first workload on which MKOR reaches the target at all of them; two would not fit.
    """
    for one in found:
        ratios = {size: one.ratios("mkor", size) if "mkor" in one.arrivals else {} for size in one.sizes}
        if one.reference is None or not all(ratios.values()):
            continue
        speedups = {size: _speedup(of_size) for size, of_size in ratios.items()}
        open_at = [f"{size:,}" for size, speedup in speedups.items() if forest.undecided(speedup)]
        span = page.span(f"{speedup:.2f}" for speedup in sorted(found.value for found in speedups.values()))
        needs = f"{span} times MKOR's iterations{f' (undecided at batch {in_words(open_at)})' if open_at else ''}"
        grows = {"holds": "that grows", "fails": "that does not grow", "open": "whether that grows is open"}
        trend = f"; {said}" if (said := grows.get(one.decision("mkor"))) else ""
        reference, workload = styles.style_of(one.reference).name, styles.workload_name(one.workload)
        return f"{workload}: {reference} needs {needs}{trend}"
    return ""


def _speedup(ratios: dict[int, float]) -> Estimate:
    return mean_ratio([-log for log in ratios.values()])


def _draw(axes: Axes, of_workload: Batches) -> None:
    """Draw each label's speedups over the batch size, and as hollow triangles those that are bounds."""
    reference = of_workload.reference
    if reference is None:
        panels.explain_empty(axes, "neither the base optimizer nor NadamW reaches the target in all runs")
        return
    axes.set_yscale("log")
    axes.axhline(1, color=page.GUIDE, linewidth=0.8)
    for label, place in panels.places_beside(_shown(of_workload), _APART).items():
        logs = {size: of_workload.ratios(label, size) for size in of_workload.sizes}
        speedups = {size: _speedup(of_size) if of_size else _GAP for size, of_size in logs.items()}
        panels.draw_estimates(axes, speedups, label, place)
        missed = {size: of_workload.ratios(label, size, censored=True) for size in of_workload.sizes}
        bounds = [(place * size, _speedup(of_size).value) for size, of_size in missed.items() if of_size]
        look = styles.style_of(label)
        for at, bound in bounds:
            axes.plot(at, bound, marker=look.marker, color=look.color, markerfacecolor="white", markersize=5.5)
    axes.set_ylabel(f"speedup in iterations\nover {styles.style_of(reference).name}")
    panels.plain_log_ticks(axes)
