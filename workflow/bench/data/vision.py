"""torchvision, imported once the operators that its wheel may lack are declared.

Import torchvision's parts from here instead of from torchvision: `mkor_core.torchvision_operators` has the reason.
"""

from __future__ import annotations

from mkor_core import torchvision_operators  # noqa: F401  (must run before torchvision is imported)

# isort: split
from torchvision import datasets, models, transforms

__all__ = ["datasets", "models", "transforms"]
