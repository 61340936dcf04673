"""The claims about the inverse update period (C09) and the learning rate (C18) on hand-made runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.synthetic import run_rows
from tests.support.synthetic_claims import comparing, conditions, learning_rates, untrained
from workflow.bench.analysis.lr_outcomes import mean_best, outcomes
from workflow.bench.claims.decision import Decision, Trained
from workflow.bench.claims.hyperparameters import decide_period_loss, decide_sensitivity, remembers_equally

Rows = tuple[list[dict[str, Any]], list[dict[str, Any]]]
DECAYS = {1: 0.995, 10: 0.995**10, 100: 0.995**100}
"""Of which each leaves .995 of a factor in a step."""


def _at(period: int, loss: float, label: str = "mkor", *, decay: float | None = None, **about: Any) -> Rows:
    """Return runs of six seeds at a period, with a constant loss and a decay that remembers equally many steps."""
    given = {"period": period, "start": loss, "floor": loss, "decay": decay or DECAYS[period], **about}
    return run_rows("autoencoder_inversion", "autoencoder", label, given.pop("seeds", range(6)), **given)


def _inversion(*parts: Rows) -> Trained:
    metrics, runs = ([row for part in parts for row in part[index]] for index in (0, 1))
    return Trained("autoencoder_inversion", pd.DataFrame(runs), pd.DataFrame(metrics))


def _c09(trained: Trained) -> Decision:
    return decide_period_loss(trained, conditions("C09"))


@pytest.mark.parametrize(
    ("often", "rare", "verdict"), [(0.02, 0.03, "confirmed"), (0.03, 0.02, "refuted"), (0.02, 0.02, "inconclusive")]
)
def test_c09_period_loss(often, rare, verdict):
    """The losses do not fall, so that the margin, a share of the fall, is 0."""
    decision = _c09(_inversion(_at(10, often), _at(100, rare)))
    assert decision.verdict == verdict
    assert decision.seeds == "seeds 0-5"
    assert "mkor, period 100 minus period 10" in decision.measured


def test_c09_is_judged_where_all_periods_remember_equally_many_steps():
    """KFAC with one decay remembers 20 steps at period 1 and 200 at period 10: its loss says nothing of the period."""
    one_decay = [_at(period, loss, "kaisa", decay=0.95) for period, loss in ((1, 0.03), (10, 0.02))]
    assert [remembers_equally(_inversion(*parts).runs) for parts in (one_decay, [_at(1, 1.0), _at(10, 1.0)])] == [
        False,
        True,
    ]
    alone = _c09(_inversion(*one_decay))
    assert (alone.verdict, alone.why) == ("not tested", "No optimizer remembers equally many steps at all periods.")
    beside = _c09(_inversion(*one_decay, _at(1, 0.02), _at(10, 0.03)))
    assert beside.verdict == "confirmed"
    assert list(beside.estimates) == ["mkor, period 10 minus period 1"]
    assert "so that longer periods remember more steps: kaisa, period 10 minus period 1 -0.01" in beside.details


def test_c09_takes_a_default_decay_for_one_of_all_periods():
    trained = _inversion(_at(1, 1.0), _at(10, 1.0))
    given = [{**one, "factor_decay": None} for one in trained.runs["hyperparameters"]]
    assert not remembers_equally(trained.runs.assign(hyperparameters=given))


def test_c09_without_a_difference_above_two_percent_of_the_fall():
    trained = _inversion(_at(10, 0.02), _at(100, 0.02))
    rows = trained.metrics
    falling = rows.assign(value=rows["value"] + 100.0 * (rows["step"] == 0))
    assert _c09(replace(trained, metrics=falling)).verdict == "no difference"


def test_c09_is_refuted_by_one_optimizer_or_pair_of_periods():
    decision = _c09(_inversion(_at(10, 0.02), _at(100, 0.03), _at(10, 0.03, "kaisa"), _at(100, 0.02, "kaisa")))
    assert decision.verdict == "refuted"
    assert "kaisa, period 100 minus period 10 refuted; mkor, period 100 minus period 10 confirmed" in decision.why
    pairs = _c09(_inversion(_at(1, 1.02), _at(10, 0.02), _at(100, 0.03)))
    assert "mkor, period 10 minus period 1 refuted; mkor, period 100 minus period 10 confirmed" in pairs.why


def test_c09_is_refuted_where_two_steps_within_the_margin_add_up():
    """Truth: by hand; of a fall of 10 the margin is 0.2, and each period ten times as long lowers the mean by 0.15."""
    trained = _inversion(_at(1, 0.5), _at(10, 0.35), _at(100, 0.2))
    rows = trained.metrics
    at_start = rows["step"] == 0
    falling = rows.assign(value=rows["value"].mask(at_start, 10.35))
    decision = _c09(replace(trained, metrics=falling))
    assert [part.verdict for part in decision.parts] == ["no difference", "no difference", "refuted"]
    assert decision.parts[-1].name == "mkor, period 100 minus period 1"


def test_c09_is_the_area_under_the_curve():
    """Truth: by hand; a loss of 4 that falls to 0 in a line has the mean 2, one that falls in the first step less."""
    trained = _inversion(_at(10, 0.0, seeds=range(2)), _at(100, 0.0, seeds=range(2)))
    rows = trained.metrics
    steps = rows["step"].astype(float) / rows["step"].max()
    slow, fast = 4 * (1 - steps), 4.0 * (steps == 0)
    values = slow.where(rows["inverse_update_period"] == 100, fast)
    decision = _c09(replace(trained, metrics=rows.assign(value=values)))
    first = float(steps[steps > 0].min())
    assert decision.estimates["mkor, period 100 minus period 10"].value == pytest.approx(2 - 2 * first)


def test_c09_counts_a_run_that_diverged_as_the_worst():
    """Dropping it would make the period that failed look good: of six seeds, the interval reaches to infinity."""
    decision = _c09(_inversion(_at(10, 0.02, failed=(2,)), _at(100, 0.03)))
    assert decision.verdict == "inconclusive"
    assert decision.measured.startswith("mkor, period 100 minus period 10: 0.00997")
    assert decision.estimates["mkor, period 100 minus period 10"].low == -math.inf


def test_c09_leaves_out_what_was_not_trained():
    """A run that is planned and missing is no failure of its period."""
    whole = _inversion(_at(10, 0.02), _at(100, 0.03))
    rows = whole.metrics
    missing = rows[rows["seed"] == 0].drop_duplicates("run").assign(status="missing", step=None, split=None, value=None)
    trained = rows[rows["seed"] != 0].astype(missing.dtypes)
    decision = _c09(replace(whole, metrics=pd.concat([trained, missing])))
    assert (decision.verdict, decision.seeds) == ("confirmed", "seeds 1-5")


def test_c09_compares_the_test_loss_alone():
    """Another split and another metric would each change the verdict."""
    trained = _inversion(_at(10, 0.02), _at(100, 0.03))
    rows = trained.metrics
    against = rows.assign(value=-1000 * rows["value"])
    others = [against.assign(split="train"), against.assign(metric="accuracy")]
    assert _c09(replace(trained, metrics=pd.concat([*others, rows]))) == _c09(trained)


def test_c09_without_runs_is_not_tested():
    decision = _c09(untrained("autoencoder_inversion"))
    assert decision.verdict == "not tested"
    assert "autoencoder_inversion" in decision.why


def _c18(trained: Trained) -> Decision:
    return decide_sensitivity(trained, conditions("C18"))


def _counts(mkor: Sequence[int], kaisa: int = 3, no_clip: int = 2) -> Mapping[str, Sequence[int]]:
    others = {"kaisa": kaisa, "kaisa_no_clip": no_clip, "hylo": 1, "sgd": 1}
    return {"mkor": mkor, **{label: [count] * len(mkor) for label, count in others.items()}}


@pytest.mark.parametrize(
    ("mkor", "kaisa", "no_clip", "verdict"),
    [
        ([4, 4, 4], 3, 2, "confirmed"),
        ([1, 1, 1], 3, 2, "refuted"),
        ([3, 3, 3], 4, 2, "refuted"),
        ([4, 3, 2], 3, 2, "inconclusive"),
    ],
)
def test_c18_needs_mkor_to_be_ahead_of_every_rival(mkor, kaisa, no_clip, verdict):
    decision = _c18(learning_rates(_counts(mkor, kaisa, no_clip)))
    assert decision.verdict == verdict
    names = ["KAISA with clip", "KAISA without clip", "HyLo", "SGD"]
    assert [part.split(":")[0] for part in decision.measured.split("; ")] == names


def test_c18_judges_the_mean_of_best_accuracies_and_states_the_counts():
    """Truth: at one rate of four KAISA with clip is at .95 and MKOR at .5."""
    decision = _c18(learning_rates(_counts([2, 2, 2])))
    assert decision.measured.startswith("KAISA with clip: -0.112; KAISA without clip: 0;")
    assert "mkor 2, 2, 2; kaisa 3, 3, 3; kaisa_no_clip 2, 2, 2" in decision.details
    assert "mkor 3 at 1, 3 at 0.1; kaisa 3 at 10, 3 at 1, 3 at 0.1" in decision.details
    assert "The count of mkor minus a rival's: KAISA with clip -1, -1, -1;" in decision.details
    assert "Rates that reach validation accuracy ≥ 0.9, by seed:" in decision.details


def test_c18_gives_counts_of_six_seeds_the_interval_of_order_statistics():
    decision = _c18(learning_rates(_counts([4] * 6)))
    assert "The count of mkor minus a rival's: KAISA with clip 1 [1, 1];" in decision.details


def test_c18_is_open_where_accuracy_and_counts_disagree():
    """Truth: by hand; HyLo converges at no more rates than MKOR, and comes further at those at which neither does."""
    trained = learning_rates(_counts([1, 2] * 4))
    runs, metrics = trained.runs, trained.metrics
    of_hylo = metrics["run"].isin(runs.loc[runs["optimizer"] == "hylo", "run"]) & (metrics["value"] < 0.9)
    decision = _c18(replace(trained, metrics=metrics.assign(value=metrics["value"].mask(of_hylo, 0.7))))
    (hylo,) = (part for part in decision.parts if part.name == "HyLo")
    assert hylo.estimate.high < 0
    assert (hylo.verdict, hylo.reason) == (
        "inconclusive",
        "refuted by accuracy, inconclusive by the count of converging rates",
    )
    assert decision.parts[0].verdict == "refuted"  # KAISA with clip converges at three


def test_c18_states_the_papers_rates_beside_a_wider_grid():
    """Truth: by hand; with one more rate, at which all are at .5, means over the paper's four stay as they are."""
    trained = learning_rates(_counts([2, 2, 2]))
    assert "the paper's rates:" not in _c18(trained).details
    more = trained.runs[trained.runs["hyperparameters"] == {"lr": 1.0}]
    more = more.assign(run=more["run"] + "x", hyperparameters=[{"lr": 0.316}] * len(more), steps_to_target=np.nan)
    rows = trained.metrics[trained.metrics["run"].isin(trained.runs.loc[more.index, "run"])]
    wide = replace(
        trained,
        runs=pd.concat([trained.runs, more]),
        metrics=pd.concat([trained.metrics, rows.assign(run=rows["run"] + "x", value=0.5)]),
    )
    assert "The same at 0.01, 0.1, 1, 10 alone, the paper's rates: KAISA with clip -0.112" in _c18(wide).details


def test_c18_sees_no_difference_where_accuracies_and_counts_tie():
    decision = _c18(learning_rates({label: [2] * 8 for label in ("mkor", "kaisa", "kaisa_no_clip", "hylo", "sgd")}))
    assert {part.verdict for part in decision.parts} == {"no difference"}


def test_a_run_that_diverged_counts_as_the_worst():
    """Truth: one rate of MKOR's that diverged counts as .1 and not .95; KAISA without clip has .5 there."""
    trained = learning_rates(_counts([3, 3, 3], 2, 2))
    diverged = (trained.runs["optimizer"] == "mkor") & (trained.runs["hyperparameters"] == {"lr": 10.0})
    runs = trained.runs.assign(status=trained.runs["status"].mask(diverged, "diverged"))
    decision = _c18(replace(trained, runs=runs))
    assert decision.measured.startswith("KAISA with clip: -0.1;")
    assert decision.verdict == "refuted"


def test_no_run_is_worse_than_one_that_diverged():
    """Truth: a run that never leaves its first accuracy, .02, counts no less than the one that diverged."""
    trained = learning_rates(_counts([3]))
    first = {"mkor": {"lr": 10.0}, "kaisa": {"lr": 0.01}}
    runs = trained.runs
    chosen = {
        label: (runs["optimizer"] == label) & (runs["hyperparameters"] == values) for label, values in first.items()
    }
    metrics = trained.metrics
    metrics.loc[metrics["run"].isin(runs.loc[chosen["kaisa"], "run"]), "value"] = 0.02
    ended = outcomes(runs.assign(status=runs["status"].mask(chosen["mkor"], "diverged")))
    best = mean_best(ended, metrics)
    assert best["mkor"][0] == pytest.approx((2 * 0.95 + 0.5 + 0.02) / 4)


def test_c18_leaves_out_a_rival_that_is_inert():
    """An inert KAISA is SGD at other rates, which says nothing of KAISA; one that turns the gradient is compared."""
    trained = learning_rates(_counts([3, 3, 3]))
    inert, acting = (comparing(trained, {"kaisa": cosine, "kaisa_no_clip": 0.98}) for cosine in (0.9995, 0.9985))
    decision = _c18(inert)
    assert decision.verdict == "inconclusive"
    assert [part.verdict for part in decision.parts][:2] == ["not tested", "confirmed"]
    assert "KAISA with clip not tested (kaisa is inert: median cosine 0.999500 over 24 steps)" in decision.why
    assert _c18(acting).parts[0].verdict == "no difference"


def test_c18_compares_the_seeds_that_have_ended_at_every_rate():
    trained = learning_rates(_counts([4] * 3))
    runs = trained.runs.copy()
    runs.loc[(runs["optimizer"] == "mkor") & (runs["seed"] == 2), "status"] = "missing"
    two = _c18(replace(trained, runs=runs))
    assert (two.verdict, two.seeds) == ("confirmed", "0-1")
    runs.loc[(runs["optimizer"] != "mkor") & (runs["seed"] < 2), "status"] = "missing"
    why = _c18(replace(trained, runs=runs)).why
    assert why == "mkor and kaisa share no seed that has ended at every learning rate."


def test_c18_without_a_rival_or_a_whole_grid_is_not_tested():
    trained = learning_rates(_counts([4]))
    runs: pd.DataFrame = trained.runs
    without = _c18(replace(trained, runs=runs[runs["optimizer"] != "kaisa_no_clip"]))
    assert without.why == "resnet_cifar10_lr has no run of kaisa_no_clip."
    runs.loc[(runs["optimizer"] == "mkor") & (runs["hyperparameters"] == {"lr": 10.0}), "status"] = "missing"
    assert _c18(trained).why == "No seed of mkor has ended at every learning rate."
    assert _c18(untrained("resnet_cifar10_lr")).verdict == "not tested"
