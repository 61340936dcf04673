"""Verdicts under the seed rule: seeds are added while a claim is open, and still at most 5 % of verdicts are false.

Truths are planted on a claim's threshold, at its margin and beside them. Every repetition draws seeds, is judged at
each look, and stops at its first verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from workflow.bench.analysis.estimates import Estimate, current_level, estimate, looks, median_minimum, paired_ratio
from workflow.bench.claims.decision import Condition, Verdict, parse_conditions

LOOKS = 3
REPETITIONS = 600
NOISE = 0.1

Sampler = Callable[[NDArray[np.float64]], Estimate]
"""An estimate from standard normal numbers, one for each seed."""


def ratio(logarithm: float) -> Sampler:
    """Return the estimate of a ratio with this true logarithm: a geometric mean of few seeds, a median of more."""

    def sampled(draws: NDArray[np.float64]) -> Estimate:
        pairs = dict(enumerate(np.exp(logarithm + NOISE * draws)))
        found = paired_ratio(pairs, dict.fromkeys(pairs, 1.0))
        assert found is not None
        return found

    return sampled


def median(value: float) -> Sampler:
    """Return the estimate of a median with this true value, by order statistics."""
    return lambda draws: estimate(value + NOISE * draws)


def false_verdicts(
    sample: Sampler, condition: Condition, right: Sequence[Verdict], seeds: int, spent_on: int = LOOKS
) -> float:
    """Return the share of repetitions that end with another verdict than the right ones.

    seeds: those of each round; spent_on: the number of looks for which intervals are made.
    """
    rng = np.random.default_rng(1)
    wrong = 0
    with looks(spent_on):
        for draws in rng.normal(size=(REPETITIONS, LOOKS * seeds)):
            verdicts = (condition.judge(sample(draws[: look * seeds])) for look in range(1, LOOKS + 1))
            verdict = next((each for each in verdicts if each != "inconclusive"), "inconclusive")
            wrong += verdict not in ("inconclusive", *right)
    return wrong / REPETITIONS


(FASTER,) = parse_conditions("> 1", "5 %")
(NO_WORSE,) = parse_conditions(">= 0", "0.01")
(FEWER,) = parse_conditions("< 1", "5 %")
(LOWER,) = parse_conditions("< 0", "0.05")

PLANTED: dict[str, tuple[Sampler, Condition, list[Verdict], int]] = {
    "a ratio of 1 is not faster": (ratio(0.0), FASTER, ["no difference"], 8),
    "a ratio at the margin is faster and no difference": (ratio(np.log(1.05)), FASTER, ["confirmed"], 8),
    "a ratio beyond the margin": (ratio(np.log(1.06)), FASTER, ["confirmed"], 8),
    "a slower one": (ratio(np.log(0.97)), FASTER, ["refuted", "no difference"], 8),
    "fewer steps": (ratio(np.log(0.94)), FEWER, ["confirmed"], 16),
    "as many steps": (ratio(0.0), FEWER, ["no difference"], 16),
    "worse by the margin": (median(-0.01), NO_WORSE, [], 12),
    "a little less worse": (median(-0.005), NO_WORSE, ["confirmed"], 12),
    "a median of 0 is not lower": (median(0.0), LOWER, ["no difference"], 12),
    "few seeds": (ratio(0.0), FASTER, ["no difference"], 3),
}


@pytest.mark.parametrize("truth", PLANTED)
def test_at_most_one_verdict_in_twenty_is_false_when_seeds_are_added_until_one_is_reached(truth: str):
    """An interval that excludes the truth counts on either side, even where only one is a false verdict."""
    sample, condition, right, seeds = PLANTED[truth]
    assert false_verdicts(sample, condition, right, seeds) <= 0.05


@pytest.mark.parametrize("truth", ["worse by the margin", "a median of 0 is not lower"])
def test_without_the_spending_rule_more_are_false(truth: str):
    sample, condition, right, seeds = PLANTED[truth]
    assert false_verdicts(sample, condition, right, seeds, spent_on=1) > 0.05


def test_every_look_spends_its_share():
    assert current_level() == 0.95
    with looks(4):
        assert current_level() == pytest.approx(0.9875)
        assert median_minimum() == 8
        with looks(2):
            assert current_level() == pytest.approx(0.975)
        assert current_level() == pytest.approx(0.9875)
    assert (current_level(), median_minimum()) == (0.95, 6)
