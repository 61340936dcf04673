"""The appendix's table of learning rates: epochs to convergence at each, D where diverged, * in a local minimum.

What converged, diverged and local minimum mean is `analysis.lr_outcomes`'s: converged is a run that finished and
reached its experiment's target, a local minimum one that finished without.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.lr_outcomes import Outcome, converging_rates, outcomes
from workflow.bench.analysis.paper_names import paper_name
from workflow.bench.analysis.wording import number
from workflow.bench.results.sources import NO_SOURCES, Sources, from_rows, from_runs
from workflow.bench.results.tables import NoDataError, Results, published
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("resnet_cifar10_lr",)
PUBLISHED = ("lr_sensitivity_resnet50_cifar10",)

_MARKS: Final[dict[Outcome, str]] = {
    "converged": "",
    "local-minimum": "*",
    "diverged": "D",
    "out-of-memory": "out of memory",
}


def with_epochs(ended: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    """Add what the cells show to the rows of `outcomes`, from the evaluations in ``<experiment>.csv``.

    ``epochs``: until the target was reached or, in a local minimum, until the best value of the target's metric was
    first seen; NaN for the others.  ``best``: that value.
    """
    epochs, bests = [], []
    for _, run in ended.iterrows():
        target = run["target"]
        rows = metrics[
            (metrics["run"] == run["run"]) & (metrics["split"] == target.split) & (metrics["metric"] == target.metric)
        ].sort_values("step", kind="stable")
        values = rows["value"] if target.direction == "above" else -rows["value"]
        reached = rows["step"] == run["steps_to_target"] if run["outcome"] == "converged" else values == values.max()
        shows = run["outcome"] in ("converged", "local-minimum") and reached.any()
        epochs.append(float(rows.loc[reached, "epoch"].iloc[0]) if shows else float("nan"))
        bests.append(float(rows.loc[reached, "value"].iloc[0]) if shows else float("nan"))
    return ended.assign(epochs=epochs, best=bests)


def cell(rows: pd.DataFrame) -> str:
    """One optimizer at one rate: mean epochs of the seeds that ended alike, and how many they are where not all do."""
    parts = []
    for outcome, mark in _MARKS.items():
        alike = rows[rows["outcome"] == outcome]
        if alike.empty:
            continue
        count = [] if len(alike) == len(rows) else [f"{len(alike)} of {len(rows)}"]
        best = [f"best {number(float(alike['best'].mean()))}"] if outcome == "local-minimum" else []
        remark = f" ({', '.join([*best, *count])})" if best or count else ""
        parts.append(f"{number(float(alike['epochs'].mean()))}{mark}{remark}")
    return "; ".join(parts)


def _published(paper: pd.DataFrame, optimizer: str, rate: float) -> str:
    """The paper's cell, in its own notation."""
    row = paper[(paper["optimizer"] == optimizer) & (paper["lr"].astype(float) == rate)]
    if row.empty:
        return ""
    outcome: Outcome = row["outcome"].iloc[0]
    return f"{row['epochs_to_convergence'].iloc[0]}{_MARKS[outcome]}"


def _published_source(optimizer: str | None) -> Sources:
    """Return the paper's rows of an optimizer as a source; no source without a name."""
    file = "workflow/paper/lr_sensitivity_resnet50_cifar10.csv"
    return from_rows(file, optimizer=optimizer) if optimizer else NO_SOURCES


def _counts(by_seed: dict[int, int]) -> str:
    """How many rates converge: one number where all seeds agree, else one a seed."""
    found = [by_seed[seed] for seed in sorted(by_seed)]
    return str(found[0]) if len(set(found)) == 1 else ", ".join(map(str, found))


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row an optimizer and one column a rate, here and in the paper, and how many rates converge.

    Raises NoDataError where the experiment has no run.
    """
    runs = results.runs("resnet_cifar10_lr")
    if runs.empty:
        raise NoDataError(f"no resnet_cifar10_lr.runs.csv in {results.root}: run the experiment first.")
    ended = with_epochs(outcomes(runs), results.metrics("resnet_cifar10_lr"))
    paper = published("lr_sensitivity_resnet50_cifar10", as_text=True)
    counts = converging_rates(ended)
    rates = sorted(set(ended["lr"]) | set(paper["lr"].astype(float)), reverse=True)
    rows: list[dict[str, Any]] = []
    for label, planned in runs.groupby("optimizer", sort=False):
        mine = ended[ended["optimizer"] == label]
        outcome_of_paper = paper.loc[paper["optimizer"] == paper_name(str(label)), "outcome"]
        name = "" if outcome_of_paper.empty else paper_name(str(label)) or ""
        rows.append(
            {
                "optimizer here": label,
                "runs ended": f"{len(mine)} of {len(planned)}",
                **{f"lr {rate:g} here": cell(mine[mine["lr"] == rate]) for rate in rates},
                "rates that converge here": _counts(counts[str(label)]) if str(label) in counts else "",
                "optimizer in the paper": name,
                **{f"lr {rate:g} in the paper": _published(paper, name, rate) for rate in rates},
                "rates that converge in the paper": int((outcome_of_paper == "converged").sum()) if name else "",
                "data": from_runs("resnet_cifar10_lr.csv", mine) + _published_source(name),
            }
        )
    said = [target.describe() for target in runs["target"].dropna().unique()]
    notes = [
        f"Mean epochs until {' or '.join(said) or 'a target (none is set)'}, over the seeds that get there. D: "
        "diverged, a loss that is not finite. *: finished and finite, and never at the target; beside it the "
        "best value and the epochs until that: the run may be at chance, or only short of steps",
        "The paper does not say what it calls converged or a local minimum. Rates that converge: as many in every "
        "seed, or one count a seed",
        "KAISA's kl_clip, which shortens a step where the rate is large, is on in kaisa, off in kaisa_no_clip. HyLo: "
        f"{', '.join(sorted(_variants(runs))) or 'not run'}. The paper's MKOR stands beside every rule of ours",
    ]
    return write_table(
        pd.DataFrame(rows),
        folder,
        "table5_lr_sensitivity",
        title="Epochs to convergence at four learning rates",
        caption=caption(results, runs, notes=notes, summarised=False),
    )


def _variants(runs: pd.DataFrame) -> set[str]:
    """Which variant of HyLo ran."""
    settings = runs.loc[runs["optimizer"] == "hylo", "hyperparameters"]
    return {str(hyperparameters.get("variant", "KIS")) for hyperparameters in settings}
