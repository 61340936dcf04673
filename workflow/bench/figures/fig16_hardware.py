"""Figure 16 (ours): time a step and time to target across machines, projections hatched."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from workflow.bench.analysis import machines as side_by_side
from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.estimates import Estimate
from workflow.bench.analysis.machines import STEPPED, Machine, StepTime, TargetTime
from workflow.bench.figures import _style as style
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("bert_pretraining", "resnet50_imagenet", "update_rules")
PROBES = ("step_breakdown", "iteration_time")
COMPARES = True

#: Columns of the figure: the model of its step times, and the experiment of its times to target.
SUBJECTS: Final = {
    "BERT": ("bert", "bert_pretraining"),
    "ResNet": ("resnet", "resnet50_imagenet"),
    "Autoencoder": ("autoencoder", "update_rules"),
}
_PERIOD: Final = 10
_BAR: Final = 0.105  # inches a bar
_DARK: Final = "#222222"


@dataclass(frozen=True)
class Bar:
    """One bar: seconds of an optimizer on a machine, with what is said beside it."""

    machine: str
    label: str
    took: Estimate
    projected: bool = False
    remark: str = ""
    goal: str = ""


def _step_bars(times: Sequence[StepTime], subject: str, probe: str) -> list[Bar]:
    """The step times of a subject at the period that all its methods with a period have."""
    return [
        Bar(time.machine, time.optimizer, time.took.scaled(1e-3))
        for time in times
        if time.probe == probe and time.workload == subject and (math.isnan(time.period) or time.period == _PERIOD)
    ]


def _target_bars(times: Sequence[TargetTime], experiment: str, subject: str) -> list[Bar]:
    """The times to target of an experiment on the model that the column shows."""
    bars = []
    for time in times:
        model = STEPPED.get((time.setting.experiment, time.setting.workload), subject)
        if time.setting.experiment == experiment and model == subject:
            reached, runs = time.iterations.reached, time.iterations.took.n
            remark = f"{reached} of {runs} reached" if reached < runs else ""
            target = time.setting.target.describe()
            bars.append(Bar(time.machine, time.setting.optimizer, time.seconds, time.projected, remark, target))
    return bars


def _draw(axes: Axes, bars: Sequence[Bar], names: Sequence[str], labels: Sequence[str]) -> None:
    """Draw horizontal bars, a group a machine and in it a bar an optimizer, in the legend's order."""
    finite = [bar.took.value for bar in bars if math.isfinite(bar.took.value)]
    longest = max(finite, default=1.0)
    scale, unit = style.time_unit(longest)
    step = 1 / (len(labels) + 1)
    for bar in bars:
        place = names.index(bar.machine) + (labels.index(bar.label) - (len(labels) - 1) / 2) * step
        end = _draw_bar(axes, bar, place, 0.86 * step, scale) if math.isfinite(bar.took.value) else 0.0
        if bar.remark:
            where: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            # On white, since an interval without an end runs through it.
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            axes.annotate(bar.remark, (end, place), **where, fontsize=5.5, color=_DARK, bbox=box, zorder=5)
    for name in set(names) - {bar.machine for bar in bars}:
        axes.text(0.02 * longest / scale, names.index(name), "no data", va="center", fontsize=6.5, color="#666666")
    # An interval may be far wider than its bar: then it leaves through the rim.
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
    """Draw a bar with its interval and its method's marker, and return where it ends."""
    look = style.style_of(bar.label)
    value, low, high = (number / scale for number in (bar.took.value, bar.took.low, bar.took.high))
    axes.barh(
        place,
        value,
        height=height,
        facecolor="white" if bar.projected else look.color,
        edgecolor=look.color,
        hatch="/////" if bar.projected else None,
        linewidth=0.5,
    )
    if bar.took.has_interval:
        axes.hlines(place, max(low, 0.0), min(high, 1e30), color=_DARK, linewidth=0.7)
    edge: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.4}
    axes.plot(value, place, marker=look.marker, markersize=3.2, color=look.color, zorder=4, **edge)
    return max(value, high) if bar.took.has_interval and math.isfinite(high) else value


def make(results: Results, folder: Path) -> list[Path]:
    """Draw step times above and times to target below, a column a model, machines as groups of bars.

    Raises NoDataError where no machine has a step time or a time to target of these models.
    """
    machines, notes = side_by_side.gather(results)
    steps = [time for machine in machines for time in machine.step_times()]
    # One probe a figure: what waits after each phase is no peer of what does not.
    probe = "step_breakdown" if any(time.probe == "step_breakdown" for time in steps) else "iteration_time"
    targets = side_by_side.target_times(machines)
    columns: dict[str, tuple[list[Bar], list[Bar]]] = {}
    for title, (subject, experiment) in SUBJECTS.items():
        bars = _step_bars(steps, subject, probe), _target_bars(targets, experiment, subject)
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
    """Draw the panels, the legend and the caption, and write the files."""
    names = [machine.name for machine in machines]
    rows = [[bars[row] for bars in columns.values()] for row in (0, 1)]
    heights = [_height(panels, len(names)) for panels in rows]
    figure, axes = style.new_figure(2, len(columns), height=sum(heights) + 1.0, height_ratios=heights, sharey="row")
    for column, title in enumerate(columns):
        axes[0, column].set_title(title)
    for row, panels in enumerate(rows):
        labels = _labels(panels)
        for column, bars in enumerate(panels):
            _draw(axes[row, column], bars, names, labels)
            if goals := sorted({bar.goal for bar in bars if bar.goal}):
                axes[row, column].set_title("; ".join(goals), fontsize=7)
        axes[row, 0].set_ylabel(("time a step", "time to target")[row])
    everything = [bar for panels in rows for bars in panels for bar in bars]
    handles: list[Any] = [_handle(label) for label in style.in_order(bar.label for bar in everything)]
    if any(bar.projected for bar in everything):
        handles.append(Patch(facecolor="white", edgecolor="#444444", hatch="/////", linewidth=0.5, label="projected"))
    if any(bar.took.has_interval for bar in everything):
        handles.append(Line2D([], [], color=_DARK, linewidth=0.8, label="95 % interval"))
    own = [machine for machine in machines if not machine.prefix]
    runs = own[0].runs if own else pd.DataFrame()
    runs = runs[runs["experiment"].isin(EXPERIMENTS)] if not runs.empty else runs
    said = [*notes, *side_by_side.describe(machines, EXPERIMENTS), *_explained(everything)]
    absent = [] if not own else _absent(own[0].results)
    style.finish(figure, handles, caption(results, runs, notes=said, absent=absent), columns=4)
    return style.save(figure, folder, "fig16_hardware")


def _handle(label: str) -> Line2D:
    """A legend entry for an optimizer's bars: their colour and the marker at their end."""
    look = style.style_of(label)
    return Line2D([], [], color=look.color, linestyle="none", marker=look.marker, markersize=5, label=look.name)


def _labels(panels: Sequence[Sequence[Bar]]) -> list[str]:
    return style.in_order(bar.label for bars in panels for bar in bars)


def _height(panels: Sequence[Sequence[Bar]], machines: int) -> float:
    """Inches that a row of panels needs for a bar a label and machine."""
    return max(0.7, _BAR * (len(_labels(panels)) + 1) * machines)


def _explained(bars: Sequence[Bar]) -> list[str]:
    """What the caption says of how to read the bars."""
    notes = [
        f"Above: mean of a cycle with one refresh in {_PERIOD} steps, on one process. Below: training time "
        "to the experiment's target; runs that ended without it count as infinitely long, no bar means that most did"
    ]
    if any(bar.projected for bar in bars):
        notes.append(
            "Projected: iterations to the target measured on another machine times the step time measured on this "
            "one, at the run's own period; its interval multiplies both factors' bounds"
        )
    return notes


def _absent(results: Results) -> list[str]:
    """What this machine has no results of."""
    names = [name for name in EXPERIMENTS if results.runs(name).empty]
    return names + [f"probe {name}" for name in PROBES if not (results.root / "probes" / f"{name}.csv").exists()]
