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
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from workflow.bench.analysis import machines as comparison
from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import Estimate, median_minimum, shown_level
from workflow.bench.analysis.machines import TargetTime
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("bert_pretraining", "resnet50_imagenet", "update_rules")
PROBES = ("step_breakdown", "iteration_time", "step_time")
COMPARES = True

MODELS: Final = {
    "BERT": ("bert", {("bert_pretraining", "bert_pretraining")}),
    "ResNet": ("resnet", {("resnet50_imagenet", "resnet20"), ("resnet50_imagenet", "resnet50")}),
    "Autoencoder": ("autoencoder", {("update_rules", "autoencoder")}),
}
"""Columns of the figure: the model of its step times, and experiments and workloads of its times to target."""
_SHOWN: Final = {place for _, places in MODELS.values() for place in places}
BASES: Final = ("sgd", "lamb")
"""The labels of base optimizers; a model is timed with one of them."""
_NAMED: Final = ("kaisa", "mkor")
"""The labels whose step the title compares with the base's."""
_PERIOD: Final = 10
_ROW: Final = 0.15  # inches per bar
_NAME_WIDTH: Final = 24  # letters of a line of a machine's name
_PROJECTED: Final[Any] = {"facecolor": "white", "hatch": "/////", "linewidth": 0.5}


@dataclass(frozen=True)
class RatioBar:
    """One bar: the time of an optimizer on a machine."""

    machine: str
    label: str
    took: Estimate
    """Seconds."""
    values: tuple[float, ...] = ()
    """Seconds of each run or repeat."""
    projected: bool = False
    remark: str = ""
    """How many of the runs reached the target, if not all."""
    target: str = ""
    """The experiment's target in words."""


class HardwareRows:
    """The heights in a row of panels: machines from top to bottom, each with its optimizers in the legend's order.

    A machine without a bar in the row has one height, at which the panels say so.
    """

    def __init__(self, names: Sequence[str], bars: Sequence[RatioBar]) -> None:
        labels = {name: styles.in_order(bar.label for bar in bars if bar.machine == name) for name in names}
        self.middles: dict[str, float] = {}  # of each machine's bars
        self.places: dict[tuple[str, str], float] = {}  # of each machine's optimizer
        self.headings: dict[str, float] = {}  # of each machine's name; without other machines the caption names it
        self.borders: list[float] = []  # between two machines
        height = 0.0  # in heights of a bar
        for name in names:
            if name != names[0]:
                self.borders.append(height - 0.35)
            if len(names) > 1:
                lines = len(textwrap.wrap(name, _NAME_WIDTH))
                self.headings[name] = height + 0.45 * (lines - 1)
                height += 0.25 + 0.9 * lines
            self.places |= {(name, label): height + row for row, label in enumerate(labels[name])}
            number = max(len(labels[name]), 1)
            self.middles[name] = height + (number - 1) / 2
            height += number + 0.4
        self.end = height - 0.8


def _place(time: TargetTime) -> tuple[str, str]:
    return time.configuration.experiment, time.configuration.workload


def _target_bar(time: TargetTime) -> RatioBar:
    reached, runs = time.iterations.reached, time.iterations.runs
    remark = f"{reached} of {runs}" if reached < runs else ""
    target, label = time.configuration.target.describe(), time.configuration.optimizer
    return RatioBar(time.machine, label, time.seconds, time.by_run, time.projected, remark, target)


def _draw(axes: Axes, bars: Sequence[RatioBar], rows: HardwareRows) -> None:
    """Draw horizontal bars, grouped by machine."""
    finite = [value for bar in bars for value in (bar.took.value, *bar.values) if math.isfinite(value)]
    longest = max(finite, default=1.0)
    scale, unit = page.time_unit(longest)
    # An interval that is far wider than its bar leaves the panel.
    highs = [min(bar.took.high, 1.5 * longest) for bar in bars if _has_interval(bar)]
    end = 1.06 * max([longest, *highs]) / scale
    for bar in bars:
        place = rows.places[bar.machine, bar.label]
        _draw_bar(axes, bar, place, scale, end)
        if bar.remark:
            forest.write_beside(axes, place, bar.remark)
    machines = {bar.machine for bar in bars}
    for name, middle in rows.middles.items():
        if name not in machines:
            axes.text(0.02 * end, middle, "no data", va="center", fontsize=6.5, color=page.SOFT)
    axes.set_xlim(0, end)
    axes.set_ylim(rows.end, -0.8)
    for border in rows.borders:
        axes.axhline(border, color="#AAAAAA", linewidth=0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel(unit)


def _name_rows(axes: Axes, rows: HardwareRows) -> None:
    """Write the names of the optimizers, and above those of each machine its name, to the left of a panel."""
    names = {place: textwrap.fill(name, _NAME_WIDTH) for name, place in rows.headings.items()}
    names |= {place: styles.style_of(label).name for (_, label), place in rows.places.items()}
    axes.set_yticks(list(names), list(names.values()), fontsize=6)
    for text, place in zip(axes.get_yticklabels(), names, strict=True):
        if place in rows.headings.values():
            text.set_fontweight("bold")


def _has_interval(bar: RatioBar) -> bool:
    """Return whether a bar has an interval; few runs are dots instead."""
    return bar.took.has_interval and (bar.projected or bar.took.n >= median_minimum())


def _draw_bar(axes: Axes, bar: RatioBar, place: float, scale: float, end: float) -> None:
    """Draw a bar with its interval, which has an arrow where it leaves the panel at ``end``, or with its runs."""
    look = styles.style_of(bar.label)
    if math.isfinite(bar.took.value):
        face: dict[str, Any] = _PROJECTED if bar.projected else {"facecolor": look.color, "linewidth": 0.5}
        axes.barh(place, bar.took.value / scale, height=0.8, edgecolor=look.color, **face)
    if math.isfinite(bar.took.value) and _has_interval(bar):
        low, high = max(bar.took.low, 0.0) / scale, bar.took.high / scale
        axes.hlines(place, low, min(high, end), color=page.INK, linewidth=0.9)
        if high > end:
            axes.plot(0.98 * end, place, marker=">", color=page.INK, markersize=4, zorder=5)
    elif len(bar.values) > 1 or not math.isfinite(bar.took.value):
        edge: dict[str, Any] = {"markeredgecolor": page.INK, "markeredgewidth": 0.5}
        values = [value / scale for value in bar.values]
        axes.plot(values, [place] * len(values), "o", color="white", markersize=2.6, **edge, zorder=4)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw step times above and times to target below, one column per model, with machines as groups of bars."""
    machines, notes = comparison.gather(results)
    steps = [time for machine in machines for time in machine.step_times()]
    # All bars come from one probe: step_breakdown waits after each phase and iteration_time does not, so that their
    # times cannot be compared.
    probe = "step_breakdown" if any(time.probe == "step_breakdown" for time in steps) else "iteration_time"
    steps = [time for time in steps if time.probe == probe and (math.isnan(time.period) or time.period == _PERIOD)]
    targets = [time for time in comparison.target_times(machines) if _place(time) in _SHOWN]
    above = {
        title: [
            RatioBar(time.machine, time.optimizer, time.took.scaled(1e-3), tuple(1e-3 * ms for ms in time.repeats))
            for time in steps
            if time.workload == model
        ]
        for title, (model, _) in MODELS.items()
    }
    below = {
        title: [_target_bar(time) for time in targets if _place(time) in places]
        for title, (_, places) in MODELS.items()
    }
    # A row has a panel for each model that has data, and no empty ones.
    by_row = [
        {title: bars for title, bars in of_row.items() if bars} for of_row in (above, below) if any(of_row.values())
    ]
    if not by_row:
        measure = f"python -m workflow.bench.timing --tier {results.root.name}"
        raise NoDataError(f"no step time and no time to target in {results.root}: run {measure} first.")
    timed = {bar.machine for of_row in by_row for bars in of_row.values() for bar in bars}
    figure = _draw_panels([machine.name for machine in machines if machine.name in timed], by_row)
    shown = [bar for of_row in by_row for bars in of_row.values() for bar in bars]
    if measured := [time for time in targets if not time.projected]:
        notes.append(comparison.note_on_times(measured, styles.workload_name))
    notes += [*comparison.describe(machines, EXPERIMENTS), *_notes(shown)]
    runs, absent = pd.DataFrame(), []
    if this := [machine for machine in machines if not machine.prefix]:
        runs, own = this[0].runs, this[0].results
        if len(runs):
            runs = runs[[pair in _SHOWN for pair in zip(runs["experiment"], runs["workload"], strict=True)]]
        absent = [name for name in EXPERIMENTS if own.runs(name).empty]
        absent += [f"probe {name}" for name in PROBES if not (own.root / "probes" / f"{name}.csv").exists()]
    text = page.caption(results, runs, notes=notes, absent=absent)
    message = _message([*above.values()])
    reading = "Above: a step with an update in ten; below: time to the target, and how many runs got there if not all."
    return page.save(figure, folder, "fig16_hardware", _entries(shown), text, message, reading, columns=4)


def _message(steps: Sequence[Sequence[RatioBar]]) -> str:
    """Return the title: the step of KFAC and of MKOR over the base optimizer's, from least to most over all bars."""
    ratios: dict[str, list[float]] = {}
    machines: set[str] = set()
    for bars in steps:
        took = {(bar.machine, bar.label): bar.took.value for bar in bars}
        for (machine, label), seconds in took.items():
            base = next((took[machine, name] for name in BASES if (machine, name) in took), math.nan)
            if label in _NAMED and math.isfinite(seconds / base):
                ratios.setdefault(label, []).append(seconds / base)
                machines.add(machine)
    if not ratios:
        return ""
    phrases = [
        f"with {styles.style_of(label).short} {page.span(f'{x:.2f}' for x in sorted(ratios[label]))}"
        for label in _NAMED
        if label in ratios
    ]
    where = f" on {len(machines)} machines" if len(machines) > 1 else ""
    return f"A step takes {' and '.join(phrases)} times as long as the base optimizer's{where}"


def _draw_panels(names: Sequence[str], by_row: Sequence[Mapping[str, Sequence[RatioBar]]]) -> Figure:
    """Return the figure; names: the machines from top to bottom; by_row: the bars of each row's panels, by title."""
    rows = [HardwareRows(names, [bar for bars in of_row.values() for bar in bars]) for of_row in by_row]
    heights = [max(0.7, _ROW * (of_row.end + 0.8)) for of_row in rows]
    most = max(map(len, by_row))
    figure, axes = page.new_figure(len(rows), most, height=sum(heights) + 1.0, height_ratios=heights)
    for axes_of_row, bars_of_row, of_row in zip(axes, by_row, rows, strict=True):
        panels_of_row = page.split_row(figure, axes_of_row, len(bars_of_row))
        for panel, (title, bars) in zip(panels_of_row, bars_of_row.items(), strict=True):
            _draw(panel, bars, of_row)
            targets = "; ".join(sorted({bar.target for bar in bars if bar.target}))
            panel.set_title(f"{title}\n{targets}" if targets else title, fontsize=7 if targets else None)
            panel.set_yticks([])
        _name_rows(panels_of_row[0], of_row)
        quantity = "time to target" if any(bar.target for bars in bars_of_row.values() for bar in bars) else "step time"
        panels_of_row[0].set_ylabel(quantity)
    return figure


def _entries(bars: Sequence[RatioBar]) -> list[Artist]:
    """Return the entries of the legend; the bars' names stand beside them."""
    entries: list[Artist] = []
    if any(bar.projected for bar in bars):
        entries.append(Patch(edgecolor=page.GUIDE, label="projected", **_PROJECTED))
    if any(map(_has_interval, bars)):
        entries.append(page.guide_entry(f"{shown_level()} interval", color=page.INK, linewidth=0.9))
    if any(len(bar.values) > 1 and not _has_interval(bar) for bar in bars):
        entries.append(page.hollow_entry("one run, or one repeat of a probe", markersize=3.2))
    return entries


def _notes(bars: Sequence[RatioBar]) -> list[str]:
    """Return the caption's sentences on reading the bars."""
    notes = [
        f"Above: mean of a cycle with one refresh in {_PERIOD} steps, on one process. Below: training time to the "
        "experiment's target; to the right, how many runs reached it, if not all. The others count as infinitely long, "
        "and a missing bar means that most of them did not reach it"
    ]
    if any(bar.projected for bar in bars):
        notes.append(
            "Projected: iterations to the target measured on another machine times the step time measured on this "
            "one, at the run's own period; its interval multiplies the bounds of both factors"
        )
    return notes
