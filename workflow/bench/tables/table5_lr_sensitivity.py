"""The appendix's table of learning rates: epochs to convergence at each, D if diverged, * in a local minimum.

`analysis.lr_outcomes` defines the outcomes: a run converged if it finished and reached its experiment's target, and is
in a local minimum if it finished without reaching it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.lr_outcomes import Outcome, converging_rates, outcomes
from workflow.bench.analysis.wording import number, paper_name
from workflow.bench.results.sources import NO_SOURCES, from_rows, from_runs
from workflow.bench.results.tables import Results, published
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
    """Add the columns ``epochs`` and ``best`` to the rows of `outcomes`; metrics: rows of ``<experiment>.csv``.

    Epochs are those until the target was reached or, in a local minimum, until the best value of the target's metric
    was first seen; NaN for other outcomes. ``best`` is that value.
    """
    shown = [_epochs_and_best(run, metrics) for _, run in ended.iterrows()]
    return ended.join(pd.DataFrame(shown, ended.index, ["epochs", "best"], float))


def _epochs_and_best(run: pd.Series, metrics: pd.DataFrame) -> tuple[float, float]:
    target = run["target"]
    rows = metrics[
        (metrics["run"] == run["run"]) & (metrics["split"] == target.split) & (metrics["metric"] == target.metric)
    ].sort_values("step", kind="stable")
    # The first of equal values counts: a run that stays at chance was there after its first epoch.
    values = rows["value"] if target.direction == "above" else -rows["value"]
    reached = rows["step"] == run["steps_to_target"] if run["outcome"] == "converged" else values == values.max()
    if run["outcome"] not in ("converged", "local-minimum") or not reached.any():
        return math.nan, math.nan
    first = rows[reached].iloc[0]
    return float(first["epoch"]), float(first["value"])


def cell(rows: pd.DataFrame) -> str:
    """Return the cell of one optimizer at one rate: the mean epochs of each outcome, and its number of seeds.

    The number is left out if all seeds have the same outcome.
    """
    parts = []
    for outcome, mark in _MARKS.items():
        of_outcome = rows[rows["outcome"] == outcome]
        if of_outcome.empty:
            continue
        count = [] if len(of_outcome) == len(rows) else [f"{len(of_outcome)} of {len(rows)}"]
        best = [f"best {number(float(of_outcome['best'].mean()))}"] if outcome == "local-minimum" else []
        remark = f" ({', '.join([*best, *count])})" if best or count else ""
        parts.append(f"{number(float(of_outcome['epochs'].mean()))}{mark}{remark}")
    return "; ".join(parts)


def _published_cell(paper: pd.DataFrame, rate: float) -> str:
    """Return the paper's cell at a rate, in its own notation; paper: its rows of one optimizer."""
    row = paper[paper["lr"].astype(float) == rate]
    if row.empty:
        return ""
    outcome: Outcome = row["outcome"].iloc[0]
    return f"{row['epochs_to_convergence'].iloc[0]}{_MARKS[outcome]}"


def _rows(runs: pd.DataFrame, ended: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield one row per optimizer, ours and the paper's; ended: rows of `with_epochs`."""
    paper = published("lr_sensitivity_resnet50_cifar10", as_text=True)
    counts = converging_rates(ended)
    rates = sorted(set(ended["lr"]) | set(paper["lr"].astype(float)), reverse=True)
    for label, planned in runs.groupby("optimizer", sort=False):
        ours, by_seed = ended[ended["optimizer"] == label], counts.get(str(label), {})
        converging = [str(by_seed[seed]) for seed in sorted(by_seed)]
        theirs = paper[paper["optimizer"] == paper_name(str(label))]
        name = "" if theirs.empty else str(theirs["optimizer"].iloc[0])
        source = from_rows("workflow/paper/lr_sensitivity_resnet50_cifar10.csv", optimizer=name)
        yield {
            "optimizer here": label,
            "runs ended": f"{len(ours)} of {len(planned)}",
            **{f"lr {rate:g} here": cell(ours[ours["lr"] == rate]) for rate in rates},
            "rates that converge here": ", ".join(converging[:1] if len(set(converging)) == 1 else converging),
            "optimizer in the paper": name,
            **{f"lr {rate:g} in the paper": _published_cell(theirs, rate) for rate in rates},
            "rates that converge in the paper": int((theirs["outcome"] == "converged").sum()) if name else "",
            "data": from_runs("resnet_cifar10_lr.csv", ours) + (source if name else NO_SOURCES),
        }


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per optimizer: a column per rate, here and in the paper, and how many rates converge."""
    runs = results.some_runs("resnet_cifar10_lr")
    ended = with_epochs(outcomes(runs), results.metrics("resnet_cifar10_lr"))
    hylo = runs.loc[runs["optimizer"] == "hylo", "hyperparameters"]
    variants = sorted({str(hyperparameters.get("variant", "KIS")) for hyperparameters in hylo})
    targets = [target.describe() for target in runs["target"].dropna().unique()]
    notes = [
        f"Mean epochs until {' or '.join(targets) or 'a target (none is set)'}, over the seeds that reach it. D: "
        "diverged, a loss that is not finite. *: finished with a finite loss without reaching the target, with the "
        "best value and the epochs until it; such a run may be at chance, or only short of steps",
        "The paper does not define converged and local minimum. Rates that converge: one count if all seeds agree, "
        "else one per seed",
        "KAISA's kl_clip, which shortens a step if the rate is large, is on in kaisa and off in kaisa_no_clip. HyLo: "
        f"{', '.join(variants) or 'not run'}",
        "The paper's MKOR is compared with each of our update rules",
    ]
    table, text = pd.DataFrame(_rows(runs, ended)), caption(results, runs, notes=notes, summarized=False)
    title = "Epochs to convergence at four learning rates"
    return write_table(table, folder, "table5_lr_sensitivity", title=title, caption=text)
