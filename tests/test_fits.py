"""Fits recover the laws that made their data, to rounding, and say what they cannot fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.bench import fits
from workflow.bench.fits import AlphaBeta, Collective

positive = st.floats(1e-6, 1e3)


@given(coefficient=positive, exponent=st.floats(-1, 4))
def test_power_law_recovers_exponent_and_coefficient(coefficient, exponent):
    sizes = [256, 512, 1024, 4096]
    found = fits.power_law(sizes, [coefficient * size**exponent for size in sizes])
    assert found.exponent == pytest.approx(exponent, abs=1e-8)
    assert found.coefficient == pytest.approx(coefficient, rel=1e-6)


def test_power_law_of_noisy_repeats_is_the_least_squares_slope():
    """Truth: two repeats a factor e above and below the law leave its slope as it is."""
    assert fits.power_law([1, 1, 10, 10], [2.0, 8.0, 200.0, 800.0]).exponent == pytest.approx(2.0)


@pytest.mark.parametrize(("sizes", "values"), [([4, 4], [1.0, 2.0]), ([1, 2], [0.0, 1.0]), ([0, 2], [1.0, 1.0])])
def test_power_law_refuses_what_has_no_slope(sizes, values):
    with pytest.raises(ValueError, match=r"slope needs|positive"):
        fits.power_law(sizes, values)


@given(constant=positive, slope=positive)
def test_affine_recovers_constant_and_slope(constant, slope):
    found = fits.affine([1, 16, 256, 1024], [constant + slope * x for x in (1, 16, 256, 1024)])
    assert found.at(512) == pytest.approx(constant + slope * 512, rel=1e-6)


def test_affine_never_turns_negative():
    """Times that fall with the batch (noise) are best met by a constant."""
    assert fits.affine([1, 2, 4], [3.0, 2.5, 2.0]).slope == 0
    with pytest.raises(ValueError, match="two points"):
        fits.affine([2, 2], [1.0, 1.0])


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast"])
@given(alpha=st.floats(1e-7, 1e-2), beta=st.floats(1e-12, 1e-8))
def test_alpha_beta_recovers_the_links(collective, alpha, beta):
    cost = AlphaBeta(alpha, beta)
    timed = [
        Collective(workers, size, fits.collective_seconds(collective, workers, size, cost))
        for workers in (2, 4)
        for size in (256, 65536, 8388608)
    ]
    found = fits.alpha_beta(collective, timed)
    for one in timed:
        again = fits.collective_seconds(collective, one.workers, one.payload_bytes, found)
        assert again == pytest.approx(one.seconds, rel=1e-6)


def test_collectives_cost_what_the_textbook_says():
    """Truth: by hand. A ring of 4 sends 6 messages of a quarter of the payload; a tree of 8 has 3 rounds."""
    assert fits.all_reduce_terms(4, 1000) == (6, 1500)
    assert fits.broadcast_terms(8, 1000) == (3, 3000)
    assert fits.broadcast_terms(5, 1000) == (3, 3000)
    assert fits.collective_seconds("all_reduce", 1, 1000, AlphaBeta(1, 1)) == 0
    assert fits.collective_seconds("broadcast", 8, 0, AlphaBeta(1, 1)) == 0


def test_a_collective_without_a_model_is_refused():
    with pytest.raises(ValueError, match="all_gather"):
        fits.alpha_beta("all_gather", [])
    with pytest.raises(ValueError, match="two times"):
        fits.alpha_beta("broadcast", [Collective(2, 1, 1.0)])
