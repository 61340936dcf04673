"""Draw a figure of the bench for a test, and read its texts and points."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import BboxBase

from tests.support.synthetic import run_rows
from workflow.bench.analysis.styles import style_of
from workflow.bench.figures import _page
from workflow.bench.results.tables import Results

_CAPTIONS: Final[WeakKeyDictionary[Figure, str]] = WeakKeyDictionary()


def figure_of(name: str, results: Results) -> Figure:
    """Return the figure that the module ``name`` would write, still open, with its legend and caption."""
    kept: list[Figure] = []

    def keep(figure: Figure, folder: Path, name: str, caption: str) -> list[Path]:
        kept.append(figure)
        remember(figure, caption)
        return [folder / name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_page, "write", keep)
        import_module(f"workflow.bench.figures.{name}").make(results, results.root / "figures")
    return kept[0]


def reaching_parts(**steps: float | None) -> list[tuple[list[Any], list[Any]]]:
    """Return three runs of bert_pretraining a label, which cross their target after so many steps (None: never)."""
    shared: dict[str, Any] = {"seeds": range(3), "target": 4.2, "base": "lamb", "period": 5}
    return [
        run_rows("bert_pretraining", "bert_pretraining", label, reaches=at, **shared) for label, at in steps.items()
    ]


def is_inside(box: BboxBase, outer: BboxBase, *, slack: float = 1.0) -> bool:
    """Return whether a box leaves another one by no more than ``slack`` pixels."""
    return (
        outer.x0 - slack <= box.x0
        and box.x1 <= outer.x1 + slack
        and outer.y0 - slack <= box.y0
        and box.y1 <= outer.y1 + slack
    )


def remember(figure: Figure, caption: str) -> None:
    """Keep the caption with which a figure was written, for `caption_of`."""
    _CAPTIONS[figure] = caption


def caption_of(figure: Figure) -> str:
    """Return the whole caption of a figure, which the site shows."""
    return _CAPTIONS[figure]


def below(figure: Figure) -> list[str]:
    """Return the lines of text below a figure's panels."""
    return figure.texts[-1].get_text().splitlines()


def title_of(figure: Figure) -> str:
    """Return the title above a figure, in one line."""
    return figure.texts[0].get_text().replace("\n", " ")


def legend_of(figure: Figure) -> list[str]:
    """Return the names in a figure's legend."""
    return [text.get_text() for text in figure.legends[0].get_texts()]


def texts_in(axes: Axes) -> list[str]:
    """Return the texts inside a panel, each in one line."""
    return [text.get_text().replace("\n", " ") for text in axes.texts]


def lines_of(axes: Axes, label: str, marker: str | None = None) -> list[Line2D]:
    """Return the lines in a method's color, or those of them with this marker."""
    color = to_rgb(style_of(label).color)
    of_method = [line for line in axes.lines if to_rgb(line.get_color()) == color]
    return [line for line in of_method if marker is None or line.get_marker() == marker]


def xs(line: Line2D) -> list[float]:
    """Return the horizontal coordinates of a line's points."""
    return [float(x) for x in np.asarray(line.get_xdata(), float)]


def ys(line: Line2D) -> list[float]:
    """Return the vertical coordinates of a line's points."""
    return [float(y) for y in np.asarray(line.get_ydata(), float)]
