"""Figure 3: the optimizer's part of an average step by phase."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
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
    "capture": ("#F0E442", "...."),
    "factor": ("#0072B2", "////"),
    "precondition": ("#79BFF0", "---"),
    "communication": ("#D55E00", "xxxx"),
    "update": ("#DDDDDD", ""),
}
"""The optimizer's phases in the order of the stacked bars, each with its color and hatch.

The last one, on which the repeats' dots lie, has no hatch.
"""
REFERENCE: Final = ("forward", "backward")
"""Phases of the model, which no bar has: each panel gives the least and the most of their sums."""
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


def bars(rows: pd.DataFrame) -> list[PhaseBar]:
    """Return the bars of one workload from top to bottom: by optimizer, period and number of workers."""
    order = [BASE, *styles.in_order(rows["optimizer"])]
    keys: list[PhaseBar] = list(rows[_KEYS].drop_duplicates().itertuples(index=False, name=None))
    return sorted(keys, key=lambda bar: (order.index(bar[0]), *bar[1:]))


def _draw(axes: Axes, rows: pd.DataFrame, shown: Sequence[PhaseBar]) -> None:
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
            _draw_bar(axes, chosen, places[-1])
    axes.set_ylim(max(places, default=0.0) + 0.7, -0.7)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
    axes.locator_params(axis="x", nbins=4)
    axes.set_yticks(places, [f"{workers:g}" for *_, workers in shown], fontsize=6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("optimizer's part of a step (ms)")


def _draw_bar(axes: Axes, rows: pd.DataFrame, place: float) -> None:
    """Draw one stacked bar, and its repeats as dots."""
    left = 0.0
    for phase, (color, hatch) in PHASES.items():
        width = float(rows.loc[rows["phase"] == phase, "ms"].mean())
        axes.barh(place, width, 0.86, left=left, color=color, hatch=hatch, **_EDGE)
        left += width
    sums = _sums(rows, PHASES, ["repeat"]).tolist()
    axes.plot(sums, [place] * len(sums), "o", color="#000000", markersize=2, markeredgewidth=0)


def _sums(rows: pd.DataFrame, phases: Collection[str], keys: Sequence[str], column: str = "ms") -> pd.Series:
    """Return the sums of some phases by ``keys``; NaN where no phase has a time."""
    return rows[rows["phase"].isin(phases)].groupby(list(keys))[column].sum(min_count=1)


def _label(axes: Axes, shown: Sequence[PhaseBar], base_name: str) -> None:
    """Write optimizers and periods to the left of the numbers of workers; a method without a period always updates."""
    places: dict[str, list[float]] = {}
    for (optimizer, period, _), place in zip(shown, axes.get_yticks(), strict=True):
        every = f"every {period:g}" if period else "every step"
        name = base_name if optimizer == BASE else f"{styles.style_of(optimizer).name}, {every}"
        places.setdefault(name, []).append(place)
    for name, group in places.items():
        at = (0, sum(group) / len(group))
        panels.annotate(axes, name, at, panels.ROW_AT_EDGE, xytext=(-13, 0), ha="right", fontsize=7)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the optimizer's phases of the average step, by workload and number of workers."""
    rows = results.some_rows("step_breakdown")
    names = [name for name in WORKLOADS if name in set(rows["workload"])] or page.probed_workloads(rows)
    shown = rows[rows["workload"].isin(names)]
    base = bases(shown)
    base_name = ", ".join(styles.style_of(base[name]).name for name in names if name in base)
    is_base = shown["optimizer"] == shown["workload"].map(base)
    periods = shown["inverse_update_period"].fillna(0)
    shown = shown.assign(optimizer=shown["optimizer"].mask(is_base, BASE), period=periods)
    drawn = bars(shown)
    figure, (axes,) = page.new_figure(1, len(names), height=0.6 + 0.155 * len(drawn), sharey=True)
    for panel, workload in zip(axes, names, strict=True):
        of_panel = shown[shown["workload"] == workload]
        _draw(panel, of_panel, drawn)
        panel.set_title(styles.workload_name(workload), loc="left")
        passes = _sums(of_panel, REFERENCE, [*_KEYS, "repeat"]).groupby(_KEYS).mean()
        text = f"not drawn: forward + backward,\n{page.span(f'{ms:.0f}' for ms in (passes.min(), passes.max()))} ms"
        panels.annotate(panel, text, (1, 1.02), va="bottom", **_BESIDE)
    panels.annotate(axes[0], "workers", (0, 1.01), xytext=(-2, 0), va="bottom", **_BESIDE)
    _label(axes[0], drawn, base_name)
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
    """Return the title: KFAC's and MKOR's part of the average step on one worker by workload, over their periods."""
    sums = _sums(shown[shown["workers"] == 1], PHASES, ["workload", "optimizer", "period", "repeat"])
    took = sums.groupby(["workload", "optimizer", "period"]).mean()
    phrases = []
    for name in names:
        by_label = {label: sorted(took.xs((name, label))) for label in ("kaisa", "mkor") if (name, label) in took.index}
        if len(by_label) < 2:
            continue
        kfac, mkor = (page.span(f"{ms:.1f}" for ms in of_label) for of_label in by_label.values())
        phrases.append(f"KFAC {kfac}, MKOR {mkor} ms ({styles.workload_name(name)})")
    return f"The optimizer's part of a step on one worker: {'; '.join(phrases)}" if phrases else ""


def _notes(shown: pd.DataFrame, base_name: str) -> list[str]:
    """Return the sentences of the caption on bars, dots and the passes."""
    notes = [f"{base_name}: the base optimizers alone, each in its own panel"] if base_name else []
    notes += [
        "workers: processes that share each batch; forward + backward: with the exchange of gradients, means of the "
        "bars' repeats",
        f"bars: mean of {shown['repeat'].nunique()} repeats and of the ranks; dots: the sum in each repeat",
    ]
    measured = shown[shown["estimate"] == "measured"]
    passes = {
        column: _sums(measured, REFERENCE, ["workload", *_KEYS, "repeat"], column)
        for column in ("refresh_ms", "other_ms")
    }
    # The passes do the same work in both: what differs is the effect of capture beyond its hooks' time, and noise.
    longer = (passes["refresh_ms"] / passes["other_ms"]).groupby(["workload", *_KEYS]).mean().dropna()
    if len(longer):
        span = page.span(f"{ratio:.2f}" for ratio in (longer.min(), longer.max()))
        notes.append(
            f"forward + backward of a step with an update take {span} times as long as those of the others, although "
            "the time of the hooks counts as capture"
        )
    updates = _sums(measured[measured["workers"] == 1], PHASES, ["workload", "optimizer", "repeat"], "refresh_ms")
    means = updates.groupby(["workload", "optimizer"]).mean().dropna()
    if len(means):
        texts = [
            f"{styles.workload_name(str(workload))} {styles.style_of(str(label)).short} {ms:.1f}"
            for workload, label, ms in means.reset_index().itertuples(index=False, name=None)
        ]
        notes.append(f"optimizer's part of a step with an update on one worker, in ms: {', '.join(texts)}")
    combined = shown.loc[shown["estimate"] == "combined", "inverse_update_period"].dropna().unique()
    if len(combined):
        periods = ", ".join(f"{period:g}" for period in sorted(combined))
        notes.append(
            f"period {periods}: steps timed with and without a refresh at period 10, combined at their true share"
        )
    return notes
