"""Figure 3: where the optimizer's part of a step goes, on average and in a step that refreshes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Final

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from workflow.bench.analysis.captions import footer
from workflow.bench.figures import _probes
from workflow.bench.figures import _style as style
from workflow.bench.results.tables import Results

PROBES = ("step_breakdown",)
WORKLOADS: Final = ("bert", "resnet")
PHASES: Final[Mapping[str, tuple[str, str]]] = {
    "capture": ("#F0E442", ""),
    "factor": ("#0072B2", "////"),
    "precondition": ("#9AD0F5", "---"),
    "communication": ("#D55E00", "xxxx"),
    "update": ("#BBBBBB", "...."),
}
"""The optimizer's phases in the order in which bars are stacked, each with its colour and hatch."""
REFERENCE: Final = ("forward", "backward")
"""Phases that every optimizer has alike; their sum is written beside each bar."""
STEPS: Final = {"ms": "average step", "refresh_ms": "refreshing step"}

BASE: Final = "base"
"""The label of the row that the first-order optimizers share, one of each workload."""

Bar = tuple[str, float | None, int]
"""Optimizer, period (None: it has none) and number of workers."""


def bases(rows: pd.DataFrame) -> dict[str, str]:
    """``{workload: optimizer}`` of the first-order optimizers: those that spend nothing on preconditioning.

    Empty where a workload has several, so that each keeps a row of its own.
    """
    spent = rows[~rows["phase"].isin((*REFERENCE, "update"))].groupby(["workload", "optimizer"])["ms"].sum()
    first_order = spent[spent == 0].reset_index()
    found = dict(zip(first_order["workload"], first_order["optimizer"], strict=True))
    return found if len(found) == len(first_order) else {}


def bars(rows: pd.DataFrame, column: str) -> list[Bar]:
    """The bars of one workload, top to bottom: optimizers, their periods, workers.

    A refreshing step takes as long at any period, so it is shown at the period that was timed.
    """
    known = rows[rows[column].notna() & ((rows["estimate"] == "measured") | (column == "ms"))]
    found = []
    for label in sorted(style.in_order(known["optimizer"]), key=lambda label: label != BASE):
        keys = known.loc[known["optimizer"] == label, ["inverse_update_period", "workers"]].drop_duplicates()
        for period, workers in keys.sort_values(["inverse_update_period", "workers"]).to_numpy():
            found.append((label, None if pd.isna(period) else float(period), int(workers)))
    return found


def of_bar(rows: pd.DataFrame, bar: Bar) -> pd.DataFrame:
    """The rows of one bar; rows: of one workload."""
    label, period, workers = bar
    at = rows["inverse_update_period"].isna() if period is None else rows["inverse_update_period"] == period
    return rows[(rows["optimizer"] == label) & (rows["workers"] == workers) & at]


def totals(rows: pd.DataFrame, column: str, phases: tuple[str, ...]) -> list[float]:
    """Milliseconds of some phases together in each repeat; rows: of one bar."""
    return [float(ms) for ms in rows[rows["phase"].isin(phases)].groupby("repeat")[column].sum()]


def _name(bar: Bar, base_name: str) -> str:
    label, period, _ = bar
    name = base_name if label == BASE else style.style_of(label).name
    return name + ("" if period is None else f", every {period:g}")


def _draw(axes: Axes, rows: pd.DataFrame, column: str, shown: list[Bar]) -> None:
    """Horizontal stacked bars of one workload, the two or more of an optimizer next to each other."""
    places: list[float] = []
    for index, bar in enumerate(shown):
        gap = 0.0 if index == 0 else 1.0 if shown[index - 1][:2] == bar[:2] else 1.45
        places.append(gap + (places[-1] if places else 0.0))
    for place, bar in zip(places, shown, strict=True):
        own = of_bar(rows, bar)
        if own.empty:
            axes.annotate("not measured", (0.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=6)
            continue
        left = 0.0
        for phase, (color, hatch) in PHASES.items():
            width = float(own.loc[own["phase"] == phase, column].mean())
            axes.barh(place, width, 0.86, left=left, color=color, hatch=hatch, edgecolor="#333333", linewidth=0.35)
            left += width
        sums = totals(own, column, tuple(PHASES))
        axes.plot(sums, [place] * len(sums), "o", color="#000000", markersize=2, markeredgewidth=0)
        axes.annotate(
            f"{fmean(totals(own, column, REFERENCE)):.3g}",
            (1.14, place),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="center",
            fontsize=6,
            color="#555555",
        )
    axes.set_ylim(max(places, default=0.0) + 0.7, -0.7)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
    axes.locator_params(axis="x", nbins=4)
    axes.set_yticks(places, [str(bar[2]) for bar in shown], fontsize=6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{STEPS[column]} (ms)")


def _label(axes: Axes, shown: list[Bar], base_name: str) -> None:
    """Names of optimizers and periods to the left of the numbers of workers."""
    places = dict(zip(shown, axes.get_yticks(), strict=True))
    for name in dict.fromkeys(_name(bar, base_name) for bar in shown):
        own = [place for bar, place in places.items() if _name(bar, base_name) == name]
        axes.annotate(
            name,
            (0, sum(own) / len(own)),
            xycoords=("axes fraction", "data"),
            xytext=(-13, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=7,
        )


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the optimizer's phases of the average and of the refreshing step, by workload and number of workers.

    Raises NoDataError where the probe step_breakdown has no rows.
    """
    rows = _probes.read(results, "step_breakdown")
    names = [name for name in WORKLOADS if name in set(rows["workload"])] or _probes.workloads(rows)
    drawn = rows[rows["workload"].isin(names)]
    base = bases(drawn)
    base_name = ", ".join(style.style_of(base[name]).name for name in names if name in base)
    drawn = drawn.assign(
        optimizer=[
            BASE if base.get(workload) == label else label
            for workload, label in drawn[["workload", "optimizer"]].to_numpy()
        ]
    )
    shown = {column: bars(drawn, column) for column in STEPS}
    kinds = [column for column in STEPS if shown[column]]
    sizes = [len(shown[column]) + 2 for column in kinds]
    figure, axes = style.new_figure(
        len(kinds), len(names), height=0.3 + 0.16 * sum(sizes), height_ratios=sizes, sharey="row"
    )
    for row, column in enumerate(kinds):
        for panel, workload in zip(axes[row], names, strict=True):
            _draw(panel, drawn[drawn["workload"] == workload], column, shown[column])
        _label(axes[row, 0], shown[column], base_name)
    for panel, workload in zip(axes[0], names, strict=True):
        panel.set_title(style.workload_name(workload))
        panel.annotate(
            "fwd+bwd", (1.14, 1.01), xycoords="axes fraction", ha="right", va="bottom", fontsize=6, color="#555555"
        )
    handles: list = [
        Patch(facecolor=color, hatch=hatch, edgecolor="#333333", linewidth=0.35, label=phase)
        for phase, (color, hatch) in PHASES.items()
    ]
    handles.append(Line2D([], [], color="#000000", marker="o", markersize=3, linestyle="none", label="one repeat"))
    repeats = drawn["repeat"].nunique()
    absent = [f"{name} in probe step_breakdown" for name in WORKLOADS if name not in names]
    others = [name for name in _probes.workloads(rows) if name not in names]
    notes = [
        *([f"{base_name}: the base optimizers alone, each in its own panel"] if base_name else []),
        "figures left of the bars: worker processes that share each batch; right of them, grey: forward and backward "
        "together (fwd+bwd, ms), with the exchange of gradients, which every optimizer has alike",
        f"bars: mean of {repeats} repeats and of the ranks; dots: the sum in each repeat",
    ]
    combined = drawn.loc[drawn["estimate"] == "combined", "inverse_update_period"].dropna().unique()
    if len(combined):
        periods = ", ".join(f"{period:g}" for period in sorted(combined))
        notes.append(
            f"period {periods}: steps timed with and without a refresh at period 10, combined at their true share"
        )
    if others:
        notes.append(f"also timed, not drawn: {', '.join(map(style.workload_name, others))}")
    style.finish(figure, handles, footer(results, drawn, notes=notes, absent=absent), columns=3)
    return style.save(figure, folder, "fig03_step_breakdown")
