"""Claims about iterations and training time to targets on hand-made runs: C06, C07 and C19, then C01 to C03."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.synthetic import run_rows
from tests.support.synthetic_claims import NO_METRICS, NO_RUNS, conditions, descents, fine_tuned, swept, untrained
from tests.support.synthetic_probes import step_time
from workflow.bench.analysis.estimates import Estimate
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.time_to_target import SweptRatio
from workflow.bench.claims.decision import Decision, Trained
from workflow.bench.claims.time_to_target import (
    Evidence,
    decide_hybrid_time,
    decide_iterations_to_target,
    decide_speedup,
    part_of,
)

RIVALS = {"C06": ("sgd",), "C07": ("kaisa",), "C19": ("sgd", "hylo", "kaisa")}


def _decide(claim: str, trained: Trained, *, times: pd.DataFrame | None = None) -> Decision:
    """Decide with step times of 30 ms, KAISA's 50, on an idle machine."""
    rows = StepTimes(step_time(trained.runs) if times is None else times)
    return decide_speedup(trained, rows, conditions(claim), *RIVALS[claim])


def _resnet(**reaches: list[float | None]) -> Trained:
    return swept("resnet50_imagenet", reaches)


@pytest.mark.parametrize(
    ("mkor", "verdict"),
    [([60.0, 66.0, 72.0], "confirmed"), ([150.0, 160.0, 180.0], "refuted"), ([60.0, 110.0, 160.0], "inconclusive")],
)
def test_c06_training_time_to_targets(mkor, verdict):
    decision = _decide("C06", _resnet(sgd=[100.0, 110.0, 120.0], mkor=mkor))
    assert decision.verdict == verdict
    assert str(decision.data).startswith("resnet50_imagenet.runs.csv: runs ")
    where = {"confirmed": "> 1 in its whole interval", "refuted": "not > 1 anywhere in its interval"}
    place = f"is {where[verdict]}" if verdict in where else "has 1 inside its interval"
    targets = "8 targets of validation loss from 8.26 down to 4.2"
    assert decision.why == f"Training seconds to {targets}: the ratio sgd/mkor {place}."
    start = "Geometric mean, 95 % t interval. The ratios of iterations, above 1 if MKOR needs fewer: sgd/mkor "
    assert decision.details.startswith(start)


@pytest.mark.parametrize(
    ("kaisa", "time", "iterations", "verdict"),
    [
        ([90.0, 99.0], "1.5", "1.11", "confirmed"),
        ([110.0, 121.0], "1.83", "0.909", "refuted"),  # faster in time, but MKOR does not need more iterations
        ([50.0, 55.0], "0.833", "2", "refuted"),
    ],
)
def test_c07_needs_less_time_and_more_iterations(kaisa, time, iterations, verdict):
    """Truth: MKOR takes 100 and 110 steps of 30 ms; KAISA's take 50."""
    runs = _resnet(sgd=[120.0, 130.0], kaisa=kaisa, mkor=[100.0, 110.0])
    decision = _decide("C07", runs)
    assert decision.verdict == verdict
    assert decision.measured == f"time kaisa/mkor: {time}; iterations mkor/kaisa: {iterations}"
    assert decision.published_of == ("time kaisa/mkor",)


def test_c19_needs_every_rival_to_be_slower():
    reaches: dict[str, list[float | None]] = {"sgd": [100.0, 110.0], "hylo": [100.0, 110.0]}
    reaches |= {"kaisa": [90.0, 99.0], "mkor": [60.0, 66.0]}
    assert _decide("C19", swept("alexnet_cifar100", reaches)).verdict == "confirmed"
    decision = _decide("C19", swept("alexnet_cifar100", reaches | {"hylo": [30.0, 33.0]}))
    assert decision.verdict == "refuted"
    assert "sgd/mkor confirmed; hylo/mkor refuted; kaisa/mkor confirmed" in decision.why
    del reaches["kaisa"]
    assert _decide("C19", swept("alexnet_cifar100", reaches)).why == "alexnet_cifar100 has no run of kaisa."


def test_a_rival_that_misses_its_targets_counts_with_its_budget():
    """KAISA stays at the start through 300 steps of 50 ms; MKOR takes 1/3 of its time to the last target.

    Truth: over eight shares s of the way, the mean logarithm of 15 s / (s x 100 x .03 s).
    """
    decision = _decide("C07", _resnet(sgd=[100.0] * 3, kaisa=[None] * 3, mkor=[100.0] * 3))
    ratio = np.exp(np.mean(np.log(15 / (np.linspace(0.3, 1, 8) * 3))))
    assert decision.measured.startswith(f"time kaisa/mkor: {ratio:.3g};")
    assert "Of 24 pairs of kaisa/mkor, one of the two runs missed the target in 24 and counts" in decision.details


def test_a_rival_whose_budget_is_shorter_than_mkors_time_leaves_the_claim_open():
    """KAISA ends after 300 steps of 1 ms, .3 s, short of all targets; MKOR takes .9 s to the first of them."""
    runs = _resnet(sgd=[100.0] * 3, kaisa=[None] * 3, mkor=[100.0] * 3)
    decision = _decide("C07", runs, times=step_time(runs.runs, {"kaisa": 1.0}))
    assert "time kaisa/mkor inconclusive" in decision.why
    assert decision.interval.startswith("time kaisa/mkor: [1, 1]")


def test_a_target_that_nobody_reaches_is_open_and_counted():
    decision = _decide("C07", _resnet(sgd=[100.0, 110.0], kaisa=[None, None], mkor=[None, None]))
    assert decision.verdict == "inconclusive"
    assert "no target reached" in decision.measured
    assert "Of 16 pairs of kaisa/mkor, 16 left out" in decision.details


@pytest.mark.parametrize(
    ("trained", "why"),
    [
        (swept("resnet50_imagenet", {"sgd": [1.0], "mkor": [1.0]}, target=None), "resnet50_imagenet sets no target."),
        (untrained("resnet50_imagenet"), "resnet50_imagenet has no results."),
        (
            swept("resnet50_imagenet", {"sgd": [None], "mkor": [100.0]}),
            "resnet50_imagenet has no finished run of sgd in which the validation loss gets better.",
        ),
        (
            swept("resnet50_imagenet", {"sgd": [100.0], "mkor": [100.0, 90.0]}, seed=0),
            "resnet50_imagenet has several runs of a label and seed.",
        ),
    ],
)
def test_without_targets_to_sweep_the_claim_says_why(trained, why):
    decision = _decide("C06", trained, times=NO_RUNS)
    assert (decision.verdict, decision.why) == ("not tested", why)


def test_at_the_paper_tier_mkor_is_the_released_rule():
    reaches: dict[str, list[float | None]] = {"sgd": [100.0, 110.0], "mkor": [200.0, 220.0]}
    reaches["mkor_released"] = [50.0, 55.0]
    assert _decide("C06", swept("x", reaches, tier="paper")).measured == "sgd/mkor_released: 2"
    assert _decide("C06", swept("x", reaches)).measured == "sgd/mkor: 0.5"


def _with_times(times: pd.DataFrame | None = None, **about: Any) -> Decision:
    trained = _resnet(sgd=[100.0, 110.0, 120.0], mkor=[60.0, 66.0, 72.0])
    return _decide("C06", trained, times=step_time(trained.runs, **about) if times is None else times)


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
    trained = _resnet(sgd=[100.0, 110.0], mkor=[60.0, 66.0])
    times = step_time(trained.runs).astype({"note": object})
    times.loc[times["optimizer"] == "mkor", ["step_ms", "note"]] = [None, "out of memory"]
    decision = _decide("C06", trained, times=times)
    assert decision.why == "step_time.csv has no step of mkor in resnet50_imagenet (out of memory)."


def test_the_interval_is_that_of_the_tuning_studies_means():
    """Truth: seeds 0 and 3 share a study, and so on; three studies of equal seeds are as three seeds."""
    studies: list[float | None] = [60.0, 66.0, 72.0]
    three = _decide("C06", _resnet(sgd=[100.0] * 3, mkor=studies))
    six = _resnet(sgd=[100.0] * 6, mkor=studies * 2)
    nested = Trained(six.name, six.runs.assign(study=six.runs["seed"] % 3), six.metrics)
    assert _decide("C06", nested).interval == three.interval
    assert "Intervals are those of the means of 3 tuning studies." in _decide("C06", nested).details
    assert _decide("C06", six).interval != three.interval


@pytest.mark.parametrize(
    ("low", "high", "unreached", "verdict"),
    [
        (0.98, 1.02, 6, "no difference"),
        (0.98, 1.02, 7, "inconclusive"),  # runs that miss a target move a ratio toward 1
        (1.01, 1.02, 64, "confirmed"),
        (0.98, 0.99, 64, "refuted"),
        (1.0, 1.0, 0, "inconclusive"),  # a tie in every seed
    ],
)
def test_labels_of_which_many_runs_miss_targets_are_not_called_equal(low, high, unreached, verdict):
    estimate = Estimate(1.0, low, high, 8, "geometric mean", "t", is_ratio=True)
    ratio = SweptRatio(estimate, pairs=64, unreached=unreached, left_out=0, seeds=(0,), studies=0)
    assert part_of("", ratio, conditions("C06")[0]).verdict == verdict


STEP_MS = {"lamb": 100.0, "mkor_h": 100.0, "kaisa": 200.0, "kaisa_1000": 200.0}
BERT, AUTOENCODER, SQUAD = "bert_pretraining", "autoencoder_lamb", "bert_squad"


def _evidence(
    bert: Trained | None = None,
    autoencoder: Trained | None = None,
    squad: Trained | None = None,
    times: pd.DataFrame | None = None,
) -> Evidence:
    """Results with steps of LAMB and of MKOR-H of 0.1 s, of KAISA of 0.2 s; those that are not given are not there."""
    bert, autoencoder = bert or untrained(BERT), autoencoder or untrained(AUTOENCODER)
    if times is None:
        trained = [one.runs for one in (bert, autoencoder) if not one.runs.empty]
        times = step_time(pd.concat(trained), STEP_MS) if trained else NO_RUNS
    return Evidence(bert, autoencoder, squad or untrained(SQUAD), StepTimes(times))


def _autoencoder(**reaches: list[float | None]) -> Trained:
    return swept(AUTOENCODER, reaches)


def _bert(**reaches: list[float | None]) -> Trained:
    return swept(BERT, reaches)


def _c03(autoencoder: Trained | None = None, bert: Trained | None = None) -> Decision:
    return decide_iterations_to_target(_evidence(bert, autoencoder), conditions("C03"))


@pytest.mark.parametrize(
    ("mkor", "verdict"),
    [([60.0, 66.0, 72.0], "confirmed"), ([150.0, 160.0, 180.0], "refuted"), ([60.0, 110.0, 160.0], "inconclusive")],
)
def test_c03_iterations_to_targets(mkor, verdict):
    decision = _c03(_autoencoder(lamb=[100.0, 110.0, 120.0], mkor=mkor))
    assert decision.verdict == verdict
    assert decision.seeds == "0-2"
    assert "autoencoder_lamb.runs.csv: runs" in str(decision.data)
    assert "Carried by autoencoder_lamb; the paper's number is of BERT-Large." in decision.details


def test_c03_is_a_ratio_paired_by_seed():
    """Truth: every seed's ratio is 0.6 at every target, so the interval has no width."""
    decision = _c03(_autoencoder(lamb=[100.0, 150.0, 50.0], mkor=[60.0, 90.0, 30.0]))
    assert (decision.measured, decision.interval) == ("autoencoder: 0.6", "autoencoder: [0.6, 0.6]")


def test_c03_leaves_a_tie_open():
    decision = _c03(_autoencoder(lamb=[100.0, 110.0], mkor=[100.0, 110.0]))
    assert decision.verdict == "inconclusive"
    assert "mkor/lamb tie in every seed" in decision.why


def test_every_experiment_with_a_target_is_a_part():
    """Truth: confirmed by one and refuted by the other is refuted; one that has not ended leaves the claim open."""
    better = _autoencoder(lamb=[100.0, 110.0], mkor=[60.0, 66.0])
    worse = _bert(lamb=[100.0, 110.0], mkor=[150.0, 165.0])
    both = _c03(better, worse)
    assert (both.verdict, both.measured) == ("refuted", "BERT: 1.5; autoencoder: 0.6")
    assert "Carried by bert_pretraining and autoencoder_lamb;" in both.details
    assert _c03(better, _bert(lamb=[100.0, 110.0], mkor=[60.0, 66.0])).verdict == "confirmed"
    aimless = replace(worse, runs=worse.runs.assign(target=None))
    assert _c03(better, aimless) == _c03(better)
    half = _c03(better, _bert(lamb=[100.0]))
    assert half.verdict == "inconclusive"
    assert "BERT: bert_pretraining has no run of mkor; autoencoder: the ratio" in half.why


def test_c03_without_runs_is_not_tested():
    nothing = _c03()
    assert (nothing.verdict, nothing.why) == (
        "not tested",
        "bert_pretraining has no results. autoencoder_lamb has no results.",
    )
    assert "autoencoder_lamb sets no target." in _c03(swept(AUTOENCODER, {"lamb": [1.0]}, target=None)).why
    assert _c03(_autoencoder(lamb=[100.0])).why == "autoencoder_lamb has no run of mkor."


def test_c03_states_the_released_rule_beside_the_exact_one():
    reaches = {"lamb": [100.0, 110.0], "mkor": [60.0, 66.0], "mkor_released": [80.0, 88.0]}
    decision = _c03(_autoencoder(**reaches))
    assert decision.measured == "autoencoder: 0.6"
    assert "mkor_released over lamb: autoencoder 0.8 [0.8, 0.8]." in decision.details


@pytest.mark.parametrize(("status", "reason"), [("missing", "not trained yet"), ("skipped", "text not found at data")])
def test_runs_without_values_are_the_reason_and_no_result(status, reason):
    runs = _autoencoder(lamb=[100.0, 110.0], mkor=[60.0, 66.0]).runs
    runs.loc[runs["optimizer"] == "mkor", ["status", "reason", "crossing_step"]] = [status, reason, None]
    decision = _c03(Trained(AUTOENCODER, runs, descents(runs)))
    assert decision.verdict == "not tested"
    assert f"No run of mkor in autoencoder_lamb has ended: {status} ({reason})." in decision.why


def test_a_missing_seed_is_left_out_and_named():
    runs = _autoencoder(lamb=[100.0, 110.0, 120.0], mkor=[60.0, 66.0, 72.0]).runs
    runs.loc[(runs["optimizer"] == "mkor") & (runs["seed"] == 1), ["status", "crossing_step"]] = ["failed", None]
    decision = _c03(Trained(AUTOENCODER, runs, descents(runs)))
    assert (decision.verdict, decision.seeds) == ("confirmed", "0, 2")
    assert "Left out: 1 failed of mkor." in decision.details


def _paper(reached: dict[str, list[float | None]]) -> Evidence:
    """Results of bert_pretraining and bert_squad at the paper tier: pre-trainings of several lengths without a target.

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
    return _evidence(
        Trained(BERT, pd.DataFrame(pretraining), NO_METRICS),
        squad=Trained(SQUAD, pd.DataFrame(squad).astype({"steps_to_target": float}), NO_METRICS),
    )


def _paper_c03(evidence: Evidence) -> Decision:
    return decide_iterations_to_target(evidence, conditions("C03"))


def _without_fine_tuning(evidence: Evidence, keep: int) -> Evidence:
    return replace(evidence, squad=replace(evidence.squad, runs=evidence.squad.runs.head(keep)))


def test_at_the_paper_tier_a_pretraining_counts_in_full_and_the_shortest_that_reaches_the_f1():
    """Truth: MKOR's 600 steps miss the F1 and its 1,000 reach it, LAMB's 1,500 do: 1000 / 1500 in every seed."""
    got = [300.0, 320.0, 310.0]
    reached: dict[str, list[float | None]] = {"lamb": [*got], "mkor_released": [*got], "mkor_released_1000": [*got]}
    decision = _paper_c03(_paper({**reached, "mkor_released_600": [None] * 3}))
    assert (decision.verdict, decision.measured) == ("confirmed", "BERT: 0.667")
    assert "Carried by bert_pretraining and bert_squad" in decision.details
    assert "bert_squad.runs.csv: runs" in str(decision.data)


@pytest.mark.parametrize(("rival", "ratio"), [("lamb", "BERT: 2.5"), ("kaisa", "BERT: 3.33")])
def test_c01_c02_at_the_paper_tier(rival, ratio):
    """Truth: 1500 / 600 steps of a tenth of a second for LAMB; KAISA's shortest is 1,000 of twice as long."""
    got: list[float | None] = [300.0, 300.0]
    evidence = _paper(dict.fromkeys(("lamb", "kaisa", "kaisa_1000", "mkor_h"), got))
    decision = decide_hybrid_time(evidence, conditions("C01"), rival)
    assert (decision.verdict, decision.measured) == ("confirmed", ratio)
    # LAMB's time is that of its schedule: nobody tried a shorter one, which KAISA has.
    assert ("lamb was trained for 1500 steps only" in decision.details) == (rival == "lamb")


def test_c01_is_open_where_a_shorter_pretraining_misses_the_f1():
    """MKOR-H's 600 steps say nothing of what it would be after LAMB's 1,500; as many of MKOR's do."""
    decision = decide_hybrid_time(_paper({"lamb": [300.0, 300.0], "mkor_h": [None, None]}), conditions("C01"), "lamb")
    assert decision.verdict == "inconclusive"
    assert "mkor_h not reached, not reached" in decision.details
    assert "mkor_h ended before lamb reached the target, with seed 0-1." in decision.details
    assert _paper_c03(_paper({"lamb": [300.0] * 6, "mkor_released": [None] * 6})).verdict == "refuted"


def test_pretrainings_of_which_none_reaches_the_f1_are_open():
    decision = _paper_c03(_paper({"lamb": [None] * 3, "mkor_released": [None] * 3}))
    assert (decision.verdict, decision.measured) == ("inconclusive", "BERT: no target reached")
    assert "neither reached the F1" in decision.why


def test_at_the_paper_tier_the_exact_rule_stands_beside_the_released_one():
    got: list[float | None] = [300.0, 320.0]
    decision = _paper_c03(_paper(dict.fromkeys(("lamb", "mkor", "mkor_released_1000", "mkor_released"), got)))
    assert decision.measured == "BERT: 0.667"
    assert "mkor over lamb: BERT 1 [1, 1]." in decision.details


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_pretraining_counts_once_its_fine_tuning_has_ended(status):
    """Truth: seed 0 is unknown, and says nothing of seed 1."""
    evidence = _paper({"lamb": [300.0, 300.0], "mkor_h": [None, 300.0]})
    squad = evidence.squad.runs
    squad.loc[squad["start_from"] == "mkor_h-0", "status"] = status
    decision = decide_hybrid_time(evidence, conditions("C01"), "lamb")
    assert (decision.measured, decision.seeds) == ("BERT: 2.5", "1")


def test_c01_without_fine_tuning_is_not_tested():
    evidence = _paper({"lamb": [300.0], "mkor_h": [300.0]})
    alone = decide_hybrid_time(_without_fine_tuning(evidence, 0), conditions("C01"), "lamb")
    assert (alone.verdict, "bert_pretraining sets no target." in alone.why) == ("not tested", True)
    without = decide_hybrid_time(_without_fine_tuning(evidence, 1), conditions("C01"), "lamb")
    assert without.why == "No fine-tuning in bert_squad from a pre-training of mkor_h has ended."


@pytest.mark.parametrize(
    ("hybrid_reaches", "verdict"), [([50.0, 55.0, 60.0], "confirmed"), ([200.0, 220.0, 240.0], "refuted")]
)
def test_c01_where_the_pretraining_has_a_target_states_the_f1(hybrid_reaches, verdict):
    metrics, squad = fine_tuned("bert_squad", {"lamb": [0.7, 0.72], "mkor_h": [0.8, 0.82]}, ["quotes"])
    bert = _bert(lamb=[100.0, 110.0, 120.0], mkor_h=hybrid_reaches)
    runs = bert.runs.set_index(["optimizer", "seed"])["run"]
    starts = [runs[row.optimizer, row.seed] for row in squad.itertuples()]
    evidence = _evidence(bert, squad=Trained(SQUAD, squad.assign(start_from=starts), metrics))
    decision = decide_hybrid_time(evidence, conditions("C01"), "lamb")
    assert decision.verdict == verdict
    assert float(decision.measured.removeprefix("BERT: ")) == pytest.approx(100 / hybrid_reaches[0], rel=5e-3)
    assert "MKOR-H's F1 minus lamb's is 0.1 [0.1, 0.1]." in decision.details
    other = replace(evidence, squad=Trained(SQUAD, squad.assign(start_from="of another size"), metrics))
    assert "F1" not in decide_hybrid_time(other, conditions("C01"), "lamb").details


def test_c02_states_the_periods_and_the_iterations():
    trained = _autoencoder(lamb=[100.0, 110.0], kaisa=[80.0, 88.0], mkor_h=[40.0, 44.0])
    given = {
        "kaisa": {"base": "lamb", "factor_update_period": 10, "inverse_update_period": 50},
        "mkor_h": {"base": "lamb", "inverse_update_period": 10},
    }
    runs = trained.runs.assign(hyperparameters=[given.get(label, {"lr": 0.1}) for label in trained.runs["optimizer"]])
    evidence = _evidence(autoencoder=replace(trained, runs=runs))
    decision = decide_hybrid_time(evidence, conditions("C02"), "kaisa")
    assert (decision.verdict, decision.measured) == ("confirmed", "autoencoder: 4")
    assert "Steps between updates: autoencoder kaisa 10 and 50, mkor_h 10." in decision.details
    assert "The ratio of iterations is kaisa/mkor_h 2 [2, 2]." in decision.details


def test_c02_without_mkor_h_says_what_is_missing():
    decision = decide_hybrid_time(_evidence(_bert(lamb=[1.0], kaisa=[100.0])), conditions("C02"), "kaisa")
    assert (decision.verdict, decision.why) == ("not tested", "bert_pretraining has no run of mkor_h.")


def test_c01_without_step_times_is_not_tested():
    evidence = _evidence(autoencoder=_autoencoder(lamb=[100.0, 110.0], mkor_h=[50.0, 55.0]), times=NO_RUNS)
    decision = decide_hybrid_time(evidence, conditions("C01"), "lamb")
    assert (decision.verdict, "step_time.csv is missing" in decision.why) == ("not tested", True)


def test_after_its_switch_mkor_h_takes_the_steps_of_its_base():
    """Truth: to a share s LAMB takes 100 s steps of 10 ms; MKOR-H 40 s, of 20 ms up to step 20 and then of 10."""
    trained = _autoencoder(lamb=[100.0, 100.0], mkor_h=[40.0, 40.0])
    given = [{"lr": 0.1, "base": "lamb"} if label == "mkor_h" else {"lr": 0.1} for label in trained.runs["optimizer"]]
    runs = trained.runs.assign(hyperparameters=given, switch_step=trained.runs["optimizer"].map({"mkor_h": 20.0}))
    times = step_time(runs, {"lamb": 10.0, "mkor_h": 20.0})
    evidence = _evidence(autoencoder=replace(trained, runs=runs), times=times)
    decision = decide_hybrid_time(evidence, conditions("C01"), "lamb")
    shares = np.linspace(0.3, 1, 8)
    hybrid = np.minimum(40 * shares, 20) * 20 + np.maximum(40 * shares - 20, 0) * 10
    ratio = np.exp(np.log(1000 * shares / hybrid).mean())
    assert (decision.verdict, decision.measured) == ("confirmed", f"autoencoder: {ratio:.3g}")
