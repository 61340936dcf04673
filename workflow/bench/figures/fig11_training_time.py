"""Figure 11: training loss over training time, and how many times less MKOR took to equal training accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.estimates import Estimate, paired_ratio
from workflow.bench.analysis.time_to_target import too_short
from workflow.bench.figures import _style as style
from workflow.bench.figures._curves import draw_curves, ended, legend, time_scale
from workflow.bench.figures._training import IN_THE_PAPER, equal_levels, level_note, title, to_level, why_empty
from workflow.bench.results.tables import NoDataError, Results, published

EXPERIMENTS = ("alexnet_cifar100", "bert_imdb", "bert_base_squad")
PUBLISHED = ("training_speedups",)

#: Labels of the rivals, and what the paper calls them.
RIVALS: Final = {"sgd": "SGD", "kaisa": "KAISA", "hylo": "HyLo-KIS"}
CONTENDERS: Final = ("mkor", "mkor_released")
NARROWEST: Final = (0.4, 2.6)
WIDEST: Final = (0.1, 20.0)


@dataclass(frozen=True)
class Contest:
    """How a contender and a rival got to equal training accuracy, on the seeds that both have."""

    ratio: Estimate | None
    """The rival's training time over the contender's; None where neither ever got there, or a run was too short."""
    rival_never: int
    contender_never: int
    seeds: int


def contests(runs: pd.DataFrame, accuracies: pd.DataFrame) -> dict[tuple[str, str], Contest]:
    """What (rival, contender) took to equal training accuracy, for all that share a seed."""
    levels = equal_levels(runs, accuracies)
    took = {label: to_level(runs, accuracies, label, levels) for label in (*RIVALS, *CONTENDERS)}
    found = {}
    for rival, contender in product(RIVALS, CONTENDERS):
        shared = took[rival].keys() & took[contender].keys()
        short = any(
            too_short(runs[runs["optimizer"] == label], took[label], took[other], "seconds")
            for label, other in ((rival, contender), (contender, rival))
        )
        rival_never, contender_never = (
            sum(math.isinf(took[label][seed]) for seed in shared) for label in (rival, contender)
        )
        if shared:
            ratio = None if short else paired_ratio(took[rival], took[contender])
            found[rival, contender] = Contest(ratio, rival_never, contender_never, len(shared))
    return found


def _draw_contests(
    axes: Axes,
    found: Mapping[tuple[str, str], Contest],
    of_paper: Mapping[str, float],
    limits: tuple[float, float],
) -> None:
    """One row a rival: measured ratios with their intervals, filled, and the published one, hollow, below."""
    axes.set_xscale("log")
    axes.set_xlim(limits)
    axes.axvline(1, color="#444444", linewidth=0.8)
    labels = style.in_order({label for _, label in found})
    for row, rival in enumerate(RIVALS):
        if row:
            axes.axhline(row - 0.5, color="#E4E4E4", linewidth=0.5)
        if rival in of_paper:
            axes.plot(of_paper[rival], row + 0.3, marker="o", markerfacecolor="none", color="#444444", markersize=5)
        for place, label in enumerate(labels):
            if (rival, label) not in found:
                continue
            one, look = found[rival, label], style.style_of(label)
            height = row - (0.02 if len(labels) == 1 else 0.12 - 0.22 * place)
            if one.ratio and 0 < one.ratio.value < math.inf:
                if one.ratio.has_interval:
                    axes.hlines(height, one.ratio.low, one.ratio.high, color=look.color, linewidth=2.2, alpha=0.55)
                axes.plot(one.ratio.value, height, marker=look.marker, color=look.color, markersize=5)
        met = [found[rival, label] for label in labels if (rival, label) in found]
        if any(one.rival_never or one.contender_never for one in met):
            theirs, ours, seeds = (
                "/".join(map(str, numbers))
                for numbers in (
                    sorted({one.rival_never for one in met}),
                    [one.contender_never for one in met],
                    sorted({one.seeds for one in met}),
                )
            )
            axes.annotate(
                f"never: {theirs}, MKOR {ours} of {seeds}",
                (0.98, row - 0.33),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="center",
                fontsize=5.5,
                color="#444444",
            )
    axes.set_ylim(len(RIVALS) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(
        FixedLocator([0.5, 1, 2, 4] if limits[1] / limits[0] < 20 else [0.01, 0.1, 0.3, 1, 3, 10, 100])
    )
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(FixedLocator([]))


def make(results: Results, folder: Path) -> list[Path]:
    """Draw training loss over training seconds, and below MKOR's speedups to equal training accuracy, by experiment.

    Raises NoDataError where no experiment has a training loss.
    """
    runs = {name: results.runs(name) for name in EXPERIMENTS}
    metrics = {name: results.metrics(name) for name in EXPERIMENTS}
    losses = {name: ended(metrics[name], "train", "loss") for name in EXPERIMENTS}
    if all(frame.empty for frame in losses.values()):
        raise NoDataError(f"no training loss of {', '.join(EXPERIMENTS)} in {results.root}: run one of them first.")
    accuracies = {name: ended(metrics[name], "train", "accuracy") for name in EXPERIMENTS}
    found = {name: contests(runs[name], accuracies[name]) for name in EXPERIMENTS}
    of_paper = published("training_speedups")
    figure, axes = style.new_figure(2, len(EXPERIMENTS), height=3.7, height_ratios=(1.5, 1))
    limits = _limits([one for pairs in found.values() for one in pairs.values()])
    for column, name in enumerate(EXPERIMENTS):
        upper, lower = axes[:, column]
        upper.set_title(title(runs[name], name), fontsize=7)
        if losses[name].empty:
            style.say(upper, why_empty(runs[name], name, "training loss"), width=24)
        else:
            length, unit = time_scale(losses[name])
            low, high, scale = style.loss_limits(losses[name])
            upper.set_yscale(scale)
            upper.set_ylim(low, high)
            draw_curves(upper, losses[name], x="train_seconds", scale=length)
            if scale == "log":
                style.plain_log_ticks(upper)
            upper.set_xlabel(f"training time ({unit})")
        here = of_paper[of_paper["experiment"] == IN_THE_PAPER[name]].set_index("baseline")["speedup"]
        _draw_contests(
            lower, found[name], {rival: float(here[text]) for rival, text in RIVALS.items() if text in here}, limits
        )
        if not found[name]:
            lower.annotate(
                "no pair measured",
                (0.97, -0.33),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="center",
                fontsize=6,
                color="#666666",
            )
        lower.set_yticks(range(len(RIVALS)), RIVALS.values() if column == 0 else [""] * len(RIVALS))
    axes[0, 0].set_ylabel("training loss")
    axes[1, 1].set_xlabel("rival's time ÷ MKOR's time to equal training accuracy")
    shown = {label for frame in losses.values() for label in frame["optimizer"]}
    handles = [*legend(shown, losses.values()), style.published_handle("published (paper's models and GPUs)")]
    everything = pd.concat([frame for frame in runs.values() if not frame.empty], ignore_index=True)
    style.finish(
        figure,
        handles,
        caption(
            results,
            everything,
            notes=[
                "Above: mean loss of the training batches since the last evaluation; on a logarithmic axis the summary "
                "is of logarithms",
                level_note(runs, "Below"),
                "Never: runs that ended below that, the rival's and MKOR's (by rule, in the legend's order); they "
                "count as infinitely long, and leave a median without an interval, or no ratio where one ended before "
                "the other side was there",
            ],
            absent=[name for name in EXPERIMENTS if metrics[name].empty],
        ),
        columns=3,
    )
    return style.save(figure, folder, "fig11_training_time")


def _limits(found: list[Contest]) -> tuple[float, float]:
    """Limits of the ratios' axis, the same in all panels: all intervals within reason, and both sides of 1."""
    ratios = [one.ratio for one in found if one.ratio]
    values = [ratio.value for ratio in ratios if 0 < ratio.value < math.inf]
    # An interval that is wide beyond reason leaves through the rim.
    low = min([NARROWEST[0], *values, *(max(ratio.low, WIDEST[0]) for ratio in ratios if ratio.has_interval)])
    high = max([NARROWEST[1], *values, *(min(ratio.high, WIDEST[1]) for ratio in ratios if ratio.has_interval)])
    return low / 1.15, high * 1.15
