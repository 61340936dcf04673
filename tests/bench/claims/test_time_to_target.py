"""Claims about training time to a target (C06, C07, C19) on hand-made runs."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.support.synthetic_claims import conditions, runs_to_target
from tests.support.synthetic_probes import step_time
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.claims import time_to_target
from workflow.bench.claims.decision import Decision
from workflow.bench.claims.verdicts import Condition


def decide_speedup(
    experiment: str,
    runs: pd.DataFrame,
    thresholds: tuple[Condition, ...],
    *,
    rivals: tuple[str, ...],
    times: pd.DataFrame | None = None,
) -> Decision:
    """Decide with step times of 30 ms, KAISA's 50, on an idle machine."""
    rows = StepTimes(step_time(runs) if times is None else times)
    return time_to_target.decide_speedup(experiment, runs, rows, thresholds, rivals=rivals)


@pytest.mark.parametrize(
    ("mkor", "verdict"),
    [([60.0, 66.0, 72.0], "confirmed"), ([150.0, 160.0, 180.0], "refuted"), ([60.0, 110.0, 160.0], "inconclusive")],
)
def test_c06_training_time_to_target(mkor, verdict):
    runs = runs_to_target("resnet50_imagenet", {"sgd": [100.0, 110.0, 120.0], "mkor": mkor})
    decision = decide_speedup("resnet50_imagenet", runs, conditions("C06"), rivals=("sgd",))
    assert decision.verdict == verdict
    assert str(decision.data).startswith("resnet50_imagenet.runs.csv: runs ")
    where = {"confirmed": "> 1 in its whole interval", "refuted": "not > 1 anywhere in its interval"}
    place = f"is {where[verdict]}" if verdict in where else "has 1 inside its interval"
    assert decision.why == f"Training seconds to a validation loss of 4.2: the ratio sgd/mkor {place}."
    assert decision.details.startswith("Geometric mean, 95 % t interval. The verdict is based on time alone.")


def test_c07_is_about_time_and_states_iterations():
    """Truth: KAISA takes fewer iterations, 90 / 100, each 5/3 as long."""
    runs = runs_to_target("resnet50_imagenet", {"kaisa": [90.0, 99.0], "mkor": [100.0, 110.0]})
    decision = decide_speedup("resnet50_imagenet", runs, conditions("C07"), rivals=("kaisa",))
    assert (decision.verdict, decision.measured) == ("confirmed", "kaisa/mkor: 1.5")
    assert "kaisa/mkor 0.9 [0.9, 0.9]" in decision.details


def test_c19_needs_every_rival_to_be_slower():
    reaches: dict[str, list[float | None]] = {
        "sgd": [100.0, 110.0],
        "hylo": [100.0, 110.0],
        "kaisa": [90.0, 99.0],
        "mkor": [60.0, 66.0],
    }
    about = {"rivals": ("sgd", "hylo", "kaisa")}
    all_slower = runs_to_target("alexnet_cifar100", reaches)
    assert decide_speedup("alexnet_cifar100", all_slower, conditions("C19"), **about).verdict == "confirmed"
    one_faster = runs_to_target("alexnet_cifar100", reaches | {"hylo": [30.0, 33.0]})
    decision = decide_speedup("alexnet_cifar100", one_faster, conditions("C19"), **about)
    assert decision.verdict == "refuted"
    assert "sgd/mkor confirmed; hylo/mkor refuted; kaisa/mkor confirmed" in decision.why
    assert decide_speedup("alexnet_cifar100", all_slower.head(6), conditions("C19"), **about).verdict == "not tested"


def test_a_run_that_was_too_short_to_be_compared_leaves_the_claim_open():
    """SGD misses the target in 150 steps and 4.5 s; MKOR is there after 3 s, which is before, or after 6 s."""
    fast = runs_to_target("resnet50_imagenet", {"sgd": [None] * 6, "mkor": [100.0] * 6})
    assert decide_speedup("resnet50_imagenet", fast, conditions("C06"), rivals=("sgd",)).verdict == "confirmed"
    slow = runs_to_target("resnet50_imagenet", {"sgd": [None] * 6, "mkor": [200.0] * 6})
    decision = decide_speedup("resnet50_imagenet", slow, conditions("C06"), rivals=("sgd",))
    assert decision.verdict == "inconclusive"
    assert decision.why == "Training seconds to a validation loss of 4.2: sgd/mkor inconclusive."
    assert "sgd ended before mkor reached the target, with seed 0-5." in decision.details
    diverged = slow.assign(status=slow["status"].where(slow["optimizer"] != "sgd", "diverged"))
    assert "ended before" not in decide_speedup("x", diverged, conditions("C06"), rivals=("sgd",)).details


def test_a_target_that_nobody_reaches_is_open_and_counted():
    runs = runs_to_target("resnet50_imagenet", {"sgd": [None, None], "mkor": [None, None]})
    decision = decide_speedup("resnet50_imagenet", runs, conditions("C06"), rivals=("sgd",))
    assert decision.verdict == "inconclusive"
    assert decision.details == "Target not reached within the run's steps: 2 of 2 of mkor, 2 of 2 of sgd."
    without = runs_to_target("resnet50_imagenet", {"sgd": [1.0], "mkor": [1.0]}, target=None)
    assert decide_speedup("resnet50_imagenet", without, conditions("C06"), rivals=("sgd",)).verdict == "not tested"


def test_a_target_met_before_the_first_step_is_open():
    """0 iterations over 0 are no ratio."""
    runs = runs_to_target("resnet50_imagenet", {"sgd": [0.0, 0.0], "mkor": [0.0, 0.0]})
    decision = decide_speedup("resnet50_imagenet", runs, conditions("C06"), rivals=("sgd",))
    assert (decision.verdict, decision.interval) == ("inconclusive", "")


def test_at_the_paper_tier_mkor_is_the_released_rule():
    reaches: dict[str, list[float | None]] = {
        "sgd": [100.0, 110.0],
        "mkor": [200.0, 220.0],
        "mkor_released": [50.0, 55.0],
    }
    paper = runs_to_target("resnet50_imagenet", reaches, tier="paper")
    assert (
        decide_speedup("resnet50_imagenet", paper, conditions("C06"), rivals=("sgd",)).measured
        == "sgd/mkor_released: 2"
    )
    small = runs_to_target("resnet50_imagenet", reaches)
    assert decide_speedup("resnet50_imagenet", small, conditions("C06"), rivals=("sgd",)).measured == "sgd/mkor: 0.5"


REACHES: dict[str, list[float | None]] = {"sgd": [100.0, 110.0, 120.0], "mkor": [60.0, 66.0, 72.0]}


def _with_times(times: pd.DataFrame | None = None, **about: Any) -> Decision:
    runs = runs_to_target("resnet50_imagenet", REACHES)
    given = step_time(runs, **about) if times is None else times
    return decide_speedup("resnet50_imagenet", runs, conditions("C06"), rivals=("sgd",), times=given)


def test_seconds_are_iterations_times_the_time_of_a_step_and_not_those_of_the_runs():
    """Truth: 5 / 3 of the iterations, each taking 30 / 25 as long."""
    decision = _with_times(ms={"mkor": 25.0})
    assert (decision.verdict, decision.measured) == ("confirmed", "sgd/mkor: 2")
    assert "probes/step_time.csv: experiment=resnet50_imagenet, optimizer=mkor, sgd" in str(decision.data)


def test_without_step_times_the_claim_says_so_and_gives_the_iterations():
    decision = _with_times(pd.DataFrame())
    assert decision.verdict == "not tested"
    assert decision.why == "step_time.csv is missing or empty: the probe step_time has timed no step."
    assert "sgd/mkor 1.67" in decision.details


def test_on_a_busy_machine_the_claim_is_not_tested():
    decision = _with_times(busy=range(1, 15))
    assert decision.verdict == "not tested"
    assert decision.why.startswith("The machine was busy: other processes slowed 14 of 15 rounds")
    assert _with_times(busy=range(7)).measured == "sgd/mkor: 1.67"


def test_on_a_noisy_machine_the_claim_is_not_tested():
    """A second name of the same optimizer that is 3 % slower in every round is not noise that intervals cover."""
    decision = _with_times(rounds=60, bias=0.03, noise=0.001)
    assert decision.verdict == "not tested"
    assert decision.why.startswith("The machine is too noisy: 20 of 20 intervals between equal steps exclude a ratio")


def test_an_optimizer_that_was_not_timed_is_named():
    runs = runs_to_target("resnet50_imagenet", REACHES)
    times = step_time(runs).astype({"note": object})
    times.loc[times["optimizer"] == "mkor", ["step_ms", "note"]] = [None, "out of memory"]
    decision = _with_times(times)
    assert decision.why == "step_time.csv has no step of mkor in resnet50_imagenet (out of memory)."
