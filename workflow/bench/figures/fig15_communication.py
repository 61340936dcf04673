"""Figure 15 (ours): bytes sent in a factor update, over the width of a layer and over workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.fits import power_law
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.results.tables import Results

PROBES = ("communication",)
_LARGEST: Final = 5.5
"""The size of a marker that no other one covers."""


def of_update(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes of one update in all collectives, of the rank that sends most: measured, predicted, the paper's.

    There is one row per optimizer, width and number of workers, in that order.
    """
    keys = ["optimizer", "dimension", "workers"]
    by_rank = rows.groupby([*keys, "rank"], as_index=False)[["bytes", "predicted_bytes"]].sum()
    most = by_rank.groupby(keys, as_index=False)[["bytes", "predicted_bytes"]].max()
    paper = rows.groupby(keys, as_index=False)["paper_bytes"].first()
    return most.merge(paper, on=keys)


def _draw(axes: Axes, sent: pd.DataFrame, over: str) -> None:
    """Draw measured values as markers, the formula as dashed lines and the paper's as hollow markers over a column."""
    values = sorted(sent[over].unique())
    drawn: list[float] = []
    for label in styles.in_order(sent["optimizer"]):
        look, rows = styles.style_of(label), sent[sent["optimizer"] == label].sort_values(over)
        axes.plot(rows[over], rows["predicted_bytes"], color=look.color, linestyle=page.MODEL_LINE, linewidth=0.8)
        # Methods that send the same get smaller markers one after another, or one would hide the others.
        most = float(rows["bytes"].max())
        size = _LARGEST - 1.7 * min(sum(abs(most - other) < 0.1 * most for other in drawn), 2)
        drawn.append(most)
        axes.plot(rows[over], rows["bytes"], color=look.color, linestyle="none", marker=look.marker, markersize=size)
        hollow: dict[str, Any] = {"markersize": _LARGEST + 1.5, "markerfacecolor": "none", "markeredgewidth": 0.9}
        axes.plot(rows[over], rows["paper_bytes"], color=look.color, linestyle="none", marker=look.marker, **hollow)
    axes.set_xscale("log")
    panels.fixed_ticks(axes.xaxis, values)
    margin = (values[-1] / values[0]) ** 0.08
    axes.set_xlim(values[0] / margin, values[-1] * margin)


def _entry(sent: pd.DataFrame, label: str) -> Artist:
    """Return a legend entry with the slope of the measured bytes over the width, at one number of workers."""
    look = styles.style_of(label)
    rows = sent[sent["optimizer"] == label]
    slope = ""
    if rows["dimension"].nunique() > 1 and (rows["bytes"] > 0).all():
        slope = f", slope {power_law(list(rows['dimension']), list(rows['bytes'])).exponent:.2f}"
    return page.marker_entry(look, label=look.name + slope)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the bytes over the width at the largest number of workers, and over workers at the largest width."""
    rows = results.some_rows("communication")
    sent = of_update(rows)
    workers, width = sent["workers"].max(), sent["dimension"].max()
    figure, (axes,) = page.new_figure(1, 2, height=2.9, sharey=True, width_ratios=(1.6, 1))
    at_workers, at_width = sent[sent["workers"] == workers], sent[sent["dimension"] == width]
    _draw(axes[0], at_workers, "dimension")
    _draw(axes[1], at_width, "workers")
    axes[0].set(xlabel="width d of the layer", title=f"{workers:g} workers", ylabel="bytes per update")
    axes[1].set(xlabel="workers", title=f"d = {width:g}")
    panels.byte_axis(axes[0])
    legend = [_entry(at_workers, label) for label in styles.in_order(sent["optimizer"])]
    legend.append(page.guide_entry("formula", linestyle=page.MODEL_LINE, linewidth=0.8))
    if sent["paper_bytes"].notna().any():
        legend.append(page.published_entry("Table 1 of the paper, as float32"))
    differing = sent[sent["bytes"] != sent["predicted_bytes"]]
    without = styles.in_order(sent.loc[sent["paper_bytes"].isna(), "optimizer"])
    notes = [
        "payload that the busiest rank hands to the collectives in one step with a refresh, for a layer [d, d], "
        "counted in the collectives, without the gradients, which every optimizer exchanges; slope: of the "
        "logarithms over d. Smaller markers lie on larger ones of methods that send the same",
        f"formula: of this implementation; it is exact in {len(sent) - len(differing)} of {len(sent)} cases",
    ]
    if without:
        notes.append(f"not in Table 1: {', '.join(styles.style_of(label).name for label in without)}")
    text = page.footer(results, rows, notes=notes)
    reading = "Filled: counted; smaller markers lie on larger ones of methods that send the same."
    return page.save(figure, folder, "fig15_communication", legend, text, _message(at_workers), reading, columns=2)


def _message(sent: pd.DataFrame) -> str:
    """Return the title: how many times as many bytes KFAC sends as MKOR at the largest width."""
    widest = sent[sent["dimension"] == sent["dimension"].max()].set_index("optimizer")["bytes"]
    if not {"kaisa", "mkor"} <= {*widest.index} or not widest["mkor"]:
        return ""
    ratio = widest["kaisa"] / widest["mkor"]
    return (
        f"At width {sent['dimension'].max():,g} KFAC sends {ratio:,.0f} times as many bytes as MKOR in a factor update"
    )
