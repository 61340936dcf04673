"""The page of a figure: its theme and panels, title and legend above them, the caption below, and the files.

`analysis.styles` has the look of each method.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator

from workflow.bench.analysis import captions, styles
from workflow.bench.analysis.descriptions import described
from workflow.bench.analysis.estimates import shown_level
from workflow.bench.support.files import write_atomically

WIDTH: Final = 5.5
"""Inches: the text width of a one-column paper."""
INK: Final = "#222222"
SOFT: Final = "#666666"
GUIDE: Final = "#444444"
"""Color of everything that belongs to no method: targets, published values, lines of no difference."""
MODEL_LINE: Final = "--"

_FONT_SCALE: Final = 0.885
"""8.5 points for titles and labels of axes, 7.8 for ticks and legends."""
_THEME: Final[Any] = {
    "axes.grid": True,
    "axes.linewidth": 0.6,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "lines.markersize": 4,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType: text in a PDF can be searched
    "savefig.dpi": 220,
    "svg.hashsalt": "figure",
}
"""Differences from seaborn's theme for papers."""

_CAPTION_POINTS: Final = 6.0
_CAPTION_LINES: Final = 2
"""The most lines below the panels: who shows the picture has no use for the settings, which stand in its `.rst`."""
_TITLE_POINTS: Final = 8.6
_TEXT_WIDTH: Final = 0.985 * WIDTH * 72
"""Points that the title and the caption may be wide."""
_LEAST_TICKS: Final = 3
_RULES: Final[Mapping[str, str]] = {
    "sherman_morrison": "exact (Sherman-Morrison)",
    "published": "as published",
    "released": "as in the released code",
}
"""The names of MKOR's update rules."""


def _name_rules(rules: Mapping[str, str]) -> str:
    """Return the update rule of most labels, and the labels that have another one."""
    names = list(rules.values())
    usual = max(names, key=names.count)
    differing = [
        f"{styles.style_of(label).name}: {_RULES.get(rule, rule)}" for label, rule in rules.items() if rule != usual
    ]
    return _RULES.get(usual, usual) + (f", but {', '.join(differing)}" if differing else "")


NAMES: Final = captions.Names(
    optimizer=lambda label: styles.style_of(label).name,
    workload=styles.workload_name,
    rules=_name_rules,
    shows_runs=True,
)
"""The names that a caption has in common with the legend, in a figure that shows few runs one by one."""
caption = partial(captions.caption, names=NAMES)
footer = partial(captions.footer, names=NAMES)
precisions = partial(captions.precisions, names=NAMES)


# Panels


def new_figure(rows: int, columns: int, *, height: float, **options: Any) -> tuple[Figure, np.ndarray]:
    """Return a figure of ``rows x columns`` panels, one text column wide and ``height`` inches high, and its axes."""
    # Matplotlib ships this font. Other fonts are not on every machine, so figures would differ.
    sns.set_theme(context="paper", style="ticks", font="DejaVu Sans", font_scale=_FONT_SCALE, rc=_THEME)
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, height), layout="constrained", squeeze=False, **options)
    return figure, axes


def probed_workloads(rows: pd.DataFrame) -> list[str]:
    """Return the workloads of a probe's rows in the order of all figures: these three first, the others by name."""
    timed = set(rows["workload"].dropna().astype(str))
    first = [name for name in ("bert", "resnet", "autoencoder") if name in timed]
    return first + sorted(timed - set(first))


def seaborn_looks(by_name: Mapping[str, styles.MethodStyle]) -> dict[str, Any]:
    """Return the arguments with which seaborn's ``lineplot`` draws each name in its look, by hue and style."""
    return {
        "hue_order": list(by_name),
        "style_order": list(by_name),
        "palette": {name: look.color for name, look in by_name.items()},
        "markers": {name: look.marker for name, look in by_name.items()},
        "dashes": {name: "" if look.line == "-" else look.line[1] for name, look in by_name.items()},
    }


def span(ordered: Iterable[str]) -> str:
    """Return one or more numbers in rising order as the first and the last, as in ``0.1 to 0.5``; equal ones once."""
    shown = list(ordered)
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit in which ``seconds`` is easy to read: its length in seconds, and its symbol."""
    for length, symbol in ((2 * 86400, "d"), (2 * 3600, "h"), (2 * 60, "min")):
        if seconds >= length:
            return length / 2, symbol
    return (1.0, "s") if seconds >= 0.5 else (1e-3, "ms")


# The legend


def line_entry(look: styles.MethodStyle, **instead: Any) -> Artist:
    """Return a legend's entry with a method's line and marker; ``instead`` replaces properties of the line."""
    shown = {"color": look.color, "linestyle": look.line, "marker": look.marker, "label": look.name}
    return Line2D([], [], **(shown | instead))


def entries_of(labels: Iterable[str], **instead: Any) -> list[Artist]:
    """Return the entries (`line_entry`) of labels in the order of all legends."""
    return [line_entry(styles.style_of(label), **instead) for label in styles.in_order(labels)]


def marker_entry(look: styles.MethodStyle, **instead: Any) -> Artist:
    """Return an entry with a method's marker alone."""
    return line_entry(look, **({"linestyle": "none"} | instead))


def guide_entry(name: str, **look: Any) -> Artist:
    """Return an entry for what belongs to no method: targets, formulas, runs."""
    return Line2D([], [], label=name, **({"color": GUIDE} | look))


def band_entry(name: str) -> Artist:
    """Return an entry for intervals drawn as bands."""
    return Patch(color="#999999", alpha=0.35, linewidth=0, label=name)


def bar_entry() -> Artist:
    """Return an entry for intervals drawn as bars."""
    look: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": 9, "markeredgewidth": 1.6}
    return guide_entry(f"{shown_level()} interval", color="#777777", **look)


def row_bar_entry() -> Artist:
    """Return an entry for intervals drawn as bars along rows (`_forest.draw_interval`)."""
    return guide_entry(f"{shown_level()} interval", color="#777777", linewidth=2.2)


def hollow_entry(name: str, marker: str = "o", **look: Any) -> Artist:
    """Return an entry with a hollow marker, by convention that of a published value."""
    return guide_entry(name, linestyle="none", marker=marker, markerfacecolor="none", **look)


def published_entry(name: str) -> Artist:
    """Return an entry for published values."""
    return hollow_entry(name, markeredgewidth=1.1)


# The whole


def save(
    figure: Figure,
    folder: Path,
    name: str,
    legend: Sequence[Artist],
    caption: str,
    message: str = "",
    reading: str = "",
    *,
    columns: int = 3,
) -> list[Path]:
    """Add title, legend and two lines of caption to a figure, write it to ``folder`` and return its files.

    Args:
        figure: the drawn panels; the figure grows by the height of title, legend and caption.
        folder: the folder to write to.
        name: the name of the files, without a suffix.
        legend: the entries of the legend; without entries the figure has no legend.
        caption: one paragraph of plain text, for the site and the file ``.rst``; the picture has its first sentence.
        message: what these data show, the title; without it the title of the description.
        reading: a sentence below the panels on how to read them.
        columns: the most columns that the legend may have.
    """
    description = described(name)
    # The figure's number stands below the panels.
    subject = re.sub(r" \(Figure .*?\)", "", description.title) if description else ""
    arrange(figure, legend, below(name, reading, caption), columns, message or subject)
    return write(figure, folder, name, caption)


def below(name: str, reading: str, caption: str) -> str:
    """Return what stands below the panels: the figure's number, how to read it, and the caption's first sentence.

    That sentence has the tier and the machine. Its seeds are left out if the text would take more than two lines.
    """
    number = re.match(r"fig0*(\d+)", name)
    place = f"Figure {number[1]}{', appendix' if name.endswith('_appendix') else ''}." if number else ""
    head = " ".join(filter(None, (place, reading)))
    source = re.sub(r" \([^)]*\)", "", caption.partition(". ")[0].rstrip(".")).split("; ")
    whole, short = (f"{head} {'; '.join(source[:parts])}.".lstrip() for parts in (len(source), 2))
    return whole if len(_wrapped(whole, _TEXT_WIDTH, _CAPTION_POINTS)) <= _CAPTION_LINES else short


def arrange(figure: Figure, legend: Sequence[Artist], caption: str, columns: int, title: str = "") -> None:
    """Put title and legend above the panels and the caption below them; all make the figure higher.

    Axes whose ticks Matplotlib chooses get at least three: from one or two a scale cannot be read.
    """
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(locator := axis.get_major_locator(), MaxNLocator):
                locator.set_params(min_n_ticks=_LEAST_TICKS)
    width, height = figure.get_size_inches()
    lines = _wrapped(caption, _TEXT_WIDTH, _CAPTION_POINTS)
    below = (len(lines) * _CAPTION_POINTS * 1.28 + 5) / 72
    # Bold letters are up to a fifth wider than those that `_wrapped` measures.
    head = _wrapped(title, _TEXT_WIDTH / 1.2, _TITLE_POINTS)
    titled = (len(head) * _TITLE_POINTS * 1.3 + 6) / 72 if title else 0.0
    columns = _legend_columns([str(entry.get_label()) for entry in legend], columns, width * 72)
    legend_rows = -(-len(legend) // columns)
    above = (legend_rows * 12.1 + 6) / 72 if legend else 0.0
    total = height + below + above + titled
    figure.set_size_inches(width, total)
    figure.set_layout_engine("constrained", rect=(0, below / total, 1, height / total))
    if title:
        look: dict[str, Any] = {"fontsize": _TITLE_POINTS, "fontweight": "bold", "color": INK, "va": "top"}
        figure.text(0.008, 1 - 4 / 72 / total, "\n".join(head), **look)
    if legend:
        figure.legend(handles=list(legend), loc="upper center", ncol=columns, bbox_to_anchor=(0.5, 1 - titled / total))
    look = {"fontsize": _CAPTION_POINTS, "color": GUIDE, "va": "bottom", "linespacing": 1.25}
    figure.text(0.008, 3 / 72 / total, "\n".join(lines), **look)


def write(figure: Figure, folder: Path, name: str, caption: str) -> list[Path]:
    """Write ``folder/name.pdf``, ``.png`` and the caption ``.rst``, each whole or not at all, and close the figure."""
    contents: dict[str, bytes | str] = {}
    # No dates and no versions, so that the same data gives the same picture.
    for suffix, metadata in ((".pdf", {"CreationDate": None}), (".png", {"Software": None})):
        content = BytesIO()
        figure.savefig(content, format=suffix[1:], metadata=metadata)
        contents[suffix] = content.getvalue()
    plt.close(figure)
    contents[".rst"] = captions.as_rst(caption)
    for suffix, data in contents.items():
        write_atomically(folder / f"{name}{suffix}", data)
    return [folder / f"{name}{suffix}" for suffix in contents]


@lru_cache(maxsize=4096)
def _text_width(text: str, size: float) -> float:
    """Return the width of ``text`` in points, in letters of ``size`` points, at any resolution of the figure."""
    width: float = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0]
    return width


def _legend_columns(names: Sequence[str], most: int, points: float) -> int:
    """Return the most columns, up to ``most``, in which a legend of ``names`` is no wider than ``points``."""
    size = mpl.rcParams["legend.fontsize"]
    widths = [_text_width(name, size) for name in names]
    for columns in range(min(most, len(names)), 1, -1):
        rows = max(1, -(-len(names) // columns))
        texts = sum(max(widths[first : first + rows]) for first in range(0, len(names), rows))
        # Matplotlib's own spaces, in heights of a letter: handle and its distance 2.8, between columns 2, around 0.8.
        if texts + size * (2.8 * columns + 2 * (columns - 1) + 0.8) <= points:
            return columns
    return 1


def _wrapped(text: str, points: float, size: float) -> list[str]:
    """Break ``text`` into as few lines of at most ``points`` as can be, nearly equal in width: no word stands alone."""
    lines = _filled(text, points, size)
    for share in np.arange(0.95, 0.5, -0.05):
        if len(narrower := _filled(text, share * points, size)) == len(lines):
            lines = narrower
    return lines


def _filled(text: str, points: float, size: float) -> list[str]:
    """Break ``text`` into lines that are at most ``points`` wide in letters of ``size`` points, not before a unit."""
    lines: list[str] = []
    space, used = _text_width("n n", size) - _text_width("nn", size), 0.0
    for word in re.split(r"\s+(?![%°])", text.strip()):
        width = _text_width(word, size)
        if lines and used + space + width <= points:
            lines[-1], used = f"{lines[-1]} {word}", used + space + width
        else:
            lines, used = [*lines, word], width
    return lines
