"""Figure 7: a diagram of how natural gradient, KFAC, sketched natural gradient and MKOR use the Fisher matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes

from workflow.bench.figures._diagram import INPUTS, OUTPUTS, PLAIN, WIDTH, arrow, band, canvas, matrix, remark, write
from workflow.bench.figures._page import save
from workflow.bench.results.tables import Results

_HEIGHT: Final = 268.0
_PANEL: Final = (190.0, 129.0)  # width and height
_SIDE: Final = 60.0  # of a Fisher matrix
_BLOCKS: Final = (0.25, 0.4, 0.35)  # shares of the layers in the side of a Fisher matrix

MESSAGE: Final = "The Fisher matrix and three approximations: MKOR alone updates inverses and inverts nothing"
CAPTION: Final = (
    "A diagram of the methods' equations, without data. F: the Fisher matrix of all p parameters. A layer has d "
    "inputs, d outputs, and n rows of inputs X and of gradients G. A, C: their second moments; U: the gradients of "
    "single examples as columns. J stands for each inverse factor, updated with its v by the exact rule of figure 1. "
    "Costs are those of one inversion or update of one layer, and for NGD of the whole model."
)
READING: Final = "D: gradient of a layer; λ: damping; a, g: means of X and of G; J: inverse factors; c, γ: numbers."


def make(results: Results, folder: Path) -> list[Path]:
    """Draw the four methods side by side; needs no results."""
    del results
    figure, axes = canvas(_HEIGHT)
    width, height = _PANEL
    for place, (draw, title, formula, cost) in enumerate(_METHODS):
        x, y = (place % 2) * (WIDTH - width), (1 - place // 2) * (_HEIGHT - height)
        band(axes, x + (place % 2 == 0), y, width - 1, height)
        left, top = x + 8, y + height
        write(axes, left, top - 11, title, weight="bold", ha="left")
        write(axes, left, top - 100, formula, ha="left")
        remark(axes, left, top - 118, cost, ha="left")
        draw(axes, left, top)
    return save(figure, folder, "fig07_approximations", [], CAPTION, MESSAGE, READING)


def _block(axes: Axes, left: float, top: float, name: str) -> float:
    """Draw a Fisher matrix with its layers' diagonal blocks, and an arrow from one of them; return the arrow's y."""
    low = top - 22 - _SIDE
    matrix(axes, left, low, _SIDE, _SIDE, "white")
    at = 0.0
    for share in _BLOCKS:
        size = share * _SIDE
        matrix(axes, left + at, low + _SIDE - at - size, size, size, PLAIN)
        at += size
    y = low + _SIDE - (_BLOCKS[0] + _BLOCKS[1] / 2) * _SIDE
    arrow(axes, (left + (_BLOCKS[0] + _BLOCKS[1]) * _SIDE, y), (left + 77, y))
    write(axes, left + 69, y + 7, name)
    write(axes, left + 84, y, "$\\approx$", size=9)
    return y


def _ngd(axes: Axes, left: float, top: float) -> None:
    matrix(axes, left, top - 22 - _SIDE, _SIDE, _SIDE, PLAIN, "$F$")
    write(axes, left + _SIDE + 8, top - 22 - _SIDE / 2, "$p \\times p$: every pair of\nparameters", ha="left", size=7)


def _kfac(axes: Axes, left: float, top: float) -> None:
    y = _block(axes, left, top, "$F_\\ell$")
    matrix(axes, left + 92, y - 16, 32, 32, INPUTS, "$A$")
    write(axes, left + 132, y, "$\\otimes$", size=9)
    matrix(axes, left + 140, y - 11, 22, 22, OUTPUTS, "$C$")
    remark(axes, left + 108, y - 24, "$X^\\mathrm{T} X / n$")
    remark(axes, left + 153, y - 24, "$G^\\mathrm{T} G / n$")


def _sngd(axes: Axes, left: float, top: float) -> None:
    y = _block(axes, left, top, "$F_\\ell$")
    matrix(axes, left + 92, y - 20, 11, 40, PLAIN, "$U$")
    matrix(axes, left + 106, y + 9, 40, 11, PLAIN, "$U^\\mathrm{T}$")
    remark(axes, left + 124, y - 4, "kernel $U^\\mathrm{T} U$")
    matrix(axes, left + 119, y - 20, 10, 10, PLAIN)
    remark(axes, left + 134, y - 15, "$n \\times n$", ha="left")


def _mkor(axes: Axes, left: float, top: float) -> None:
    y = _block(axes, left, top, "$F_\\ell^{-1}$")
    write(axes, left + 130, y, "$\\otimes$", size=9)
    for at, side, fill, factor, update in (
        (left + 92, 30, INPUTS, "$J_R$", "$v = a$"),
        (left + 139, 22, OUTPUTS, "$J_L$", "$v = g$"),
    ):
        matrix(axes, at, y - side / 2, side, side, fill, factor)
        matrix(axes, at, y - 34, 3, 15, fill)
        matrix(axes, at + 5, y - 22, side - 5, 3, fill)
        remark(axes, at + side / 2 + 3, y - 30, update)


_METHODS: Final = (
    (
        _ngd,
        "NGD: the whole Fisher matrix",
        "$\\Delta w = -\\eta\\, F^{-1}\\, \\nabla L$",
        "memory $O(p^2)$, inverse $O(p^3)$",
    ),
    (
        _kfac,
        "KFAC: a Kronecker product per layer",
        "$V = (C + \\lambda I)^{-1}\\, D\\, (A + \\lambda I)^{-1}$",
        "memory $O(d^2)$, inverses $O(d^3)$",
    ),
    (
        _sngd,
        "SNGD (HyLo): few rows, a small kernel",
        "$(\\lambda I + U U^\\mathrm{T})^{-1} = \\frac{1}{\\lambda}\\,"
        "(I - U\\, (\\lambda I + U^\\mathrm{T} U)^{-1}\\, U^\\mathrm{T})$",
        "memory $O(n\\,d + n^2)$, inverse of the kernel $O(n^3)$",
    ),
    (
        _mkor,
        "MKOR: rank-1 updates of the inverses",
        "$J \\leftarrow \\frac{1}{\\gamma}\\, J - c\\, (Jv)(Jv)^\\mathrm{T}$;  $V = J_L\\, D\\, J_R$",
        "memory $O(d^2)$, update $O(d^2)$, no damping",
    ),
)
"""Each panel's drawing, title, formula and cost."""
