"""The fault tests' counts: what `make test-faults` requires of them."""

from __future__ import annotations

from tests.support.tally import LEAST, NONE, shortfalls

REACHED = {"kill -9, moments tried: sgd": 20, **LEAST, **dict.fromkeys(NONE, 0)}


def test_counts_that_are_reached_are_no_shortfall():
    assert shortfalls(REACHED, ("sgd",)) == []


def test_a_count_that_is_too_small_or_missing_is_a_shortfall():
    assert shortfalls({**REACHED, "configurations": 999}, ("sgd",)) == ["configurations: 999, not 1000 or more"]
    assert shortfalls(REACHED, ("sgd", "new")) == ["kill -9, moments tried: new: 0, not 20 or more"]


def test_a_fault_that_happened_or_was_not_counted_is_a_shortfall():
    assert shortfalls({**REACHED, "bytes lost": 1}, ("sgd",)) == ["bytes lost: 1, not 0"]
    without = {what: number for what, number in REACHED.items() if what != "tracebacks"}
    assert shortfalls(without, ("sgd",)) == ["tracebacks: not counted, not 0"]
