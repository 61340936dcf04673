"""Figure 13 (ours): MKOR's published, exact and released update rule, the base optimizer, and KFAC."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import _style as style
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("update_rules",)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw loss over iterations, and the paired final differences from the base optimizer, by workload.

    Raises:
        NoDataError: no run of update_rules has a validation loss.
    """
    runs, metrics = results.runs("update_rules"), results.metrics("update_rules")
    losses = panels.ended(metrics, "validation", "loss")
    if losses.empty:
        raise NoDataError(f"no validation loss in {results.root / 'update_rules.csv'}: run update_rules first.")
    workloads = sorted(losses["workload"].unique())
    bases = {workload: panels.base_of(runs[runs["workload"] == workload]) for workload in workloads}
    # The same rows in all panels, so that their names stand once; a workload without one of them has an empty row.
    labels = [label for label in style.in_order(losses["optimizer"]) if label not in bases.values()]
    figure, axes = style.new_figure(2, len(workloads), height=4.2, height_ratios=(1.5, 1))
    for (upper, lower), workload in zip(axes.T, workloads, strict=True):
        upper.set_title(style.workload_name(workload))
        panels.draw_losses(upper, losses[losses["workload"] == workload], x="step", scale=1.0)
        upper.set_xlabel("iteration")
        of_workload = panels.losses_to_compare(metrics[metrics["workload"] == workload])
        most_ticks = 5 if len(workloads) < 3 else 3
        panels.draw_differences(lower, of_workload, bases[workload], labels, most_ticks=most_ticks)
        lower.tick_params(axis="x", labelsize=7)
        lower.set_xlabel(lower.get_xlabel().replace(", iteration", ",\niteration"))
    names = [[text.get_text() for text in panel.get_yticklabels()] for panel in axes[1]]
    for panel, (in_left, in_panel) in zip(axes[1, 1:], pairwise(names), strict=True):
        if in_panel == in_left:
            panel.set_yticklabels([])
    axes[0, 0].set_ylabel("validation loss")
    note = (
        "Below: difference of the final loss at equal iterations, paired by seed, with its interval; dots are seeds, "
        "and left of 0 is better than the base optimizer. On a logarithmic axis the statistics over seeds are those of "
        "logarithms"
    )
    text = page.caption(results, runs, notes=[note])
    return page.save(figure, folder, "fig13_update_rules", legend=panels.curve_entries([losses]), caption=text)
