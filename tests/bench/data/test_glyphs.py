"""The glyphs: what the images show, how they are split, and fonts that are missing or damaged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from workflow.bench.data import glyphs
from workflow.bench.data.folder import DataDamaged


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    """Return every character in every font, ``[fonts, characters, 32, 32]``."""
    return np.stack([glyphs._drawn(font) for font in glyphs.FONTS])


def test_every_font_has_every_character(drawn):
    """Truth: a font's own list of characters; and no two of them look alike, as those that are missing would."""
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    assert len(set(glyphs.CHARACTERS)) == 100
    for font, images in zip(glyphs.FONTS, drawn, strict=True):
        known = FT2Font(str(Path(get_data_path(), "fonts/ttf", font))).get_charmap()
        assert not {character for character in glyphs.CHARACTERS if ord(character) not in known}
        assert len({image.tobytes() for image in images}) == 100
        assert (images.max(axis=(1, 2)) > 200).all()


def test_a_quarter_of_each_characters_fonts_is_held_out(drawn):
    """Truth: the images drawn one by one, and which character each shows."""
    data = glyphs.load()
    shown = {image.tobytes(): label for images in drawn for label, image in enumerate(images)}
    for images, labels, fonts in (
        (data.train, data.train_labels, 12),
        (data.validation, data.validation_labels, 4),
    ):
        assert [shown[image.tobytes()] for image in images] == labels.tolist()
        assert set(Counter(labels.tolist()).values()) == {fonts}
        assert len(set(labels[:100].tolist())) > 50, "the first images show many characters"
    seen = {image.tobytes() for image in [*data.train, *data.validation]}
    assert len(seen) == len(shown), "no image is in both parts"
    assert len(data.train) == glyphs.TRAIN_EXAMPLES


def test_the_fingerprint_is_of_pixels_and_labels():
    data = glyphs.load()
    assert data.fingerprint == glyphs.load().fingerprint
    assert data._replace(train=data.train[::-1]).fingerprint != data.fingerprint
    assert data._replace(validation_labels=data.validation_labels[::-1]).fingerprint != data.fingerprint


@pytest.mark.parametrize("content", [None, b"", b"no font"])
def test_a_missing_or_damaged_font_is_named(content, tmp_path, monkeypatch):
    font = tmp_path / glyphs.FONTS[0]
    if content is not None:
        font.write_bytes(content)
    monkeypatch.setattr(glyphs, "_font_folder", lambda: tmp_path)
    with pytest.raises(DataDamaged, match=rf"^matplotlib's fonts: {font} is damaged: [^\n]+$"):
        glyphs.load()
