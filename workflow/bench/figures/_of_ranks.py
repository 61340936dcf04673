"""Panels of the probe sharding: memory and bytes of a rank, measured on a few processes, beside the formulas."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis.fits import cycle_mean
from workflow.bench.figures import _style as style
from workflow.bench.figures._axes import amount, byte_axis
from workflow.bench.figures._projected import SHARDED, look_of, variant_of

HEIGHT: Final = 1.9
"""Inches of the panels."""
PERIOD: Final = 10
"""Steps of which one refreshes, in the mean bytes of a step."""
KEPT: Final = ("parameters", "gradients", "first_order_state", "preconditioner_state")
"""Quantities that a rank keeps between two steps."""
_APART: Final = 0.09
"""Distance between the methods' markers at one number of ranks; the numbers are one apart."""
_GAP: Final = 0.5
"""Additional distance between the ranks that have all parameters and those that have a part."""


def memory(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes that the rank with most keeps, by optimizer and number of workers: measured and by formulas."""
    kept = rows[rows["quantity"].isin(KEPT)]
    by_rank = kept.groupby(["optimizer", "workers", "rank"], as_index=False)[["bytes", "computed_bytes"]].sum()
    return by_rank.groupby(["optimizer", "workers"], as_index=False)[["bytes", "computed_bytes"]].max()


def sent(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes that the busiest rank sends in a mean step, in the columns of `memory`."""
    keys, columns = ["optimizer", "workers", "rank"], ["bytes", "computed_bytes"]
    by_kind = {
        quantity: rows[rows["quantity"] == quantity].groupby(keys)[columns].sum().astype(float)
        for quantity in ("sent_refreshing", "sent_otherwise")
    }
    index = by_kind["sent_refreshing"].index.union(by_kind["sent_otherwise"].index)
    refreshing, otherwise = (table.reindex(index, fill_value=0.0) for table in by_kind.values())
    mean = pd.DataFrame({name: cycle_mean(refreshing[name], otherwise[name], PERIOD) for name in columns})
    return mean.groupby(["optimizer", "workers"], as_index=False)[columns].max()


def draw(panels: np.ndarray, rows: pd.DataFrame) -> set[str]:
    """Draw both panels, and return the labels of the looks."""
    tables = {"memory per rank": memory(rows), "bytes per rank and step": sent(rows)}
    for axes, (name, table) in zip(panels, tables.items(), strict=True):
        _draw(axes, table)
        axes.set_ylabel(name)
        axes.set_title("measured, and by formula")
        byte_axis(axes)
        low, high = axes.get_ylim()
        axes.set_ylim(low / (high / low) ** 0.12, high)  # space for the words at the bottom
    return {variant_of(str(label)) for label in rows["optimizer"]}


def notes(rows: pd.DataFrame) -> list[str]:
    """Return the caption's sentences on the measurement."""
    checked = rows[rows["computed_bytes"].notna()]
    exact = int((checked["bytes"] == checked["computed_bytes"]).sum())
    live = rows[(rows["quantity"] == "peak_live") & (rows["optimizer"] == f"mkor_windowed{SHARDED}")]["bytes"]
    whole = rows[(rows["quantity"] == "gradients") & ~rows["optimizer"].str.endswith(SHARDED)]["bytes"]
    text = (
        f"memory and bytes: {style.workload_name(str(rows['workload'].iloc[0]))}, the rank with most; memory: "
        "parameters, gradients, momentum and the preconditioner's state, counted; bytes: counted in the "
        f"preconditioner's collectives, mean of {PERIOD} steps; dashed: formulas, exact in {exact} of {len(checked)} "
        "cases"
    )
    if live.empty or whole.empty:
        return [text]
    return [
        text,
        f"tensors that windowed MKOR makes in a sharded step: {amount(float(f'{live.max():.3g}'))} at any time, beside "
        f"{amount(float(f'{whole.max():.3g}'))} of a whole gradient",
    ]


def _draw(axes: Axes, table: pd.DataFrame) -> None:
    workers = sorted(table["workers"].unique())
    groups = {False: "DDP", True: "sharded"}
    labels = style.in_order({variant_of(str(label)) for label in table["optimizer"]})
    starts = {sharded: sharded * (len(workers) + _GAP) for sharded in groups}
    for label, of_label in table.groupby("optimizer", sort=False):
        look, start = look_of(str(label)), starts[str(label).endswith(SHARDED)]
        shift = _APART * (labels.index(variant_of(str(label))) - (len(labels) - 1) / 2)
        x = [start + workers.index(number) + shift for number in of_label["workers"]]
        axes.plot(x, of_label["computed_bytes"], color=look.color, linestyle=style.MODEL_LINE, linewidth=0.8)
        axes.plot(x, of_label["bytes"], color=look.color, linestyle="none", marker=look.marker)
    ticks = [(start + index, number) for start in starts.values() for index, number in enumerate(workers)]
    axes.set_xticks([place for place, _ in ticks], [f"{number}" for _, number in ticks])
    axes.set_xlabel("ranks")
    for sharded, start in starts.items():
        axes.text(
            start + (len(workers) - 1) / 2,
            0.03,
            groups[sharded],
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=6.5,
            color=style.GUIDE,
        )
