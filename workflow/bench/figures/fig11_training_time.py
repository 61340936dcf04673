"""Figure 11: the rivals' training time to equal training accuracy over MKOR's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

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
_NOTE: Final = (
    "dots are runs, paired by seed, and the marker is their median, or with few tuning studies the geometric mean; a "
    "level that a run never reached counts as infinitely long, and the panel has how many runs did, if not all. A run "
    "that did not, and ended before the other side did, leaves open which is faster"
)
_ROW: Final = {1: (-0.12,), 2: (-0.28, 0.02)}
"""Heights in a rival's row of MKOR's markers, by the number of its rules."""
_DOTS_BELOW: Final = 0.15
_PUBLISHED_BELOW: Final = 0.33

# The experiments of figures 11 and 12


def read(results: Results, metric: str) -> dict[str, Timed]:
    """Return the experiments by name, their metrics the rows of one metric on the training data, timed by the probe.

    Experiments without runs are left out, since a tier need not have them all, and so are MKOR's further variants.

    Raises:
        NoDataError: no experiment has such a row.
    """
    times = StepTimes(results.probe("step_time"))
    measured = {name: timed(times, results.runs(name), results.metrics(name)) for name in EXPERIMENTS}
    shown = (*RIVALS, *CONTENDERS)
    experiments = {
        name: replace(one, metrics=panels.ended(one.metrics[one.metrics["optimizer"].isin(shown)], "train", metric))
        for name, one in measured.items()
        if not one.runs.empty
    }
    if all(experiment.metrics.empty for experiment in experiments.values()):
        raise NoDataError(f"no training {metric} of {', '.join(EXPERIMENTS)} in {results.root}: run one of them first.")
    return experiments


def caption(results: Results, experiments: Mapping[str, Timed], notes: Sequence[str]) -> str:
    """Return the caption of a figure of these experiments; the note on their times comes last."""
    runs = pd.concat([experiment.runs for experiment in experiments.values()], ignore_index=True)
    own = tuple(pair for experiment in experiments.values() for pair in experiment.own)
    times = Timed(runs, pd.DataFrame(), own).note(styles.workload_name)
    absent = [name for name in EXPERIMENTS if name not in experiments or results.metrics(name).empty]
    return page.caption(results, runs, notes=[*notes, times], absent=absent)


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
    """Draw a panel for each experiment with the rivals' times to equal training accuracy over MKOR's.

    Raises:
        NoDataError: in no experiment a rival or MKOR reached that accuracy.
    """
    experiments = read(results, "accuracy")
    measured = {name: contests(of_name.runs, of_name.metrics) for name, of_name in experiments.items()}
    shown = [name for name, by_pair in measured.items() if any(contest.ratios for contest in by_pair.values())]
    if not shown:
        raise NoDataError(f"no rival's run has one of MKOR beside it on the way to equal accuracy in {results.root}.")
    paper = published("training_speedups")
    figure, (axes,) = page.new_figure(1, len(shown), height=2.5, sharex=True, sharey=True)
    limits = _limits([contest for by_pair in measured.values() for contest in by_pair.values()])
    for panel, name in zip(axes, shown, strict=True):
        speedups = paper[paper["experiment"] == IN_THE_PAPER[name]].set_index("baseline")["speedup"]
        _draw_contests(panel, measured[name], speedups, limits)
        panel.set_title(styles.data_title(experiments[name].runs, width=22), fontsize=7)
        panel.set_xlabel(f"time ÷ MKOR's to\n{_level(experiments[name])}", fontsize=7.5)
    labels = {label for name in shown for _, label in measured[name]}
    drawn = [contest for name in shown for contest in measured[name].values()]
    has_bars = any(one.ratio and one.ratio.has_interval and len(one.ratios) >= median_minimum() for one in drawn)
    legend = [
        *page.entries_of(labels, linestyle="none"),
        page.guide_entry("one run", color="#777777", marker=".", markersize=4, linestyle="none"),
        page.published_entry("published (paper's models and GPUs)"),
        *([page.row_bar_entry()] if has_bars else []),
    ]
    without = [model_name(experiment) for name, experiment in experiments.items() if name not in shown]
    notes = [_level_note(experiments), _NOTE]
    notes += [f"no run that reached equal training accuracy beside another: {', '.join(without)}"] if without else []
    text = caption(results, experiments, notes)
    reading = "Right of 1 MKOR is faster."
    if any({0.0, math.inf} & {*contest.ratios} for contest in drawn):
        reading = "Right of 1 MKOR is faster. A triangle at the edge: a run that never arrives, or no end."
    return page.save(figure, folder, "fig11_training_time", legend, text, _message(measured, experiments), reading)


def _level(experiment: Timed) -> str:
    """Return the training accuracy at which an experiment's methods are compared, in words."""
    limits = panels.targets(experiment.runs, "train", "accuracy")
    return f"{100 * limits[-1]:g} % accuracy" if limits else "SGD's last accuracy"


def _message(measured: Mapping[str, Mapping[tuple[str, str], TimeContest]], experiments: Mapping[str, Timed]) -> str:
    """Return the title: on which data MKOR is faster than SGD, and where not all runs of both arrive how many do."""
    verdicts = []
    for name, by_pair in measured.items():
        if (contest := by_pair.get(("sgd", "mkor"))) is None:
            continue
        if contest.ratio is not None and has_marker(contest.ratio, contest.ratios):
            shown = f"{forest.shown_value(contest.ratio, contest.ratios):.2f}×"
            verdicts.append(verdict(model_name(experiments[name]), shown, contest.ratio, 1, ("faster", "slower")))
        else:
            ours, theirs = (contest.seeds - never for never in (contest.contender_never, contest.rival_never))
            shown = f"{model_name(experiments[name])} (MKOR in {ours} of {contest.seeds} runs, SGD in {theirs})"
            verdicts.append(("not all arrive", shown))
    return f"MKOR vs SGD to equal training accuracy: {listed(verdicts)}" if verdicts else ""


def has_marker(ratio: Estimate, runs: Sequence[float]) -> bool:
    """Return whether an estimate is finite and says more than the dots of its runs.

    Of two or three runs with one that never arrived, dots say more than a marker without an interval.
    """
    return 0 < ratio.value < math.inf and (ratio.has_interval or len(runs) == 1 or len(runs) >= median_minimum())


def verdict(name: str, shown: str, found: Estimate, equal: float, sides: tuple[str, str]) -> tuple[str, str]:
    """Return on which side of ``equal`` an estimate's interval lies, in words, and the data with what a panel shows.

    sides: the words for above and below.
    """
    if found.n == 1:
        return "one run each", name
    if found.contains(equal) or not found.has_interval:
        return "undecided", f"{name} ({shown})"
    return sides[found.high < equal], f"{name} ({shown})"


def listed(verdicts: Iterable[tuple[str, str]]) -> str:
    """Return verdicts, each with the data of which it is true, for a title."""
    by_verdict: dict[str, list[str]] = {}
    for said, name in verdicts:
        by_verdict.setdefault(said, []).append(name)
    return "; ".join(f"{said} on {' and '.join(names)}" for said, names in by_verdict.items())


def _level_note(experiments: Mapping[str, Timed]) -> str:
    """Return the caption's definition of equal training accuracy in each experiment."""
    levels = [f"{_level(one)} of {model_name(one)}" for one in experiments.values()]
    return f"equal training accuracy is {', '.join(levels)}, by seed; it is measured at evaluations only"


def _draw_contests(
    axes: Axes, by_pair: Mapping[tuple[str, str], TimeContest], speedups: pd.Series, limits: tuple[float, float]
) -> None:
    """Draw one row per rival: measured ratios with their intervals, filled, and the published one, hollow."""
    forest.name_rows(axes, [styles.style_of(label).name for label in RIVALS])
    axes.axvline(1, color=page.GUIDE, linewidth=0.8, zorder=1)
    labels = styles.in_order({label for _, label in by_pair})
    for row, (rival, name) in enumerate(RIVALS.items()):
        if row:
            axes.axhline(row - 0.5, color="#E4E4E4", linewidth=0.5)
        if name in speedups:
            at = row + _PUBLISHED_BELOW
            axes.plot(speedups[name], at, marker="o", markerfacecolor="none", color=page.GUIDE, markersize=4)
        for label, height in zip(labels, _ROW[len(labels)], strict=True):
            if contest := by_pair.get((rival, label)):
                _draw_contest(axes, contest, row + height, label)
    axes.set_ylim(len(RIVALS) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlim(limits)
    ticks = [0.5, 1, 2, 4, 8] if limits[1] / limits[0] < 40 else [0.01, 0.1, 0.3, 1, 3, 10, 100]
    panels.fixed_ticks(axes.xaxis, ticks)


def _draw_contest(axes: Axes, contest: TimeContest, height: float, label: str) -> None:
    """Draw the runs' ratios below their estimate, and at the edges how many of each side arrive, if not all."""
    ratio, runs = contest.ratio, contest.ratios
    forest.draw_runs(axes, contest.by_seed, height, label, below=_DOTS_BELOW)
    forest.draw_censored(axes, runs, height, label)
    look: dict[str, Any] = {"color": page.SOFT, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.5}}
    for never, edge, aligned, text in (
        (contest.rival_never, 0.95, "right", "{} of {} arrive"),
        (contest.contender_never, 0.05, "left", "MKOR: {} of {}"),
    ):
        if never:
            text = text.format(contest.seeds - never, contest.seeds)
            panels.annotate(axes, text, (edge, height), panels.ROW_AT_EDGE, ha=aligned, **look)
    if ratio and has_marker(ratio, runs):
        forest.draw_estimate(axes, ratio, height, label, runs=runs)
    elif ratio and ratio.has_interval and (ratio.low > 0 or ratio.high < math.inf):
        # Without a finite estimate its interval alone, which has one end.
        forest.draw_interval(axes, ratio, height, styles.style_of(label).color)


def _limits(measured: Sequence[TimeContest]) -> tuple[float, float]:
    """Return the limits of the axis of ratios, the same in all panels.

    They hold both sides of 1 and every value; an interval that is too wide (`WIDEST`) leaves the panel.
    """
    ratios = [contest.ratio for contest in measured if contest.ratio]
    values = [ratio.value for ratio in ratios if 0 < ratio.value < math.inf]
    low = min([NARROWEST[0], *values, *(max(ratio.low, WIDEST[0]) for ratio in ratios if ratio.has_interval)])
    high = max([NARROWEST[1], *values, *(min(ratio.high, WIDEST[1]) for ratio in ratios if ratio.has_interval)])
    return low / 1.15, high * 1.15
