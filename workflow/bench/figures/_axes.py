"""Axes of panels: limits, ticks, targets, and the text of an empty panel."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from workflow.bench.figures import _style as style


def loss_limits(metrics: pd.DataFrame) -> tuple[float, float, str]:
    """Return the limits and the scale of a loss axis.

    The finished runs fill it, so that a diverging run does not flatten the others.
    """
    finished = metrics.loc[metrics["status"] == "finished", "value"].astype(float)
    values = finished if len(finished) else metrics["value"].astype(float)
    values = values[np.isfinite(values)]
    if values.empty:
        return 0.0, 1.0, "linear"
    low, high = float(values.min()), float(values.max())
    if low > 0 and high / low > 5:
        return low / 1.15, high * 1.15, "log"
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin, "linear"


def loss_axis(axes: Axes, metrics: pd.DataFrame) -> None:
    """Set the limits and the scale of a loss axis (`loss_limits`), before any curve is drawn on it."""
    low, high, scale = loss_limits(metrics)
    axes.set_yscale(scale)
    axes.set_ylim(low, high)


def accuracy_axis(axes: Axes, metrics: pd.DataFrame) -> None:
    """Set a linear axis in per cent that holds all values of ``metrics``, shares from 0 to 1."""
    values = metrics["value"].astype(float)
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    margin = max(0.04 * (high - low), 0.005)
    axes.set_ylim(max(low - margin, 0.0), min(high + margin, 1.0) if high < 1 else 1.01)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")


def target_line(axes: Axes, value: float) -> None:
    """Draw a thin line at the runs' target; `_legend.target_entry` names it."""
    axes.axhline(value, color=style.GUIDE, linewidth=0.7, zorder=1)


def explain_empty(axes: Axes, reason: str, *, width: int = 34) -> None:
    """Write into an empty panel why it is empty, in lines of at most ``width`` characters."""
    axes.text(
        0.5,
        0.5,
        "\n".join(textwrap.wrap(reason, width)),
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=7,
        color=style.SOFT,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
    )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)


def fixed_ticks(axis: Axis, values: Iterable[float]) -> None:
    """Put ticks at ``values`` alone, with plain numbers (0.5, 1000) as their labels."""
    axis.set_major_locator(FixedLocator(sorted(float(value) for value in values)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def plain_log_ticks(axes: Axes, axis: Literal["x", "y"] = "y") -> None:
    """Label the ticks of a log axis with plain numbers (0.02, 5, 1000); a shorter axis also at 3, or at 2 and 5."""
    which = axes.yaxis if axis == "y" else axes.xaxis
    low, high = axes.get_ylim() if axis == "y" else axes.get_xlim()
    decades = np.log10(high / low)
    if decades > 0.7:
        subs = (1.0,) if decades > 4 else (1.0, 3.0) if decades > 2.5 else (1.0, 2.0, 5.0)
        which.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
    else:
        which.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    which.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    which.set_minor_formatter(NullFormatter())


def decade_ticks(axis: Axis, most: int = 6) -> None:
    """Put at most so many ticks on a log axis, each at a power of ten, so that no two labels touch."""
    low, high = np.log10(axis.get_view_interval())
    exponents = np.arange(np.ceil(low), np.floor(high) + 1)
    every = max(1, -(-len(exponents) // most))
    axis.set_major_locator(FixedLocator([10.0**exponent for exponent in exponents if exponent % every == 0]))
    axis.set_minor_locator(NullLocator())


def amount(size: float) -> str:
    """Return bytes in the unit that is easy to read."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= scale:
            return f"{size / scale:g} {unit}"
    return f"{size:g} B"


def byte_axis(axes: Axes) -> None:
    """Set a logarithmic y axis of bytes."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))


def period_axis(axes: Axes, periods: Iterable[float]) -> None:
    """Set a logarithmic axis of inverse update periods, with a tick at each of them."""
    values = sorted({float(period) for period in periods})
    axes.set_xscale("log")
    fixed_ticks(axes.xaxis, values)
    axes.set_xlim(values[0] / 1.6, values[-1] * 1.6)
