"""Claims about trainings (C01 to C07, C09, C18, C19, C25) on hand-made runs: verdicts, censored and missing runs."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.support.synthetic import run_rows
from tests.support.synthetic_claims import fine_tuned, hybrid, learning_rates, runs_to_target
from workflow.bench.claims.training import (
    decide_glue_average,
    decide_hybrid_time,
    decide_iterations_to_target,
    decide_period_loss,
    decide_sensitivity,
    decide_speedup,
    decide_switch,
)
from workflow.bench.claims.verdicts import parse_conditions
from workflow.bench.results.columns import EVALUATION_COLUMNS, RUN_COLUMNS
from workflow.bench.results.tables import published

NO_RUNS = pd.DataFrame(columns=list(RUN_COLUMNS))
NO_METRICS = pd.DataFrame(columns=list(EVALUATION_COLUMNS))


def _conditions(claim: str):
    return parse_conditions(published("claims").set_index("id")["holds_when"][claim])


def _pretraining(**reaches: list[float | None]) -> pd.DataFrame:
    return runs_to_target("bert_pretraining", reaches)


def _c03(pretraining: pd.DataFrame, squad: pd.DataFrame = NO_RUNS):
    return decide_iterations_to_target(pretraining, squad, _conditions("C03"))


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
    runs.loc[runs["optimizer"] == "mkor", ["status", "reason", "steps_to_target"]] = [status, reason, None]
    decision = _c03(runs)
    assert decision.verdict == "not tested"
    assert f"No run of mkor in bert_pretraining has ended: {status} ({reason})." in decision.why


def test_a_missing_seed_is_left_out_and_named():
    runs = _pretraining(lamb=[100.0, 110.0, 120.0], mkor=[60.0, 66.0, 72.0])
    runs.loc[(runs["optimizer"] == "mkor") & (runs["seed"] == 1), ["status", "steps_to_target"]] = ["failed", None]
    decision = _c03(runs)
    assert (decision.verdict, decision.seeds) == ("confirmed", "0, 2")
    assert "Left out: 1 failed of mkor." in decision.details


def _paper(reached: dict[str, list[float | None]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of bert_pretraining and bert_squad at the paper tier: pre-trainings of several lengths without a target.

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
            seconds = 0.1 * budgets[label] * (1 + 0.01 * int(run["seed"]))
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


@pytest.mark.parametrize(("rival", "ratio"), [("lamb", "2.5"), ("kaisa", "1.67")])
def test_c01_c02_at_the_paper_tier(rival, ratio):
    """Truth: 1500 / 600 steps of a tenth of a second for LAMB; KAISA's shortest is 1,000."""
    got: list[float | None] = [300.0, 300.0]
    pretraining, squad = _paper(dict.fromkeys(("lamb", "kaisa", "kaisa_1000", "mkor_h"), got))
    decision = decide_hybrid_time(pretraining, squad, NO_METRICS, _conditions("C01"), rival=rival)
    assert (decision.verdict, decision.measured) == ("confirmed", ratio)
    # LAMB's time is that of its schedule: nobody tried a shorter one, which KAISA has.
    assert ("lamb was trained for 1500 steps alone" in decision.details) == (rival == "lamb")


def test_c01_is_open_where_a_shorter_pretraining_misses_the_f1():
    """MKOR-H's 600 steps say nothing of what it would be after LAMB's 1,500; as many of MKOR's do."""
    pretraining, squad = _paper({"lamb": [300.0, 300.0], "mkor_h": [None, None]})
    decision = decide_hybrid_time(pretraining, squad, NO_METRICS, _conditions("C01"), rival="lamb")
    assert decision.verdict == "inconclusive"
    assert "mkor_h not reached, not reached" in decision.details
    assert "mkor_h ended before lamb reached the target, with seed 0-1." in decision.details
    assert _c03(*_paper({"lamb": [300.0] * 6, "mkor_released": [None] * 6})).verdict == "refuted"


def test_c01_without_fine_tuning_is_not_tested():
    pretraining, squad = _paper({"lamb": [300.0], "mkor_h": [300.0]})
    alone = decide_hybrid_time(pretraining, squad.head(0), NO_METRICS, _conditions("C01"), rival="lamb")
    assert (alone.verdict, "sets a target" in alone.why) == ("not tested", True)
    without = decide_hybrid_time(pretraining, squad.head(1), NO_METRICS, _conditions("C01"), rival="lamb")
    assert without.why == "No fine-tuning in bert_squad from a pre-training of mkor_h has ended."


@pytest.mark.parametrize(
    ("hybrid_reaches", "verdict"), [([50.0, 55.0, 60.0], "confirmed"), ([200.0, 220.0, 240.0], "refuted")]
)
def test_c01_at_a_small_tier_is_about_the_loss_and_states_the_f1(hybrid_reaches, verdict):
    pretraining = _pretraining(lamb=[100.0, 110.0, 120.0], mkor_h=hybrid_reaches)
    metrics, squad = fine_tuned("bert_squad", {"lamb": [0.7, 0.72], "mkor_h": [0.8, 0.82]}, ["quotes"])
    decision = decide_hybrid_time(pretraining, squad, metrics, _conditions("C01"), rival="lamb")
    assert decision.verdict == verdict
    assert float(decision.measured) == pytest.approx(100 / hybrid_reaches[0], rel=5e-3)
    assert "for which the loss stands in here." in decision.details
    assert "MKOR-H's F1 minus lamb's is 0.1 [0.1, 0.1]." in decision.details


def test_c02_without_mkor_h_says_what_is_missing():
    decision = decide_hybrid_time(_pretraining(kaisa=[100.0]), NO_RUNS, NO_METRICS, _conditions("C02"), rival="kaisa")
    assert (decision.verdict, decision.why) == ("not tested", "bert_pretraining has no run of mkor_h.")


@pytest.mark.parametrize(
    ("mkor", "verdict"),
    [([0.75, 0.76, 0.77], "confirmed"), ([0.65, 0.66, 0.67], "refuted"), ([0.6, 0.71, 0.8], "inconclusive")],
)
def test_c04_averages_are_paired_by_seed(mkor, verdict):
    metrics, runs = fine_tuned("bert_glue", {"lamb": [0.7, 0.71, 0.72], "mkor": mkor})
    decision = decide_glue_average(metrics, runs, _conditions("C04"), contender="mkor")
    assert decision.verdict == verdict
    assert "docstrings: copy, docstrings: package" in decision.details


def test_c04_averages_the_last_scores_of_all_tasks():
    """Truth: (0.7 + 0.9) / 2 - (0.7 + 0.7) / 2 in both seeds; the scores before the last are 0.1 for all."""
    metrics, runs = fine_tuned("bert_glue", {"lamb": [0.7, 0.7], "mkor": [0.7, 0.7]})
    better = runs.loc[(runs["optimizer"] == "mkor") & (runs["dataset"] == "docstrings: copy"), "run"]
    metrics.loc[metrics["run"].isin(better) & (metrics["step"] == 100), "value"] = 0.9
    decision = decide_glue_average(metrics, runs, _conditions("C04"), contender="mkor")
    assert (decision.measured, decision.interval) == ("0.1", "[0.1, 0.1]")
    assert "mkor 0.8, 0.8; lamb 0.7, 0.7" in decision.details


@pytest.mark.parametrize(("kaisa", "verdict"), [(0.6, "confirmed"), (0.8, "refuted")])
def test_c05_kaisa_below_lamb(kaisa, verdict):
    metrics, runs = fine_tuned("bert_glue", {"lamb": [0.7, 0.71], "kaisa": [kaisa, kaisa + 0.01]})
    assert decide_glue_average(metrics, runs, _conditions("C05"), contender="kaisa").verdict == verdict


def test_a_seed_that_lacks_a_task_has_no_average():
    metrics, runs = fine_tuned("bert_glue", {"lamb": [0.7, 0.71, 0.72], "mkor": [0.75, 0.76, 0.77]})
    lost = (runs["optimizer"] == "mkor") & (runs["seed"] == 1) & (runs["dataset"] == "docstrings: copy")
    rows = metrics["run"].isin(runs.loc[lost, "run"])
    runs.loc[lost, "status"] = metrics.loc[rows, "status"] = "missing"
    decision = decide_glue_average(metrics, runs, _conditions("C04"), contender="mkor")
    assert (decision.verdict, decision.seeds) == ("confirmed", "0, 2")
    assert "Left out: 1 missing of mkor." in decision.details
    runs.loc[lost, "status"] = metrics.loc[rows, "status"] = "diverged"
    broken = decide_glue_average(metrics, runs, _conditions("C04"), contender="mkor")
    assert broken.verdict == "inconclusive"
    assert "lacks 1 of their runs, which broke down" in broken.why


@pytest.mark.parametrize(("scores", "verdict"), [([0.75, 0.76, 0.77], "confirmed"), ([0.6, 0.61, 0.62], "refuted")])
def test_c25_compares_mkor_h_with_the_same_rule_and_budget(scores, verdict):
    metrics, runs = fine_tuned("bert_glue", {"mkor": [0.7, 0.71, 0.72], "mkor_h": scores})
    decision = decide_switch(metrics, runs, hybrid([51, 52, 53]), _conditions("C25"))
    assert decision.verdict == verdict
    assert "MKOR-H switched in 3 of 3 runs, at step 51-53 of 150" in decision.details


def test_c25_takes_the_seeds_that_switched():
    metrics, runs = fine_tuned("bert_glue", {"mkor": [0.7, 0.71, 0.72], "mkor_h": [0.75, 0.1, 0.77]})
    some = decide_switch(metrics, runs, hybrid([51, None, 53]), _conditions("C25"))
    assert (some.verdict, some.seeds) == ("confirmed", "0, 2")
    assert "MKOR-H switched in 2 of 3 runs" in some.details
    none = decide_switch(metrics, runs, hybrid([None] * 3), _conditions("C25"))
    assert (none.verdict, none.why) == ("not tested", "MKOR-H switched to its base in none of 3 runs of 150 steps.")


def test_c25_needs_its_partner():
    metrics, runs = fine_tuned("bert_glue", {"mkor": [0.7, 0.71], "mkor_h": [0.75, 0.76]})
    pretraining = hybrid([51, 52])
    pretraining.loc[pretraining["optimizer"] == "mkor", "steps"] = 1000
    assert decide_switch(metrics, runs, pretraining, _conditions("C25")).verdict == "not tested"
    assert decide_switch(metrics, runs, NO_RUNS, _conditions("C25")).why == "bert_pretraining has no results."


@pytest.mark.parametrize(
    ("mkor", "verdict"),
    [([60.0, 66.0, 72.0], "confirmed"), ([150.0, 160.0, 180.0], "refuted"), ([60.0, 110.0, 160.0], "inconclusive")],
)
def test_c06_training_time_to_target(mkor, verdict):
    runs = runs_to_target("resnet50_imagenet", {"sgd": [100.0, 110.0, 120.0], "mkor": mkor})
    decision = decide_speedup("resnet50_imagenet", runs, _conditions("C06"), rivals=("sgd",))
    assert decision.verdict == verdict
    assert str(decision.data).startswith("resnet50_imagenet.runs.csv: runs ")


def test_c07_is_about_time_and_states_iterations():
    """Truth: KAISA takes fewer iterations, 90 / 100, each 5/3 as long."""
    runs = runs_to_target("resnet50_imagenet", {"kaisa": [90.0, 99.0], "mkor": [100.0, 110.0]})
    decision = decide_speedup("resnet50_imagenet", runs, _conditions("C07"), rivals=("kaisa",))
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
    assert decide_speedup("alexnet_cifar100", all_slower, _conditions("C19"), **about).verdict == "confirmed"
    one_faster = runs_to_target("alexnet_cifar100", reaches | {"hylo": [30.0, 33.0]})
    decision = decide_speedup("alexnet_cifar100", one_faster, _conditions("C19"), **about)
    assert decision.verdict == "refuted"
    assert "sgd/mkor confirmed; hylo/mkor refuted; kaisa/mkor confirmed" in decision.why
    assert decide_speedup("alexnet_cifar100", all_slower.head(6), _conditions("C19"), **about).verdict == "not tested"


def test_a_run_that_was_too_short_to_be_compared_leaves_the_claim_open():
    """SGD misses the target in 150 steps and 4.5 s; MKOR is there after 3 s, which is before, or after 6 s."""
    fast = runs_to_target("resnet50_imagenet", {"sgd": [None] * 6, "mkor": [100.0] * 6})
    assert decide_speedup("resnet50_imagenet", fast, _conditions("C06"), rivals=("sgd",)).verdict == "confirmed"
    slow = runs_to_target("resnet50_imagenet", {"sgd": [None] * 6, "mkor": [200.0] * 6})
    decision = decide_speedup("resnet50_imagenet", slow, _conditions("C06"), rivals=("sgd",))
    assert decision.verdict == "inconclusive"
    assert "sgd ended before mkor reached the target, with seed 0-5." in decision.details
    diverged = slow.assign(status=slow["status"].where(slow["optimizer"] != "sgd", "diverged"))
    assert "ended before" not in decide_speedup("x", diverged, _conditions("C06"), rivals=("sgd",)).details


def test_a_target_that_nobody_reaches_is_open_and_counted():
    runs = runs_to_target("resnet50_imagenet", {"sgd": [None, None], "mkor": [None, None]})
    decision = decide_speedup("resnet50_imagenet", runs, _conditions("C06"), rivals=("sgd",))
    assert decision.verdict == "inconclusive"
    assert "Never there within their steps: 2 of 2 of mkor, 2 of 2 of sgd." in decision.details
    without = runs_to_target("resnet50_imagenet", {"sgd": [1.0], "mkor": [1.0]}, target=None)
    assert decide_speedup("resnet50_imagenet", without, _conditions("C06"), rivals=("sgd",)).verdict == "not tested"


def test_at_the_paper_tier_mkor_is_the_released_rule():
    reaches: dict[str, list[float | None]] = {
        "sgd": [100.0, 110.0],
        "mkor": [200.0, 220.0],
        "mkor_released": [50.0, 55.0],
    }
    paper = runs_to_target("resnet50_imagenet", reaches, tier="paper")
    assert (
        decide_speedup("resnet50_imagenet", paper, _conditions("C06"), rivals=("sgd",)).measured
        == "sgd/mkor_released: 2"
    )
    small = runs_to_target("resnet50_imagenet", reaches)
    assert decide_speedup("resnet50_imagenet", small, _conditions("C06"), rivals=("sgd",)).measured == "sgd/mkor: 0.5"


@pytest.mark.parametrize(
    ("mkor", "kaisa", "no_clip", "verdict"),
    [
        ([4, 4, 4], [3, 3, 3], [2, 2, 2], "confirmed"),
        ([1, 1, 1], [3, 3, 3], [2, 2, 2], "refuted"),
        ([3, 3, 3], [4, 4, 4], [2, 2, 2], "inconclusive"),
        ([4, 3, 2], [3, 3, 3], [3, 3, 3], "inconclusive"),
    ],
)
def test_c18_judges_with_kaisas_clip_and_without(mkor, kaisa, no_clip, verdict):
    counts = {"mkor": mkor, "kaisa": kaisa, "kaisa_no_clip": no_clip, "hylo": [1] * 3, "sgd": [1] * 3}
    decision = decide_sensitivity(learning_rates(counts))
    assert decision.verdict == verdict
    assert decision.measured.startswith("KAISA with clip: ")
    assert "; KAISA without clip: " in decision.measured


def test_c18_counts_rates_by_seed_and_names_where():
    counts = {"mkor": [2, 1, 2], "kaisa": [3] * 3, "kaisa_no_clip": [2] * 3, "hylo": [1] * 3, "sgd": [0] * 3}
    decision = decide_sensitivity(learning_rates(counts))
    assert decision.verdict == "inconclusive"
    assert "mkor 2, 1, 2; kaisa 3, 3, 3; kaisa_no_clip 2, 2, 2" in decision.details
    assert "mkor 2 at 1, 3 at 0.1; kaisa 3 at 10, 3 at 1, 3 at 0.1" in decision.details
    assert "sgd none." in decision.details
    assert "MKOR's count is the larger in 0 of 3 seeds and 0 of 3 seeds" in decision.details


def test_c18_without_a_rival_or_a_whole_grid_is_not_tested():
    counts = {"mkor": [4], "kaisa": [3], "kaisa_no_clip": [2], "hylo": [1], "sgd": [1]}
    runs = learning_rates(counts)
    without = decide_sensitivity(runs[runs["optimizer"] != "kaisa_no_clip"])
    assert without.why == "resnet_cifar10_lr has no run of kaisa_no_clip."
    runs.loc[(runs["optimizer"] == "mkor") & (runs["hyperparameters"] == {"lr": 10.0}), "status"] = "missing"
    assert decide_sensitivity(runs).why == "No seed of mkor has ended at every learning rate."
    assert decide_sensitivity(NO_RUNS).verdict == "not tested"


def _inversion(often: float, rare: float, *, seeds: int = 6, failed: tuple[int, ...] = ()) -> pd.DataFrame:
    rows = [
        row
        for period, floor in ((10, often), (100, rare))
        for row in run_rows(
            "autoencoder_inversion",
            "autoencoder",
            "mkor",
            range(seeds),
            period=period,
            start=floor,
            floor=floor,
            failed=failed if period == 10 else (),
        )[0]
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("often", "rare", "verdict"), [(0.02, 0.03, "confirmed"), (0.03, 0.02, "refuted"), (0.02, 0.02, "inconclusive")]
)
def test_c09_period_loss(often, rare, verdict):
    decision = decide_period_loss({"autoencoder_inversion": _inversion(often, rare)}, _conditions("C09"))
    assert decision.verdict == verdict
    assert decision.seeds == "autoencoder 0-5"
    assert "autoencoder mkor after 150" in decision.measured


def test_c09_needs_every_contrast_to_agree():
    both = {"autoencoder_inversion": _inversion(0.02, 0.03), "bert_inversion": _inversion(0.03, 0.02)}
    assert decide_period_loss(both, _conditions("C09")).verdict == "inconclusive"


def test_c09_with_a_diverged_run_is_inconclusive_and_names_it():
    """Dropping the run that failed would make the rule that failed look good."""
    decision = decide_period_loss({"autoencoder_inversion": _inversion(0.02, 0.03, failed=(2,))}, _conditions("C09"))
    assert decision.verdict == "inconclusive"
    assert "did not finish: 1 of autoencoder mkor after 150" in decision.details


def test_c09_leaves_out_what_was_not_trained():
    """A run that is planned and missing is no failure of its period."""
    rows = _inversion(0.02, 0.03)
    missing = rows[rows["seed"] == 0].drop_duplicates("run").assign(status="missing", step=None, split=None, value=None)
    trained = rows[rows["seed"] != 0].astype(missing.dtypes)
    decision = decide_period_loss({"autoencoder_inversion": pd.concat([trained, missing])}, _conditions("C09"))
    assert (decision.verdict, decision.seeds) == ("confirmed", "autoencoder 1-5")


def test_c09_without_runs_is_not_tested():
    decision = decide_period_loss({"autoencoder_inversion": NO_METRICS}, _conditions("C09"))
    assert decision.verdict == "not tested"
    assert "autoencoder_inversion" in decision.why
