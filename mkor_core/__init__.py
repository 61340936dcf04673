"""MKOR for PyTorch: the method, its variant MKOR-H, and the preconditioner that applies them in any training loop.

docs/training_loops.md shows how, docs/hyperparameters.md lists what can be set.
"""

from __future__ import annotations

from pathlib import Path

from mkor_core.experts import ExpertLinear
from mkor_core.maths.knee import KneePointScheduler
from mkor_core.method import Method
from mkor_core.mkor import MKOR
from mkor_core.mkor_h import MKORH
from mkor_core.preconditioner import Preconditioner
from mkor_core.ranks.codec import Codec
from mkor_core.ranks.schedule import Schedule

__all__ = [
    "MKOR",
    "MKORH",
    "Codec",
    "ExpertLinear",
    "KneePointScheduler",
    "Method",
    "Preconditioner",
    "Schedule",
    "__version__",
]

__version__ = Path(__file__).with_name("VERSION").read_text(encoding="utf-8").strip()
