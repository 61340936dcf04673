"""The figure of one experiment with a target: curves over training time, and what each optimizer takes over its base.

Figures 2 and 6 are two of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.captions import inert_labels
from workflow.bench.analysis.estimates import Estimate, shared_seeds
from workflow.bench.analysis.step_times import StepTimes, timed
from workflow.bench.analysis.target_sweep import common_base
from workflow.bench.analysis.time_to_target import Quantity, target_ratio, to_target
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import NoDataError, Results

CURVES: Final = ("kaisa", "mkor", "mkor_normalized")
"""The labels that have a curve beside the base optimizer's; the others have a row, and would hide these."""
_NOTE: Final = (
    "{steps} and time at which the smoothed {metric} crosses the target, over those of the base optimizer, paired by "
    "seed; dots are runs, the marker is their median, or with many the estimate over tuning studies with its interval, "
    "which ends in an arrow where it has no end. A run that never reached the target counts as infinitely long: a "
    "triangle at an edge is a pair with one such run. A row has no marker if most of its runs are such, or if a run "
    "ended too early to tell which side is faster"
)
_WITHOUT: Final = "The runs have no target on the validation {metric}"


@dataclass(frozen=True)
class Subject:
    """What one figure shows of its experiment."""

    experiment: str
    metric: str
    """The metric of the validation data, ``loss`` or ``accuracy``."""
    steps: str
    """The word for a run's steps to the target, whose ratio is that of iterations and of epochs alike."""
    set_axis: Callable[[Axes, pd.DataFrame], str]
    """Sets the axis of the curves' values before they are drawn, and returns a sentence on it for the caption."""
    ylabel: str
    target: Callable[[float], str]
    """A target's limit as text."""
    paper: Mapping[Quantity, Mapping[str, float]] = field(default_factory=dict)
    """The paper's own ratios to its base optimizer, by label, drawn hollow."""
    paper_name: str = ""
    """The legend's name for them."""
    notes: tuple[str, ...] = ()


def make(results: Results, folder: Path, name: str, subject: Subject) -> list[Path]:
    """Draw curves over training time, and beside them each label's steps and time to the target over its base's."""
    times = StepTimes(results.probe("step_time"))
    measured = timed(times, results.runs(subject.experiment), results.metrics(subject.experiment))
    runs, values = measured.runs, panels.ended(measured.metrics, "validation", subject.metric)
    if values.empty:
        file = results.root / f"{subject.experiment}.csv"
        raise NoDataError(f"no validation {subject.metric} in {file}: run {subject.experiment} first.")
    labels = styles.in_order(values["optimizer"])
    base = common_base(runs) or labels[0]
    goals = panels.targets(runs, "validation", subject.metric)
    drawn = values[values["optimizer"].isin({*CURVES, base})]
    # A target on another metric is no crossing of these curves, which then stand alone.
    widths = (1.75, 1, 1) if goals else (1,)
    figure, (axes,) = page.new_figure(1, len(widths), height=2.4, width_ratios=widths)
    cut = _draw_curves(axes[0], drawn, subject, goals)
    words: dict[Quantity, str] = {"steps": subject.steps, "seconds": "time"}
    ratios: dict[Quantity, dict[str, Estimate]] = {}
    censored = False
    for panel, (quantity, word) in zip(axes[1:], words.items(), strict=False):
        ratios[quantity], is_censored = _draw_ratios(panel, runs, labels, base, quantity, times)
        censored |= is_censored
        for label, hollow in subject.paper.get(quantity, {}).items():
            if label in labels:
                look: dict[str, Any] = {"marker": "o", "markerfacecolor": "none", "markersize": 4}
                panel.plot(hollow, labels.index(label) - 0.24, color=page.GUIDE, **look)
        panel.set_xlabel(f"times {styles.style_of(base).name}'s\n{word}")
    inert = _name_rows(axes[1:], runs, labels) if goals else False
    legend = panels.curve_entries([drawn])
    if goals:
        legend.append(panels.target_entry(f"target: {', '.join(map(subject.target, goals))}"))
        legend += [page.published_entry(subject.paper_name)] if subject.paper else []
    form = _NOTE if goals else _WITHOUT
    note = form.format(steps=subject.steps.capitalize(), metric=subject.metric)
    notes = [*subject.notes, note, measured.note(styles.workload_name), cut]
    text = page.caption(results, runs, notes=[*filter(None, notes)])
    triangles = "; a triangle: one never arrived" if censored else ""
    reading = f"Left of 1 is faster. Dots are pairs of runs{triangles}."
    reading += " Inert: keeps the gradient's direction." if inert else ""
    without = [one for of_labels in ratios.values() for one in of_labels.values() if not one.has_interval]
    if without:
        missed = any(one.n > 1 for one in without)
        reading += f" No bar: {'too few seeds or studies to bound missed targets' if missed else 'no interval'}."
    title = _message(runs, base, {words[quantity]: of_labels for quantity, of_labels in ratios.items()})
    title = title or _ends(runs, values, base, subject)
    return page.save(figure, folder, name, legend, text, title, reading if goals else "")


def _draw_curves(axes: Axes, drawn: pd.DataFrame, subject: Subject, goals: Sequence[float]) -> str:
    """Draw the curves; return the sentence on their axis."""
    cut = subject.set_axis(axes, drawn)
    length, unit = panels.time_scale(drawn)
    rising = subject.metric == "accuracy"
    panels.draw_curves(axes, drawn, x="train_seconds", scale=length, rising=rising, goals=goals)
    axes.set(xlabel=f"training time ({unit})", ylabel=subject.ylabel)
    return cut


def _draw_ratios(
    axes: Axes, runs: pd.DataFrame, labels: Sequence[str], base: str, quantity: Quantity, times: StepTimes
) -> tuple[dict[str, Estimate], bool]:
    """Draw a row per label: what it took to the target over what the base took, by seed.

    Return the drawn ratios, and whether some pair has a triangle in place of a dot.
    """
    axes.axvline(1, color=page.GUIDE, linewidth=0.8)
    axes.set_xscale("log")
    axes.margins(x=0.12)  # room for triangles at the edges
    of_base, drawn, censored = runs[runs["optimizer"] == base], {}, False
    for row, label in enumerate(labels):
        of_label = runs[runs["optimizer"] == label]
        ours, theirs = shared_seeds(to_target(of_label, quantity), to_target(of_base, quantity))
        # Of a pair in which neither arrived, or the base was there before its first step, there is no ratio.
        by_seed = [a / b for a, b in zip(ours, theirs, strict=True) if b > 0 and min(a, b) < math.inf]
        found = target_ratio(of_label, of_base, times if quantity == "seconds" else None)
        if label == base:
            look = styles.style_of(base)
            axes.plot(1, row, marker=look.marker, color=look.color, markersize=5)
            continue
        if found and found.ratio and by_seed and 0 < median(by_seed) < math.inf:
            forest.draw_estimate(axes, found.ratio, row, label, runs=by_seed)
            drawn[label] = replace(found.ratio, value=forest.shown_value(found.ratio, by_seed))
        forest.draw_runs(axes, [ratio for ratio in by_seed if 0 < ratio < math.inf], row, label)
        censored |= forest.draw_censored(axes, by_seed, row + 0.26, label)
    panels.fixed_ticks(axes.xaxis, (0.2, 0.3, 0.5, 0.7, 1, 1.4, 2, 3, 5))
    return drawn, censored


def _name_rows(axes: Sequence[Axes], runs: pd.DataFrame, labels: Sequence[str]) -> bool:
    """Name the rows at the left, with how many runs reached the target at the right; return whether a label is inert.

    An inert label leaves the gradient's direction as it is.
    """
    cosines = runs.dropna(subset=["direction_cosine"])
    inert = inert_labels(zip(cosines["optimizer"], cosines["direction_cosine"], strict=True))
    names = (styles.style_of(label).name + (", inert" if label in inert else "") for label in labels)
    forest.name_rows(axes[0], names)
    forest.name_rows(axes[1], [""] * len(labels))
    for row, label in enumerate(labels):
        took = to_target(runs[runs["optimizer"] == label], "steps").values()
        reached = sum(map(math.isfinite, took))
        if reached < len(took):
            forest.write_beside(axes[1], row, f"{reached} of {len(took)}", "reached")
    return any(label in inert for label in labels)


def _message(runs: pd.DataFrame, base: str, ratios: Mapping[str, Mapping[str, Estimate]]) -> str:
    """Return the title: MKOR's steps and time to the target over those of the base, as far as they can be compared.

    ratios: by the word for what they count, and label.
    """
    found = {word: by_label["mkor"] for word, by_label in ratios.items() if "mkor" in by_label}
    if not found:
        return ""
    remarks = {word: forest.undecided(ratio).strip(" ()") for word, ratio in found.items()}
    alike = len({*remarks.values()}) == 1
    parts: list[str] = []
    for word, ratio in found.items():
        whose = "its" if parts else f"{styles.style_of(base).name}'s"
        remark = f" (the {word} {remarks[word]})" if remarks[word] and not alike else ""
        parts.append(f"{ratio.value:.2f} times {whose} {word}{remark}")
    (remark, *_) = remarks.values()
    shared = f" ({'both ' if len(found) > 1 else ''}{remark})" if alike and remark else ""
    return f"{styles.data_title(runs)}: MKOR reaches the target in {' and '.join(parts)}{shared}"


def _ends(runs: pd.DataFrame, values: pd.DataFrame, base: str, subject: Subject) -> str:
    """Return the title of curves without ratios: what MKOR and the base end at, and when; empty if a run broke down."""
    shown = values[values["optimizer"].isin(("mkor", base))]
    last = shown.sort_values("step").groupby("run").tail(1)
    medians = last.groupby("optimizer")[["value", "train_seconds"]].median()
    if {"mkor", base} - {*medians.index} or base == "mkor" or (last["status"] != "finished").any():
        return ""
    length, unit = page.time_unit(float(medians["train_seconds"].max()))
    ours, theirs = (
        f"{subject.target(float(f'{value:.3g}'))} after {seconds / length:.3g} {unit}"
        for value, seconds in medians.loc[["mkor", base]].to_numpy()
    )
    of = "one run each" if len(last) == 2 else "medians of runs"
    name = styles.style_of(base).name
    return f"{styles.data_title(runs)}: MKOR's {subject.metric} ends at {ours}, {name}'s at {theirs} ({of})"
