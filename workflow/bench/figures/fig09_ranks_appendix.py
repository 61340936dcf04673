"""Figure 9, appendix: memory of a rank and the bytes that it sends in a step, measured, beside the formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd
from matplotlib.axes import Axes

from workflow.bench.analysis import styles
from workflow.bench.analysis.fits import cycle_mean
from workflow.bench.figures import _page as page
from workflow.bench.figures import _panels as panels
from workflow.bench.figures import fig09_model_appendix as model
from workflow.bench.results.tables import Results

PROBES = ("sharding",)
PERIOD: Final = 10
"""Steps of which one refreshes, in the mean bytes of a step."""
KEPT: Final = ("parameters", "gradients", "first_order_state", "preconditioner_state")
"""Quantities that a rank keeps between two steps."""
_RANKS_APART: Final = 0.09
"""Distance between the methods' markers at one number of ranks; the numbers are one apart."""
_GAP: Final = 0.5
"""Additional distance between the ranks that have all parameters and those that have a part."""


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the memory of a rank, and the bytes that it sends in a step."""
    rows = results.some_rows("sharding")
    figure, (axes,) = page.new_figure(1, 2, height=2.3)
    for panel, name, table in zip(
        axes, ("memory per rank", "bytes per rank and step"), (memory(rows), sent(rows)), strict=True
    ):
        _draw(panel, table)
        panel.set_ylabel(name)
        panels.byte_axis(panel)
        low, high = panel.get_ylim()
        panel.set_ylim(low / (high / low) ** 0.12, high)  # space for the words at the bottom
    legend = page.entries_of(map(model.variant_of, rows["optimizer"]), linestyle="none")
    legend.append(page.guide_entry("formula", linewidth=0.8, linestyle=page.MODEL_LINE))
    text = page.footer(results, rows, notes=_notes(rows))
    reading = "Of the rank with most. DDP: whole parameters; sharded: cut by fully_shard."
    return page.save(figure, folder, "fig09_ranks_appendix", legend, text, reading=reading)


def memory(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes that the rank with most keeps, by optimizer and number of workers: measured and by formulas."""
    kept = rows[rows["quantity"].isin(KEPT)]
    by_rank = kept.groupby(["optimizer", "workers", "rank"])[["bytes", "computed_bytes"]].sum()
    return by_rank.groupby(["optimizer", "workers"]).max().reset_index()


def sent(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes that the busiest rank sends in a mean step, in the columns of `memory`."""
    keys, columns = ["optimizer", "workers", "rank"], ["bytes", "computed_bytes"]
    refreshing, otherwise = (
        rows[rows["quantity"] == quantity].groupby(keys)[columns].sum().astype(float)
        for quantity in ("sent_refreshing", "sent_otherwise")
    )
    refreshing, otherwise = refreshing.align(otherwise, fill_value=0.0)
    mean = pd.DataFrame({name: cycle_mean(refreshing[name], otherwise[name], PERIOD) for name in columns})
    return mean.groupby(["optimizer", "workers"])[columns].max().reset_index()


def _draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw measured values as markers and formulas as dashed lines, first of DDP and then of sharded training."""
    workers = sorted(table["workers"].unique())
    labels = styles.in_order({model.variant_of(str(label)) for label in table["optimizer"]})
    starts = {sharded: sharded * (len(workers) + _GAP) for sharded in (False, True)}
    for label, of_label in table.groupby("optimizer", sort=False):
        look, start = model.look_of(str(label)), starts[str(label).endswith(model.SHARDED)]
        shift = _RANKS_APART * (labels.index(model.variant_of(str(label))) - (len(labels) - 1) / 2)
        x = [start + workers.index(number) + shift for number in of_label["workers"]]
        axes.plot(x, of_label["computed_bytes"], color=look.color, linestyle=page.MODEL_LINE, linewidth=0.8)
        axes.plot(x, of_label["bytes"], color=look.color, linestyle="none", marker=look.marker)
    places = [start + index for start in starts.values() for index in range(len(workers))]
    axes.set_xticks(places, [f"{number}" for number in workers] * 2)
    axes.set_xlabel("ranks")
    for sharded, start in starts.items():
        at, name = (start + (len(workers) - 1) / 2, 0.03), "sharded" if sharded else "DDP"
        text: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 6.5, "color": page.GUIDE}
        panels.annotate(axes, name, at, ("data", "axes fraction"), **text)


def _notes(rows: pd.DataFrame) -> list[str]:
    """Return the caption's sentences on memory and bytes of a rank."""
    checked = rows[rows["computed_bytes"].notna()]
    exact = int((checked["bytes"] == checked["computed_bytes"]).sum())
    is_windowed = rows["optimizer"] == f"mkor_windowed{model.SHARDED}"
    live = rows[(rows["quantity"] == "peak_live") & is_windowed]["bytes"]
    whole = rows[(rows["quantity"] == "gradients") & ~rows["optimizer"].str.endswith(model.SHARDED)]["bytes"]
    notes = [
        f"memory and bytes: {styles.workload_name(str(rows['workload'].iloc[0]))}, the rank with most; memory: "
        "parameters, gradients, momentum and the preconditioner's state, counted; bytes: counted in the "
        f"preconditioner's collectives, mean of {PERIOD} steps; dashed: formulas, exact in {exact} of {len(checked)} "
        "cases"
    ]
    if len(live) and len(whole):
        made, gradient = (panels.amount(float(f"{sizes.max():.3g}")) for sizes in (live, whole))
        notes.append(
            f"tensors that windowed MKOR makes in a sharded step: {made} at any time, beside {gradient} of a whole "
            "gradient"
        )
    return notes
