"""Figure 20 (ours): iterations over the base's, target by target, of MKOR and of KFAC."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, TypeAlias

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.target_sweep import NoSweepError, TargetSweep, common_base, target_sweep
from workflow.bench.analysis.wording import in_words
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("*",)

_COLUMNS: Final = 3
_MARKERS: Final = "os^DvPX*"
_GRAY: Final[Any] = {"color": "#8A8A8A", "linewidth": 0.8, "markersize": 3.4, "markerfacecolor": "white"}
_MEDIAN: Final[Any] = {"color": "#111111", "linewidth": 2.2}
Ratios: TypeAlias = Mapping[str, Mapping[float, float]]
"""A label's iterations over the base's, by the name of the experiment and the share of the base's steps."""

LABELS: Final = ("mkor", "kaisa")
"""The labels that have a panel."""
TARGETS_NOTE: Final = (
    "Targets are what the base optimizer reaches after 30, 40, ... 100 % of its own steps (the mean over its seeds of "
    "the smoothed metric of the experiment's target). Those that are no better than the trivial predictor, or that the "
    "base crosses by its third evaluation, are left out"
)
_NOTE: Final = (
    "iterations to a target over those of the base optimizer, geometric mean over seeds; thin: experiments, by their "
    "data and base, thick: their median at the targets that at least half of them have; a run that misses a target "
    "enters with its budget"
)


class Shown(NamedTuple):
    """The sweep of one experiment on one workload, and its runs."""

    experiment: str
    sweep: TargetSweep
    runs: pd.DataFrame


def sweeps_of(results: Results) -> tuple[list[Shown], list[str]]:
    """Return the sweep of every experiment and workload with a target, and a sentence on those that have none.

    Raises:
        NoDataError: there is no run.
    """
    if not results.experiments():
        raise NoDataError(f"no experiment in {results.root} has runs.")
    shown, left_out = [], dict[str, None]()
    for name in results.experiments():
        runs = results.runs(name)
        aimed = runs[runs["target"].notna()]
        # The file of an experiment without a target may be large, and is not read.
        metrics = results.metrics(name) if len(aimed) else pd.DataFrame()
        for _, rows in aimed.groupby(["workload", "dataset"], sort=False):
            try:
                if (base := common_base(rows)) is None:
                    raise NoSweepError("has no run of a base optimizer")
                shown.append(Shown(name, target_sweep(rows, metrics, base), rows))
            except NoSweepError as problem:
                left_out[f"{name} {problem}"] = None
    return shown, [f"Not shown: {'; '.join(left_out)}"] if left_out else []


def draw_empty(results: Results, folder: Path, name: str, notes: Sequence[str]) -> list[Path]:
    """Draw a figure that says that no experiment has a sweep."""
    figure, axes = page.new_figure(1, 1, height=1.0)
    panels.explain_empty(axes[0, 0], "no experiment has runs with a target that tells of training")
    runs = pd.concat([results.runs(name) for name in results.experiments()], ignore_index=True)
    return page.save(figure, folder, name, [], page.caption(results, runs, notes=notes))


def draw_each(
    results: Results,
    folder: Path,
    name: str,
    draw: Callable[[Axes, TargetSweep], Iterable[str]],
    note: str,
    reading: str,
    axes_labels: tuple[str, str],
    height: float,
    *,
    banded: bool,
) -> list[Path]:
    """Draw the figure ``name`` with a panel for each experiment, in rows of a height in inches.

    draw: draws an experiment's panel and returns the labels that have a curve; note: a sentence of the caption, on what
    is drawn; reading: how to read it, in one line; axes_labels: of a panel's horizontal and vertical axis; banded:
    whether curves have bands or runs.
    """
    shown, left_out = sweeps_of(results)
    notes = [TARGETS_NOTE, note, *left_out]
    if not shown:
        return draw_empty(results, folder, name, notes)
    rows = -(-len(shown) // _COLUMNS)
    figure, axes = page.new_figure(rows, min(_COLUMNS, len(shown)), height=height * rows)
    titles = styles.data_titles([(one.experiment, one.runs) for one in shown], width=24)
    drawn: set[str] = set()
    for panel, title, one in zip(axes.flat, titles, shown, strict=False):
        panel.set_title(title, fontsize=6.5)
        drawn.update(draw(panel, one.sweep))
    for panel in axes.flat[len(shown) :]:
        panel.remove()
    for panel in axes.flat[: len(shown)][-_COLUMNS:]:
        panel.set_xlabel(axes_labels[0])
    for panel in axes[:, 0]:
        panel.set_ylabel(axes_labels[1])
    runs = pd.concat([one.runs for one in shown], ignore_index=True)
    legend = page.entries_of(drawn)
    if banded:
        legend += panels.spread_entries({len(one.crossings) for each in shown for one in each.sweep.courses.values()})
    return page.save(figure, folder, name, legend, page.caption(results, runs, notes=notes), reading=reading)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw MKOR's and KFAC's iterations over the base's at each target, a line for each experiment."""
    shown, left_out = sweeps_of(results)
    ratios = shared({label: dict(_with_own_runs(shown, label)) for label in LABELS})
    drawn = [label for label in LABELS if ratios[label]]
    notes = [TARGETS_NOTE, _NOTE, *left_out]
    if not drawn:
        return draw_empty(results, folder, "fig20_target_sweep", notes)
    figure, (axes,) = page.new_figure(1, len(drawn), height=2.4, sharey=True)
    names = dict.fromkeys(name for label in drawn for name in ratios[label])
    markers = dict(zip(names, cycle(_MARKERS), strict=False))
    for panel, label in zip(axes, drawn, strict=True):
        _draw(panel, label, ratios[label], markers)
    axes[0].set_ylabel("iterations, base: 1")
    panels.fixed_ticks(axes[0].yaxis, (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 4))
    runs = pd.concat([one.runs for one in shown], ignore_index=True)
    gray = [page.guide_entry(name, marker=marker, **_GRAY) for name, marker in markers.items()]
    legend = [page.guide_entry("median of experiments", **_MEDIAN), *gray]
    text = page.caption(results, runs, notes=notes)
    reading = "Below 1 is faster than the base. No intervals are drawn."
    return page.save(figure, folder, "fig20_target_sweep", legend, text, message(ratios), reading, columns=2)


def _with_own_runs(shown: Iterable[Shown], label: str) -> Iterator[tuple[str, dict[float, float]]]:
    """Yield an experiment's data and base, and a label's `by_share`; of experiments with the same runs, the first."""
    seen: set[frozenset[str]] = set()
    for one in shown:
        own = frozenset(one.runs.loc[one.runs["optimizer"].isin((label, one.sweep.base)), "run"])
        if own not in seen and (ratios := by_share(one.sweep, label)):
            seen.add(own)
            yield f"{styles.data_title(one.runs)}, over {styles.style_of(one.sweep.base).name}", ratios


def shared(ratios: Mapping[str, Ratios]) -> dict[str, Ratios]:
    """Return the ratios in the experiments that all labels have, if there is one: medians of others do not compare."""
    common = set.intersection(*(set(of_label) for of_label in ratios.values()))
    if not common:
        return dict(ratios)
    return {
        label: {name: one for name, one in of_label.items() if name in common} for label, of_label in ratios.items()
    }


def by_share(sweep: TargetSweep, label: str) -> dict[float, float]:
    """Return a label's iterations over the base's at each target; empty for the base and for labels without runs."""
    if label == sweep.base or label not in sweep.courses:
        return {}
    ratios = {share: sweep.at(share).steps_ratio(label, sweep.base).estimate for share in sweep.targets}
    return {share: ratio.value for share, ratio in ratios.items() if ratio is not None}


def _draw(axes: Axes, label: str, ratios: Ratios, markers: Mapping[str, str]) -> None:
    """Draw a line for each experiment, by its name's marker, and their median by share of the base's steps."""
    look = styles.style_of(label)
    axes.set_title(look.name)
    axes.set_yscale("log")
    axes.axhline(1, color=page.GUIDE, linewidth=0.8)
    for name, one in ratios.items():
        axes.plot([100 * share for share in one], [*one.values()], marker=markers[name], **_GRAY)
    middle = _medians(ratios)
    axes.plot([100 * share for share in middle], [*middle.values()], zorder=3, **_MEDIAN)
    axes.set_xlabel("target: base's quality\nafter % of its run")


def _medians(ratios: Ratios) -> dict[float, float]:
    """Return the median over experiments by share, where at least half of them have a target."""
    by_target: dict[float, list[float]] = {}
    for one in ratios.values():
        for share, ratio in one.items():
            by_target.setdefault(share, []).append(ratio)
    # A median of few experiments would jump where others begin.
    kept = {share: found for share, found in sorted(by_target.items()) if 2 * len(found) >= len(ratios)}
    return {share: median(found) for share, found in kept.items()}


def message(ratios: Mapping[str, Ratios]) -> str:
    """Return the title: the medians at the last target, and where MKOR needs fewer iterations; empty without MKOR's."""
    medians = {label: found for label, of_label in ratios.items() if (found := _medians(of_label))}
    if "mkor" not in medians:
        return ""
    last = max(medians["mkor"])
    values = {label: of_label[last] for label, of_label in medians.items() if last in of_label}
    verbs = {"mkor": " takes"}
    takes = in_words([f"{styles.style_of(one).short}{verbs.get(one, '')} {value:.2f}" for one, value in values.items()])
    there = {label: {name: one[last] for name, one in ratios[label].items() if last in one} for label in values}
    number = len(there["mkor"])
    of = f"median of {number} experiments" if number > 1 else "one experiment"
    title = f"To the base's quality at {100 * last:.0f} % of its run {takes} of its iterations ({of})"
    pairs = [(there["mkor"][name], other) for name, other in there.get("kaisa", {}).items() if name in there["mkor"]]
    fewer = sum(ours < theirs for ours, theirs in pairs)
    return f"{title}; MKOR fewer than KFAC in {fewer} of {len(pairs)}" if len(pairs) > 1 else title
