"""Figure 1: a diagram of the four stages of a step of MKOR, with their equations and costs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes

from workflow.bench.figures._diagram import INPUTS, OUTPUTS, PLAIN, WIDTH, arrow, band, canvas, matrix, remark, write
from workflow.bench.figures._page import SOFT, save
from workflow.bench.results.tables import Results

_LEFT: Final = 20.0  # edge of the stages' frames; the brackets stand left of it
_TITLES: Final = 28.0
_PICTURES: Final = 124.0
_EQUATIONS: Final = 234.0
_COSTS: Final = 384.0
_GAP: Final = 10.0
_HEIGHTS: Final = (58.0, 50.0, 76.0, 58.0, 28.0)

MESSAGE: Final = "A step of MKOR averages two vectors a layer and inverts no matrix"
CAPTION: Final = (
    "A diagram of the method's equations, without data. X: the inputs of a layer, n rows; G: the gradients at its "
    "outputs. The inverse factors start as I; the paper's inverse update period is 10. Costs are those of a layer with "
    "d inputs and d outputs. Stage 3 shows the exact rule, Sherman-Morrison; the paper prints another rule, the "
    "released code runs a third, and figure 13 compares them."
)
READING: Final = (
    "J: inverse factors; D: gradient of the weights; f: inverse update period; γ: decay; ε, ζ: the stabilizer's limit "
    "and blend."
)


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the stages from the statistics of a batch to the step of the base optimizer; needs no results."""
    del results
    height = sum(_HEIGHTS) + _GAP * (len(_HEIGHTS) - 1)
    figure, axes = canvas(height)
    tops = [height - sum(_HEIGHTS[:stage]) - _GAP * stage for stage in range(len(_HEIGHTS))]
    for stage, (top, size) in enumerate(zip(tops, _HEIGHTS, strict=True)):
        band(axes, _LEFT, top - size, WIDTH - _LEFT - 1, size, "#F6F6F6" if stage < 4 else "white")
        if stage:
            arrow(axes, (_TITLES + 8, top + _GAP), (_TITLES + 8, top))
    for stage, (draw, title, detail, cost, kind) in enumerate(_STAGES):
        top = tops[stage]
        write(axes, _TITLES, top - 11, f"{stage + 1}  {title}", weight="bold", ha="left")
        remark(axes, _TITLES, top - 20, detail, ha="left", va="top", linespacing=1.25)
        write(axes, _COSTS, top - 11, cost, size=8, ha="right")
        remark(axes, _COSTS, top - 20, kind, size=6, ha="right", va="top")
        draw(axes, top - _HEIGHTS[stage] / 2)
    last = tops[4] - _HEIGHTS[4] / 2
    write(axes, _TITLES, last, "Base optimizer", weight="bold", ha="left")
    write(axes, _PICTURES, last, "SGD with momentum, LAMB, ...: its step, with $V$ in place of $D$", ha="left")
    for top, bottom, text in (
        (tops[0], tops[2] - _HEIGHTS[2], "every f-th step"),
        (tops[3], tops[4] - _HEIGHTS[4], "every step"),
    ):
        axes.plot([15, 11, 11, 15], [top - 1, top - 1, bottom + 1, bottom + 1], color=SOFT, linewidth=0.8)
        remark(axes, 5, (top + bottom) / 2, text, size=7, rotation=90)
    return save(figure, folder, "fig01_mkor_diagram", [], CAPTION, MESSAGE, READING)


def _statistics(axes: Axes, middle: float) -> None:
    for x, width, rows, mean, fill in (
        (_PICTURES + 2, 38, "$X$", "$a$", INPUTS),
        (_PICTURES + 56, 28, "$G$", "$g$", OUTPUTS),
    ):
        matrix(axes, x, middle - 4, width, 24, fill, rows, rows=5)
        arrow(axes, (x + width / 2, middle - 5), (x + width / 2, middle - 14))
        matrix(axes, x, middle - 20, width, 5, fill)
        write(axes, x + width + 6, middle - 17.5, mean)
        remark(axes, x - 5, middle + 8, "$n$")
    write(axes, _EQUATIONS, middle + 9, "$a = \\mathrm{mean}(X)$,  $d_{in}$ numbers", ha="left")
    write(axes, _EQUATIONS, middle - 9, "$g = \\mathrm{mean}(G)$,  $d_{out}$ numbers", ha="left")


def _all_reduce(axes: Axes, middle: float) -> None:
    for rank, y in enumerate((middle + 13, middle - 1, middle - 15)):
        matrix(axes, _PICTURES + 2, y, 24, 4, INPUTS)
        matrix(axes, _PICTURES + 28, y, 17, 4, OUTPUTS)
        arrow(axes, (_PICTURES + 47, y + 2), (_PICTURES + 61, middle + (1 - rank) * 1.5 + 1))
    matrix(axes, _PICTURES + 63, middle - 1, 20, 4, INPUTS)
    matrix(axes, _PICTURES + 84, middle - 1, 14, 4, OUTPUTS)
    write(axes, _EQUATIONS, middle + 9, "$(a, g) \\leftarrow$ mean over the ranks", ha="left")
    write(axes, _EQUATIONS, middle - 9, "$d_{in} + d_{out}$ numbers per layer: $2d$", ha="left")


def _update(axes: Axes, middle: float) -> None:
    side = 30
    left, low = _PICTURES + 2, middle - side / 2
    matrix(axes, left, low, side, side, INPUTS, "$J$")
    write(axes, left + side + 8, middle, "$-$", size=10)
    matrix(axes, left + side + 16, low, 5, side, INPUTS)
    matrix(axes, left + side + 24, middle + side / 2 - 5, side, 5, INPUTS)
    write(axes, left + side + 40, middle - 3, "$(Jv)(Jv)^\\mathrm{T}$", size=6.5)
    stabilizer = "$\\max_i J_{ii} > \\epsilon$:  $J \\leftarrow \\zeta J + (1-\\zeta) I$"
    write(axes, _EQUATIONS, middle + 21, stabilizer, ha="left")
    update = (
        "$J \\leftarrow \\dfrac{J}{\\gamma} - \\dfrac{1-\\gamma}{\\gamma^2}\\,"
        "\\dfrac{(Jv)(Jv)^\\mathrm{T}}{1 + \\frac{1-\\gamma}{\\gamma}\\,v^\\mathrm{T} J v}$"
    )
    write(axes, _EQUATIONS, middle - 10, update, ha="left", size=8)


def _precondition(axes: Axes, middle: float) -> None:
    low = _PICTURES + 2
    matrix(axes, low, middle - 12, 24, 24, OUTPUTS, "$J_L$")
    matrix(axes, low + 27, middle - 12, 34, 24, PLAIN, "$D$")
    matrix(axes, low + 64, middle - 17, 34, 34, INPUTS, "$J_R$")
    write(axes, _EQUATIONS, middle + 12, "$V = J_L\\, D\\, J_R$", size=8, ha="left")
    write(axes, _EQUATIONS, middle - 12, "$V \\leftarrow V\\, \\dfrac{\\|D\\|_F}{\\|V\\|_F}$", size=8, ha="left")


_STATED: Final = "stabilizer, then the\nrank-1 inverse; for\n$J_R$ with $v = a$,\n$J_L$ with $v = g$"
_STAGES: Final = (
    (_statistics, "Rank-1 statistics", "in the forward and\nthe backward pass", "$O(n\\,d)$", "operations"),
    (_all_reduce, "One all-reduce", "of all layers' vectors", "$O(d)$", "sent"),
    (_update, "Factor update", _STATED, "$O(d^2)$", "operations"),
    (_precondition, "Precondition", "and give the result\nthe gradient's norm", "$O(d^3)$", "operations"),
)
"""Each stage's drawing, title, detail and cost, and what the cost counts."""
