"""What the paper's figures 11 and 12 share: their experiments' headings, and what equal training accuracy is."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Final

import pandas as pd

from workflow.bench.figures import _style as style
from workflow.bench.figures._curves import targets
from workflow.bench.results.columns import ENDED

#: Each experiment's row in the paper's numbers.
IN_THE_PAPER: Final = {
    "alexnet_cifar100": "AlexNet/CIFAR-100",
    "bert_imdb": "BERT-Large-Cased/IMDB",
    "bert_base_squad": "BERT-Base-Cased/SQuAD",
}
#: Whose last training accuracy is the level where an experiment's file has no target on it.
BASE: Final = "sgd"


def title(runs: pd.DataFrame, experiment: str) -> str:
    """A panel's heading: the model and the data of the runs, not of the paper."""
    if runs.empty:
        return IN_THE_PAPER[experiment]
    data = runs["dataset"].dropna() if "dataset" in runs else pd.Series(dtype=str)
    first = style.workload_name(str(runs["workload"].iloc[0]))
    return "\n".join([first, *textwrap.wrap(str(data.iloc[0]), 33)]) if len(data) else first


def why_empty(runs: pd.DataFrame, experiment: str, quantity: str) -> str:
    """What a panel without any value of ``quantity`` says."""
    if runs.empty:
        return f"{experiment} has no results"
    reasons = runs.loc[~runs["status"].isin(ENDED), "reason"].dropna()
    return str(reasons.iloc[0]) if len(reasons) else f"{experiment}: no {quantity} in its runs"


def equal_levels(runs: pd.DataFrame, accuracies: pd.DataFrame) -> dict[int, float]:
    """The training accuracy, by seed, at which methods are compared.

    The target of the experiment's file where that is a training accuracy; else what SGD had at the end of its
    run.  A seed without a finished run of SGD has no level then.
    """
    fixed = targets(runs, "train", "accuracy")
    if fixed:
        return {int(seed): fixed[-1] for seed in accuracies["seed"].unique()}
    finished = accuracies[(accuracies["optimizer"] == BASE) & (accuracies["status"] == "finished")]
    last = finished.sort_values("step").groupby("seed").tail(1)
    return {int(seed): float(value) for seed, value in zip(last["seed"], last["value"], strict=True)}


def to_level(runs: pd.DataFrame, accuracies: pd.DataFrame, label: str, levels: Mapping[int, float]) -> dict[int, float]:
    """Training seconds, by seed, until an evaluation of one label's run first showed its seed's level.

    Infinite where a run that ended, well or badly, never showed it.  The untrained model, at step 0, does not count.
    """
    took: dict[int, float] = {}
    trained = accuracies[accuracies["step"] > 0]
    of_label = runs[(runs["optimizer"] == label) & runs["status"].isin(ENDED)]
    for run, seed in zip(of_label["run"], of_label["seed"], strict=True):
        if seed in levels:
            at_or_above = (trained["run"] == run) & (trained["value"].astype(float) >= levels[int(seed)])
            took[int(seed)] = float(trained.loc[at_or_above, "train_seconds"].min()) if at_or_above.any() else math.inf
    return took


def level_note(runs: Mapping[str, pd.DataFrame], where: str) -> str:
    """What "equal training accuracy" is in each experiment, for the caption."""
    fixed = {name: targets(frame, "train", "accuracy") for name, frame in runs.items()}
    named = ", ".join(f"{100 * found[-1]:g} % in {name}" for name, found in fixed.items() if found)
    others = ", ".join(name for name, found in fixed.items() if not found and not runs[name].empty)
    parts = [named, f"what SGD had at its end, seed by seed, in {others}" if others else ""]
    return f"{where}: equal training accuracy is {'; '.join(filter(None, parts))}; seen at evaluations only"
