"""The look of every figure: the theme, and the color, marker and line style of each method.

Methods that a panel shows together have colors that differ with normal vision, deuteranopia and protanopia (a test
states the distances), and markers and line styles that differ where their colors are alike in gray. A plain dashed line
always means a model, a hollow marker a published value.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.figure import Figure

WIDTH: Final = 5.5
"""Inches: the text width of a one-column paper."""
INK: Final = "#222222"
SOFT: Final = "#666666"
GUIDE: Final = "#444444"
"""Color of everything that belongs to no method: targets, published values, lines of no difference."""
MODEL_LINE: Final = "--"

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


@dataclass(frozen=True)
class MethodStyle:
    """The look of one method, and its name in legends."""

    name: str
    color: str
    marker: str
    line: Any


STYLES: Final[dict[str, MethodStyle]] = {
    "sgd": MethodStyle("SGD", "#828282", "v", _DASHES["dotted"]),
    "adamw": MethodStyle("AdamW", "#ECA508", "P", _DASHES["dash-dot-dot"]),
    "lamb": MethodStyle("LAMB", "#000000", "X", _DASHES["dash-dot"]),
    "lamb_600": MethodStyle("LAMB (600 steps)", "#B0A958", "X", _DASHES["solid"]),
    "lamb_1000": MethodStyle("LAMB (1,000 steps)", "#00338C", "X", _DASHES["solid"]),
    "kaisa": MethodStyle("KFAC (KAISA)", "#006C5D", "s", _DASHES["long dash"]),
    "kaisa_no_clip": MethodStyle("KFAC (no clipping)", "#67C1A3", "X", _DASHES["dotted"]),
    "kaisa_inverse": MethodStyle("KFAC (inverse)", "#7EBC49", "s", _DASHES["even dash"]),
    "kaisa_mem_opt": MethodStyle("KFAC (MEM-OPT)", "#12384A", "8", _DASHES["even dash"]),
    "kaisa_mem_opt_sharded": MethodStyle("KFAC (MEM-OPT, sharded)", "#4E4208", "s", _DASHES["long and short"]),
    "kaisa_600": MethodStyle("KFAC (600 steps)", "#539B80", "s", _DASHES["solid"]),
    "kaisa_1000": MethodStyle("KFAC (1,000 steps)", "#2A4602", "s", _DASHES["long dash"]),
    "kaisa_adamw": MethodStyle("KFAC over AdamW", "#3D2101", "s", _DASHES["short dash"]),
    "eva": MethodStyle("Eva", "#DC80BE", "p", _DASHES["dash-dot"]),
    "hylo": MethodStyle("HyLo", "#8A5408", "h", _DASHES["dash-dot-dot"]),
    "adafisher": MethodStyle("AdaFisher", "#9FBA8C", "v", _DASHES["long dash-dot"]),
    "kld_wrm": MethodStyle("KLD-WRM", "#4C0082", "H", _DASHES["dash-dot-dot"]),
    "dp_kfac": MethodStyle("DP-KFAC", "#4A8D38", "d", _DASHES["dotted"]),
    "cgfac": MethodStyle("CG-FAC", "#90967F", "D", _DASHES["sparse dots"]),
    "thermo_kfac": MethodStyle("Thermodynamic K-FAC", "#A91A0F", "^", _DASHES["dotted"]),
    "nadamw": MethodStyle("NadamW", "#A3560A", "D", _DASHES["long dash"]),
    "schedule_free_adamw": MethodStyle("Schedule-free AdamW", "#704978", "s", _DASHES["short dash"]),
    "adafisher_convex": MethodStyle("AdaFisher (convex)", "#938F0D", "^", _DASHES["sparse dots"]),
    "kld_wrm_q": MethodStyle("KLD-WRM (Q)", "#7855AB", "X", _DASHES["even dash"]),
    "cgfac_block": MethodStyle("CG-FAC (block)", "#92BF66", "P", _DASHES["short dash"]),
    "rs_kfac": MethodStyle("RS-KFAC", "#157AB0", "v", _DASHES["dash-dot"]),
    "b_kfac": MethodStyle("B-KFAC", "#09498E", "o", _DASHES["solid"]),
    "shampoo": MethodStyle("Shampoo", "#88335D", "<", _DASHES["sparse dots"]),
    "soap": MethodStyle("SOAP", "#9F8E16", ">", _DASHES["long and short"]),
    "soap_period_1": MethodStyle("SOAP (period 1)", "#626D26", "P", _DASHES["short dash"]),
    "kl_shampoo": MethodStyle("KL-Shampoo", "#C0608E", "o", _DASHES["solid"]),
    "distributed_shampoo": MethodStyle("Distributed Shampoo", "#5B0D2B", "s", _DASHES["long dash"]),
    "sketchy": MethodStyle("Sketchy", "#E19479", "D", _DASHES["dash-dot"]),
    "psgd_kron": MethodStyle("PSGD-Kron", "#0C2E64", "^", _DASHES["dotted"]),
    "muon": MethodStyle("Muon", "#631707", "*", _DASHES["even dash"]),
    "muon_exact": MethodStyle("Muon (exact polar)", "#B76217", "X", _DASHES["dotted"]),
    "normuon": MethodStyle("NorMuon", "#D4A474", "h", _DASHES["long dash-dot"]),
    "newton_muon": MethodStyle("Newton-Muon", "#2E87A8", "s", _DASHES["long dash"]),
    "mkor_muon": MethodStyle("MKOR-Muon", "#3F66F1", "o", _DASHES["solid"]),
    "mkor_muon_exact": MethodStyle("MKOR-Muon (exact polar)", "#3F2EC3", "v", _DASHES["short dash"]),
    "singd": MethodStyle("SINGD", "#45A675", "8", _DASHES["long dash-dot"]),
    "mkor": MethodStyle("MKOR (exact rule)", "#0072B2", "o", _DASHES["solid"]),
    "mkor_bfloat16": MethodStyle("MKOR (bfloat16)", "#313FD0", "P", _DASHES["dotted"]),
    "mkor_windowed": MethodStyle("MKOR (windowed)", "#63298A", "*", _DASHES["even dash"]),
    "mkor_normalized": MethodStyle("MKOR (both sides acting)", "#A30DF0", "p", _DASHES["long dash-dot"]),
    "mkor_one_side": MethodStyle("MKOR (one side)", "#768404", "<", _DASHES["long and short"]),
    "mkor_one_vector": MethodStyle("MKOR (one vector)", "#F99C15", ">", _DASHES["dash-dot"]),
    "mkor_scaled": MethodStyle("MKOR (g × 65,536)", "#14306F", "D", _DASHES["dotted"]),
    "mkor_adamw": MethodStyle("MKOR over AdamW", "#EA6D2A", "o", _DASHES["long dash"]),
    "mkor_owners": MethodStyle("MKOR by owners", "#00B0C8", "H", _DASHES["sparse dots"]),
    "mkor_owners_ddp": MethodStyle("MKOR by owners (DDP)", "#4A917F", "h", _DASHES["dash-dot-dot"]),
    "mkor_owners_sharded": MethodStyle("MKOR by owners (sharded)", "#7A6E0E", "H", _DASHES["dash-dot"]),
    "mkor_windowed_sharded": MethodStyle("MKOR (windowed, sharded)", "#5536EC", "*", _DASHES["short dash"]),
    "eva_sharded": MethodStyle("Eva (sharded)", "#F59877", "d", _DASHES["solid"]),
    "mkor_released": MethodStyle("MKOR (released rule)", "#3EBBFF", "D", _DASHES["short dash"]),
    "mkor_released_600": MethodStyle("MKOR (released, 600 steps)", "#9C79E9", "D", _DASHES["short dash"]),
    "mkor_released_1000": MethodStyle("MKOR (released, 1,000 steps)", "#434053", "D", _DASHES["short dash"]),
    "mkor_published": MethodStyle("MKOR (published rule)", "#D56018", "^", _DASHES["dash-dot"]),
    "mkor_h": MethodStyle("MKOR-H", "#30045F", "d", _DASHES["long dash"]),
    "copy": MethodStyle("memory floor (copy)", "#9A9A9A", ".", _DASHES["sparse dots"]),
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
    "bert_krona": "BERT, adapters",
    "language_model": "Language model",
    "kronecker_rnn": "Kronecker RNN",
    "resnet": "ResNet",
    "resnet20": "ResNet-20",
    "resnet50": "ResNet-50",
    "bert_large": "BERT-Large",
    "gpt_7b": "GPT 7B",
}
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


def new_figure(rows: int, columns: int, *, height: float, **options: Any) -> tuple[Figure, np.ndarray]:
    """Return a figure of ``rows x columns`` panels, one text column wide and ``height`` inches high, and its axes."""
    # Matplotlib ships this font. Other fonts are not on every machine, so figures would differ.
    sns.set_theme(context="paper", style="ticks", font="DejaVu Sans", font_scale=_FONT_SCALE, rc=_THEME)
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, height), layout="constrained", squeeze=False, **options)
    return figure, axes


def seaborn_looks(looks: Mapping[str, MethodStyle]) -> dict[str, Any]:
    """Return the arguments with which seaborn's ``lineplot`` draws each name in its look, by hue and style."""
    return {
        "hue_order": list(looks),
        "style_order": list(looks),
        "palette": {name: look.color for name, look in looks.items()},
        "markers": {name: look.marker for name, look in looks.items()},
        "dashes": {name: "" if look.line == "-" else look.line[1] for name, look in looks.items()},
    }


def style_of(label: str) -> MethodStyle:
    """Return the look of an optimizer label; that of an unlisted label depends on nothing but its name."""
    if label in STYLES:
        return STYLES[label]
    code = zlib.crc32(label.encode())
    return MethodStyle(
        label.replace("_", " "),
        _SPARE_COLORS[code % len(_SPARE_COLORS)],
        _SPARE_MARKERS[code // 7 % len(_SPARE_MARKERS)],
        list(_DASHES.values())[code // 53 % len(_DASHES)],
    )


def paper_name(optimizer: str) -> str:
    """Return the name of a method of the paper's tables: the paper's own, but KFAC's as in the legend."""
    return STYLES["kaisa"].name if optimizer.lower() == "kaisa" else optimizer


def in_order(labels: Iterable[str]) -> list[str]:
    """Return labels without repeats in the order of all legends: listed ones first, then the others by name."""
    unique = {str(label) for label in labels}
    return [label for label in STYLES if label in unique] + sorted(unique - set(STYLES))


def workload_name(workload: str) -> str:
    """Return a workload's name for titles."""
    return WORKLOADS.get(workload, workload.replace("_", " "))


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit in which ``seconds`` is easy to read: its length in seconds, and its symbol."""
    for length, symbol in ((2 * 86400, "d"), (2 * 3600, "h"), (2 * 60, "min")):
        if seconds >= length:
            return length / 2, symbol
    return (1.0, "s") if seconds >= 0.5 else (1e-3, "ms")
