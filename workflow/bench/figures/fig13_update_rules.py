"""Figure 13 (ours): MKOR's published, exact and released update rule, the base optimizer, and KFAC."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from workflow.bench.analysis import styles
from workflow.bench.analysis.target_sweep import common_base
from workflow.bench.analysis.wording import signed
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures._forest import FinalChange
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("update_rules",)

RULES: Final = {"mkor": "exact rule", "mkor_released": "released rule", "mkor_published": "published rule"}
"""Labels of the rules, and their names in the title."""
_BESIDE: Final = {"kaisa": "KFAC"}
"""What stands beside the rules and the base optimizer. MKOR's variants that are no rules of it stay out."""
_NOTE: Final = (
    "On a logarithmic axis the statistics over seeds are those of logarithms. At the right: final loss against the "
    "base optimizer's at equal iterations, paired by seed, with its interval over tuning studies, which ends in an "
    "arrow where it has no end: a run that broke down counts as the worst; dots are seeds, a triangle at an edge is a "
    "seed beyond it"
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw loss over iterations, and beside it the paired final differences from the base, a row for each workload.

    A workload on which a single rule ran compares none, and has a row only if no other one has.
    """
    runs, metrics = results.runs("update_rules"), results.metrics("update_rules")
    losses = panels.ended(metrics, "validation", "loss")
    if losses.empty:
        raise NoDataError(f"no validation loss in {results.root / 'update_rules.csv'}: run update_rules first.")
    rules = {name: len({*RULES} & {*rows["optimizer"]}) for name, rows in losses.groupby("workload")}
    workloads = [name for name, number in rules.items() if number > 1] or [*rules]
    workloads.sort(key=lambda name: -rules[name])  # the title is that of the first
    figure, axes = page.new_figure(len(workloads), 2, height=2.3 * len(workloads))
    drawn, titles = [], []
    for (left, right), workload in zip(axes, workloads, strict=True):
        of_workload = runs[runs["workload"] == workload]
        base = common_base(of_workload)
        shown = of_workload.loc[of_workload["optimizer"].isin({*RULES, *_BESIDE, base}), "run"]
        curves, evaluations = (table[table["run"].isin(shown)] for table in (losses, metrics))
        compared = panels.losses_to_compare(evaluations)
        panels.draw_losses(left, curves, x="step", scale=1.0)
        left.set(xlabel="iteration", ylabel="validation loss")
        if len(workloads) > 1:
            left.set_title(styles.data_title(of_workload))
        try:
            changes, step = forest.final_changes(compared, of_workload, base)
        except NoDataError as error:
            panels.explain_empty(right, str(error))
        else:
            labels = [label for label in styles.in_order(compared["optimizer"]) if label != base]
            draw_differences(right, changes, labels)
            right.set_xlabel(f"loss at step {step:g},\n% against {styles.style_of(str(base)).short}'s")
            titles.append(message(changes, of_workload, base))
        drawn.append(curves)
    text = page.caption(results, runs[runs["workload"].isin(workloads)], notes=[_NOTE])
    reading = "At the right: dots are seeds, triangles seeds that lie outside; left of 0 is better."
    title = next(filter(None, titles), "")
    return page.save(figure, folder, "fig13_update_rules", panels.curve_entries(drawn), text, title, reading)


def message(changes: Mapping[str, FinalChange], runs: pd.DataFrame, base: str | None) -> str:
    """Return the title: the final loss of each rule, and of KFAC, against the base's; empty without a rule.

    runs: those of the workload.
    """
    rules, beside = (
        ", ".join(f"{name} {_said(changes[label])}" for label, name in names.items() if label in changes)
        for names in (RULES, _BESIDE)
    )
    against = f"{styles.data_title(runs)}: MKOR's final loss against {styles.style_of(str(base)).name}'s"
    return f"{against}: {rules}{f'; {beside}' if beside else ''}" if rules else ""


def _said(change: FinalChange) -> str:
    is_decided = change.estimate.has_interval and not change.estimate.contains(0)
    return f"{signed(change.shown)}{'' if is_decided else ' (undecided)'}"


def draw_differences(axes: Axes, changes: Mapping[str, FinalChange], labels: Sequence[str]) -> None:
    """Draw a row for each label, from top to bottom: the change of its final loss; small dots are the seeds.

    The markers set the limits of the axis: a run far outside is a triangle at the edge, so that one that went wrong
    hides no other. A label of which most runs broke down has no marker.
    """
    axes.axvline(0, color=page.GUIDE, linewidth=0.8)
    finite = {
        label: [value for value in changes[label].by_seed.values() if math.isfinite(value)]
        for label in labels
        if label in changes
    }
    centers = [changes[label].shown for label in finite if math.isfinite(changes[label].shown)]
    _limit(axes, [0.0, *centers], [value for values in finite.values() for value in values])
    for row, label in enumerate(labels):
        if label not in finite:
            panels.annotate(axes, "no pair", (0.97, row), panels.ROW_AT_EDGE, ha="right", color=page.SOFT)
            continue
        change, number = changes[label], len(changes[label].by_seed)
        if math.isfinite(change.shown):
            forest.draw_estimate(axes, change.estimate, row, label, runs=[*change.by_seed.values()])
        _draw_inside(axes, finite[label], row, label)
        if len(finite[label]) < number:
            forest.write_beside(axes, row, f"{len(finite[label])} of {number}", "finished")
    forest.name_rows(axes, [styles.style_of(label).name for label in labels])
    # Fixed, since `_page.arrange` wants three ticks of a locator that chooses; 0 and another one are a scale, too.
    low, high = axes.get_xlim()
    ticks = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0"))
    axes.tick_params(axis="x", labelsize=7)


def _limit(axes: Axes, centers: Sequence[float], values: Sequence[float]) -> None:
    """Limit the horizontal axis to the markers and what lies as far again from them, or to all values if nearer."""
    low, high = min(centers), max(centers)
    room = 0.6 * (high - low) or max(map(abs, values), default=1.0) or 1.0
    margin = 0.12 * (high - low) or 0.1 * room
    axes.set_xlim(max(low - room, min([low, *values]) - margin), min(high + room, max([high, *values]) + margin))
    axes.autoscale(enable=False, axis="x")  # intervals may leave the panel


def _draw_inside(axes: Axes, values: Sequence[float], row: float, label: str) -> None:
    """Draw one dot per run below the row's marker, and a triangle at the edge for those that lie outside."""
    low, high = axes.get_xlim()
    forest.draw_runs(axes, [value for value in values if low <= value <= high], row, label)
    look: dict[str, Any] = {"color": styles.style_of(label).color, "linestyle": "none", "markersize": 3.5}
    beyond = ((low, "<", any(value < low for value in values)), (high, ">", any(value > high for value in values)))
    for edge, marker, is_beyond in beyond:
        if is_beyond:
            axes.plot(edge, row + 0.26, marker=marker, zorder=5, clip_on=False, **look)
