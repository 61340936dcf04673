"""Decisions, and the phrases that they share."""

from __future__ import annotations

import math

import pytest

from tests.support.synthetic_claims import runs_to_target
from workflow.bench.analysis.estimates import Estimate, estimate, extreme
from workflow.bench.claims.decision import (
    Condition,
    Decision,
    Part,
    interval_of,
    mkor_of,
    not_tested,
    parse_margin,
    position,
    statistics_used,
)
from workflow.bench.results.sources import from_rows

ABOVE_ONE = Condition("", ">", 1.0)
CENSORED = estimate([1.0, 2.0, math.inf])
CONSTANT = estimate([2.0] * 3)
DIVERGED = estimate([-math.inf, *[1.0] * 5])


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (estimate([2.0]), "has no interval, being one value"),
        (CENSORED, "has no interval, some runs being censored"),
        (extreme([2.0, 3.0], "minimum"), "is > 1"),
        (extreme([1.0, 3.0], "minimum"), "is not > 1"),
        (CONSTANT, "is > 1 in its whole interval"),
        (estimate([0.5] * 3), "is not > 1 anywhere in its interval"),
        (estimate([0.0, 1.0, 2.0]), "has 1 inside its interval"),
    ],
)
def test_an_estimates_place_beside_its_threshold(of: Estimate, text: str):
    assert position(of, ABOVE_ONE) == text


def test_a_claim_of_no_worse_is_placed_beside_its_margin():
    no_worse = Condition("", ">=", 0.0, parse_margin("0.5"))
    assert position(estimate([-0.4, -0.4]), no_worse) == "is >= -0.5 in its whole interval"
    assert position(estimate([-1.0, -0.5, 0.0]), no_worse) == "has -0.5 inside its interval"


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (DIVERGED, "[-infinite, 1]"),
        (CONSTANT, "[2, 2]"),
        (estimate([2.0]), "none (one value)"),
        (CENSORED, "none (censored runs)"),
    ],
)
def test_an_estimates_interval_or_why_it_has_none(of: Estimate, text: str):
    assert interval_of(of) == text


def test_statistics_are_named_once_each():
    used = [CONSTANT, estimate([1.0, 3.0]), CENSORED, extreme([1.0, 2.0], "maximum"), estimate([1.0] * 6)]
    assert statistics_used(used) == (
        "mean, 95 % t interval; median, no interval; maximum of 2; median, 95 % order-statistics interval"
    )


def test_a_decision_takes_further_sentences_with_their_sources():
    first, second = from_rows("probes/a.csv"), from_rows("probes/b.csv")
    decision = Decision((Part("", "confirmed", "2"),), "It holds.", details="One.", data=first)
    more = decision.with_details("Two.", second)
    assert (more.details, str(more.data)) == ("One. Two.", "probes/a.csv; probes/b.csv")
    assert decision.with_details("", second) == decision
    assert not_tested("It has not run.").with_details("Two.", second) == not_tested("It has not run.")


@pytest.mark.parametrize(
    ("tier", "labels", "label"),
    [
        ("paper", ("mkor", "mkor_released"), "mkor_released"),
        ("paper", ("mkor", "sgd"), "mkor"),
        ("embedded", ("mkor", "mkor_released"), "mkor"),
    ],
)
def test_the_mkor_that_is_judged(tier, labels, label):
    assert mkor_of(runs_to_target("resnet50_imagenet", {name: [1.0] for name in labels}, tier=tier)) == label
