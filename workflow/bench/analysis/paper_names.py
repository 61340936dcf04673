"""The names that the paper gives to the optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_PAPER_NAMES: Final[Mapping[str, str]] = {
    "sgd": "SGD",
    "lamb": "LAMB",
    "kaisa": "KAISA",
    "kaisa_no_clip": "KAISA",
    "eva": "Eva",
    "hylo": "HyLo",
    "mkor": "MKOR",
    "mkor_bfloat16": "MKOR",
    "mkor_released": "MKOR",
    "mkor_h": "MKOR-H",
}
"""The paper has one MKOR, which is compared with each of our update rules, and one KAISA."""


def paper_name(label: str) -> str | None:
    """Return the paper's name of the optimizer with this label, or None if the paper has no such optimizer.

    A number of steps at the end of a label does not count: ``mkor_released_600`` is ``MKOR``.
    """
    name, _, steps = label.rpartition("_")
    return _PAPER_NAMES.get(name if steps.isdigit() else label)
