"""Claims about iterations and training time to LAMB's final quality on hand-made runs: C01 to C03."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.support.synthetic import run_rows
from tests.support.synthetic_claims import NO_METRICS, NO_RUNS, conditions, descents, fine_tuned, swept, untrained
from tests.support.synthetic_probes import step_time
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.claims.decision import Decision, Trained
from workflow.bench.claims.over_lamb import Evidence, decide_hybrid_time, decide_iterations_to_target

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
    return Evidence(bert, autoencoder, squad or untrained(SQUAD), StepTimes(times), horizons={})


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
    assert "BERT: bert_pretraining has no run of mkor; autoencoder: to what lamb reaches" in half.why


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
    assert "mkor_h ended before lamb reached the target, with seeds 0-1." in decision.details
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
    assert "iterations 2 [2, 2], 2 [2, 2], 2 [2, 2]; seconds 4 [4, 4], 4 [4, 4], 4 [4, 4]." in decision.details


def test_c02_without_mkor_h_says_what_is_missing():
    decision = decide_hybrid_time(_evidence(_bert(lamb=[1.0], kaisa=[100.0])), conditions("C02"), "kaisa")
    assert (decision.verdict, decision.why) == ("not tested", "bert_pretraining has no run of mkor_h.")


def test_c01_without_step_times_is_not_tested():
    evidence = _evidence(autoencoder=_autoencoder(lamb=[100.0, 110.0], mkor_h=[50.0, 55.0]), times=NO_RUNS)
    decision = decide_hybrid_time(evidence, conditions("C01"), "lamb")
    assert (decision.verdict, "step_time.csv is missing" in decision.why) == ("not tested", True)


def test_after_its_switch_mkor_h_takes_the_steps_of_its_base():
    """Truth: LAMB takes 100 steps of 10 ms; MKOR-H 40, of 20 ms up to step 20 and then of 10."""
    trained = _autoencoder(lamb=[100.0, 100.0], mkor_h=[40.0, 40.0])
    given = [{"lr": 0.1, "base": "lamb"} if label == "mkor_h" else {"lr": 0.1} for label in trained.runs["optimizer"]]
    runs = trained.runs.assign(hyperparameters=given, switch_step=trained.runs["optimizer"].map({"mkor_h": 20.0}))
    times = step_time(runs, {"lamb": 10.0, "mkor_h": 20.0})
    evidence = _evidence(autoencoder=replace(trained, runs=runs), times=times)
    decision = decide_hybrid_time(evidence, conditions("C01"), "lamb")
    assert (decision.verdict, decision.measured) == ("confirmed", "autoencoder: 1.67")
    assert "in multiples of lamb's, < 2.5 [2.5, 2.5], here 1.5: wins." in decision.details


LENGTHS = (160, 200, 240, 280, 320, 400)


def _horizons(shift: dict[str, float], *, diverged: tuple[str, int, int] | None = None) -> Trained:
    """Return runs of four seeds at each length, whose final loss is 500 / (length x factor of the label).

    A label with a factor of 2 ends with half of the steps where one of 1 ends; MKOR-H switches after .75 of its steps.
    """
    runs, metrics = [], []
    for label, factor in shift.items():
        for length in LENGTHS:
            for run in run_rows("autoencoder_horizons", AUTOENCODER, label, range(4), period=10, steps=length)[1]:
                run |= {"run": f"{label} {length} {run['seed']}", "steps": length, "target": None}
                run["switch_step"] = 0.75 * length if label == "mkor_h" else None
                run["status"] = "diverged" if (label, length, run["seed"]) == diverged else "finished"
                runs.append(run)
                shared = {name: run[name] for name in NO_METRICS if name in run} | {"split": "validation"}
                for step, value in ((0, 9.0), (length, 500 / (length * factor))):
                    metrics.append(shared | {"metric": "loss", "step": step, "value": value, "train_seconds": 0.0})
    return Trained("autoencoder_horizons", pd.DataFrame(runs), pd.DataFrame(metrics, columns=list(NO_METRICS)))


def _own(horizons: Trained) -> Evidence:
    """Results of the autoencoder, on which MKOR takes .8 of LAMB's steps in runs of one length, and of horizons."""
    trained = _autoencoder(lamb=[100.0] * 4, mkor=[80.0] * 4, mkor_h=[80.0] * 4)
    given = [{"lr": 0.1, "base": "lamb"} if label == "mkor_h" else {"lr": 0.1} for label in trained.runs["optimizer"]]
    runs = trained.runs.assign(hyperparameters=given)
    times = step_time(runs.assign(inverse_update_period=None), {"lamb": 10.0, "mkor": 10.0, "mkor_h": 20.0})
    own = horizons.runs.assign(
        hyperparameters=[
            {"lr": 0.1, "base": "lamb"} if one == "mkor_h" else {"lr": 0.1} for one in horizons.runs["optimizer"]
        ]
    )
    return replace(
        _evidence(autoencoder=replace(trained, runs=runs), times=times),
        horizons={AUTOENCODER: replace(horizons, runs=own)},
    )


def _length_at(loss: float, factor: float) -> float:
    """Return the length at which the line between two lengths' final losses crosses a loss."""
    finals = [500 / (length * factor) for length in LENGTHS]
    return float(np.interp(-loss, [-value for value in finals], LENGTHS))


def test_c03_is_judged_by_the_shortest_length_that_reaches_what_lambs_own_reach():
    """Truth: LAMB's loss at a length of 360 lies between those at 320 and 400; MKOR is there in two thirds of it."""
    horizons = _horizons({"lamb": 1.0, "mkor": 1.5})
    limit = (500 / 320 + 500 / 400) / 2
    decision = decide_iterations_to_target(_own(horizons), conditions("C03"))
    assert decision.measured == f"autoencoder: {_length_at(limit, 1.5) / 360:.3g}"
    assert decision.verdict == "confirmed"
    assert "iterations 0.8 [0.8, 0.8], 0.8 [0.8, 0.8], 0.8 [0.8, 0.8]." in decision.details
    assert f"a validation loss of {limit:.3g}; seeds that reach it at some length: " in decision.details
    assert "lamb 4 of 4 (0 with the shortest), mkor 4 of 4 (0)." in decision.details
    assert "autoencoder_horizons.runs.csv: runs" in str(decision.data)


def test_where_runs_of_one_length_say_otherwise_the_reason_says_so():
    decision = decide_iterations_to_target(_own(_horizons({"lamb": 1.0, "mkor": 0.95})), conditions("C03"))
    assert decision.verdict == "refuted"
    where = "in runs of one length it is confirmed at final quality and confirmed in the mean of all targets"
    assert where in decision.why


def test_a_run_that_diverged_at_a_length_is_the_worst_of_all():
    """Truth: the loss at 240, where MKOR passes LAMB's, is lost in one seed, which arrives later and is not dropped."""
    whole = decide_iterations_to_target(_own(_horizons({"lamb": 1.0, "mkor": 1.5})), conditions("C03"))
    horizons = _horizons({"lamb": 1.0, "mkor": 1.5}, diverged=("mkor", 240, 2))
    decision = decide_iterations_to_target(_own(horizons), conditions("C03"))
    (before,), (after,) = (one.estimates.values() for one in (whole, decision))
    assert after.n == before.n == 4
    assert after.value > before.value


def test_c01_counts_the_steps_after_a_switch_at_its_share_of_the_length():
    """Truth: of MKOR-H's length three quarters take 20 ms, and the rest 10; all of LAMB's 360 take 10."""
    limit = (500 / 320 + 500 / 400) / 2
    decision = decide_hybrid_time(_own(_horizons({"lamb": 1.0, "mkor_h": 1.5})), conditions("C01"), "lamb")
    length = _length_at(limit, 1.5)
    assert decision.measured == f"autoencoder: {360 * 10 / (length * (0.75 * 20 + 0.25 * 10)):.3g}"


def test_c02_has_no_runs_of_several_lengths_and_keeps_final_quality():
    evidence = _own(_horizons({"lamb": 1.0, "mkor": 1.5}))
    trained = _autoencoder(lamb=[100.0] * 4, kaisa=[80.0] * 4, mkor_h=[40.0] * 4)
    both = replace(evidence, autoencoder=trained, times=StepTimes(step_time(trained.runs, STEP_MS)))
    decision = decide_hybrid_time(both, conditions("C02"), "kaisa")
    assert decision.measured == "autoencoder: 4"
    assert "autoencoder_horizons" not in decision.details
