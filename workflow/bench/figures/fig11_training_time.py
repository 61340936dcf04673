"""Figure 11: training loss over training time, and MKOR's speedup to equal training accuracy."""

from __future__ import annotations

import math
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
NARROWEST: Final = (0.4, 2.6)
WIDEST: Final = (0.1, 20.0)
"""The limits of the axis of ratios lie between these two."""
_NOTES: Final = (
    "At the left: mean loss of the training batches since the last evaluation; on a logarithmic axis the statistics "
    "are those of logarithms",
    "dots are runs, paired by seed, and the marker is their median, or with few tuning studies the geometric mean; a "
    "level that a run never reached counts as infinitely long. To the right, how many of the rival's runs reached it, "
    "and of MKOR's (for each rule, in the legend's order), if not all. A run that did not, and ended before the other "
    "side did, leaves open which is faster",
)

# The experiments of figures 11 and 12


def read(results: Results, metric: str, *, required: bool = True) -> dict[str, Timed]:
    """Return the experiments by name, their metrics the rows of one metric on the training data, timed by the probe.

    Experiments without runs are left out, since a tier need not have them all, and so are MKOR's further variants.

    Raises:
        NoDataError: no experiment has such a row, although one is ``required``.
    """
    times = StepTimes(results.probe("step_time"))
    measured = {name: timed(times, results.runs(name), results.metrics(name)) for name in EXPERIMENTS}
    shown = (*RIVALS, *CONTENDERS)
    experiments = {
        name: replace(one, metrics=panels.ended(one.metrics[one.metrics["optimizer"].isin(shown)], "train", metric))
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


def begin_panel(axes: Axes, name: str, experiment: Timed, quantity: str, *, title: bool) -> bool:
    """Set a panel's title, the data and the model of the runs, if it has one; return whether it has values.

    A panel without values of ``quantity`` gives the reason.
    """
    runs = experiment.runs
    if title:
        axes.set_title(styles.data_title(runs, width=30), fontsize=7)
    if experiment.metrics.empty:
        reasons = runs.loc[~runs["status"].isin(ENDED), "reason"].dropna()
        reason = str(reasons.iloc[0]) if len(reasons) else f"{name}: no {quantity} in its runs"
        panels.explain_empty(axes, reason, width=24)
    return not experiment.metrics.empty


def model_name(experiment: Timed) -> str:
    """Return the name of an experiment's model for titles."""
    return styles.workload_name(str(experiment.runs["workload"].iloc[0]))


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
    """Draw a row for each experiment: training loss over time, and MKOR's speedups to equal training accuracy."""
    losses = read(results, "loss")
    accuracies = read(results, "accuracy", required=False)
    measured = {name: contests(of_name.runs, of_name.metrics) for name, of_name in accuracies.items()}
    paper = published("training_speedups")
    several = len(losses) > 1
    figure, axes = page.new_figure(len(losses), 2, height=(1.9 if several else 2.4) * len(losses))
    limits = _limits([contest for by_pair in measured.values() for contest in by_pair.values()])
    without: list[str] = []
    for (left, right), (name, experiment) in zip(axes, losses.items(), strict=True):
        if begin_panel(left, name, experiment, "training loss", title=several):
            length, unit = panels.time_scale(experiment.metrics)
            panels.draw_losses(left, experiment.metrics, x="train_seconds", scale=length)
            left.set(xlabel=f"training time ({unit})", ylabel="training loss")
        if any(contest.by_seed for contest in measured[name].values()):
            speedups = paper[paper["experiment"] == IN_THE_PAPER[name]].set_index("baseline")["speedup"]
            _draw_contests(right, measured[name], speedups, limits)
            right.set_xlabel(f"rival's time ÷ MKOR's to\n{_level(experiment)}")
        else:
            without.append(styles.data_title(experiment.runs))
            right.remove()
    legend = panels.curve_entries([experiment.metrics for experiment in losses.values()])
    if len(without) < len(losses):
        legend.append(page.published_entry("published (paper's models and GPUs)"))
    notes = [_NOTES[0], _level_note(losses), _NOTES[1]]
    notes += [f"no pair of runs that both reached equal training accuracy: {', '.join(without)}"] if without else []
    text = caption(results, losses, notes)
    reading = "At the right: right of 1 MKOR is faster; dots are runs, triangles those that never arrive."
    return page.save(figure, folder, "fig11_training_time", legend, text, _message(measured, losses), reading)


def _level(experiment: Timed) -> str:
    """Return the training accuracy at which an experiment's methods are compared, in words."""
    limits = panels.targets(experiment.runs, "train", "accuracy")
    return f"{100 * limits[-1]:g} % training accuracy" if limits else "SGD's last training accuracy"


def _message(measured: Mapping[str, Mapping[tuple[str, str], TimeContest]], experiments: Mapping[str, Timed]) -> str:
    """Return the title: SGD's time over MKOR's, or without such a ratio how many runs of each got there.

    Of several experiments with a ratio it lists the ratios.
    """
    whole, ratios = {}, []
    for name, by_pair in measured.items():
        if (contest := by_pair.get(("sgd", "mkor"))) is None:
            continue
        experiment = experiments[name]
        level, start = _level(experiment), f"{styles.data_title(experiment.runs)}: "
        if contest.ratio is not None and 0 < contest.ratio.value < math.inf:
            shown, remark = forest.shown_value(contest.ratio, contest.ratios), forest.undecided(contest.ratio)
            ratios.append(f"{model_name(experiment)} {shown:.2f}{remark}")
            whole[name] = f"{start}SGD takes {shown:.2f} times MKOR's time to {level}{remark}"
        else:
            ours, theirs = (contest.seeds - never for never in (contest.contender_never, contest.rival_never))
            steps = experiment.runs.loc[experiment.runs["optimizer"].isin(("sgd", "mkor")), "steps"].unique()
            length = f" of {steps[0]:g} iterations" if len(steps) == 1 else ""
            whole[name] = f"{start}MKOR reaches {level} in {ours}, SGD in {theirs} of {contest.seeds} runs{length}"
    if len(whole) > 1 and ratios:
        return f"SGD's time over MKOR's to equal training accuracy: {'; '.join(ratios)}"
    return next(iter(whole.values()), "")


def _level_note(experiments: Mapping[str, Timed]) -> str:
    """Return the caption's definition of equal training accuracy in each experiment."""
    levels = [f"{_level(one)} of {model_name(one)}" for one in experiments.values()]
    return f"At the right: equal training accuracy is {', '.join(levels)}, by seed; it is measured at evaluations only"


def _draw_contests(
    axes: Axes, by_pair: Mapping[tuple[str, str], TimeContest], speedups: pd.Series, limits: tuple[float, float]
) -> None:
    """Draw one row per rival: measured ratios with their intervals, filled, and the published one, hollow."""
    axes.axvline(1, color=page.GUIDE, linewidth=0.8)
    labels = styles.in_order({label for _, label in by_pair})
    for row, (rival, name) in enumerate(RIVALS.items()):
        if row:
            axes.axhline(row - 0.5, color="#E4E4E4", linewidth=0.5)
        if name in speedups:
            axes.plot(speedups[name], row + 0.3, marker="o", markerfacecolor="none", color=page.GUIDE, markersize=5)
        met = {label: by_pair[rival, label] for label in labels if (rival, label) in by_pair}
        for place, label in enumerate(met):
            height = row - (0.02 if len(labels) == 1 else 0.12 - 0.22 * place)
            if (ratio := met[label].ratio) is not None:
                _draw_ratio(axes, ratio, met[label].ratios, height, label)
                if math.isinf(ratio.value):
                    panels.annotate(
                        axes,
                        "most never arrive",
                        (0.97, height - 0.24),
                        panels.ROW_AT_EDGE,
                        ha="right",
                        color=page.SOFT,
                    )
        if any(contest.rival_never for contest in met.values()):
            reached = {f"{contest.seeds - contest.rival_never} of {contest.seeds}" for contest in met.values()}
            forest.write_beside(axes, row, ", ".join(sorted(reached)), "reached")
        if any(contest.contender_never for contest in met.values()):
            of_mkor = [f"{contest.seeds - contest.contender_never} of {contest.seeds}" for contest in met.values()]
            forest.write_beside(axes, row + 0.25, f"MKOR {', '.join(of_mkor)}", "reached")
    forest.name_rows(axes, [styles.style_of(label).name for label in RIVALS])
    axes.set_ylim(len(RIVALS) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlim(limits)
    ticks = [0.5, 1, 2, 4] if limits[1] / limits[0] < 20 else [0.01, 0.1, 0.3, 1, 3, 10, 100]
    panels.fixed_ticks(axes.xaxis, ticks)


def _draw_ratio(axes: Axes, ratio: Estimate, runs: Sequence[float], height: float, label: str) -> None:
    """Draw the runs' ratios and their estimate; without a finite one its interval alone, which has one end."""
    forest.draw_runs(axes, [one for one in runs if 0 < one < math.inf], height, label, below=0.09)
    forest.draw_censored(axes, runs, height + 0.09, label)
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
