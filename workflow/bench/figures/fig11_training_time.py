"""Figure 11: training loss over training time, and MKOR's speedup to equal training accuracy."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import Estimate, median_minimum, paired_ratio, studies_of
from workflow.bench.analysis.step_times import StepTimes, Timed, timed
from workflow.bench.analysis.time_to_target import budgets, too_short
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.columns import ENDED
from workflow.bench.results.tables import NoDataError, Results, published

EXPERIMENTS = ("alexnet_cifar100", "bert_imdb", "bert_base_squad")
PROBES = ("step_time",)
PUBLISHED = ("training_speedups",)

IN_THE_PAPER: Final = {
    "alexnet_cifar100": "AlexNet/CIFAR-100",
    "bert_imdb": "BERT-Large-Cased/IMDB",
    "bert_base_squad": "BERT-Base-Cased/SQuAD",
}
"""The paper's name of each experiment."""
RIVALS: Final = {"sgd": "SGD", "kaisa": "KAISA", "hylo": "HyLo-KIS"}
"""Labels of the rivals, and their names in the paper's table of training speedups."""
CONTENDERS: Final = ("mkor", "mkor_released")
MARKED: Final = ("sgd", "mkor")
"""Labels whose runs are thin lines; those of more would hide the curves."""
NARROWEST: Final = (0.4, 2.6)
WIDEST: Final = (0.1, 20.0)
"""The limits of the axis of ratios lie between these two."""
_NOTES: Final = (
    "Above: mean loss of the training batches since the last evaluation; on a logarithmic axis the statistics are "
    "those of logarithms",
    "dots are runs, paired by seed; markers are their means if all runs reached that level; to the right, how many "
    "runs of the rival and of MKOR (for each rule, in the legend's order) reached it, if not all. A run that did not, "
    "and ended before the other side did, leaves open which is faster",
)

# The experiments of figures 11 and 12


def read(results: Results, metric: str, *, required: bool = True) -> dict[str, Timed]:
    """Return the experiments by name, their metrics the rows of one metric on the training data, timed by the probe.

    Experiments without runs are left out: a tier need not have them all.

    Raises:
        NoDataError: no experiment has such a row, although one is ``required``.
    """
    times = StepTimes(results.probe("step_time"))
    measured = {name: timed(times, results.runs(name), results.metrics(name)) for name in EXPERIMENTS}
    experiments = {
        name: replace(one, metrics=panels.ended(one.metrics, "train", metric))
        for name, one in measured.items()
        if not one.runs.empty
    }
    if required and all(experiment.metrics.empty for experiment in experiments.values()):
        raise NoDataError(f"no training {metric} of {', '.join(EXPERIMENTS)} in {results.root}: run one of them first.")
    return experiments


def caption(results: Results, experiments: Mapping[str, Timed], notes: Sequence[str]) -> str:
    """Return the caption of a figure of these experiments; the note on their times comes last."""
    runs = pd.concat([experiment.runs for experiment in experiments.values()], ignore_index=True)
    own = tuple(pair for experiment in experiments.values() for pair in experiment.own)
    times = Timed(runs, pd.DataFrame(), own).note(styles.workload_name)
    absent = [name for name in EXPERIMENTS if name not in experiments or results.metrics(name).empty]
    return page.caption(results, runs, notes=[*notes, times], absent=absent)


def begin_panel(axes: Axes, name: str, experiment: Timed, quantity: str) -> str:
    """Set a panel's title: the data and the model of the runs, not those of the paper, in lines of the panel's width.

    A panel without values of ``quantity`` gives the reason, which is returned; an empty text if there are values.
    """
    runs, place = experiment.runs, axes.get_subplotspec()
    width = 78 // (place.get_gridspec().ncols if place is not None else 1)
    axes.set_title("\n".join(textwrap.wrap(styles.data_title(runs), width)), fontsize=7)
    if not experiment.metrics.empty:
        return ""
    reasons = runs.loc[~runs["status"].isin(ENDED), "reason"].dropna()
    reason = str(reasons.iloc[0]) if len(reasons) else f"{name}: no {quantity} in its runs"
    panels.explain_empty(axes, reason, width=24)
    return reason


# Contests on equal training accuracy


def equal_levels(runs: pd.DataFrame, accuracies: pd.DataFrame) -> dict[int, float]:
    """Return the training accuracy, by seed, at which methods are compared.

    It is the experiment's target if that is a training accuracy, else the accuracy of SGD at the end of its run; a seed
    without a finished run of SGD then has no level.
    """
    fixed = panels.targets(runs, "train", "accuracy")
    if fixed:
        return {int(seed): fixed[-1] for seed in accuracies["seed"].unique()}
    finished = accuracies[(accuracies["optimizer"] == "sgd") & (accuracies["status"] == "finished")]
    last = finished.sort_values("step").groupby("seed").tail(1)
    return {int(seed): float(value) for seed, value in zip(last["seed"], last["value"], strict=True)}


def to_level(runs: pd.DataFrame, accuracies: pd.DataFrame, label: str, levels: Mapping[int, float]) -> dict[int, float]:
    """Return the training seconds, by seed, until an evaluation of a label's run first reached its seed's level.

    A run that finished or broke down without reaching it takes infinitely long. The untrained model, at step 0, does
    not count.
    """
    of_label = runs[(runs["optimizer"] == label) & runs["status"].isin(ENDED)]
    is_there = (accuracies["step"] > 0) & (accuracies["value"].astype(float) >= accuracies["seed"].map(levels))
    first = accuracies[is_there].groupby("run")["train_seconds"].min()
    return {
        int(seed): float(first.get(run, math.inf))
        for run, seed in zip(of_label["run"], of_label["seed"], strict=True)
        if seed in levels
    }


@dataclass(frozen=True)
class TimeContest:
    """A contender and a rival on their way to equal training accuracy, on the seeds that both have."""

    ratio: Estimate | None
    """The rival's training time over the contender's; None if neither reached the level, or a run was too short."""
    ratios: tuple[float, ...]
    """The ratios of single seeds: infinite where only the rival missed the level, 0 where only the contender did."""
    rival_never: int
    """Runs of the rival that never reached the level."""
    contender_never: int
    seeds: int

    @property
    def by_seed(self) -> tuple[float, ...]:
        """The ratios of the seeds in which both reached the level."""
        return tuple(ratio for ratio in self.ratios if 0 < ratio < math.inf)


def contests(runs: pd.DataFrame, accuracies: pd.DataFrame) -> dict[tuple[str, str], TimeContest]:
    """Return the contest of every (rival, contender) that share a seed."""
    levels = equal_levels(runs, accuracies)
    took = {label: to_level(runs, accuracies, label, levels) for label in (*RIVALS, *CONTENDERS)}
    by_pair = {}
    for pair in product(RIVALS, CONTENDERS):
        theirs, ours = (took[label] for label in pair)
        shared = sorted(theirs.keys() & ours.keys())
        short = any(
            too_short(took[label], took[other], budgets(runs[runs["optimizer"] == label], "seconds"))
            for label, other in (pair, pair[::-1])
        )
        if shared:
            # A ratio without the seeds that are too short would favor the side that did not reach the level.
            studies = studies_of(*(runs[runs["optimizer"] == label] for label in pair))
            ratio = None if short else paired_ratio(theirs, ours, studies)
            pairs = [] if short else [(theirs[seed], ours[seed]) for seed in shared]
            ratios = tuple(a / b for a, b in pairs if b > 0 and (math.isfinite(a) or math.isfinite(b)))
            rival_never, contender_never = (sum(math.isinf(side[seed]) for seed in shared) for side in (theirs, ours))
            by_pair[pair] = TimeContest(ratio, ratios, rival_never, contender_never, len(shared))
    return by_pair


# The figure


def make(results: Results, folder: Path) -> list[Path]:
    """Draw training loss over training seconds, and MKOR's speedups to equal training accuracy, by experiment."""
    losses = read(results, "loss")
    accuracies = read(results, "accuracy", required=False)
    measured = {name: contests(of_name.runs, of_name.metrics) for name, of_name in accuracies.items()}
    paper = published("training_speedups")
    figure, axes = page.new_figure(2, len(losses), height=3.9, height_ratios=(1.4, 1))
    without: list[str] = []
    for (upper, lower), (name, experiment) in zip(axes.T, losses.items(), strict=True):
        if not begin_panel(upper, name, experiment, "training loss"):
            length, unit = panels.time_scale(experiment.metrics)
            panels.draw_losses(upper, experiment.metrics, x="train_seconds", scale=length, marked=MARKED)
            upper.set_xlabel(f"training time ({unit})")
            if rising := _rising(experiment.metrics):
                panels.annotate(upper, f"{rising}\nends above its start", (0.03, 0.04), va="bottom", color=page.SOFT)
        if not any(contest.by_seed for contest in measured[name].values()):
            without.append(styles.data_title(experiment.runs))
            lower.remove()
            continue
        speedups = paper[paper["experiment"] == IN_THE_PAPER[name]].set_index("baseline")["speedup"]
        _draw_contests(lower, measured[name], speedups)
    axes[0, 0].set_ylabel("training loss")
    shown = [contest for by_pair in measured.values() for contest in by_pair.values()]
    _finish([panel for panel in axes[1] if panel.figure is not None], _limits(shown))
    legend = panels.curve_entries([experiment.metrics for experiment in losses.values()], MARKED)
    if len(without) < len(losses):
        legend.append(page.published_entry("published (paper's models and GPUs)"))
    notes = [_NOTES[0], _level_note(losses), _NOTES[1]]
    notes += [f"no pair of runs that both reached equal training accuracy: {', '.join(without)}"] if without else []
    text = caption(results, losses, notes)
    reading = "Below: right of 1 MKOR is faster."
    return page.save(figure, folder, "fig11_training_time", legend, text, _message(measured, losses), reading)


def _finish(axes: Sequence[Axes], limits: tuple[float, float]) -> None:
    """Set the axes of the panels of contests; the first names the rivals, the one in the middle the quantity."""
    for panel in axes:
        forest.name_rows(panel, [styles.style_of(label).name if panel is axes[0] else "" for label in RIVALS])
        panel.set_ylim(len(RIVALS) - 0.5, -0.5)
        panel.set_xscale("log")
        panel.set_xlim(limits)
        ticks = [0.5, 1, 2, 4] if limits[1] / limits[0] < 20 else [0.01, 0.1, 0.3, 1, 3, 10, 100]
        panels.fixed_ticks(panel.xaxis, ticks)
    if axes:
        axes[(len(axes) - 1) // 2].set_xlabel("rival's time ÷ MKOR's\nto equal training accuracy")


def _rising(losses: pd.DataFrame) -> str:
    """Return the names of the MKOR labels whose training loss ends above its first value, medians over seeds."""
    ordered = losses.sort_values("step").groupby(["optimizer", "run"])["value"]
    rise = (ordered.last() - ordered.first()).groupby("optimizer").median()
    return ", ".join(styles.style_of(label).name for label in CONTENDERS if rise.get(label, 0.0) > 0)


def _message(measured: Mapping[str, Mapping[tuple[str, str], TimeContest]], experiments: Mapping[str, Timed]) -> str:
    """Return the title: by workload SGD's time over MKOR's, or without such a ratio how many runs of each got there."""
    ratios, counts = [], []
    for name, by_pair in measured.items():
        contest = by_pair.get(("sgd", "mkor"))
        if contest is None:
            continue
        model = styles.workload_name(str(experiments[name].runs["workload"].iloc[0]))
        if contest.ratio is not None and 0 < contest.ratio.value < math.inf:
            shown = f"{forest.shown_value(contest.ratio, contest.ratios):.2f}{forest.undecided(contest.ratio)}"
            ratios.append(f"{shown} on {model}")
        else:
            ours, theirs = (contest.seeds - never for never in (contest.contender_never, contest.rival_never))
            counts.append(f"{model} gets there with MKOR in {ours} and with SGD in {theirs} of {contest.seeds} runs")
    parts = [f"SGD's time over MKOR's {', '.join(ratios)}"] if ratios else []
    return f"Equal training accuracy: {'; '.join([*parts, *counts])}" if ratios or counts else ""


def _level_note(experiments: Mapping[str, Timed]) -> str:
    """Return the caption's definition of equal training accuracy in each experiment."""
    fixed, relative = [], []
    for experiment in experiments.values():
        model = styles.workload_name(str(experiment.runs["workload"].iloc[0]))
        if limits := panels.targets(experiment.runs, "train", "accuracy"):
            fixed.append(f"{100 * limits[-1]:g} % of {model}")
        else:
            relative.append(model)
    own = f"SGD's at the end of its run, by seed, of {', '.join(relative)}" if relative else ""
    levels = "; ".join(filter(None, [", ".join(fixed), own]))
    return f"Below: equal training accuracy is {levels}; it is measured at evaluations only"


def _draw_contests(axes: Axes, by_pair: Mapping[tuple[str, str], TimeContest], speedups: pd.Series) -> None:
    """Draw one row per rival: measured ratios with their intervals, filled, and the published one, hollow."""
    axes.axvline(1, color=page.GUIDE, linewidth=0.8)
    labels = styles.in_order({label for _, label in by_pair})
    for row, (rival, name) in enumerate(RIVALS.items()):
        if row:
            axes.axhline(row - 0.5, color="#E4E4E4", linewidth=0.5)
        if name in speedups:
            axes.plot(speedups[name], row + 0.3, marker="o", markerfacecolor="none", color=page.GUIDE, markersize=5)
        met = {label: by_pair[rival, label] for label in labels if (rival, label) in by_pair}
        for place, label in enumerate(labels):
            ratio = met[label].ratio if label in met else None
            height = row - (0.02 if len(labels) == 1 else 0.12 - 0.22 * place)
            if ratio:
                _draw_ratio(axes, ratio, met[label].ratios, height, label)
        if any(contest.rival_never or contest.contender_never for contest in met.values()):
            of_rival = sorted({f"{contest.seeds - contest.rival_never}/{contest.seeds}" for contest in met.values()})
            of_mkor = [f"{contest.seeds - contest.contender_never}/{contest.seeds}" for contest in met.values()]
            reached = f"rival {', '.join(of_rival)}\nMKOR {', '.join(of_mkor)}"
            forest.write_beside(axes, row, reached, "reached")


def _draw_ratio(axes: Axes, ratio: Estimate, runs: Sequence[float], height: float, label: str) -> None:
    """Draw the runs' ratios and their estimate; without a finite one its interval alone, which has one end."""
    forest.draw_runs(axes, [one for one in runs if 0 < one < math.inf], height, label, below=0.09)
    if not 0 < ratio.value < math.inf:
        if ratio.has_interval and (ratio.low > 0 or ratio.high < math.inf):
            forest.draw_interval(axes, ratio, height, styles.style_of(label).color)
    # Of two or three runs with one that never arrived, dots say more than a marker without an interval.
    elif ratio.has_interval or len(runs) == 1 or len(runs) >= median_minimum():
        forest.draw_estimate(axes, ratio, height, label, runs=runs)


def _limits(measured: Sequence[TimeContest]) -> tuple[float, float]:
    """Return the limits of the axis of ratios, the same in all panels.

    They hold both sides of 1 and every value; an interval that is too wide (`WIDEST`) leaves the panel.
    """
    ratios = [contest.ratio for contest in measured if contest.ratio]
    values = [ratio.value for ratio in ratios if 0 < ratio.value < math.inf]
    low = min([NARROWEST[0], *values, *(max(ratio.low, WIDEST[0]) for ratio in ratios if ratio.has_interval)])
    high = max([NARROWEST[1], *values, *(min(ratio.high, WIDEST[1]) for ratio in ratios if ratio.has_interval)])
    return low / 1.15, high * 1.15
