"""The names of methods, workloads and data in figures and on the site; each method's color, marker and line style.

Methods that a panel shows together have colors that differ with normal vision, deuteranopia and protanopia (a test
states the distances), and markers and line styles that differ where their colors are alike in gray. A plain dashed line
always means a model, a hollow marker a published value.
"""

from __future__ import annotations

import textwrap
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pandas as pd

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

    @property
    def short(self) -> str:
        """The name without what stands in parentheses, such as ``MKOR``."""
        return self.name.partition(" (")[0]


STYLES: Final[dict[str, MethodStyle]] = {
    "sgd": MethodStyle("SGD", "#939393", "v", _DASHES["dotted"]),
    "adamw": MethodStyle("AdamW", "#EBA503", "P", _DASHES["dash-dot-dot"]),
    "lamb": MethodStyle("LAMB", "#000000", "X", _DASHES["dash-dot"]),
    "lamb_600": MethodStyle("LAMB (600 steps)", "#90943C", "X", _DASHES["solid"]),
    "lamb_1000": MethodStyle("LAMB (1,000 steps)", "#1120C4", "X", _DASHES["solid"]),
    "kaisa": MethodStyle("KFAC (KAISA)", "#114A50", "s", _DASHES["long dash"]),
    "kaisa_no_clip": MethodStyle("KFAC (no clipping)", "#67C69F", "X", _DASHES["dotted"]),
    "kaisa_again": MethodStyle("KFAC (tuned again)", "#D989F8", "H", _DASHES["dash-dot"]),
    "kaisa_inverse": MethodStyle("KFAC (inverse)", "#81BA3C", "s", _DASHES["even dash"]),
    "kaisa_mem_opt": MethodStyle("KFAC (MEM-OPT)", "#14224E", "8", _DASHES["even dash"]),
    "kaisa_mem_opt_sharded": MethodStyle("KFAC (MEM-OPT, sharded)", "#3A2600", "s", _DASHES["long and short"]),
    "kaisa_equal_memory": MethodStyle("KFAC (equal memory in steps)", "#A3B5D9", "D", _DASHES["dotted"]),
    "kaisa_600": MethodStyle("KFAC (600 steps)", "#30C87F", "s", _DASHES["solid"]),
    "kaisa_1000": MethodStyle("KFAC (1,000 steps)", "#5B6F05", "s", _DASHES["long dash"]),
    "kaisa_adamw": MethodStyle("KFAC over AdamW", "#645F62", "s", _DASHES["short dash"]),
    "eva": MethodStyle("Eva", "#F486D2", "p", _DASHES["dash-dot"]),
    "hylo": MethodStyle("HyLo", "#753604", "h", _DASHES["dash-dot-dot"]),
    "mac": MethodStyle("MAC", "#7D7BFF", "^", _DASHES["long and short"]),
    "smac": MethodStyle("SMAC", "#362CFB", "P", _DASHES["dotted"]),
    "foof": MethodStyle("FOOF", "#2F1787", "8", _DASHES["sparse dots"]),
    "adafisher": MethodStyle("AdaFisher", "#7CC5A3", "v", _DASHES["long dash-dot"]),
    "kld_wrm": MethodStyle("KLD-WRM", "#8629BC", "H", _DASHES["dash-dot-dot"]),
    "dp_kfac": MethodStyle("DP-KFAC", "#2E9044", "d", _DASHES["dotted"]),
    "cgfac": MethodStyle("CG-FAC", "#989789", "D", _DASHES["sparse dots"]),
    "thermo_kfac": MethodStyle("Thermodynamic K-FAC", "#A81A07", "^", _DASHES["dotted"]),
    "nadamw": MethodStyle("NadamW", "#D57DF0", "D", _DASHES["dash-dot"]),
    "schedule_free_adamw": MethodStyle("Schedule-free AdamW", "#734879", "s", _DASHES["short dash"]),
    "adafisher_convex": MethodStyle("AdaFisher (convex)", "#928F0E", "^", _DASHES["sparse dots"]),
    "kld_wrm_q": MethodStyle("KLD-WRM (Q)", "#71609A", "X", _DASHES["even dash"]),
    "cgfac_block": MethodStyle("CG-FAC (block)", "#94BF61", "P", _DASHES["short dash"]),
    "rs_kfac": MethodStyle("RS-KFAC", "#1F79AF", "v", _DASHES["dash-dot"]),
    "b_kfac": MethodStyle("B-KFAC", "#05499D", "o", _DASHES["solid"]),
    "shampoo": MethodStyle("Shampoo", "#86335C", "<", _DASHES["sparse dots"]),
    "soap": MethodStyle("SOAP", "#498062", ">", _DASHES["long and short"]),
    "soap_period_1": MethodStyle("SOAP (period 1)", "#725607", "P", _DASHES["short dash"]),
    "kl_shampoo": MethodStyle("KL-Shampoo", "#C2669D", "o", _DASHES["solid"]),
    "distributed_shampoo": MethodStyle("Distributed Shampoo", "#5C092B", "s", _DASHES["long dash"]),
    "sketchy": MethodStyle("Sketchy", "#E39478", "D", _DASHES["dash-dot"]),
    "psgd_kron": MethodStyle("PSGD-Kron", "#0C2C66", "^", _DASHES["dotted"]),
    "muon": MethodStyle("Muon", "#621A0A", "*", _DASHES["even dash"]),
    "muon_exact": MethodStyle("Muon (exact polar)", "#B8610D", "X", _DASHES["dotted"]),
    "normuon": MethodStyle("NorMuon", "#D2A372", "h", _DASHES["long dash-dot"]),
    "soap_muon": MethodStyle("SOAP-Muon", "#B09DF2", "o", _DASHES["solid"]),
    "newton_muon": MethodStyle("Newton-Muon", "#2089AB", "s", _DASHES["long dash"]),
    "mkor_muon": MethodStyle("MKOR-Muon", "#3C66F2", "o", _DASHES["solid"]),
    "mkor_muon_exact": MethodStyle("MKOR-Muon (exact polar)", "#412DC2", "v", _DASHES["short dash"]),
    "singd": MethodStyle("SINGD", "#30A675", "8", _DASHES["long dash-dot"]),
    "mkor": MethodStyle("MKOR (exact rule)", "#0072B2", "o", _DASHES["solid"]),
    "mkor_bfloat16": MethodStyle("MKOR (bfloat16)", "#2F3FCF", "P", _DASHES["dotted"]),
    "mkor_windowed": MethodStyle("MKOR (windowed)", "#632A89", "*", _DASHES["even dash"]),
    "mkor_equal_memory": MethodStyle("MKOR (equal memory in steps)", "#E0A800", "v", _DASHES["even dash"]),
    "mkor_normalized": MethodStyle("MKOR (both sides acting)", "#C0400A", "p", _DASHES["long dash-dot"]),
    "mkor_one_side": MethodStyle("MKOR (one side)", "#39755A", "<", _DASHES["long and short"]),
    "mkor_one_vector": MethodStyle("MKOR (one vector)", "#8A0A0A", ">", _DASHES["dash-dot"]),
    "mkor_scaled": MethodStyle("MKOR (g × 65,536)", "#143170", "D", _DASHES["dotted"]),
    "mkor_adamw": MethodStyle("MKOR over AdamW", "#EB6F42", "o", _DASHES["long dash"]),
    "mkor_owners": MethodStyle("MKOR by owners", "#00B0C8", "H", _DASHES["sparse dots"]),
    "mkor_owners_ddp": MethodStyle("MKOR by owners (DDP)", "#5B9085", "h", _DASHES["dash-dot-dot"]),
    "mkor_owners_sharded": MethodStyle("MKOR by owners (sharded)", "#7A6E12", "H", _DASHES["dash-dot"]),
    "mkor_windowed_sharded": MethodStyle("MKOR (windowed, sharded)", "#5933EF", "*", _DASHES["short dash"]),
    "eva_sharded": MethodStyle("Eva (sharded)", "#F59972", "d", _DASHES["solid"]),
    "mkor_released": MethodStyle("MKOR (released rule)", "#2ABEFF", "D", _DASHES["short dash"]),
    "mkor_released_600": MethodStyle("MKOR (released, 600 steps)", "#5D3D8B", "D", _DASHES["short dash"]),
    "mkor_released_1000": MethodStyle("MKOR (released, 1,000 steps)", "#805F6F", "D", _DASHES["short dash"]),
    "mkor_published": MethodStyle("MKOR (published rule)", "#A40AF1", "^", _DASHES["dash-dot"]),
    "mkor_h": MethodStyle("MKOR-H", "#2F015F", "d", _DASHES["long dash"]),
    "copy": MethodStyle("copy of a d × d matrix", "#9A9A9A", ".", _DASHES["sparse dots"]),
}
_RUNGS: Final = {
    "one_vector": "mkor_one_vector",
    "one_side": "mkor_one_side",
    "both_sides": "mkor_normalized",
    "kfac": "kaisa",
}
"""Labels of the ladder, and those by which other experiments know the same methods."""
_OVER_ADAMW: Final = "_adamw"
"""How labels of the ladder end that have a namesake over SGD; no panel shows both."""
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
_DATA: Final[dict[str, str]] = {
    "scikit-learn's digits": "Digits",
    "glyphs of matplotlib's fonts": "Font glyphs",
    "docstrings of scikit-learn and SciPy": "Docstrings",
}
"""Short names of data, by what stands before a size in a run's name of it."""


def style_of(label: str) -> MethodStyle:
    """Return the look of an optimizer label; that of an unknown label depends on nothing but its name."""
    if label in STYLES:
        return STYLES[label]
    rung = label.removesuffix(_OVER_ADAMW)
    if (known := _RUNGS.get(rung, rung)) in STYLES:
        look = STYLES[known]
        return look if rung == label else replace(look, name=f"{look.name} over AdamW")
    code = zlib.crc32(label.encode())  # Python's own hash of a text differs from process to process
    color, marker = _SPARE_COLORS[code % len(_SPARE_COLORS)], _SPARE_MARKERS[code // 7 % len(_SPARE_MARKERS)]
    return MethodStyle(label.replace("_", " "), color, marker, list(_DASHES.values())[code // 53 % len(_DASHES)])


def in_order(labels: Iterable[str]) -> list[str]:
    """Return labels without repeats in the order of all legends: listed ones first, then the others by name."""
    unique = {str(label) for label in labels}
    return [label for label in STYLES if label in unique] + sorted(unique - set(STYLES))


def workload_name(workload: str) -> str:
    """Return a workload's name for titles."""
    return WORKLOADS.get(workload, workload.replace("_", " "))


def data_title(runs: pd.DataFrame, *, width: int = 99) -> str:
    """Return a panel's title: the data of the runs before the model, as in ``Digits (ResNet-20)``.

    A name of an experiment or of the paper's model would say of small data that it is ImageNet. A text longer than
    ``width`` letters takes several lines.
    """
    data, model = runs["dataset"].dropna(), workload_name(str(runs["workload"].iloc[0]))
    if data.empty:
        return model
    whole = str(data.iloc[0]).partition(", ")[0]
    known = _DATA.get(whole, whole[:1].upper() + whole[1:])
    whole = f"{known} ({model})"
    return whole if len(whole) <= width else "\n".join([*textwrap.wrap(known, width), f"({model})"])


def data_titles(places: Sequence[tuple[str, pd.DataFrame]], *, width: int = 99) -> list[str]:
    """Return the titles (`data_title`) of panels, given as experiment and runs; equal ones name the experiment, too."""
    titles = [data_title(runs, width=width) for _, runs in places]
    return [
        f"{title}\n{experiment}" if titles.count(title) > 1 else title
        for title, (experiment, _) in zip(titles, places, strict=True)
    ]
