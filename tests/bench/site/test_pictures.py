"""Pictures of intervals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.bench.site.pictures import WIDTH, Axis, lines

FINITE = st.floats(-1e9, 1e9, allow_nan=False)


def part(**values: object) -> dict[str, str]:
    row = dict.fromkeys(("value", "low", "high", "published", "bound", "comparison", "part"), "")
    return row | {"verdict": "confirmed", "is_ratio": "True"} | {key: str(value) for key, value in values.items()}


def test_marks_lie_in_the_order_of_their_values():
    (line,) = lines([part(value=2, low=1.5, high=3, published=4, bound=1, comparison=">", part="bert")])
    places = (line.bound, line.low, line.value, line.high, line.published)
    assert list(places) == sorted(places)
    assert line.holds_above
    assert line.text == "2 [1.5, 3]"
    # A ratio is drawn on a scale of logarithms: 1 to 2 is as long as 2 to 4.
    assert line.value - line.bound == pytest.approx(line.published - line.value, abs=0.11)


def test_the_parts_of_a_claim_share_an_axis():
    first, second = lines([part(value=2, bound=1), part(value=8, bound=1)])
    assert first.bound == second.bound
    assert first.value < second.value


def test_differences_are_drawn_on_a_linear_axis():
    below, middle, above = lines([part(value=value, is_ratio=False) for value in (-3, 0, 3)])
    assert middle.value - below.value == pytest.approx(above.value - middle.value, abs=0.11)


def test_an_infinite_value_is_an_arrow_at_the_edge_and_one_without_a_value_has_no_mark():
    infinite, missing = lines([part(value="inf", low=5, high="inf"), part(verdict="refuted", is_ratio="")])
    assert infinite.beyond
    assert infinite.text == "infinite [5, infinite]"
    assert infinite.value < WIDTH
    assert (missing.value, missing.low, missing.bound, missing.text) == (None, None, None, "refuted")


def test_a_range_of_one_value_is_no_interval():
    (line,) = lines([part(value=2, low=2, high=2)])
    assert (line.low, line.high, line.text) == (None, None, "2")


@given(st.lists(FINITE, min_size=1, max_size=5), st.booleans())
def test_every_finite_value_lies_inside_the_picture_in_order(values, logarithmic):
    axis = Axis.around(values, logarithmic=logarithmic)
    places = [axis.place(value) for value in sorted(values)]
    assert all(place is not None and 0 < place < WIDTH for place in places)
    assert places == sorted(places)
    assert axis.place(math.inf) >= max(places) - 1
    assert axis.place(-math.inf) <= min(places) + 1
