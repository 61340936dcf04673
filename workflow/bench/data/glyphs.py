"""100 characters in the 16 text fonts that matplotlib carries, as gray images of 32 x 32 pixels.

A quarter of the images of each character, in fonts drawn at random, is for validation: its other fonts are trained on.
Importing this module imports neither torch nor Pillow.
"""

from __future__ import annotations

import io
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from workflow.bench.data.arrays import LabelledImages
from workflow.bench.data.folder import damaged

CHARACTERS: Final = (
    "0123456789ABCDEFGHJKLMNPQRSTUVWXYZabdefghijmnqrtyαβγδεζηθλμξπστφχψωΓΔΘΛΞΠΣΦΨΩБДЖ§ИЛЦЧШЭЮЯЫ#$%&@?+*{<"
)
"""One of each shape: letters that differ by size alone, such as o, O and 0, are one class when images are scaled."""
FONTS: Final = tuple(
    [f"DejaVuSans{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")]
    + [f"DejaVuSansMono{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")]
    + [f"DejaVuSerif{style}.ttf" for style in ("", "-Bold", "-Italic", "-BoldItalic")]
    + [f"STIXGeneral{style}.ttf" for style in ("", "Bol", "Italic", "BolIta")]
)
"""The fonts that have all of them."""
SHAPE: Final = (1, 32, 32)
"""An image's channels, height and width."""
TRAIN_EXAMPLES: Final = 1200

_HEIGHT = 22  # of a line, in pixels
_HELD_OUT = 4  # fonts of each character
_SPLIT_SEED = 0  # every run has the same split


def load() -> LabelledImages:
    """Return the images, drawn and split: white characters on black, and the position of each in `CHARACTERS`.

    The training images are ``[1200, 1, 32, 32]``, the validation images ``[400, 1, 32, 32]``.

    Raises:
        DataDamaged: a font is missing or damaged.
    """
    images = np.stack([_drawn(font) for font in FONTS], axis=1)  # [characters, fonts, 32, 32]
    # NumPy never changes the numbers of the legacy generator.
    random = np.random.RandomState(_SPLIT_SEED)
    fonts = np.stack([random.permutation(len(FONTS)) for _ in CHARACTERS])
    characters = np.arange(len(CHARACTERS), dtype=np.int64)[:, None]
    parts: list[NDArray] = []
    for kept in (slice(_HELD_OUT, None), slice(_HELD_OUT)):
        part = images[characters, fonts[:, kept]].reshape(-1, *SHAPE)
        # Evaluations may take the first examples alone: they must not show the first characters alone.
        order = random.permutation(len(part))
        parts += [part[order], characters.repeat(len(part) // len(CHARACTERS))[order]]
    return LabelledImages(*parts)


def _drawn(font: str) -> NDArray[np.uint8]:
    """Return the characters in the font of this file, ``[100, 32, 32]``."""
    from PIL import Image, ImageDraw, ImageFont

    side = SHAPE[1]
    middle = (side / 2, side / 2)
    # Where matplotlib keeps its fonts, without importing it.
    path = Path(str(distribution("matplotlib").locate_file(f"matplotlib/mpl-data/fonts/ttf/{font}")))
    try:
        # For a path that it cannot read, Pillow takes a font of this name from the system. The basic layout is there in
        # every build of Pillow.
        content = io.BytesIO(path.read_bytes())
        letters = ImageFont.truetype(content, _HEIGHT, layout_engine=ImageFont.Layout.BASIC)
        images = [Image.new("L", (side, side)) for _ in CHARACTERS]
        for character, image in zip(CHARACTERS, images, strict=True):
            ImageDraw.Draw(image).text(middle, character, fill=255, font=letters, anchor="mm")
    except OSError as problem:
        raise damaged("matplotlib's fonts", path, problem) from None
    return np.stack([np.asarray(image) for image in images])
