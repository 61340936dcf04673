"""Claims about pre-training (C01 to C03) on hand-made runs: verdicts, censored and missing runs."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.support.synthetic import run_rows
from tests.support.synthetic_claims import NO_METRICS, NO_RUNS, conditions, fine_tuned, runs_to_target
from tests.support.synthetic_probes import step_time
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.claims import pretraining as claims_of_pretraining
from workflow.bench.claims.decision import Decision
from workflow.bench.claims.pretraining import decide_iterations_to_target
from workflow.bench.claims.verdicts import Condition

STEP_MS = {"lamb": 100.0, "mkor_h": 100.0, "kaisa": 200.0, "kaisa_1000": 200.0}


def decide_hybrid_time(
    pretraining: pd.DataFrame,
    squad: pd.DataFrame,
    metrics: pd.DataFrame,
    thresholds: tuple[Condition, ...],
    *,
    rival: str,
    times: pd.DataFrame | None = None,
) -> Decision:
    """Decide with steps of LAMB and of MKOR-H of 0.1 s, of KAISA of 0.2 s."""
    rows = StepTimes(step_time(pretraining, STEP_MS) if times is None else times)
    return claims_of_pretraining.decide_hybrid_time(pretraining, squad, metrics, rows, thresholds, rival=rival)


def _pretraining(**reaches: list[float | None]) -> pd.DataFrame:
    return runs_to_target("bert_pretraining", reaches)


def _c03(pretraining: pd.DataFrame, squad: pd.DataFrame = NO_RUNS):
    return decide_iterations_to_target(pretraining, squad, conditions("C03"))


@pytest.mark.parametrize(
    ("mkor", "verdict"),
    [([60.0, 66.0, 72.0], "confirmed"), ([150.0, 160.0, 180.0], "refuted"), ([60.0, 110.0, 160.0], "inconclusive")],
)
def test_c03_iterations_to_target(mkor, verdict):
    decision = _c03(_pretraining(lamb=[100.0, 110.0, 120.0], mkor=mkor))
    assert decision.verdict == verdict
    assert decision.seeds == "0-2"
    assert "bert_pretraining.runs.csv: runs" in str(decision.data)


def test_c03_is_a_ratio_paired_by_seed():
    """Truth: every seed's ratio is 0.6, so the interval has no width."""
    decision = _c03(_pretraining(lamb=[100.0, 150.0, 50.0], mkor=[60.0, 90.0, 30.0]))
    assert (decision.measured, decision.interval) == ("0.6", "[0.6, 0.6]")


def test_c03_leaves_a_tie_open():
    """Two optimizers that reach the target between the same two evaluations cannot be told apart."""
    decision = _c03(_pretraining(lamb=[100.0, 110.0], mkor=[100.0, 110.0]))
    assert decision.verdict == "inconclusive"
    assert "tie in every seed" in decision.why
    some = _c03(_pretraining(lamb=[100.0, 110.0, 120.0], mkor=[100.0, 44.0, 48.0]))
    assert "the ratio has 1 inside its interval" in some.why


def test_a_target_of_some_pretrainings_is_the_target_of_all():
    """A run that has none, such as that of another label, changes nothing."""
    runs = _pretraining(lamb=[100.0, 110.0], mkor=[60.0, 66.0])
    aimless = _pretraining(sgd=[None]).assign(target=None)
    decision = _c03(pd.concat([runs, aimless], ignore_index=True))
    assert decision == _c03(runs)
    assert "Iterations to a validation loss of 4.2 in pre-training, mkor's over lamb's" in decision.why


def test_c03_with_censored_runs_says_so():
    some = _c03(_pretraining(lamb=[100.0, 110.0, 120.0], mkor=[60.0, 66.0, None]))
    assert some.verdict == "inconclusive"
    assert "not reached" in some.details
    assert "some runs being censored" in some.why
    assert "censored" in some.interval
    none = _c03(_pretraining(lamb=[None] * 3, mkor=[None] * 3))
    assert none.verdict == "inconclusive"
    assert "Neither" in none.why


def test_c03_without_runs_is_not_tested():
    assert _c03(NO_RUNS).verdict == "not tested"
    lamb = _c03(_pretraining(lamb=[100.0]))
    assert lamb.verdict == "not tested"
    assert "mkor" in lamb.why


def test_c03_states_the_released_rule_beside_the_exact_one():
    reaches = {"lamb": [100.0, 110.0], "mkor": [60.0, 66.0], "mkor_released": [80.0, 88.0]}
    decision = _c03(_pretraining(**reaches))
    assert decision.measured == "0.6"
    assert "mkor_released over lamb: 0.8 [0.8, 0.8]." in decision.details


@pytest.mark.parametrize(("status", "reason"), [("missing", "not trained yet"), ("skipped", "text not found at data")])
def test_runs_without_values_are_the_reason_and_no_result(status, reason):
    runs = _pretraining(lamb=[100.0, 110.0], mkor=[60.0, 66.0])
    runs.loc[runs["optimizer"] == "mkor", ["status", "reason", "crossing_step"]] = [status, reason, None]
    decision = _c03(runs)
    assert decision.verdict == "not tested"
    assert f"No run of mkor in bert_pretraining has ended: {status} ({reason})." in decision.why


def test_a_missing_seed_is_left_out_and_named():
    runs = _pretraining(lamb=[100.0, 110.0, 120.0], mkor=[60.0, 66.0, 72.0])
    runs.loc[(runs["optimizer"] == "mkor") & (runs["seed"] == 1), ["status", "crossing_step"]] = ["failed", None]
    decision = _c03(runs)
    assert (decision.verdict, decision.seeds) == ("confirmed", "0, 2")
    assert "Left out: 1 failed of mkor." in decision.details


def _paper(reached: dict[str, list[float | None]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of bert_pretraining and bert_squad at the paper tier: pre-trainings of several lengths without a target.

    A step of LAMB and of MKOR-H takes 0.1 s, of others 0.2 s.

    reached: when the fine-tuning from each pre-training was at its F1, by label and seed.
    """
    budgets = {"lamb": 1500, "kaisa": 1500, "kaisa_1000": 1000, "mkor_released": 1500, "mkor": 1500}
    budgets |= {"mkor_released_1000": 1000, "mkor_released_600": 600, "mkor_h": 600}
    pretraining, squad = [], []
    for label, steps_to_f1 in reached.items():
        optimizer = label.rstrip("_0123456789")
        made = run_rows("bert_pretraining", "bert", optimizer, range(len(steps_to_f1)), steps=budgets[label])[1]
        for run, steps in zip(made, steps_to_f1, strict=True):
            run |= {"optimizer": label, "run": f"{label}-{run['seed']}"}
            seconds = (0.1 if optimizer in ("lamb", "mkor_h") else 0.2) * budgets[label] * (1 + 0.01 * int(run["seed"]))
            spent = {"train_seconds": seconds, "steps_done": budgets[label]}
            pretraining.append(run | {"tier": "paper", "target": None} | spent)
            (tuned,) = run_rows("bert_squad", "squad", label, [run["seed"]], target=0.9)[1]
            squad.append(tuned | {"tier": "paper", "start_from": run["run"], "steps_to_target": steps})
    return pd.DataFrame(pretraining), pd.DataFrame(squad)


def test_at_the_paper_tier_a_pretraining_counts_in_full_and_the_shortest_that_reaches_the_f1():
    """Truth: MKOR's 600 steps miss the F1 and its 1,000 reach it, LAMB's 1,500 do: 1000 / 1500 in every seed."""
    got = [300.0, 320.0, 310.0]
    reached: dict[str, list[float | None]] = {"lamb": [*got], "mkor_released": [*got], "mkor_released_1000": [*got]}
    decision = _c03(*_paper({**reached, "mkor_released_600": [None] * 3}))
    assert (decision.verdict, decision.measured) == ("confirmed", "0.667")
    assert "after fine-tuning" in decision.why
    assert "bert_squad.runs.csv: runs" in str(decision.data)


@pytest.mark.parametrize(("rival", "ratio"), [("lamb", "2.5"), ("kaisa", "3.33")])
def test_c01_c02_at_the_paper_tier(rival, ratio):
    """Truth: 1500 / 600 steps of a tenth of a second for LAMB; KAISA's shortest is 1,000 of twice as long."""
    got: list[float | None] = [300.0, 300.0]
    pretraining, squad = _paper(dict.fromkeys(("lamb", "kaisa", "kaisa_1000", "mkor_h"), got))
    decision = decide_hybrid_time(pretraining, squad, NO_METRICS, conditions("C01"), rival=rival)
    assert (decision.verdict, decision.measured) == ("confirmed", ratio)
    # LAMB's time is that of its schedule: nobody tried a shorter one, which KAISA has.
    assert ("lamb was trained for 1500 steps only" in decision.details) == (rival == "lamb")


def test_c01_is_open_where_a_shorter_pretraining_misses_the_f1():
    """MKOR-H's 600 steps say nothing of what it would be after LAMB's 1,500; as many of MKOR's do."""
    pretraining, squad = _paper({"lamb": [300.0, 300.0], "mkor_h": [None, None]})
    decision = decide_hybrid_time(pretraining, squad, NO_METRICS, conditions("C01"), rival="lamb")
    assert decision.verdict == "inconclusive"
    assert "mkor_h not reached, not reached" in decision.details
    assert "mkor_h ended before lamb reached the target, with seed 0-1." in decision.details
    assert _c03(*_paper({"lamb": [300.0] * 6, "mkor_released": [None] * 6})).verdict == "refuted"


def test_at_the_paper_tier_the_exact_rule_stands_beside_the_released_one():
    got: list[float | None] = [300.0, 320.0]
    decision = _c03(*_paper(dict.fromkeys(("lamb", "mkor", "mkor_released_1000", "mkor_released"), got)))
    assert decision.measured == "0.667"
    assert "mkor over lamb: 1 [1, 1]." in decision.details


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_pretraining_counts_once_its_fine_tuning_has_ended(status):
    """Truth: seed 0 is unknown, and says nothing of seed 1."""
    pretraining, squad = _paper({"lamb": [300.0, 300.0], "mkor_h": [None, 300.0]})
    squad.loc[squad["start_from"] == "mkor_h-0", "status"] = status
    decision = decide_hybrid_time(pretraining, squad, NO_METRICS, conditions("C01"), rival="lamb")
    assert (decision.measured, decision.seeds) == ("2.5", "1")


def test_c01_without_fine_tuning_is_not_tested():
    pretraining, squad = _paper({"lamb": [300.0], "mkor_h": [300.0]})
    alone = decide_hybrid_time(pretraining, squad.head(0), NO_METRICS, conditions("C01"), rival="lamb")
    assert (alone.verdict, "sets a target" in alone.why) == ("not tested", True)
    without = decide_hybrid_time(pretraining, squad.head(1), NO_METRICS, conditions("C01"), rival="lamb")
    assert without.why == "No fine-tuning in bert_squad from a pre-training of mkor_h has ended."


@pytest.mark.parametrize(
    ("hybrid_reaches", "verdict"), [([50.0, 55.0, 60.0], "confirmed"), ([200.0, 220.0, 240.0], "refuted")]
)
def test_c01_at_a_small_tier_is_about_the_loss_and_states_the_f1(hybrid_reaches, verdict):
    pretraining = _pretraining(lamb=[100.0, 110.0, 120.0], mkor_h=hybrid_reaches)
    metrics, squad = fine_tuned("bert_squad", {"lamb": [0.7, 0.72], "mkor_h": [0.8, 0.82]}, ["quotes"])
    decision = decide_hybrid_time(pretraining, squad, metrics, conditions("C01"), rival="lamb")
    assert decision.verdict == verdict
    assert float(decision.measured) == pytest.approx(100 / hybrid_reaches[0], rel=5e-3)
    assert "this tier uses the pre-training loss instead." in decision.details
    assert "MKOR-H's F1 minus lamb's is 0.1 [0.1, 0.1]." in decision.details


def test_c02_without_mkor_h_says_what_is_missing():
    decision = decide_hybrid_time(_pretraining(kaisa=[100.0]), NO_RUNS, NO_METRICS, conditions("C02"), rival="kaisa")
    assert (decision.verdict, decision.why) == ("not tested", "bert_pretraining has no run of mkor_h.")


def test_c01_without_step_times_is_not_tested():
    pretraining = _pretraining(lamb=[100.0, 110.0], mkor_h=[50.0, 55.0])
    decision = decide_hybrid_time(pretraining, NO_RUNS, NO_METRICS, conditions("C01"), rival="lamb", times=NO_RUNS)
    assert (decision.verdict, "step_time.csv is missing" in decision.why) == ("not tested", True)


def test_after_its_switch_mkor_h_takes_the_steps_of_its_base():
    """Truth: LAMB takes 100 steps of 10 ms; MKOR-H 20 of 30 ms, then 20 of LAMB's: 1 s over .8 s."""
    pretraining = _pretraining(lamb=[100.0, 100.0], mkor_h=[40.0, 40.0])
    given = [{"lr": 0.1, "base": "lamb"} if label == "mkor_h" else {"lr": 0.1} for label in pretraining["optimizer"]]
    pretraining = pretraining.assign(hyperparameters=given, switch_step=pretraining["optimizer"].map({"mkor_h": 20.0}))
    times = step_time(pretraining, {"lamb": 10.0, "mkor_h": 30.0})
    decision = decide_hybrid_time(pretraining, NO_RUNS, NO_METRICS, conditions("C01"), rival="lamb", times=times)
    assert (decision.verdict, decision.measured) == ("confirmed", "1.25")
