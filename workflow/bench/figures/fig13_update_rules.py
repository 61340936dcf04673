"""Figure 13 (ours): MKOR's published, exact and released update rule, the base optimizer, and KFAC."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Final

import pandas as pd

from workflow.bench.analysis import styles
from workflow.bench.analysis.target_sweep import common_base
from workflow.bench.analysis.wording import signed
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("update_rules",)

RULES: Final = {"mkor": "exact rule", "mkor_released": "released rule", "mkor_published": "published rule"}
"""Labels of the rules, and their names in the title."""
CURVES: Final = (*RULES, "kaisa")
"""The labels that have a curve beside the base optimizer's; the others have a row below, and would hide these."""
_NOTES: Final = (
    "Above: the base optimizer, KFAC and the three rules; on a logarithmic axis the statistics over seeds are those of "
    "logarithms",
    "below: final loss against the base optimizer's at equal iterations, paired by seed, with its interval; dots are "
    "seeds, a triangle at an edge is a seed beyond it, and left of 0 is better than the base optimizer",
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw loss over iterations, and the paired final differences from the base optimizer, by workload."""
    runs, metrics = results.runs("update_rules"), results.metrics("update_rules")
    losses = panels.ended(metrics, "validation", "loss")
    if losses.empty:
        raise NoDataError(f"no validation loss in {results.root / 'update_rules.csv'}: run update_rules first.")
    workloads = sorted(losses["workload"].unique())
    of_workload = {workload: runs[runs["workload"] == workload] for workload in workloads}
    bases = {workload: common_base(rows) for workload, rows in of_workload.items()}
    shown = losses[losses["optimizer"].isin([*CURVES, *filter(None, bases.values())])]
    # The same rows in all panels, so that their names stand once.
    labels = [label for label in styles.in_order(losses["optimizer"]) if label not in bases.values()]
    figure, axes = page.new_figure(2, len(workloads), height=4.0, height_ratios=(1.4, 1))
    compared = {workload: panels.losses_to_compare(metrics[metrics["workload"] == workload]) for workload in workloads}
    for (upper, lower), workload in zip(axes.T, workloads, strict=True):
        upper.set_title(styles.data_title(of_workload[workload], width=16))
        panels.draw_losses(upper, shown[shown["workload"] == workload], x="step", scale=1.0)
        upper.set_xlabel("iteration")
        forest.draw_differences(lower, compared[workload], bases[workload], labels)
        if lower is not axes[1, 0]:
            lower.set_yticklabels([])
    axes[0, 0].set_ylabel("validation loss")
    text = page.caption(results, runs, notes=_NOTES)
    title = message(compared, of_workload)
    reading = "Below: dots are seeds, triangles seeds that lie outside; left of 0 is better than the base optimizer."
    return page.save(figure, folder, "fig13_update_rules", panels.curve_entries([shown]), text, title, reading)


def message(losses: Mapping[str, pd.DataFrame], runs: Mapping[str, pd.DataFrame]) -> str:
    """Return the title: each rule's final loss against the base's, on the workload that has most of the rules and runs.

    The losses and runs are those of each workload. Without a rule, or a base to compare with, the title is empty.
    """
    found: list[tuple[int, int, str]] = []
    for workload, rows in losses.items():
        base = common_base(runs[workload])
        try:
            changes, _ = forest.final_changes(rows, base)
        except NoDataError:
            continue
        rules = {label: changes[label] for label in RULES if changes.get(label)}
        shares = [f"{RULES[label]} {signed(median(values))}" for label, values in rules.items()]
        against = f"{styles.data_title(runs[workload])}: MKOR's final loss against {styles.style_of(str(base)).name}'s"
        found.append((len(rules), sum(map(len, rules.values())), f"{against}: {', '.join(shares)}"))
    rules_of_most, _, text = max(found, default=(0, 0, ""))
    return text if rules_of_most else ""
