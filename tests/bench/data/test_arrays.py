"""Digests of arrays. Truth: the bytes, written out."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from workflow.bench.data.arrays import LabelledImages, digest


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_digest_is_of_shapes_and_little_endian_numbers(order):
    arrays = [np.array([[1, 2, 3]], dtype=f"{order}i8"), np.array([0.5, -2], dtype=f"{order}f4")]
    truth = b"(1, 3)" + struct.pack("<3q", 1, 2, 3) + b"(2,)" + struct.pack("<2f", 0.5, -2)
    assert digest(arrays) == hashlib.sha256(truth).hexdigest()


def test_a_digest_follows_the_rows_of_an_array_and_not_its_place_in_memory():
    array = np.arange(6).reshape(2, 3)
    assert digest([array]) == digest([np.asfortranarray(array)]) != digest([array.reshape(3, 2)])


def test_the_fingerprint_of_images_is_of_pixels_and_labels():
    pixels, labels = np.arange(24, dtype=np.uint8).reshape(2, 1, 3, 4), np.array([1, 0])
    images = LabelledImages(pixels, labels, pixels[:1], labels[:1])
    assert images.fingerprint == digest([pixels, labels, pixels[:1], labels[:1]])
