"""Figure 16 (ours): step time and time to target of several machines; projections are hatched."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from workflow.bench.analysis import machines as comparison
from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.estimates import Estimate, shown_level
from workflow.bench.analysis.machines import TIMED_MODELS, Machine, StepTime, TargetTime
from workflow.bench.figures import _legend
from workflow.bench.figures import _style as style
from workflow.bench.figures._page import save
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("bert_pretraining", "resnet50_imagenet", "update_rules")
PROBES = ("step_breakdown", "iteration_time")
COMPARES = True

MODELS: Final = {
    "BERT": ("bert", "bert_pretraining"),
    "ResNet": ("resnet", "resnet50_imagenet"),
    "Autoencoder": ("autoencoder", "update_rules"),
}
"""Columns of the figure: the model of its step times, and the experiment of its times to target."""
_PERIOD: Final = 10
_BAR: Final = 0.105  # inches per bar
_HATCH: Final[Any] = {"hatch": "/////", "linewidth": 0.5}


@dataclass(frozen=True)
class Bar:
    """One bar: the time of an optimizer on a machine."""

    machine: str
    label: str
    took: Estimate
    """Seconds."""
    projected: bool = False
    remark: str = ""
    """Text at the end of the bar."""
    target: str = ""
    """The experiment's target in words."""


def _step_bars(times: Sequence[StepTime], model: str, probe: str) -> list[Bar]:
    """Return the step times of a model, all at one inverse update period."""
    return [
        Bar(time.machine, time.optimizer, time.took.scaled(1e-3))
        for time in times
        if time.probe == probe and time.workload == model and (math.isnan(time.period) or time.period == _PERIOD)
    ]


def _target_bars(times: Sequence[TargetTime], experiment: str, model: str) -> list[Bar]:
    """Return the times to target of an experiment on one model."""
    bars = []
    for time in times:
        trained = TIMED_MODELS.get((time.configuration.experiment, time.configuration.workload), model)
        if time.configuration.experiment == experiment and trained == model:
            reached, runs = time.iterations.reached, time.iterations.took.n
            remark = f"{reached} of {runs} reached" if reached < runs else ""
            target = time.configuration.target.describe()
            bars.append(Bar(time.machine, time.configuration.optimizer, time.seconds, time.projected, remark, target))
    return bars


def _draw(axes: Axes, bars: Sequence[Bar], names: Sequence[str], labels: Sequence[str]) -> None:
    """Draw horizontal bars, grouped by machine, with one bar per optimizer in the legend's order."""
    finite = [bar.took.value for bar in bars if math.isfinite(bar.took.value)]
    longest = max(finite, default=1.0)
    scale, unit = style.time_unit(longest)
    step = 1 / (len(labels) + 1)
    for bar in bars:
        place = names.index(bar.machine) + (labels.index(bar.label) - (len(labels) - 1) / 2) * step
        end = _draw_bar(axes, bar, place, 0.86 * step, scale) if math.isfinite(bar.took.value) else 0.0
        if bar.remark:
            offset: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            # On white, since an interval without an end runs through it.
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            axes.annotate(bar.remark, (end, place), **offset, fontsize=5.5, color=style.INK, bbox=box, zorder=5)
    for name in set(names) - {bar.machine for bar in bars}:
        axes.text(0.02 * longest / scale, names.index(name), "no data", va="center", fontsize=6.5, color=style.SOFT)
    # An interval that is far wider than its bar leaves the panel.
    highs = [min(bar.took.high, 1.5 * longest) for bar in bars if bar.took.has_interval]
    axes.set_xlim(0, 1.2 * max([longest, *highs]) / scale)
    axes.set_ylim(len(names) - 0.5, -0.5)
    for border in range(1, len(names)):
        axes.axhline(border - 0.5, color="#AAAAAA", linewidth=0.5)
    axes.set_yticks(range(len(names)), ["\n".join(textwrap.wrap(name, 16)) for name in names], fontsize=7)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=4)
    if bars:
        axes.set_xlabel(unit)
    else:
        axes.set_xticks([])


def _draw_bar(axes: Axes, bar: Bar, place: float, height: float, scale: float) -> float:
    """Draw a bar with its interval and its method's marker, and return the x of its end."""
    look = style.style_of(bar.label)
    value, low, high = (number / scale for number in (bar.took.value, bar.took.low, bar.took.high))
    axes.barh(
        place,
        value,
        height=height,
        facecolor="white" if bar.projected else look.color,
        edgecolor=look.color,
        **(_HATCH if bar.projected else {"linewidth": 0.5}),
    )
    if bar.took.has_interval:
        axes.hlines(place, max(low, 0.0), min(high, 1e30), color=style.INK, linewidth=0.7)
    edge: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.4}
    axes.plot(value, place, marker=look.marker, markersize=3.2, color=look.color, zorder=4, **edge)
    return max(value, high) if bar.took.has_interval and math.isfinite(high) else value


def make(results: Results, folder: Path) -> list[Path]:
    """Draw step times above and times to target below, one column per model, with machines as groups of bars.

    Raises:
        NoDataError: no machine has a step time or a time to target of these models.
    """
    machines, notes = comparison.gather(results)
    steps = [time for machine in machines for time in machine.step_times()]
    # All bars come from one probe: step_breakdown waits after each phase and iteration_time does not, so that their
    # times cannot be compared.
    probe = "step_breakdown" if any(time.probe == "step_breakdown" for time in steps) else "iteration_time"
    targets = comparison.target_times(machines)
    columns: dict[str, tuple[list[Bar], list[Bar]]] = {}
    for title, (model, experiment) in MODELS.items():
        bars = _step_bars(steps, model, probe), _target_bars(targets, experiment, model)
        if any(bars):
            columns[title] = bars
    if not columns:
        raise NoDataError(f"no step time and no time to target in {results.root}: run make timing first.")
    return _save(results, machines, columns, notes, folder)


def _save(
    results: Results,
    machines: Sequence[Machine],
    columns: Mapping[str, tuple[Sequence[Bar], Sequence[Bar]]],
    notes: Sequence[str],
    folder: Path,
) -> list[Path]:
    """Draw the panels and write the figure with its legend and caption.

    Args:
        results: the results of this machine.
        machines: all machines, from top to bottom.
        columns: the bars of the step times and of the times to target, by title of the column.
        notes: the first sentences of the caption.
        folder: the folder to write to.
    """
    names = [machine.name for machine in machines]
    rows = [[bars[row] for bars in columns.values()] for row in (0, 1)]
    heights = [_height(panels, len(names)) for panels in rows]
    figure, axes = style.new_figure(2, len(columns), height=sum(heights) + 1.0, height_ratios=heights, sharey="row")
    for panel, title in zip(axes[0], columns, strict=True):
        panel.set_title(title)
    for panels, bars_of_row in zip(axes, rows, strict=True):
        labels = _labels(bars_of_row)
        for panel, bars in zip(panels, bars_of_row, strict=True):
            _draw(panel, bars, names, labels)
            if targets := sorted({bar.target for bar in bars if bar.target}):
                panel.set_title("; ".join(targets), fontsize=7)
    axes[0, 0].set_ylabel("step time")
    axes[1, 0].set_ylabel("time to target")
    bars = [bar for panels in rows for bars in panels for bar in bars]
    this = [machine for machine in machines if not machine.prefix]
    runs = this[0].runs if this else pd.DataFrame()
    runs = runs[runs["experiment"].isin(EXPERIMENTS)] if not runs.empty else runs
    notes = [*notes, *comparison.describe(machines, EXPERIMENTS), *_notes(bars)]
    text = caption(results, runs, notes=notes, absent=_absent(this[0].results) if this else [])
    return save(figure, folder, "fig16_hardware", legend=_entries(bars), caption=text, columns=4)


def _entries(bars: Sequence[Bar]) -> list[Artist]:
    """Return the entries of the legend."""
    looks = map(style.style_of, style.in_order(bar.label for bar in bars))
    entries: list[Artist] = [_legend.marker_entry(look, markersize=5) for look in looks]
    if any(bar.projected for bar in bars):
        entries.append(Patch(facecolor="white", edgecolor=style.GUIDE, label="projected", **_HATCH))
    if any(bar.took.has_interval for bar in bars):
        entries.append(Line2D([], [], color=style.INK, linewidth=0.8, label=f"{shown_level()} interval"))
    return entries


def _labels(panels: Sequence[Sequence[Bar]]) -> list[str]:
    return style.in_order(bar.label for bars in panels for bar in bars)


def _height(panels: Sequence[Sequence[Bar]], machines: int) -> float:
    """Return the inches that a row of panels needs for a bar per label and machine."""
    return max(0.7, _BAR * (len(_labels(panels)) + 1) * machines)


def _notes(bars: Sequence[Bar]) -> list[str]:
    """Return the caption's sentences on reading the bars."""
    notes = [
        f"Above: mean of a cycle with one refresh in {_PERIOD} steps, on one process. Below: training time to the "
        "experiment's target; runs that ended without reaching it count as infinitely long, and a missing bar means "
        "that most of them did"
    ]
    if any(bar.projected for bar in bars):
        notes.append(
            "Projected: iterations to the target measured on another machine times the step time measured on this "
            "one, at the run's own period; its interval multiplies the bounds of both factors"
        )
    return notes


def _absent(results: Results) -> list[str]:
    """Return the experiments and probes of the figure that this machine has no results of."""
    names = [name for name in EXPERIMENTS if results.runs(name).empty]
    return names + [f"probe {name}" for name in PROBES if not (results.root / "probes" / f"{name}.csv").exists()]
