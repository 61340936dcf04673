"""What ranges accept, and what they say of values that they refuse."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import torch

from mkor_core.ranges import (
    AT_LEAST_1,
    DECAY,
    FRACTION,
    LARGEST,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_DECAY,
    Domain,
    OneOf,
    Range,
    checked_values,
    require,
)

TINY = math.ulp(0.0)
BELOW_1 = math.nextafter(1.0, 0.0)
ABOVE_1 = math.nextafter(1.0, 2.0)


@pytest.mark.parametrize(
    ("limit", "accepted", "refused", "must"),
    [
        (POSITIVE, (TINY, LARGEST), (0.0, -1.0), "must be greater than 0"),
        (NOT_NEGATIVE, (0.0, 1.0), (-TINY,), "must be at least 0"),
        (AT_LEAST_1, (1, 10**9), (0,), "must be at least 1"),
        (FRACTION, (TINY, 1.0), (0.0, ABOVE_1), "must be greater than 0 and at most 1"),
        (DECAY, (0.0, BELOW_1), (-TINY, 1.0), "must be at least 0 and less than 1"),
        (POSITIVE_DECAY, (TINY, BELOW_1), (0.0, 1.0), "must be greater than 0 and less than 1"),
        (AT_LEAST_1, (), (10**9 + 1,), "must be at most 1e+09"),
        (Range(), (LARGEST, -LARGEST, 2**63 - 1, 1 - 2**63), (1.01e36,), "must be at most 1e+36"),
        (Range(), (), (-1.01e36,), "must be at least -1e+36"),
        (Range(), (), (2**63,), "must be at most 9.22337e+18"),
        (Range(largest=0.5), (0.5, -0.5), (0.7,), "must be at most 0.5"),
        (Range(), (), (math.inf, -math.inf, math.nan), "must be finite"),
        (Range(finite=False), (math.inf, 1.0), (-math.inf, math.nan), "must be a number"),
        (Range(finite=False), (), (1.01e36,), "must be at most 1e+36, or infinite"),
    ],
)
def test_a_range_accepts_its_bounds_and_names_the_one_that_is_exceeded(limit, accepted, refused, must):
    assert [limit.refusal(value) for value in accepted] == [None] * len(accepted)
    assert [limit.refusal(value) for value in refused] == [must] * len(refused)


@pytest.mark.parametrize(
    ("annotation", "accepted", "refused", "must"),
    [
        (float, (1, 1.5, math.inf), (True, "1", None), "must be a number"),
        (int, (1, -1), (1.0, True, None), "must be an integer"),
        (bool, (True, False), (1, 0, None), "must be true or false"),
        (str, ("text", ""), (1, None), "must be text"),
        (int | None, (1, None), (1.5,), "must be an integer or null"),
        (torch.dtype | int, (torch.int8, 1), ("int8",), "must be a torch.dtype or an integer"),
        (Literal["a", "b"], ("a", "b"), ("c", None, 1), "must be one of a, b"),
        (Literal["a"] | None, ("a", None), ("c",), "must be one of a"),
        (Annotated[float | None, POSITIVE], (None, 1, 0.5), (0, -0.5), "must be greater than 0"),
        (Annotated[float | None, POSITIVE], (), ("1",), "must be a number or null"),
        (
            Annotated[torch.dtype, OneOf(("int8", "int16"))],
            (torch.int16,),
            (torch.int32, 8),
            "must be one of int8, int16",
        ),
        (Annotated[int, AT_LEAST_1, "periods"], (1,), (0,), "must be at least 1: periods"),
        (Annotated[int, AT_LEAST_1, "periods"], (), (1.0,), "must be an integer: periods"),
        (list[int], ([], "a", None, 1.5, math.nan), (), ""),
        (Any, ([], "a", None), (), ""),
        (int | list[int], ("a", None), (), ""),
    ],
    ids=str,
)
def test_an_annotation_accepts_its_types_within_their_range(annotation, accepted, refused, must):
    domain = Domain.of(annotation)
    assert [domain.refusal(value, none="null") for value in accepted] == [None] * len(accepted)
    assert [domain.refusal(value, none="null") for value in refused] == [must] * len(refused)


def test_a_class_is_named_with_its_module():
    refused = Domain.of(Annotated[Range | None, "the range"]).refusal(1)
    assert refused == "must be a mkor_core.ranges.Range or None: the range"


@dataclass
class Settings:
    rate: float
    number: int
    switch: bool | float
    name: str


def test_integers_become_floats_where_real_numbers_are_meant():
    values = checked_values(Settings, {"rate": 1, "number": 2, "switch": True, "name": "x"})
    assert values == {"rate": 1.0, "number": 2, "switch": True, "name": "x"}
    assert [type(value) for value in values.values()] == [float, int, bool, str]


def test_a_refusal_names_the_parameter_and_the_range_that_its_annotation_declares():
    def function(rate: Annotated[str | float, POSITIVE]) -> None: ...

    with pytest.raises(ValueError, match=r"^rate=-1 must be greater than 0\.$"):
        checked_values(function, {"rate": -1})


@pytest.mark.parametrize(
    ("value", "shown"), [(2**255, str(2**255)), (2**256, "an integer of hundreds of digits"), (1e300, "1e[+]300")]
)
def test_integers_of_more_than_256_bits_are_not_printed(value, shown):
    with pytest.raises(ValueError, match=f"^size={shown} must be at most 1e[+]09"):
        require("size", value, Annotated[int | float, AT_LEAST_1])
