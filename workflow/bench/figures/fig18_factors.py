"""Figure 18 (ours): how far each side of MKOR turns the gradient, and what remains of its gain without one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.curves import by_seed, last_common_values
from workflow.bench.analysis.estimates import Estimate, estimate
from workflow.bench.analysis.styles import MethodStyle
from workflow.bench.analysis.target_sweep import common_base
from workflow.bench.analysis.wording import number
from workflow.bench.figures import _forest as forest
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import NoDataError, Results

EXPERIMENTS = ("factor_variants",)
PROBES = ("factors",)
WHOLE: Final = "mkor"
"""The label of MKOR with both sides and the paper's vectors."""
FACTORS: Final = {
    ("right", WHOLE): MethodStyle("J_R, input side", "#000000", "o", "-"),
    ("left", WHOLE): MethodStyle("J_L, output side, as in the paper", styles.style_of(WHOLE).color, "v", "-"),
    ("left", "mkor_scaled"): MethodStyle("J_L, with g × 65,536", styles.style_of("mkor_scaled").color, "s", "-"),
    ("left", "mkor_normalized"): MethodStyle("J_L, with |g| = 3", styles.style_of("mkor_normalized").color, "p", "-"),
}
"""The factors that the probe follows, by side and vectors."""
ROUNDING: Final = 1e-16
"""The least change of direction that is drawn."""


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the changes of direction over iterations by workload, and below the variants' final losses."""
    rows = results.some_rows("factors")
    (experiment,) = EXPERIMENTS
    runs, losses = results.runs(experiment), panels.losses_to_compare(results.metrics(experiment))
    compared = sorted(panels.ended(losses, "validation", "loss")["workload"].unique())
    names = page.probed_workloads(rows)
    heights = (1.6, 2.0) if compared else (1.6,)
    figure, axes = page.new_figure(len(heights), len(names), height=sum(heights) + 0.9, height_ratios=heights)
    above, below = axes[0], page.split_row(figure, axes[1], len(compared)) if compared else []
    for panel, workload in zip(above, names, strict=True):
        of_workload = rows[rows["workload"] == workload]
        panel.set_title(f"{styles.workload_name(workload)},\n{of_workload['layer'].nunique()} layers", fontsize=7)
        panel.set_yscale("log")
        for look, of_factor in factors_of(of_workload):
            turned = of_factor.assign(direction_change=of_factor["direction_change"].clip(lower=ROUNDING))
            draw_layers(panel, turned, "direction_change", look)
        panel.set_ylim(ROUNDING / 10, 10)
        panels.decade_ticks(panel.yaxis)
        panel.set_xlabel("iteration")
        if panel is not above[0]:
            panel.tick_params(labelleft=False)
    above[0].set_ylabel("turned by\n1 − cos")
    notes = [
        "above: 1 − cos of the gradient and the update that one side alone gives; thin lines: layers, thick lines: "
        f"their median; drawn from {ROUNDING:g} on: a g of zero, as before a batch normalization, turns nothing; all "
        "factors follow one training, with the paper's g",
        _changes(rows),
    ]
    labels = styles.in_order(losses.loc[losses["workload"].isin(compared), "optimizer"])
    for panel, workload in zip(below, compared, strict=True):
        finals, trained = (frame[frame["workload"] == workload] for frame in (losses, runs))
        panel.set_title(styles.data_title(trained))
        forest.draw_differences(panel, finals, WHOLE, labels)
        if panel is not below[0]:
            panel.set_yticklabels([])
        notes.append(_remaining(finals, common_base(trained)))
    if compared:
        notes.insert(1, "below: final loss against MKOR's, paired by seed, with its interval; dots are seeds")
        text = page.caption(results, runs, notes=[*page.precisions(rows), *notes])
    else:
        text = page.footer(results, rows, notes=notes)
    reading = "Above: how far one side alone turns the gradient; 1e-16 is none. Dots are seeds, triangles lie outside."
    return page.save(figure, folder, "fig18_factors", entries(), text, _message(rows), reading, columns=2)


def _message(rows: pd.DataFrame) -> str:
    """Return the title: how far each side of MKOR turns the gradient, medians by model."""
    of_mkor = rows[rows["vectors"] == WHOLE]
    turned = of_mkor.groupby(["side", "workload"])["direction_change"].median().dropna()
    if not {"left", "right"} <= {*turned.index.get_level_values("side")}:
        return ""
    right, most = page.span(number(value, 2) for value in sorted(turned["right"])), float(turned["left"].max())
    left = f"turns it by at most {number(most, 1)}" if most > ROUNDING else "does not turn it"
    return f"MKOR's input side turns the gradient by 1 − cos = {right}, its output side {left} (medians by model)"


def entries() -> list[Artist]:
    """Return the legend's entries of the factors."""
    return [page.line_entry(look, label=re.sub(r"J_[LR]", r"$\g<0>$", look.name)) for look in FACTORS.values()]


def factors_of(rows: pd.DataFrame) -> list[tuple[MethodStyle, pd.DataFrame]]:
    """Return the look and the rows of each factor that ``rows`` have."""
    by_factor = rows.groupby(["side", "vectors"])
    return [(look, by_factor.get_group(key)) for key, look in FACTORS.items() if key in by_factor.groups]


def draw_layers(axes: Axes, rows: pd.DataFrame, quantity: str, look: MethodStyle) -> None:
    """Draw a thin line for each layer and a thick one for their median."""
    by_step = rows.pivot_table(index="step", columns="layer", values=quantity)
    axes.plot(by_step.index, by_step, color=look.color, linewidth=0.4, alpha=0.3)
    median = by_step.median(axis=1)
    axes.plot(median.index, median, color=look.color, linewidth=1.5, marker=look.marker, markersize=3.6)


def _changes(rows: pd.DataFrame) -> str:
    """Return the caption's numbers of the changes of direction."""
    phrases = []
    for look, of_factor in factors_of(rows):
        medians = of_factor.groupby("workload")["direction_change"].median().clip(lower=ROUNDING)
        low, high, most = medians.min(), medians.max(), of_factor["direction_change"].max()
        phrases.append(f"{look.name}: {number(low, 2)} to {number(high, 2)}, {number(most, 2)}")
    return f"1 − cos, medians by workload and largest: {'; '.join(phrases)}"


def _remaining(losses: pd.DataFrame, base: str | None) -> str:
    """Return the caption's sentence on the part of MKOR's gain over its base optimizer that each variant keeps."""
    workload = styles.workload_name(str(losses["workload"].iloc[0]))
    shares = {} if base is None else kept_shares(losses, base)
    if not shares:
        return f"{workload}: MKOR does not end below its base optimizer with every seed, so there is no gain to keep"
    phrases = []
    for label, share in shares.items():
        interval = f" [{100 * share.low:.0f}, {100 * share.high:.0f}]" if share.has_interval else ""
        name = styles.style_of(label).name.removeprefix("MKOR (").removesuffix(")")
        phrases.append(f"{name} {100 * share.value:.0f} %{interval}")
    return (
        f"{workload}, part of MKOR's gain over its base optimizer that is kept (over seeds; a diverged run keeps less "
        f"than any other): {', '.join(phrases)}"
    )


def kept_shares(losses: pd.DataFrame, base: str) -> dict[str, Estimate]:
    """Return by label ``(base - label) / (base - MKOR)`` of the final losses, paired by seed.

    The share of a run that broke down is minus infinity, the worst, so that the median is not that of the survivors.
    Empty unless MKOR ends below its base optimizer with every seed, two of them at least.
    """
    try:
        last, _ = last_common_values(losses)
    except NoDataError:
        return {}
    finals = {str(label): by_seed(rows) for label, rows in last.groupby("optimizer")}
    whole, first = finals.get(WHOLE, {}), finals.get(base, {})
    gains = {seed: first[seed] - whole[seed] for seed in sorted(whole.keys() & first.keys())}
    if len(gains) < 2 or not all(np.isfinite(gain) and gain > 0 for gain in gains.values()):
        return {}
    others = [label for label in styles.in_order(finals) if label not in (base, WHOLE)]
    shares = {
        label: [(first[seed] - finals[label][seed]) / gain for seed, gain in gains.items() if seed in finals[label]]
        for label in others
    }
    return {label: estimate(values) for label, values in shares.items() if values}
