"""The paper's figures 11 and 12: titles of their experiments, and the time to equal training accuracy."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.probed_seconds import Timed, timed
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.figures import _style as style
from workflow.bench.figures._curves import ended, targets
from workflow.bench.results.columns import ENDED
from workflow.bench.results.tables import NoDataError, Results

IN_THE_PAPER: Final = {
    "alexnet_cifar100": "AlexNet/CIFAR-100",
    "bert_imdb": "BERT-Large-Cased/IMDB",
    "bert_base_squad": "BERT-Base-Cased/SQuAD",
}
"""The paper's name of each experiment."""
BASE: Final = "sgd"
"""Its last training accuracy is the level if the experiment has no target on the training accuracy."""


@dataclass(frozen=True)
class Experiment:
    """The runs of an experiment, and the evaluations of one metric on the training data."""

    runs: pd.DataFrame
    rows: pd.DataFrame
    has_results: bool
    """Whether its CSV file has any row."""
    own_seconds: tuple[tuple[str, str], ...]
    """The experiment and workload if its times are the runs' own seconds (`probed_seconds.Timed`)."""


def read(results: Results, names: Sequence[str], metric: str, *, required: bool = True) -> dict[str, Experiment]:
    """Return the experiments by name, with the rows of one metric on the training data, timed by the probe.

    Experiments without runs are left out: a tier need not have them all.

    Raises:
        NoDataError: no experiment has such a row, although one is ``required``.
    """
    experiments, times = {}, StepTimes(results.probe("step_time"))
    for name in names:
        measured = timed(times, results.runs(name), results.metrics(name))
        if measured.runs.empty:
            continue
        rows = ended(measured.metrics, "train", metric)
        experiments[name] = Experiment(measured.runs, rows, not measured.metrics.empty, measured.own)
    if required and all(experiment.rows.empty for experiment in experiments.values()):
        raise NoDataError(f"no training {metric} of {', '.join(names)} in {results.root}: run one of them first.")
    return experiments


def all_runs(experiments: Mapping[str, Experiment]) -> pd.DataFrame:
    """Return the runs of all experiments in one table."""
    frames = [experiment.runs for experiment in experiments.values()]
    return pd.concat([frame for frame in frames if not frame.empty], ignore_index=True)


def time_note(experiments: Mapping[str, Experiment]) -> str:
    """Return the caption's sentence on the times of all experiments."""
    own = tuple(pair for experiment in experiments.values() for pair in experiment.own_seconds)
    return Timed(all_runs(experiments), pd.DataFrame(), own).note(style.workload_name)


def set_title(axes: Axes, runs: pd.DataFrame) -> None:
    """Set a panel's title, in lines of its width: the model and the data of the runs, not those of the paper."""
    place = axes.get_subplotspec()
    width = 78 // (place.get_gridspec().ncols if place is not None else 1)
    data = runs["dataset"].dropna()
    first = style.workload_name(str(runs["workload"].iloc[0]))
    lines = [first, *textwrap.wrap(str(data.iloc[0]), width)] if len(data) else [first]
    axes.set_title("\n".join(lines), fontsize=7)


def why_empty(runs: pd.DataFrame, experiment: str, quantity: str) -> str:
    """Return the reason why a panel has no value of ``quantity``."""
    reasons = runs.loc[~runs["status"].isin(ENDED), "reason"].dropna()
    return str(reasons.iloc[0]) if len(reasons) else f"{experiment}: no {quantity} in its runs"


def equal_levels(runs: pd.DataFrame, accuracies: pd.DataFrame) -> dict[int, float]:
    """Return the training accuracy, by seed, at which methods are compared.

    It is the experiment's target if that is a training accuracy, else the accuracy of SGD at the end of its run; a seed
    without a finished run of SGD then has no level.
    """
    fixed = targets(runs, "train", "accuracy")
    if fixed:
        return {int(seed): fixed[-1] for seed in accuracies["seed"].unique()}
    finished = accuracies[(accuracies["optimizer"] == BASE) & (accuracies["status"] == "finished")]
    last = finished.sort_values("step").groupby("seed").tail(1)
    return {int(seed): float(value) for seed, value in zip(last["seed"], last["value"], strict=True)}


def to_level(runs: pd.DataFrame, accuracies: pd.DataFrame, label: str, levels: Mapping[int, float]) -> dict[int, float]:
    """Return the training seconds, by seed, until an evaluation of a label's run first reached its seed's level.

    A run that finished or broke down without reaching it takes infinitely long. The untrained model, at step 0, does
    not count.
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
    """Return the caption's definition of equal training accuracy in each experiment."""
    levels = {name: targets(frame, "train", "accuracy") for name, frame in runs.items()}
    models = {name: style.workload_name(str(rows["workload"].iloc[0])) for name, rows in runs.items() if len(rows)}
    fixed = ", ".join(f"{100 * limits[-1]:g} % of {models[name]}" for name, limits in levels.items() if limits)
    relative = ", ".join(models[name] for name, limits in levels.items() if not limits and name in models)
    parts = [fixed, f"SGD's at the end of its run, by seed, of {relative}" if relative else ""]
    return f"{where}: equal training accuracy is {'; '.join(filter(None, parts))}; it is measured at evaluations only"
