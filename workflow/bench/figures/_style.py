"""How every figure looks: one colour, marker and line style a method, units, interval bands, a caption footer.

Colours are Okabe and Ito's, told apart with any colour blindness; markers and line styles tell methods apart
in grey.  A plain dashed line always means a model, a hollow marker a published value.
"""

from __future__ import annotations

import textwrap
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from workflow.bench.analysis.captions import as_rst
from workflow.bench.support.files import write_atomically

WIDTH: Final = 5.5  # inches: the text width of a one-column paper
FOOTER_POINTS: Final = 6.0
_FOOTER: Final = "footer"

_DASHES: Final[dict[str, Any]] = {
    "solid": "-",
    "dotted": (0, (1, 1.2)),
    "dash-dot": (0, (5, 1.2, 1, 1.2)),
    "long dash": (0, (8, 1.5)),
    "dash-dot-dot": (0, (5, 1.2, 1, 1.2, 1, 1.2)),
    "short dash": (0, (2.5, 1)),
    "sparse dots": (0, (1, 2.6)),
    "long and short": (0, (7, 1, 2.5, 1)),
    "even dash": (0, (4, 2.5)),
    "long dash-dot": (0, (9, 1.5, 1.5, 1.5)),
}
MODEL_LINE: Final = "--"


@dataclass(frozen=True)
class MethodStyle:
    """How one method is drawn, and the name that legends give it."""

    name: str
    color: str
    marker: str
    line: Any


STYLES: Final[dict[str, MethodStyle]] = {
    "sgd": MethodStyle("SGD", "#777777", "v", _DASHES["dotted"]),
    "adamw": MethodStyle("AdamW", "#E69F00", "P", _DASHES["dash-dot-dot"]),
    "lamb": MethodStyle("LAMB", "#000000", "X", _DASHES["dash-dot"]),
    "lamb_600": MethodStyle("LAMB, 600 steps", "#8A8A8A", "X", _DASHES["solid"]),
    "lamb_1000": MethodStyle("LAMB, 1,000 steps", "#222222", "X", _DASHES["solid"]),
    "kaisa": MethodStyle("KFAC (KAISA)", "#009E73", "s", _DASHES["long dash"]),
    "kaisa_no_clip": MethodStyle("KFAC, no clipping", "#66C2A5", "X", _DASHES["dotted"]),
    "kaisa_inverse": MethodStyle("KFAC, inverse", "#7FBC41", "s", _DASHES["even dash"]),
    "kaisa_mem_opt": MethodStyle("KFAC, MEM-OPT", "#004D40", "8", _DASHES["even dash"]),
    "kaisa_600": MethodStyle("KFAC, 600 steps", "#A0D0B5", "s", _DASHES["solid"]),
    "kaisa_1000": MethodStyle("KFAC, 1,000 steps", "#1B5E20", "s", _DASHES["long dash"]),
    "eva": MethodStyle("Eva", "#CC79A7", "p", _DASHES["dash-dot"]),
    "hylo": MethodStyle("HyLo", "#8C510A", "h", _DASHES["dash-dot-dot"]),
    "shampoo": MethodStyle("Shampoo", "#882255", "<", _DASHES["sparse dots"]),
    "soap": MethodStyle("SOAP", "#999933", ">", _DASHES["long and short"]),
    "muon": MethodStyle("Muon", "#661100", "*", _DASHES["even dash"]),
    "singd": MethodStyle("SINGD", "#44AA99", "8", _DASHES["long dash-dot"]),
    "mkor": MethodStyle("MKOR, exact rule", "#0072B2", "o", _DASHES["solid"]),
    "mkor_bfloat16": MethodStyle("MKOR, bfloat16", "#3F51B5", "P", _DASHES["dotted"]),
    "mkor_windowed": MethodStyle("MKOR, windowed", "#8E63CE", "*", _DASHES["even dash"]),
    "mkor_released": MethodStyle("MKOR, released rule", "#56B4E9", "D", _DASHES["short dash"]),
    "mkor_released_600": MethodStyle("MKOR, released, 600 steps", "#A6CEE3", "D", _DASHES["short dash"]),
    "mkor_released_1000": MethodStyle("MKOR, released, 1,000 steps", "#5B8DB8", "D", _DASHES["short dash"]),
    "mkor_published": MethodStyle("MKOR, published rule", "#D55E00", "^", _DASHES["dash-dot"]),
    "mkor_h": MethodStyle("MKOR-H", "#332288", "d", _DASHES["long dash"]),
    "copy": MethodStyle("memory floor (copy)", "#B0B0B0", ".", _DASHES["sparse dots"]),
}
_SPARE_COLORS: Final = ("#AA3377", "#BBBB22", "#3B5B92", "#F08080", "#AA4499")
_SPARE_MARKERS: Final = ("<", ">", "8", "H", "*", "d", "p")

WORKLOADS: Final[dict[str, str]] = {
    "alexnet": "AlexNet",
    "autoencoder": "Autoencoder",
    "wide_autoencoder": "Wide autoencoder",
    "bert": "BERT",
    "bert_pretraining": "BERT",
    "bert_classification": "BERT, classes",
    "bert_span": "BERT, questions",
    "resnet": "ResNet",
    "resnet20": "ResNet-20",
    "resnet50": "ResNet-50",
}
SERIES: Final = tuple(STYLES)

_RC: Final[Any] = {
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.5,
    "legend.fontsize": 7.8,
    "xtick.labelsize": 7.8,
    "ytick.labelsize": 7.8,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "savefig.dpi": 220,
    "svg.hashsalt": "figure",
}


def style_of(label: str) -> MethodStyle:
    """The style of an optimizer label; a label not named above gets one of its own that its name decides."""
    if label in STYLES:
        return STYLES[label]
    code = zlib.crc32(label.encode())
    return MethodStyle(
        label.replace("_", " "),
        _SPARE_COLORS[code % len(_SPARE_COLORS)],
        _SPARE_MARKERS[code // 7 % len(_SPARE_MARKERS)],
        list(_DASHES.values())[code // 53 % len(_DASHES)],
    )


def in_order(labels: Iterable[str]) -> list[str]:
    """Labels without repeats, in the one order that all legends use: known ones as listed above, then others."""
    unique = {str(label) for label in labels}
    return [label for label in SERIES if label in unique] + sorted(unique - set(SERIES))


def workload_name(workload: str) -> str:
    """A workload's name as titles show it."""
    return WORKLOADS.get(workload, workload.replace("_", " "))


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which ``seconds`` reads well: (seconds a unit, its sign)."""
    for length, sign in ((2 * 86400, "d"), (2 * 3600, "h"), (2 * 60, "min")):
        if seconds >= length:
            return length / 2, sign
    return (1.0, "s") if seconds >= 0.5 else (1e-3, "ms")


def new_figure(rows: int, columns: int, *, height: float, **options: Any) -> tuple[Figure, np.ndarray]:
    """A figure of ``rows x columns`` panels, one column wide and ``height`` inches high, and its axes as an array."""
    mpl.rcParams.update(_RC)
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, height), layout="constrained", squeeze=False, **options)
    return figure, axes


def draw_curve(axes: Axes, curve: pd.DataFrame, label: str, *, x: str = "step", scale: float = 1.0) -> None:
    """Draw one label's curve (``statistics.curve``) with its interval as a band; ``x`` is divided by ``scale``."""
    if curve.empty:
        return
    look = style_of(label)
    at = curve[x].to_numpy(float) / scale
    # About six markers a line, shifted by method, so that lines on top of each other can still be told apart.
    every = max(1, len(at) // 6)
    axes.plot(
        at,
        curve["value"],
        color=look.color,
        linestyle=look.line,
        marker=look.marker,
        markevery=(zlib.crc32(label.encode()) % every, every),
        markersize=3.4,
    )
    # An infinite bound (diverged runs) is drawn as a band that leaves through the rim.
    low, high = (np.nan_to_num(curve[bound].to_numpy(float), nan=np.nan, posinf=1e30) for bound in ("low", "high"))
    band = axes.fill_between(at, low, high, color=look.color, alpha=0.14, linewidth=0)
    band.set_in_layout(False)


def mark_failures(axes: Axes, metrics: pd.DataFrame, label: str, *, x: str = "step", scale: float = 1.0) -> None:
    """Put a large × where each run of ``metrics`` that did not finish had its last value, at the rim if beyond it.

    Call it once the limits of ``axes`` are set.
    """
    failed = metrics[(metrics["status"] != "finished") & metrics["step"].notna()]
    if failed.empty:
        return
    last = failed.sort_values("step").groupby("run").tail(1)
    heights = last["value"].astype(float).replace(np.nan, np.inf).clip(*axes.get_ylim())
    (crosses,) = axes.plot(
        last[x].astype(float) / scale,
        heights,
        linestyle="none",
        marker="x",
        markersize=7,
        markeredgewidth=1.6,
        color=style_of(label).color,
        clip_on=False,
        zorder=5,
        scalex=False,
        scaley=False,
    )
    crosses.set_in_layout(False)


def loss_limits(metrics: pd.DataFrame) -> tuple[float, float, str]:
    """Limits and scale of a loss axis that the finished runs fill, so that a diverging one flattens no other."""
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


def method_handle(label: str) -> Line2D:
    """A legend entry for a method."""
    look = style_of(label)
    return Line2D([], [], color=look.color, linestyle=look.line, marker=look.marker, label=look.name)


def band_handle(name: str) -> Patch:
    """A legend entry for interval bands."""
    return Patch(color="#999999", alpha=0.35, linewidth=0, label=name)


def bar_handle(name: str) -> Line2D:
    """A legend entry for intervals drawn as bars."""
    return Line2D([], [], color="#777777", linestyle="none", marker="|", markersize=9, markeredgewidth=1.6, label=name)


def failure_handle() -> Line2D:
    """A legend entry for runs that did not finish."""
    return Line2D([], [], color="#444444", linestyle="none", marker="x", markersize=6, label="run ended here")


def published_handle(name: str) -> Line2D:
    """A legend entry for published values."""
    return Line2D(
        [],
        [],
        color="#444444",
        linestyle="none",
        marker="o",
        markerfacecolor="none",
        markeredgewidth=1.1,
        label=name,
    )


def target_line(axes: Axes, value: float, name: str = "target", *, rising: bool = False) -> None:
    """A thin line at the runs' target, named where curves are on its other side.

    At the left edge above it, where losses still are higher; where values are to rise, at the right edge below it.
    """
    axes.axhline(value, color="#444444", linewidth=0.7, zorder=1)
    text = axes.annotate(
        name,
        (1.0 if rising else 0.0, value),
        xycoords=("axes fraction", "data"),
        xytext=(-2, -2.5) if rising else (2, 1.5),
        textcoords="offset points",
        ha="right" if rising else "left",
        va="top" if rising else "baseline",
        fontsize=6.5,
        color="#444444",
        annotation_clip=True,
    )
    text.set_in_layout(False)


def say(axes: Axes, text: str, *, width: int = 34) -> None:
    """Fill an empty panel with the reason why it is empty, in lines of ``width`` characters at most."""
    axes.text(
        0.5,
        0.5,
        "\n".join(textwrap.wrap(text, width)),
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=7,
        color="#666666",
    )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)


def plain_log_ticks(axes: Axes, axis: str = "y") -> None:
    """Ticks of a log axis as plain numbers (0.02, 5, 1000), at 1, 2 and 5 where the axis spans little."""
    which = axes.yaxis if axis == "y" else axes.xaxis
    low, high = axes.get_ylim() if axis == "y" else axes.get_xlim()
    decades = np.log10(high / low)
    subs = (1.0,) if decades > 2.5 else (1.0, 2.0, 5.0) if decades > 0.7 else tuple(np.arange(1.0, 10.0))
    which.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
    which.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    which.set_minor_formatter(NullFormatter())


def period_axis(axes: Axes, periods: Iterable[float]) -> None:
    """A logarithmic axis of inverse update periods, with a tick at each of them."""
    values = sorted({float(period) for period in periods})
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.set_xlim(values[0] / 1.6, values[-1] * 1.6)


def _width(text: str, size: float) -> float:
    """How wide ``text`` is, in points, in letters of ``size`` points, whatever the figure's resolution."""
    width: float = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0]
    return width


def _legend_columns(names: list[str], most: int, points: float) -> int:
    """The columns, ``most`` at most, in which a legend of ``names`` is no wider than ``points``."""
    size = mpl.rcParams["legend.fontsize"]
    widths = [_width(name, size) for name in names]
    for columns in range(min(most, len(names)), 1, -1):
        rows = max(1, -(-len(names) // columns))
        texts = sum(max(widths[first : first + rows]) for first in range(0, len(names), rows))
        # Matplotlib's own spaces, in heights of a letter: handle and its distance 2.8, between columns 2, around 0.8.
        if texts + size * (2.8 * columns + 2 * (columns - 1) + 0.8) <= points:
            return columns
    return 1


def _wrapped(text: str, points: float) -> list[str]:
    """Break ``text`` into lines of the footer's type that are at most ``points`` wide."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and _width(longer, FOOTER_POINTS) <= points:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def finish(figure: Figure, handles: list[Any], footer: str, *, columns: int = 3) -> Figure:
    """Put the legend above the panels, ``columns`` wide at most, and the caption below, both outside of the data."""
    width, height = figure.get_size_inches()
    lines = _wrapped(footer, 0.985 * width * 72)
    reserved = (len(lines) * FOOTER_POINTS * 1.28 + 5) / 72
    columns = _legend_columns([handle.get_label() for handle in handles], columns, width * 72)
    legend_rows = -(-len(handles) // columns)
    top = (legend_rows * 12.1 + 6) / 72 if handles else 0.0
    total = height + reserved + top
    figure.set_size_inches(width, total)
    figure.set_layout_engine("constrained", rect=(0, reserved / total, 1, (total - reserved - top) / total))
    if handles:
        figure.legend(handles=handles, loc="upper center", ncol=columns, bbox_to_anchor=(0.5, 1.0))
    figure.text(
        0.008,
        3 / 72 / total,
        "\n".join(lines),
        fontsize=FOOTER_POINTS,
        color="#444444",
        va="bottom",
        linespacing=1.25,
        gid=_FOOTER,
    )
    return figure


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``folder/name.pdf``, ``.png`` and its caption ``.rst``, each whole or not at all, and close the figure."""
    written = []
    # No dates nor versions, so that the same data gives the same picture.
    for suffix, metadata in ((".pdf", {"CreationDate": None}), (".png", {"Software": None})):
        content = BytesIO()
        figure.savefig(content, format=suffix[1:], metadata=metadata)
        write_atomically(folder / f"{name}{suffix}", content.getvalue())
        written.append(folder / f"{name}{suffix}")
    footer = " ".join(text.get_text() for text in figure.texts if text.get_gid() == _FOOTER)
    write_atomically(folder / f"{name}.rst", as_rst(" ".join(footer.split())))
    written.append(folder / f"{name}.rst")
    plt.close(figure)
    return written
