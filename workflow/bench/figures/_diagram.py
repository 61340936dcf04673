"""Parts of diagrams: a canvas measured in points, matrices as rectangles, arrows, and text."""

from __future__ import annotations

from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from workflow.bench.figures import _page as page

INPUTS: Final = "#BFDDF2"
"""Fill for a layer's inputs: X, a, the right factor."""
OUTPUTS: Final = "#F7D9A8"
"""Fill for the gradients at a layer's outputs: G, g, the left factor."""
PLAIN: Final = "#DDDDDD"
"""Fill for matrices of both sides, such as a gradient."""
WIDTH: Final = 390.0
"""Points from the left to the right edge of a canvas."""


def canvas(height: float) -> tuple[Figure, Axes]:
    """Return an empty figure, ``height`` points high, and its axes, whose units are points from the lower left."""
    figure, ((panel,),) = page.new_figure(1, 1, height=(height + 6) / 72)
    panel.set_axis_off()
    panel.set(xticks=[], yticks=[], xlim=(0, WIDTH), ylim=(-1, height + 1), aspect="equal")
    return figure, panel


def band(axes: Axes, x: float, y: float, width: float, height: float, fill: str = "#F6F6F6") -> None:
    """Draw a frame with round corners, its lower left corner at (x, y)."""
    look: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=4", "linewidth": 0.6, "edgecolor": "#AAAAAA"}
    axes.add_patch(FancyBboxPatch((x, y), width, height, facecolor=fill, zorder=0, **look))


def matrix(
    axes: Axes, x: float, y: float, width: float, height: float, fill: str, name: str = "", *, rows: int = 0
) -> None:
    """Draw a matrix or vector as a rectangle with its name inside, its lower left corner at (x, y).

    ``rows`` is the number of rows to tell apart by thin lines.
    """
    axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=page.INK, linewidth=0.7, zorder=2))
    for row in range(1, rows):
        at = y + height * row / rows
        axes.plot([x, x + width], [at, at], color="white", linewidth=0.8, zorder=3)
    if name:
        write(axes, x + width / 2, y + height / 2, name, zorder=4)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw an arrow between two points."""
    look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 6, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch(start, end, color=page.INK, zorder=3, **look))


def write(axes: Axes, x: float, y: float, text: str, *, size: float = 7.5, **look: Any) -> None:
    """Write text at (x, y), centered unless ``look`` aligns it otherwise."""
    axes.text(x, y, text, fontsize=size, **{"ha": "center", "va": "center", "color": page.INK, **look})


def remark(axes: Axes, x: float, y: float, text: str, *, size: float = 6.5, **look: Any) -> None:
    """Write small gray text at (x, y)."""
    write(axes, x, y, text, size=size, color=page.SOFT, **look)
