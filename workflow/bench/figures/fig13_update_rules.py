"""Figure 13 (ours): MKOR's published, exact and released update rule, the base optimizer, and KFAC."""

from __future__ import annotations

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
_BESIDE: Final = {"kaisa": "KFAC"}
"""What stands beside the rules and the base optimizer. MKOR's variants that are no rules of it stay out."""
_NOTE: Final = (
    "On a logarithmic axis the statistics over seeds are those of logarithms. At the right: final loss against the "
    "base optimizer's at equal iterations, paired by seed, with its interval; dots are seeds, a triangle at an edge is "
    "a seed beyond it"
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
        labels = [label for label in styles.in_order(compared["optimizer"]) if label != base]
        forest.draw_differences(right, compared, base, labels)
        drawn.append(curves)
        titles.append(_message(compared, of_workload, base))
    text = page.caption(results, runs[runs["workload"].isin(workloads)], notes=[_NOTE])
    reading = "At the right: dots are seeds, triangles seeds that lie outside; left of 0 is better."
    title = next(filter(None, titles), "")
    return page.save(figure, folder, "fig13_update_rules", panels.curve_entries(drawn), text, title, reading)


def _message(losses: pd.DataFrame, runs: pd.DataFrame, base: str | None) -> str:
    """Return the title: the final loss of each rule, and of KFAC, against the base's; empty without a rule or a base.

    losses and runs: those of one workload.
    """
    try:
        changes, _ = forest.final_changes(losses, base)
    except NoDataError:
        return ""
    rules, beside = (
        ", ".join(f"{name} {signed(median(changes[label]))}" for label, name in names.items() if changes.get(label))
        for names in (RULES, _BESIDE)
    )
    against = f"{styles.data_title(runs)}: MKOR's final loss against {styles.style_of(str(base)).name}'s"
    return f"{against}: {rules}{f'; {beside}' if beside else ''}" if rules else ""
