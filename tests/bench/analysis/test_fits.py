"""Fits recover the laws that made their data, to rounding, and say what they cannot fit."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.bench.analysis import fits

positive = st.floats(1e-6, 1e3)


@given(coefficient=positive, exponent=st.floats(-1, 4))
def test_power_law_recovers_exponent_and_coefficient(coefficient, exponent):
    sizes = [256, 512, 1024, 4096]
    law = fits.power_law(sizes, [coefficient * size**exponent for size in sizes])
    assert law.exponent == pytest.approx(exponent, abs=1e-8)
    assert law.coefficient == pytest.approx(coefficient, rel=1e-6)


def test_power_law_of_noisy_repeats_is_the_least_squares_slope():
    """Truth: two repeats a factor e above and below the law leave its slope as it is."""
    assert fits.power_law([1, 1, 10, 10], [2.0, 8.0, 200.0, 800.0]).exponent == pytest.approx(2.0)


@pytest.mark.parametrize(("sizes", "values"), [([4, 4], [1.0, 2.0]), ([1, 2], [0.0, 1.0]), ([0, 2], [1.0, 1.0])])
def test_power_law_refuses_what_has_no_slope(sizes, values):
    with pytest.raises(ValueError, match=r"slope needs|positive"):
        fits.power_law(sizes, values)


def _timed(times: dict[int, list[float]]) -> pd.DataFrame:
    rows = [(width, repeat, ms) for width, repeats in times.items() for repeat, ms in enumerate(repeats)]
    return pd.DataFrame(rows, columns=["dimension", "repeat", "ms"])


def test_width_law_counts_every_width_once():
    """Truth: geometric means 1 and 4 over a factor 2 give slope 2, whatever the number of repeats."""
    times = _timed({2: [0.5, 1.0, 2.0], 4: [4.0]})
    assert list(fits.mean_by_width(times)) == pytest.approx([1, 4])
    law = fits.width_law(times)
    assert law.exponent == pytest.approx(2)
    assert fits.width_law(times[times["dimension"] == 4]) is None
    assert fits.width_laws(times[times["dimension"] == 4]) == {}


@given(st.lists(st.tuples(positive, positive, positive), min_size=2, max_size=6), positive)
def test_width_law_is_the_mean_of_the_repeats_laws(repeats, once):
    """Truth: least squares of logarithms is linear, so that the slope of the mean is the mean of the slopes."""
    times = _timed({width: [row[at] for row in repeats] for at, width in enumerate((64, 128, 512))} | {1024: [once]})
    laws, law = fits.width_laws(times), fits.width_law(times)
    assert len(laws) == len(repeats)
    assert law.exponent == pytest.approx(sum(one.exponent for one in laws.values()) / len(laws), abs=1e-9)


def test_width_laws_leave_out_a_repeat_that_lacks_a_width():
    times = _timed({2: [1.0, 1.0, 1.0], 4: [4.0, 8.0]})
    assert {repeat: law.exponent for repeat, law in fits.width_laws(times).items()} == pytest.approx({0: 2, 1: 3})
