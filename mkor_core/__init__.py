"""MKOR for torch: the method, its fallback variant, and the preconditioner that any training loop can attach."""

from __future__ import annotations

from mkor_core.knee import KneePointScheduler
from mkor_core.method import Method
from mkor_core.mkor import MKOR
from mkor_core.mkor_h import MKORH
from mkor_core.preconditioner import Preconditioner

__all__ = ["MKOR", "MKORH", "KneePointScheduler", "Method", "Preconditioner"]
