"""Figure 3: the optimizer's part of a step by phase, on average and in a step that refreshes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from workflow.bench.analysis import styles
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import Results

PROBES = ("step_breakdown",)
WORKLOADS: Final = ("bert", "resnet")
PHASES: Final[Mapping[str, tuple[str, str]]] = {
    "capture": ("#F0E442", ""),
    "factor": ("#0072B2", "////"),
    "precondition": ("#79BFF0", "---"),
    "communication": ("#D55E00", "xxxx"),
    "update": ("#DDDDDD", "...."),
}
"""The optimizer's phases in the order of the stacked bars, each with its color and hatch."""
REFERENCE: Final = ("forward", "backward")
"""Phases that are the same for every optimizer; the figure gives their sum to the right of each bar."""
STEPS: Final = {
    "ms": "optimizer's part (ms)\nof an average step",
    "refresh_ms": "optimizer's part (ms)\nof a step with an update",
}
"""Column of the probe, and the name of its axis."""

_PERIOD: Final = 10
"""The inverse update period of the title's times."""
BASE: Final = "base"
"""Label of the row that the first-order optimizers share, one of each workload."""
_EDGE: Final[Any] = {"edgecolor": "#333333", "linewidth": 0.35}
_BESIDE: Final[Any] = {"ha": "right", "color": "#555555"}
_KEYS: Final = ["optimizer", "period", "workers"]
PhaseBar = tuple[str, float, int]
"""The optimizer, the inverse update period (0 for an optimizer without one) and the workers of a stacked bar."""


def bases(rows: pd.DataFrame) -> dict[str, str]:
    """Return ``{workload: optimizer}`` of the first-order optimizers, which spend nothing on preconditioning.

    Empty if a workload has several, so that each keeps its own row.
    """
    spent = rows[~rows["phase"].isin((*REFERENCE, "update"))].groupby(["workload", "optimizer"])["ms"].sum()
    first_order = spent[spent == 0].reset_index()
    by_workload = dict(zip(first_order["workload"], first_order["optimizer"], strict=True))
    return by_workload if len(by_workload) == len(first_order) else {}


def bars(rows: pd.DataFrame, column: str) -> list[PhaseBar]:
    """Return the bars of one workload from top to bottom: by optimizer, period and number of workers.

    A refreshing step takes equally long at any period, so it has one bar, at the period that was timed.
    """
    # A combined row stands for a period that was not run, and has no refreshing step of its own.
    known = rows[rows[column].notna() & ((rows["estimate"] == "measured") | (column == "ms"))]
    order = [BASE, *styles.in_order(known["optimizer"])]
    keys: list[PhaseBar] = list(known[_KEYS].drop_duplicates().itertuples(index=False, name=None))
    return sorted(keys, key=lambda bar: (order.index(bar[0]), *bar[1:]))


def _draw(axes: Axes, rows: pd.DataFrame, column: str, shown: Sequence[PhaseBar]) -> None:
    """Draw the horizontal stacked bars of one workload, those of one optimizer and period next to each other."""
    places: list[float] = []
    for index, bar in enumerate(shown):
        # In heights of a bar: bars of one optimizer that differ in workers alone touch.
        gap = 0.0 if index == 0 else 1.0 if shown[index - 1][:2] == bar[:2] else 1.45
        places.append(gap + (places[-1] if places else 0.0))
        chosen = rows[(rows[_KEYS] == [*bar]).all(axis=1)]
        if chosen.empty:
            panels.annotate(axes, "not measured", (0.02, places[-1]), panels.ROW_AT_EDGE)
        else:
            _draw_bar(axes, chosen, column, places[-1])
    axes.set_ylim(max(places, default=0.0) + 0.7, -0.7)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
    axes.locator_params(axis="x", nbins=4)
    axes.set_yticks(places, [f"{workers:g}" for *_, workers in shown], fontsize=6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(STEPS[column])


def _draw_bar(axes: Axes, rows: pd.DataFrame, column: str, place: float) -> None:
    """Draw one stacked bar, its repeats as dots, and forward and backward as a number at the right."""
    left = 0.0
    for phase, (color, hatch) in PHASES.items():
        width = float(rows.loc[rows["phase"] == phase, column].mean())
        axes.barh(place, width, 0.86, left=left, color=color, hatch=hatch, **_EDGE)
        left += width
    sums, reference = (
        rows[rows["phase"].isin(phases)].groupby("repeat")[column].sum().tolist() for phases in (PHASES, REFERENCE)
    )
    axes.plot(sums, [place] * len(sums), "o", color="#000000", markersize=2, markeredgewidth=0)
    ms = fmean(reference)  # a number and not a bar: it is long, and the same for every optimizer
    text = f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}"
    panels.annotate(axes, text, (1.14, place), panels.ROW_AT_EDGE, **_BESIDE)


def _label(axes: Axes, shown: Sequence[PhaseBar], base_name: str) -> None:
    """Write optimizers and periods to the left of the numbers of workers."""
    places: dict[str, list[float]] = {}
    for (optimizer, period, _), place in zip(shown, axes.get_yticks(), strict=True):
        name = base_name if optimizer == BASE else styles.style_of(optimizer).name
        places.setdefault(name + (f", every {period:g}" if period else ""), []).append(place)
    for name, group in places.items():
        at = (0, sum(group) / len(group))
        panels.annotate(axes, name, at, panels.ROW_AT_EDGE, xytext=(-13, 0), ha="right", fontsize=7)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the optimizer's phases of the average and of the refreshing step, by workload and number of workers."""
    rows = results.some_rows("step_breakdown")
    names = [name for name in WORKLOADS if name in set(rows["workload"])] or page.probed_workloads(rows)
    shown = rows[rows["workload"].isin(names)]
    base = bases(shown)
    base_name = ", ".join(styles.style_of(base[name]).name for name in names if name in base)
    is_base = shown["optimizer"] == shown["workload"].map(base)
    periods = shown["inverse_update_period"].fillna(0)
    shown = shown.assign(optimizer=shown["optimizer"].mask(is_base, BASE), period=periods)
    by_column = {column: drawn for column in STEPS if (drawn := bars(shown, column))}
    sizes = [len(drawn) + 2 for drawn in by_column.values()]
    height = 0.3 + 0.16 * sum(sizes)
    figure, axes = page.new_figure(len(by_column), len(names), height=height, height_ratios=sizes, sharey="row")
    for row, (column, drawn) in zip(axes, by_column.items(), strict=True):
        for panel, workload in zip(row, names, strict=True):
            _draw(panel, shown[shown["workload"] == workload], column, drawn)
        _label(row[0], drawn, base_name)
    for panel, workload in zip(axes[0], names, strict=True):
        panel.set_title(styles.workload_name(workload))
        panels.annotate(panel, "forward +\nbackward (ms)", (1.14, 1.01), va="bottom", **_BESIDE)
        panels.annotate(panel, "workers", (0, 1.01), xytext=(-2, 0), va="bottom", **_BESIDE)
    legend = [
        *(Patch(facecolor=color, hatch=hatch, label=phase, **_EDGE) for phase, (color, hatch) in PHASES.items()),
        page.guide_entry("one repeat", color="#000000", marker="o", markersize=3, linestyle="none"),
    ]
    notes = _notes(shown, base_name)
    if not_drawn := [styles.workload_name(name) for name in page.probed_workloads(rows) if name not in names]:
        notes.append(f"also timed, not drawn: {', '.join(not_drawn)}")
    absent = [f"{name} in probe step_breakdown" for name in WORKLOADS if name not in names]
    text = page.footer(results, shown, notes=notes, absent=absent)
    reading = f"{base_name}: the base optimizers alone." if base_name else ""
    return page.save(figure, folder, "fig03_step_breakdown", legend, text, _message(shown, names), reading)


def _message(shown: pd.DataFrame, names: Sequence[str]) -> str:
    """Return the title: the optimizer's part of the average step of KFAC and of MKOR on one worker, by workload."""
    chosen = shown[shown["phase"].isin(PHASES) & (shown["workers"] == shown["workers"].min())]
    chosen = chosen[chosen["period"].isin((0, _PERIOD))]
    took = chosen.groupby(["workload", "optimizer", "repeat"])["ms"].sum().groupby(["workload", "optimizer"]).mean()
    phrases = [
        f"{took[name, 'kaisa']:.1f} and MKOR {took[name, 'mkor']:.1f} ms of a step ({styles.workload_name(name)})"
        for name in names
        if (name, "kaisa") in took.index and (name, "mkor") in took.index
    ]
    return f"With an update in every {_PERIOD} steps KFAC takes {', '.join(phrases)}" if phrases else ""


def _notes(shown: pd.DataFrame, base_name: str) -> list[str]:
    """Return the sentences of the caption on bars, dots and numbers."""
    notes = [f"{base_name}: the base optimizers alone, each in its own panel"] if base_name else []
    notes += [
        "workers: processes that share each batch; forward + backward: with the exchange of gradients, the same for "
        "every optimizer",
        f"bars: mean of {shown['repeat'].nunique()} repeats and of the ranks; dots: the sum in each repeat",
    ]
    combined = shown.loc[shown["estimate"] == "combined", "inverse_update_period"].dropna().unique()
    if len(combined):
        periods = ", ".join(f"{period:g}" for period in sorted(combined))
        notes.append(
            f"period {periods}: steps timed with and without a refresh at period 10, combined at their true share"
        )
    return notes
