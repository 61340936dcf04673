"""What a preconditioner does to the gradients, in the record of a run."""

from __future__ import annotations

import math

import pytest

from mkor_core.engines.comparison import Comparison
from workflow.bench.training.effects import effects


class Three:
    """A preconditioner that has compared three layers."""

    def comparisons(self) -> dict[str, Comparison]:
        return {
            "a": Comparison(0.5, 2.0, {"left": 1.0, "right": 0.5}, 0.9),
            "b": Comparison(0.9, 1.0, {"right": 0.8}, 0.2),
            "c": Comparison(math.nan, math.nan, {"right": 0.9}, None),
        }


def test_medians_and_extremes_over_layers():
    """A layer whose gradient is zero has no direction, and is left out."""
    found = effects(Three())
    assert found == pytest.approx(
        {
            "cosine": 0.7,
            "cosine_least": 0.5,
            "cosine_most": 0.9,
            "length": 1.5,
            "length_least": 1.0,
            "length_most": 2.0,
            "cosine_left": 1.0,
            "cosine_right": 0.8,
            "start_weight": 0.9,
        }
    )


def test_without_a_preconditioner_there_is_nothing_to_tell():
    assert effects(None) == {}
