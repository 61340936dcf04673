"""Figure 9, appendix: memory of a rank and the bytes that it sends in a step, measured, and checked by formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Final

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
_RANKS_APART: Final = 0.14
"""Distance between the methods' markers in a group of one number of ranks; the groups are one apart."""


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
    legend = page.entries_of(map(model.variant_of, rows["optimizer"]), linestyle="none")
    text = page.footer(results, rows, notes=_notes(rows))
    reading = "Of the rank with most. DDP: whole parameters; sharded: cut by fully_shard, dense MKOR by owners only."
    exact, checked = exact_cases(rows)
    message = f"Formulas give the memory and the bytes of a rank exactly in {exact} of {checked} counted cases"
    return page.save(figure, folder, "fig09_ranks_appendix", legend, text, message, reading)


def exact_cases(rows: pd.DataFrame) -> tuple[int, int]:
    """Return how many of the counted quantities the formulas give exactly, and how many have a formula."""
    checked = rows[rows["computed_bytes"].notna()]
    return int((checked["bytes"] == checked["computed_bytes"]).sum()), len(checked)


def memory(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes that the rank with most keeps, by optimizer and number of workers."""
    kept = rows[rows["quantity"].isin(KEPT)]
    by_rank = kept.groupby(["optimizer", "workers", "rank"])["bytes"].sum()
    return by_rank.groupby(["optimizer", "workers"]).max().reset_index()


def sent(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes that the busiest rank sends in a mean step, in the columns of `memory`."""
    refreshing, otherwise = (
        rows[rows["quantity"] == quantity].groupby(["optimizer", "workers", "rank"])["bytes"].sum().astype(float)
        for quantity in ("sent_refreshing", "sent_otherwise")
    )
    mean = cycle_mean(*refreshing.align(otherwise, fill_value=0.0), PERIOD)
    return mean.groupby(["optimizer", "workers"]).max().rename("bytes").reset_index()


def _draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a group of markers for each number of ranks, first of DDP and then of sharded training."""
    workers = sorted(table["workers"].unique())
    labels = styles.in_order({model.variant_of(str(label)) for label in table["optimizer"]})
    groups = [(sharded, number) for sharded in (False, True) for number in workers]
    for label, of_label in table.groupby("optimizer", sort=False):
        look, sharded = model.look_of(str(label)), str(label).endswith(model.SHARDED)
        shift = _RANKS_APART * (labels.index(model.variant_of(str(label))) - (len(labels) - 1) / 2)
        x = [groups.index((sharded, number)) + shift for number in of_label["workers"]]
        axes.plot(x, of_label["bytes"], color=look.color, linestyle="none", marker=look.marker)
    for place in range(1, len(groups)):
        axes.axvline(place - 0.5, color="#BBBBBB", linewidth=0.6)
    names = [f"{number}\n{'sharded' if sharded else 'DDP'}" for sharded, number in groups]
    axes.set_xticks(range(len(groups)), names)
    axes.set(xlim=(-0.5, len(groups) - 0.5), xlabel="ranks")
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="x", visible=False)


def _notes(rows: pd.DataFrame) -> list[str]:
    """Return the caption's sentences on memory and bytes of a rank."""
    is_windowed = rows["optimizer"] == f"mkor_windowed{model.SHARDED}"
    live = rows[(rows["quantity"] == "peak_live") & is_windowed]["bytes"]
    whole = rows[(rows["quantity"] == "gradients") & ~rows["optimizer"].str.endswith(model.SHARDED)]["bytes"]
    notes = [
        f"memory and bytes: {styles.workload_name(str(rows['workload'].iloc[0]))}, the rank with most; memory: "
        "parameters, gradients, momentum and the preconditioner's state, counted; bytes: counted in the "
        f"preconditioner's collectives, mean of {PERIOD} steps"
    ]
    if len(live) and len(whole):
        made, gradient = (panels.amount(float(f"{sizes.max():.3g}")) for sizes in (live, whole))
        notes.append(
            f"tensors that windowed MKOR makes in a sharded step: {made} at any time, beside {gradient} of a whole "
            "gradient"
        )
    return notes
