"""The claim about MKOR-H's switch (C25) on hand-made runs: which comparisons carry it, and their verdicts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.support.synthetic import run_rows
from tests.support.synthetic_claims import NO_METRICS, conditions, fine_tuned, hybrid, untrained
from workflow.bench.claims.decision import Decision, Trained
from workflow.bench.claims.switching import decide_switch

SCORES = {"mkor": [0.7, 0.71, 0.72], "mkor_h": [0.75, 0.76, 0.77]}


def _glue(scores: dict[str, list[float]]) -> Trained:
    metrics, runs = fine_tuned("bert_glue", scores)
    return Trained("bert_glue", runs, metrics)


def _pretraining(switches: list[float | None], *, target: bool = False) -> Trained:
    runs = hybrid(switches)
    goal = run_rows("x", "x", "mkor", [0], target=5.0)[1][0]["target"]
    return Trained("bert_pretraining", runs.assign(target=goal if target else None), NO_METRICS)


def _autoencoder(difference: float, *, switches: float | None = 320.0, seeds: int = 8, fall: float = 1.0) -> Trained:
    """Runs whose final loss is that of MKOR plus a difference for MKOR-H; LAMB's loss falls by ``fall``."""
    metrics, runs = [], []
    ends = {"lamb": 0.0, "mkor": -0.1, "mkor_h": -0.1 + difference}
    for label, end in ends.items():
        for run in run_rows("autoencoder_lamb", "autoencoder", label, range(seeds), period=10, steps=400)[1]:
            about = {"method": label, "hyperparameters": {"base": "lamb", "update_rule": "sherman_morrison"}}
            at = switches if label == "mkor_h" else None
            runs.append({**run, **about, "switch_step": at})
            shared = {name: run[name] for name in ("run", "optimizer", "seed", "status")}
            shared |= {"split": "validation", "metric": "loss"}
            noise = 1e-4 * np.random.default_rng(int(run["seed"])).standard_normal()
            metrics += [shared | {"step": 0, "value": fall}, shared | {"step": 400, "value": end + noise}]
    return Trained("autoencoder_lamb", pd.DataFrame(runs), pd.DataFrame(metrics))


def _decide(
    pretraining: Trained | None = None, autoencoder: Trained | None = None, glue: Trained | None = None
) -> Decision:
    parts = pretraining or untrained("bert_pretraining"), autoencoder or untrained("autoencoder_lamb")
    return decide_switch(*parts, glue or untrained("bert_glue"), conditions("C25"))


@pytest.mark.parametrize(("scores", "verdict"), [([0.75, 0.76, 0.77], "confirmed"), ([0.6, 0.61, 0.62], "refuted")])
def test_scores_of_fine_tuning_carry_it_where_the_autoencoder_has_no_runs(scores, verdict):
    decision = _decide(_pretraining([51, 52, 53]), glue=_glue({**SCORES, "mkor_h": scores}))
    assert decision.verdict == verdict
    assert "MKOR-H switched in 3 of 3 runs, at step 51-53 of 150" in decision.details
    assert decision.published_of == ("average score",)


@pytest.mark.parametrize(
    ("difference", "verdict"), [(-0.05, "confirmed"), (0.015, "confirmed"), (0.025, "refuted"), (0.05, "refuted")]
)
def test_the_autoencoders_loss_has_a_margin_of_two_percent_of_what_lambs_falls_by(difference, verdict):
    """Truth: LAMB's loss falls by 1, of which 2 % are .02."""
    decision = _decide(autoencoder=_autoencoder(difference))
    assert decision.verdict == verdict
    assert "MKOR-H switched in 8 of 8 runs, at step 320 of 400" in decision.details
    assert decision.measured.startswith("autoencoder's final loss: ")


def test_scores_stand_beside_the_autoencoder_and_are_judged_where_the_pretraining_has_a_target():
    glue, worse = _glue({**SCORES, "mkor_h": [0.6, 0.61, 0.62]}), _autoencoder(-0.05)
    beside = _decide(_pretraining([51, 52, 53]), worse, glue)
    assert (beside.verdict, beside.measured) == ("confirmed", "autoencoder's final loss: -0.05")
    assert "Not judged: average score -0.1 [-0.1, -0.1]." in beside.details
    both = _decide(_pretraining([51, 52, 53], target=True), worse, glue)
    assert both.verdict == "refuted"
    assert both.why == (
        "After its switch, MKOR-H minus MKOR: average score refuted; autoencoder's final loss confirmed."
    )


def test_the_seeds_that_switched_are_compared():
    glue = _glue({**SCORES, "mkor_h": [0.75, 0.1, 0.77]})
    some = _decide(_pretraining([51, None, 53]), glue=glue)
    assert (some.verdict, some.seeds) == ("confirmed", "0, 2")
    assert "MKOR-H switched in 2 of 3 runs" in some.details
    none = _decide(_pretraining([None] * 3), glue=glue)
    assert none.why == "MKOR-H switched to its base in none of 3 runs of 150 steps in bert_pretraining."
    assert _decide(autoencoder=_autoencoder(0.0, switches=None)).verdict == "not tested"


def test_a_run_that_broke_down_leaves_it_open():
    trained = _autoencoder(-0.05)
    broken = trained.metrics["run"].isin(trained.runs.loc[trained.runs["optimizer"] == "mkor_h", "run"].head(1))
    metrics = trained.metrics.assign(status=trained.metrics["status"].where(~broken, "diverged"))
    decision = _decide(autoencoder=replace(trained, metrics=metrics))
    assert decision.verdict == "inconclusive"
    assert "1 runs broke down." in decision.details


def test_the_seeds_that_both_have_finished_are_compared():
    trained = _autoencoder(-0.05)
    lost = trained.runs.loc[(trained.runs["optimizer"] == "mkor") & (trained.runs["seed"] == 7), "run"]
    runs, metrics = (rows[~rows["run"].isin(lost)] for rows in (trained.runs, trained.metrics))
    assert _decide(autoencoder=replace(trained, runs=runs, metrics=metrics)).seeds == "0-6"


def test_it_needs_a_partner_of_the_same_form():
    """MKOR with both sides acting is no MKOR-H without its switch."""
    pretraining = _pretraining([51, 52])
    runs = pretraining.runs
    assert _decide(replace(pretraining, runs=runs.assign(steps=[150, 150, 1000, 1000]))).verdict == "not tested"
    given = [
        {**one, "gradient_norm": 3.0} if label == "mkor" else one
        for one, label in zip(runs["hyperparameters"], runs["optimizer"], strict=True)
    ]
    other = _decide(replace(pretraining, runs=runs.assign(hyperparameters=given)), glue=_glue(SCORES))
    assert other.why == "bert_pretraining has no MKOR with the rule and the steps of MKOR-H."
    assert _decide().why == "bert_pretraining has no results."
