"""Figure 11: training loss over training time, and MKOR's speedup to equal training accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.estimates import Estimate, paired_ratio
from workflow.bench.analysis.time_to_target import budgets, too_short
from workflow.bench.figures import _legend
from workflow.bench.figures import _style as style
from workflow.bench.figures._axes import explain_empty, fixed_ticks, loss_axis, plain_log_ticks
from workflow.bench.figures._captions import caption
from workflow.bench.figures._curves import draw_curves, time_scale
from workflow.bench.figures._page import save
from workflow.bench.figures._rows import draw_estimate, draw_runs, write_beside
from workflow.bench.figures._training import (
    IN_THE_PAPER,
    Experiment,
    all_runs,
    equal_levels,
    level_note,
    read,
    set_title,
    time_note,
    to_level,
    why_empty,
)
from workflow.bench.results.tables import Results, published

EXPERIMENTS = ("alexnet_cifar100", "bert_imdb", "bert_base_squad")
PROBES = ("step_time",)
PUBLISHED = ("training_speedups",)

RIVALS: Final = {"sgd": "SGD", "kaisa": "KAISA", "hylo": "HyLo-KIS"}
"""Labels of the rivals, and their names in the paper's table of training speedups."""
CONTENDERS: Final = ("mkor", "mkor_released")
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


@dataclass(frozen=True)
class Contest:
    """A contender and a rival on their way to equal training accuracy, on the seeds that both have."""

    ratio: Estimate | None
    """The rival's training time over the contender's; None if neither reached the level, or a run was too short."""
    by_seed: tuple[float, ...]
    """The finite ratios of single seeds."""
    rival_never: int
    """Runs of the rival that never reached the level."""
    contender_never: int
    seeds: int


def contests(runs: pd.DataFrame, accuracies: pd.DataFrame) -> dict[tuple[str, str], Contest]:
    """Return the contest of every (rival, contender) that share a seed."""
    levels = equal_levels(runs, accuracies)
    took = {label: to_level(runs, accuracies, label, levels) for label in (*RIVALS, *CONTENDERS)}
    by_pair = {}
    for rival, contender in product(RIVALS, CONTENDERS):
        shared = took[rival].keys() & took[contender].keys()
        short = any(
            too_short(took[label], took[other], budgets(runs[runs["optimizer"] == label], "seconds"))
            for label, other in ((rival, contender), (contender, rival))
        )
        rival_never, contender_never = (
            sum(math.isinf(took[label][seed]) for seed in shared) for label in (rival, contender)
        )
        if shared:
            ratio = None if short else paired_ratio(took[rival], took[contender])
            pairs = [(took[rival][seed], took[contender][seed]) for seed in sorted(shared)]
            by_seed = () if short else tuple(a / b for a, b in pairs if math.isfinite(a) and 0 < b < math.inf)
            by_pair[rival, contender] = Contest(ratio, by_seed, rival_never, contender_never, len(shared))
    return by_pair


def make(results: Results, folder: Path) -> list[Path]:
    """Draw training loss over training seconds, and MKOR's speedups to equal training accuracy, by experiment.

    Raises:
        NoDataError: no experiment has a training loss.
    """
    losses = read(results, EXPERIMENTS, "loss")
    accuracies = read(results, EXPERIMENTS, "accuracy", required=False)
    measured = {name: contests(of_name.runs, of_name.rows) for name, of_name in accuracies.items()}
    paper = published("training_speedups")
    figure, axes = style.new_figure(2, len(losses), height=3.9, height_ratios=(1.4, 1))
    limits = _limits([contest for by_pair in measured.values() for contest in by_pair.values()])
    for (upper, lower), (name, experiment) in zip(axes.T, losses.items(), strict=True):
        _draw_losses(upper, name, experiment)
        speedups = paper[paper["experiment"] == IN_THE_PAPER[name]].set_index("baseline")["speedup"]
        _draw_contests(lower, measured[name], speedups)
        _ratio_axis(lower, limits)
        lower.set_yticks(range(len(RIVALS)), [""] * len(RIVALS))
    axes[1, 0].set_yticks(range(len(RIVALS)), [style.style_of(label).name for label in RIVALS], fontsize=7)
    axes[0, 0].set_ylabel("training loss")
    axes[1, (len(losses) - 1) // 2].set_xlabel("rival's time ÷ MKOR's time to equal training accuracy")
    frames = [experiment.rows for experiment in losses.values()]
    legend = [
        *_legend.of_curves({label for frame in frames for label in frame["optimizer"]}, frames),
        _legend.published_entry("published (paper's models and GPUs)"),
    ]
    level = level_note({name: of_name.runs for name, of_name in losses.items()}, "Below")
    notes = [_NOTES[0], level, _NOTES[1], time_note(losses)]
    absent = [name for name in EXPERIMENTS if name not in losses or not losses[name].has_results]
    text = caption(results, all_runs(losses), notes=notes, absent=absent)
    return save(figure, folder, "fig11_training_time", legend=legend, caption=text)


def _draw_losses(axes: Axes, name: str, experiment: Experiment) -> None:
    """Draw the training loss of one experiment over training time."""
    set_title(axes, experiment.runs)
    losses = experiment.rows
    if losses.empty:
        explain_empty(axes, why_empty(experiment.runs, name, "training loss"), width=24)
        return
    length, unit = time_scale(losses)
    loss_axis(axes, losses)
    draw_curves(axes, losses, x="train_seconds", scale=length)
    if axes.get_yscale() == "log":
        plain_log_ticks(axes)
    axes.set_xlabel(f"training time ({unit})")


def _draw_contests(axes: Axes, by_pair: Mapping[tuple[str, str], Contest], speedups: pd.Series) -> None:
    """Draw one row per rival: measured ratios with their intervals, filled, and the published one, hollow."""
    axes.axvline(1, color=style.GUIDE, linewidth=0.8)
    labels = style.in_order({label for _, label in by_pair})
    for row, (rival, name) in enumerate(RIVALS.items()):
        if row:
            axes.axhline(row - 0.5, color="#E4E4E4", linewidth=0.5)
        if name in speedups:
            axes.plot(speedups[name], row + 0.3, marker="o", markerfacecolor="none", color=style.GUIDE, markersize=5)
        met = {label: by_pair[rival, label] for label in labels if (rival, label) in by_pair}
        for place, label in enumerate(labels):
            ratio = met[label].ratio if label in met else None
            if ratio and 0 < ratio.value < math.inf:
                height = row - (0.02 if len(labels) == 1 else 0.12 - 0.22 * place)
                draw_runs(axes, met[label].by_seed, height, label, below=0.09)
                if ratio.interval_method != "none" or ratio.n == 1:
                    draw_estimate(axes, ratio, height, label, runs=met[label].by_seed)
        if any(contest.rival_never or contest.contender_never for contest in met.values()):
            write_beside(axes, row, _reached(list(met.values())), "reached")
    if not by_pair:
        explain_empty(axes, "no pair measured", width=24)


def _reached(met: Sequence[Contest]) -> str:
    """Return how many runs reached the level on both sides; met: a rival's contests, one per contender."""
    rival = sorted({f"{contest.seeds - contest.rival_never}/{contest.seeds}" for contest in met})
    contenders = [f"{contest.seeds - contest.contender_never}/{contest.seeds}" for contest in met]
    return f"rival {', '.join(rival)}\nMKOR {', '.join(contenders)}"


def _ratio_axis(axes: Axes, limits: tuple[float, float]) -> None:
    axes.set_ylim(len(RIVALS) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_xscale("log")
    axes.set_xlim(limits)
    fixed_ticks(axes.xaxis, [0.5, 1, 2, 4] if limits[1] / limits[0] < 20 else [0.01, 0.1, 0.3, 1, 3, 10, 100])


def _limits(measured: Sequence[Contest]) -> tuple[float, float]:
    """Return the limits of the axis of ratios, the same in all panels.

    They hold both sides of 1 and every value; an interval that is too wide (`WIDEST`) leaves the panel.
    """
    ratios = [contest.ratio for contest in measured if contest.ratio]
    values = [ratio.value for ratio in ratios if 0 < ratio.value < math.inf]
    low = min([NARROWEST[0], *values, *(max(ratio.low, WIDEST[0]) for ratio in ratios if ratio.has_interval)])
    high = max([NARROWEST[1], *values, *(min(ratio.high, WIDEST[1]) for ratio in ratios if ratio.has_interval)])
    return low / 1.15, high * 1.15
