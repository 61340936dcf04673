"""Figure 16 (ours): what a step takes over the base optimizer's on each machine, and what it may take to save time."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflow.bench.analysis import machines as comparison
from workflow.bench.analysis import styles
from workflow.bench.analysis.estimates import Estimate, mean_ratio
from workflow.bench.analysis.machines import Machine
from workflow.bench.analysis.step_times import StepTimes, TimedLabel
from workflow.bench.analysis.time_to_target import target_ratio
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import NoDataError, Results, is_true

EXPERIMENTS = ("bert_pretraining", "resnet50_imagenet", "update_rules")
PROBES = ("step_breakdown", "step_time")
COMPARES = True


class Model(NamedTuple):
    """A column of the figure."""

    probed: str
    """Its name in the probe ``step_breakdown``."""
    base: str
    """The label of its base optimizer."""
    places: tuple[tuple[str, str], ...]
    """Experiments and workloads that train it."""


MODELS: Final = {
    "BERT": Model("bert", "lamb", (("bert_pretraining", "bert_pretraining"),)),
    "ResNet": Model("resnet", "sgd", (("resnet50_imagenet", "resnet20"), ("resnet50_imagenet", "resnet50"))),
    "Autoencoder": Model("autoencoder", "sgd", (("update_rules", "autoencoder"),)),
}
_SHOWN: Final = ("kaisa", "eva", "hylo", "mkor")
"""The labels with a row; a step of MKOR's variants takes about as long."""
_NAMED: Final = ("mkor", "kaisa")
"""The labels whose step the title compares with the base's."""
_ROW: Final = 0.2  # inches
_TICKS: Final = {1.6: (0.8, 1, 1.2, 1.4), 3: (0.5, 0.7, 1, 1.4, 2), math.inf: (0.25, 0.5, 1, 2, 4, 8)}
"""The ticks of an axis whose ends have less than this ratio."""
_TURNS: Final = (
    "Time of a step from the probe step_time, in which all optimizers of a workload take turns on the idle machine, "
    "each at the period of its runs; the interval is over blocks of rounds"
)
_PHASES: Final = (
    "Time of a step from the probe step_breakdown, which waits after each phase; one process, mean of a cycle; the "
    "interval is over repeats"
)
_LIMITS: Final = (
    "Gray: the base optimizer's iterations to the experiment's target over the optimizer's, paired by seed. A step "
    "that takes less than so many times the base's saves time; iterations do not depend on the machine, so that those "
    "of the first machine with runs stand for all. An optimizer that misses the target in most runs has none"
)


class Step(NamedTuple):
    """A row: an optimizer's time of a step over the base optimizer's, on one machine and model."""

    label: str
    period: float
    """Steps between refreshes; NaN for a method without a period."""
    ratio: Estimate

    @property
    def name(self) -> str:
        """The optimizer and its period."""
        every = "" if math.isnan(self.period) else f", every {self.period:g}"
        return styles.style_of(self.label).short + every


def make(results: Results, folder: Path) -> list[Path]:
    """Draw a row of panels for each machine and a column for each model, with a row for each optimizer."""
    machines, notes = comparison.gather(results)
    # One clock in all panels: step_breakdown waits after each phase, and step_time does not.
    is_timed = any(not machine.results.probe("step_time").empty for machine in machines)
    measured = {
        machine.name: {
            title: sorted(steps, key=lambda step: _SHOWN.index(step.label))
            for title, model in MODELS.items()
            if (steps := _of_turns(machine, model, notes) if is_timed else _of_phases(machine, model))
        }
        for machine in machines
    }
    notes += [f"{name} has no step times to compare" for name, by_model in measured.items() if not by_model]
    measured = {name: by_model for name, by_model in measured.items() if by_model}
    if not measured:
        measure = f"python -m workflow.bench.timing --tier {results.root.name}"
        raise NoDataError(f"no time of a step in {results.root}: run {measure} first.")
    limits = {title: _limits(machines, model) for title, model in MODELS.items()}
    figure = _draw(measured, limits)
    legend = [page.row_bar_entry()]
    if any(limits.values()):
        legend.append(page.guide_entry("break-even", linestyle="none", marker="D", markersize=3.5))
        notes.insert(0, _LIMITS)
    notes = [_TURNS if is_timed else _PHASES, *notes, *comparison.describe(machines, EXPERIMENTS)]
    runs, absent = pd.DataFrame(), []
    if this := [machine for machine in machines if not machine.prefix]:
        runs, own = _at(this[0].runs, [place for model in MODELS.values() for place in model.places]), this[0].results
        absent = [name for name in EXPERIMENTS if own.runs(name).empty]
        absent += [f"probe {name}" for name in PROBES if not (own.root / "probes" / f"{name}.csv").exists()]
    text = page.caption(results, runs, notes=notes, absent=absent)
    reading = f"{_reading(limits)}Every 10: one in 10 refreshes."
    return page.save(figure, folder, "fig16_hardware", legend, text, _message(measured), reading)


def _reading(limits: Mapping[str, Mapping[str, Estimate]]) -> str:
    """Return the sentence on break-even points, with what is drawn of their intervals; empty without any."""
    drawn = [limit for of_model in limits.values() for limit in of_model.values()]
    if not drawn:
        return ""
    remarks = {
        "arrows: no end": any(limit.has_interval and (limit.low == 0 or limit.high == math.inf) for limit in drawn),
        "no bar: no interval": not all(limit.has_interval for limit in drawn),
    }
    said = "; ".join(remark for remark, is_drawn in remarks.items() if is_drawn)
    return f"Break-even: with that step the target takes as long as with the base{f' ({said})' if said else ''}. "


def _of_turns(machine: Machine, model: Model, notes: list[str]) -> list[Step]:
    """Return the ratios from the probe step_time; what cannot be compared is told in ``notes``."""
    times = StepTimes(machine.results.probe("step_time"))
    rows = _at(times.rows[~is_true(times.rows["again"])] if len(times.rows) else times.rows, model.places)
    if rows.empty:
        return []
    kinds = rows[["experiment", "workload", "optimizer", "inverse_update_period"]].drop_duplicates()
    timed = [TimedLabel(str(name), str(at), str(label), float(period)) for name, at, label, period in kinds.to_numpy()]
    found = []
    for label in (one for one in timed if one.optimizer in _SHOWN):
        base = label._replace(optimizer=model.base, period=math.nan)
        if problem := times.problem(label, base):
            notes.append(f"{machine.name}: {problem}")
        elif steps := _step(label.optimizer, label.period, *times.blocks(label, base)):
            found.append(steps)
    return found


def _of_phases(machine: Machine, model: Model) -> list[Step]:
    """Return the ratios from the probe step_breakdown, as of a machine that has no workloads to take turns."""
    times = [time for time in machine.step_times() if (time.probe, time.workload) == ("step_breakdown", model.probed)]
    base = next((time.repeats for time in times if time.optimizer == model.base), ())
    found = (_step(time.optimizer, time.period, time.repeats, base) for time in times if time.optimizer in _SHOWN)
    return [*filter(None, found)]


def _step(label: str, period: float, ours: Iterable[float], theirs: Iterable[float]) -> Step | None:
    logs = [math.log(one / other) for one, other in zip(ours, theirs, strict=False)]
    return Step(label, period, mean_ratio(logs)) if logs else None


def _at(rows: pd.DataFrame, places: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Return the rows of some experiments and workloads."""
    if rows.empty:
        return rows
    return rows[[place in places for place in zip(rows["experiment"], rows["workload"], strict=True)]]


def _limits(machines: Sequence[Machine], model: Model) -> dict[str, Estimate]:
    """Return by label what its step may take over the base's, from the runs of the first machine that has some."""
    for machine in machines:
        runs = _at(machine.runs, model.places)
        if not runs.empty:
            by_label = {label: runs[runs["optimizer"] == label] for label in (model.base, *_SHOWN)}
            found = {label: target_ratio(by_label[model.base], by_label[label]) for label in _SHOWN}
            ratios = {label: one.ratio for label, one in found.items() if one and one.ratio}
            return {label: ratio for label, ratio in ratios.items() if 0 < ratio.value < math.inf}
    return {}


def _draw(measured: Mapping[str, Mapping[str, Sequence[Step]]], limits: Mapping[str, Mapping[str, Estimate]]) -> Figure:
    titles = [title for title in MODELS if any(title in by_model for by_model in measured.values())]
    heights = [max(_ROW * max(map(len, by_model.values())) + 0.25, 0.95) for by_model in measured.values()]
    options = {"sharex": "col", "height_ratios": heights}
    figure, axes = page.new_figure(len(measured), len(titles), height=sum(heights) + 0.85, **options)
    for row, (name, by_model) in enumerate(measured.items()):
        for panel, title in zip(axes[row], titles, strict=True):
            _draw_steps(panel, by_model.get(title, ()), limits[title])
        if len(measured) > 1:  # a machine alone is named below the panels
            axes[row, 0].set_ylabel(textwrap.fill(name, 18), fontsize=7)
    for column, title in enumerate(titles):
        lacks = any(limits.values()) and not limits[title]
        axes[0, column].set_title(f"{title}\n(no break-even known)" if lacks else title, fontsize=7.5)
        axes[-1, column].set_xlabel(f"times {styles.style_of(MODELS[title].base).name}'s\nstep time")
    return figure


def _draw_steps(axes: Axes, steps: Sequence[Step], limits: Mapping[str, Estimate]) -> None:
    """Draw a row for each step, and below its marker what it may take."""
    axes.set_xscale("log")
    axes.axvline(1, color=page.GUIDE, linewidth=0.8)
    axes.margins(x=0.1)
    for row, step in enumerate(steps):
        forest.draw_estimate(axes, step.ratio, row, step.label)
        if limit := limits.get(step.label):
            if limit.has_interval:
                forest.draw_interval(axes, limit, row + 0.3, page.GUIDE)
            axes.plot(limit.value, row + 0.3, marker="D", color=page.GUIDE, markersize=3.5)
    low, high = axes.get_xlim()
    panels.fixed_ticks(axes.xaxis, next(ticks for widest, ticks in _TICKS.items() if high < widest * low))
    forest.name_rows(axes, [step.name for step in steps])
    if not steps:
        panels.explain_empty(axes, "not timed")


def _message(measured: Mapping[str, Mapping[str, Sequence[Step]]]) -> str:
    """Return the title: the step of MKOR and of KFAC over the base optimizer's, from least to most."""
    steps = [step for by_model in measured.values() for steps in by_model.values() for step in steps]
    ratios = {label: sorted(step.ratio.value for step in steps if step.label == label) for label in _NAMED}
    phrases = [
        f"{styles.style_of(label).short} {page.span(f'{ratio:.2f}' for ratio in of_label)}"
        for label, of_label in ratios.items()
        if of_label
    ]
    where = f" on {len(measured)} machines" if len(measured) > 1 else ""
    return f"A step's time over the base optimizer's{where}: {', '.join(phrases)}" if phrases else ""
