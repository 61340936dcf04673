"""Figure 11: training loss over training time, and MKOR's speedup to equal training accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.estimates import Estimate, paired_ratio
from workflow.bench.analysis.time_to_target import budgets, too_short
from workflow.bench.figures import _legend
from workflow.bench.figures import _style as style
from workflow.bench.figures._axes import explain_empty, fixed_ticks, loss_axis, plain_log_ticks
from workflow.bench.figures._curves import draw_curves, time_scale
from workflow.bench.figures._page import save
from workflow.bench.figures._rows import draw_estimate
from workflow.bench.figures._training import (
    IN_THE_PAPER,
    Experiment,
    all_runs,
    equal_levels,
    level_note,
    read,
    title,
    to_level,
    why_empty,
)
from workflow.bench.results.tables import Results, published

EXPERIMENTS = ("alexnet_cifar100", "bert_imdb", "bert_base_squad")
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
    "Never: how many runs ended below that level, the rival's and MKOR's (one number per rule, in the legend's order). "
    "They count as infinitely long, and leave a median without an interval, or no ratio if a run ended before the "
    "other side reached the level",
)


@dataclass(frozen=True)
class Contest:
    """A contender and a rival on their way to equal training accuracy, on the seeds that both have."""

    ratio: Estimate | None
    """The rival's training time over the contender's; None if neither reached the level, or a run was too short."""
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
            by_pair[rival, contender] = Contest(ratio, rival_never, contender_never, len(shared))
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
    figure, axes = style.new_figure(2, len(EXPERIMENTS), height=3.7, height_ratios=(1.5, 1))
    limits = _limits([contest for by_pair in measured.values() for contest in by_pair.values()])
    for (upper, lower), (name, experiment) in zip(axes.T, losses.items(), strict=True):
        _draw_losses(upper, name, experiment)
        speedups = paper[paper["experiment"] == IN_THE_PAPER[name]].set_index("baseline")["speedup"]
        _draw_contests(lower, measured[name], speedups)
        _ratio_axis(lower, limits)
        lower.set_yticks(range(len(RIVALS)), [""] * len(RIVALS))
    axes[1, 0].set_yticks(range(len(RIVALS)), RIVALS.values())
    axes[0, 0].set_ylabel("training loss")
    axes[1, 1].set_xlabel("rival's time ÷ MKOR's time to equal training accuracy")
    frames = [experiment.rows for experiment in losses.values()]
    legend = [
        *_legend.of_curves({label for frame in frames for label in frame["optimizer"]}, frames),
        _legend.published_entry("published (paper's models and GPUs)"),
    ]
    notes = [_NOTES[0], level_note({name: of_name.runs for name, of_name in losses.items()}, "Below"), _NOTES[1]]
    absent = [name for name, experiment in losses.items() if not experiment.has_results]
    text = caption(results, all_runs(losses), notes=notes, absent=absent)
    return save(figure, folder, "fig11_training_time", legend=legend, caption=text)


def _draw_losses(axes: Axes, name: str, experiment: Experiment) -> None:
    """Draw the training loss of one experiment over training time."""
    axes.set_title(title(experiment.runs, name), fontsize=7)
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
                draw_estimate(axes, ratio, height, label)
        if any(contest.rival_never or contest.contender_never for contest in met.values()):
            _annotate(axes, _never(list(met.values())), row - 0.33, 5.5)
    if not by_pair:
        _annotate(axes, "no pair measured", -0.33, 6)


def _never(met: Sequence[Contest]) -> str:
    """Return the remark on the runs that never reached the level; met: a rival's contests, one per contender."""
    rival = "/".join(map(str, sorted({contest.rival_never for contest in met})))
    contenders = "/".join(str(contest.contender_never) for contest in met)
    seeds = "/".join(map(str, sorted({contest.seeds for contest in met})))
    return f"never: {rival}, MKOR {contenders} of {seeds}"


def _annotate(axes: Axes, remark: str, row: float, size: float) -> None:
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center"}
    axes.annotate(remark, (0.98, row), **place, fontsize=size, color=style.GUIDE)


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
