"""Colors as people with and without color blindness see them, and how far apart two of them are."""

from __future__ import annotations

from typing import Final

import numpy as np
from matplotlib.colors import to_rgb

VISIONS: Final = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
"""Matrices on linear RGB (Machado, Oliveira and Fernandes 2009, severity 1)."""
_LMS: Final = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_OKLAB: Final = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def seen(color: str, vision: str) -> np.ndarray:
    """Return a color in Oklab (Ottosson 2020), times 100, as it is seen with a key of `VISIONS`."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return 100 * _OKLAB @ np.cbrt(_LMS @ np.clip(VISIONS[vision] @ linear, 0, 1))


def distance(one: str, other: str, vision: str) -> float:
    """Return the distance of two colors in Oklab, times 100; neighboring patches differ visibly from about 2 on."""
    return float(np.linalg.norm(seen(one, vision) - seen(other, vision)))
