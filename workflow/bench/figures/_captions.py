"""Captions of figures: those of `analysis.captions`, with the names of the legend instead of labels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from workflow.bench.analysis import captions
from workflow.bench.figures import _style as style

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
    others = [f"{style.style_of(label).name}: {_RULES.get(rule, rule)}" for label, rule in rules.items()]
    differing = [other for other, rule in zip(others, names, strict=True) if rule != usual]
    return _RULES.get(usual, usual) + (f", but {', '.join(differing)}" if differing else "")


NAMES: Final = captions.Names(
    optimizer=lambda label: style.style_of(label).name,
    workload=style.workload_name,
    rules=_name_rules,
    shows_runs=True,
)
"""The names of a figure that shows few runs one by one."""

caption = partial(captions.caption, names=NAMES)
footer = partial(captions.footer, names=NAMES)
precisions = partial(captions.precisions, names=NAMES)
