"""The claim about MKOR-H's switch (C25) on hand-made runs: the scores that decide it, and what stands beside."""

from __future__ import annotations

from dataclasses import replace

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


def _pretraining(switches: list[float | None]) -> Trained:
    return Trained("bert_pretraining", hybrid(switches), NO_METRICS)


def _autoencoder(difference: float, *, seeds: int = 8, fall: float = 1.0) -> Trained:
    """Runs whose final loss is that of MKOR, which falls by ``fall``, plus a difference for MKOR-H."""
    metrics, runs = [], []
    for label, end in {"mkor": 0.0, "mkor_h": difference}.items():
        for run in run_rows("autoencoder_lamb", "autoencoder", label, range(seeds), period=10, steps=400)[1]:
            about = {"method": label, "hyperparameters": {"base": "lamb", "update_rule": "sherman_morrison"}}
            runs.append({**run, **about, "switch_step": 320.0 if label == "mkor_h" else None})
            shared = {name: run[name] for name in ("run", "optimizer", "seed", "status")}
            shared |= {"split": "validation", "metric": "loss"}
            metrics += [shared | {"step": 0, "value": end + fall}, shared | {"step": 400, "value": end}]
    return Trained("autoencoder_lamb", pd.DataFrame(runs), pd.DataFrame(metrics))


def _decide(
    pretraining: Trained | None = None, autoencoder: Trained | None = None, glue: Trained | None = None
) -> Decision:
    parts = pretraining or untrained("bert_pretraining"), autoencoder or untrained("autoencoder_lamb")
    return decide_switch(*parts, glue or untrained("bert_glue"), conditions("C25"))


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [([0.75, 0.76, 0.77], "confirmed"), ([0.695, 0.705, 0.715], "confirmed"), ([0.6, 0.61, 0.62], "refuted")],
)
def test_the_published_quantity_decides_a_score_that_may_be_lower_by_the_margin(scores, verdict):
    """Truth: a margin of .01."""
    decision = _decide(_pretraining([51, 52, 53]), glue=_glue({**SCORES, "mkor_h": scores}))
    assert decision.verdict == verdict
    assert "MKOR-H switched in 3 of 3 runs, at step 51-53 of 150, 35 % of the run in the median;" in decision.details


def test_the_autoencoders_loss_stands_beside_and_decides_nothing():
    glue, worse = _glue(SCORES), _autoencoder(0.5)
    both, alone = _decide(_pretraining([51, 52, 53]), worse, glue), _decide(_pretraining([51, 52, 53]), glue=glue)
    assert (both.verdict, both.measured) == (alone.verdict, alone.measured)
    assert (
        "Not judged: the final validation loss in autoencoder_lamb, mkor_h's minus mkor's, is 0.5 [0.5, 0.5] (median, "
        "95 % order-statistics interval); mkor's falls by 1. In autoencoder_lamb MKOR-H switched in 8 of 8 runs, at "
        "step 320 of 400, 80 % of the run in the median;"
    ) in both.details
    without_scores = _decide(autoencoder=worse)
    assert (without_scores.verdict, without_scores.why) == ("not tested", "bert_pretraining has no results.")
    assert "Not judged: the final validation loss" in without_scores.details


@pytest.mark.parametrize(("step", "verdict"), [(112.0, "confirmed"), (113.0, "not tested")])
def test_a_switch_in_the_last_quarter_tests_nothing(step, verdict):
    """Truth: 112.5 of 150 steps; then the rate has decayed, and what follows changes little."""
    decision = _decide(_pretraining([step] * 3), glue=_glue(SCORES))
    assert decision.verdict == verdict
    assert decision.why.startswith("It came too late to test anything: In bert_pretraining") == (step > 112.5)


def test_the_seeds_that_switched_are_compared():
    glue = _glue({**SCORES, "mkor_h": [0.75, 0.1, 0.77]})
    some = _decide(_pretraining([51, None, 53]), glue=glue)
    assert (some.verdict, some.seeds) == ("confirmed", "0, 2")
    assert "MKOR-H switched in 2 of 3 runs" in some.details
    none = _decide(_pretraining([None] * 3), glue=glue)
    assert none.why == "MKOR-H switched to its base in none of 3 runs of 150 steps in bert_pretraining."


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
