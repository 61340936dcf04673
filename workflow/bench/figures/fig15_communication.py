"""Figure 15 (ours): bytes sent in a factor update over the width of a layer."""

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
_METHODS: Final = ("kaisa", "hylo", "eva", "mkor")
"""The methods drawn; table 1 of the site has the bytes of their variants."""
_MARKER: Final = 5.5
_HOLLOW: Final[Any] = {"markersize": _MARKER + 2, "markerfacecolor": "none", "markeredgewidth": 0.9}
_HALF_PRECISION: Final = "mkor_bfloat16"
"""The label that sends numbers as Table 1 counts MKOR's."""


def of_update(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes of one update in all collectives, of the rank that sends most: measured, predicted, the paper's.

    There is one row per optimizer, width and number of workers, in that order.
    """
    keys = ["optimizer", "dimension", "workers"]
    by_rank = rows.groupby([*keys, "rank"], as_index=False)[["bytes", "predicted_bytes"]].sum()
    most = by_rank.groupby(keys, as_index=False)[["bytes", "predicted_bytes"]].max()
    paper = rows.groupby(keys, as_index=False)["paper_bytes"].first()
    return most.merge(paper, on=keys)


def _draw(axes: Axes, sent: pd.DataFrame) -> None:
    """Draw measured values as markers, the formula as dashed lines and the paper's as hollow markers over the width."""
    widths = sorted(sent["dimension"].unique())
    for label in styles.in_order(sent["optimizer"]):
        look, rows = styles.style_of(label), sent[sent["optimizer"] == label].sort_values("dimension")
        axes.plot(
            rows["dimension"], rows["predicted_bytes"], color=look.color, linestyle=page.MODEL_LINE, linewidth=0.8
        )
        marked: dict[str, Any] = {"color": look.color, "linestyle": "none", "marker": look.marker}
        # MKOR and Eva send the same: the smaller markers of MKOR lie on those of Eva.
        size = _MARKER - 2 if label == "mkor" else _MARKER
        axes.plot(rows["dimension"], rows["bytes"], markersize=size, **marked)
        axes.plot(rows["dimension"], rows["paper_bytes"], **marked, **_HOLLOW)
    axes.set_xscale("log")
    panels.fixed_ticks(axes.xaxis, widths)
    margin = (widths[-1] / widths[0]) ** 0.05
    axes.set_xlim(widths[0] / margin, widths[-1] * margin)
    axes.set(xlabel="width d of the layer", ylabel="bytes per update")
    panels.byte_axis(axes)


def _entry(sent: pd.DataFrame, label: str) -> Artist:
    """Return a legend entry with the slope of the measured bytes over the width."""
    look = styles.style_of(label)
    rows = sent[sent["optimizer"] == label]
    slope = ""
    if rows["dimension"].nunique() > 1 and (rows["bytes"] > 0).all():
        slope = f", slope {power_law(list(rows['dimension']), list(rows['bytes'])).exponent:.2f}"
    return page.marker_entry(look, label=look.name + slope)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the bytes over the width at the largest number of workers."""
    rows = results.some_rows("communication")
    sent = of_update(rows)
    at_workers = sent[sent["workers"] == sent["workers"].max()]
    shown = at_workers[at_workers["optimizer"].isin(_METHODS)]
    figure, ((axes,),) = page.new_figure(1, 1, height=2.6)
    _draw(axes, shown)
    legend = [_entry(shown, label) for label in styles.in_order(shown["optimizer"])]
    legend.append(page.guide_entry("formula", linestyle=page.MODEL_LINE, linewidth=0.8))
    if shown["paper_bytes"].notna().any():
        legend.append(page.published_entry("Table 1 of the paper"))
    reading = " ".join(filter(None, (f"{sent['workers'].max():g} workers.", _on_table_1(at_workers))))
    text = page.footer(results, rows, notes=_notes(sent))
    return page.save(figure, folder, "fig15_communication", legend, text, _message(shown), reading, columns=2)


def _on_table_1(sent: pd.DataFrame) -> str:
    """Return the sentence on MKOR's bytes over those of the paper's Table 1; empty if they are equal or unknown."""
    widest = sent[sent["dimension"] == sent["dimension"].max()].set_index("optimizer")
    if "mkor" not in widest.index or not widest.at["mkor", "paper_bytes"] > 0:
        return ""
    times = widest.at["mkor", "bytes"] / widest.at["mkor", "paper_bytes"]
    return f"Here MKOR sends float32, {times:.1f} times Table 1's half precision." if times > 1.01 else ""


def _notes(sent: pd.DataFrame) -> list[str]:
    """Return the sentences of the caption on what is counted, on the formula, and on Table 1."""
    exact = int((sent["bytes"] == sent["predicted_bytes"]).sum())
    notes = [
        "payload that the busiest rank hands to the collectives in one step with a refresh, for a layer [d, d], "
        "counted in the collectives, without the gradients, which every optimizer exchanges; slope: of the "
        "logarithms over d. MKOR's smaller markers lie on those of Eva, which sends the same",
        f"formula: of this implementation; it is exact in {exact} of {len(sent)} cases of all methods and numbers of "
        "workers",
    ]
    widest = sent[sent["dimension"] == sent["dimension"].max()].groupby("optimizer")[["bytes", "paper_bytes"]].max()
    if _HALF_PRECISION in widest.index:
        half, published = widest.loc[_HALF_PRECISION]
        notes.append(
            "Table 1's numbers are taken as float32, but the halves of MKOR's 2d/2 as half precision: MKOR (bfloat16) "
            f"sends {half:,.0f} bytes at width {sent['dimension'].max():,}, and Table 1 has {published:,.0f}"
        )
    return notes


def _message(sent: pd.DataFrame) -> str:
    """Return the title: how many times as many bytes KFAC sends as MKOR at the largest width."""
    widest = sent[sent["dimension"] == sent["dimension"].max()].set_index("optimizer")["bytes"]
    if not {"kaisa", "mkor"} <= {*widest.index} or not widest["mkor"]:
        return ""
    ratio = widest["kaisa"] / widest["mkor"]
    width = sent["dimension"].max()
    return f"At width {width:,} a factor update of KFAC sends {ratio:,.0f} times as many bytes as one of MKOR"
