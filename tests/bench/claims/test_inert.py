"""A rival that leaves the gradient's direction as it is tests no claim: its base at another rate would be compared."""

from __future__ import annotations

import pytest

from tests.support.synthetic_claims import comparing, conditions, swept, untrained
from tests.support.synthetic_probes import step_time
from workflow.bench.analysis.captions import INERT
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.claims.over_lamb import Evidence, decide_hybrid_time
from workflow.bench.claims.time_to_target import decide_speedup, inert_studies
from workflow.bench.results.columns import DIRECTION

REACHES = {"sgd": [100.0, 110.0], "hylo": [100.0, 110.0], "kaisa": [90.0, 99.0], "mkor": [60.0, 66.0]}


@pytest.mark.parametrize(
    ("claim", "rivals", "verdict", "untested"),
    [
        ("C07", ("kaisa",), "not tested", ["time kaisa/mkor", "iterations mkor/kaisa"]),
        ("C19", ("sgd", "hylo", "kaisa"), "inconclusive", ["kaisa/mkor"]),
    ],
)
def test_the_parts_of_an_inert_rival_are_not_tested(claim, rivals, verdict, untested):
    trained = comparing(swept("resnet50_imagenet", REACHES), {"kaisa": INERT, "mkor": 0.95})
    times = StepTimes(step_time(trained.runs))
    decision = decide_speedup(trained, times, conditions(claim), *rivals)
    assert decision.verdict == verdict
    assert [part.name for part in decision.parts if part.verdict == "not tested"] == untested
    assert f"{untested[-1]} not tested (kaisa is inert: median cosine 0.999000 over 4 steps)" in decision.why
    acting = comparing(swept("resnet50_imagenet", REACHES), {"kaisa": INERT - 1e-6, "mkor": 0.95})
    assert "not tested" not in decide_speedup(acting, times, conditions(claim), *rivals).why


def test_c02_is_not_tested_against_an_inert_kaisa():
    reaches = {"lamb": [100.0, 110.0], "kaisa": [90.0, 99.0], "mkor_h": [60.0, 66.0]}
    trained = comparing(swept("autoencoder_lamb", reaches), {"kaisa": 0.9995})
    parts = untrained("bert_pretraining"), trained, untrained("bert_squad"), StepTimes(step_time(trained.runs))
    decision = decide_hybrid_time(Evidence(*parts, {}), conditions("C02"), "kaisa")
    assert decision.verdict == "not tested"
    assert "kaisa is inert: median cosine 0.999500 over 4 steps" in decision.why


def test_runs_that_did_not_finish_say_nothing_of_a_label():
    """Truth: the last steps of a run that diverged are no sample of its method."""
    trained = comparing(swept("resnet50_imagenet", REACHES), {"kaisa": 0.9999})
    runs = trained.runs
    assert trained.inert("kaisa")
    lost = runs.assign(status=runs["status"].mask(runs["optimizer"] == "kaisa", "diverged"))
    assert type(trained)(trained.name, lost, trained.metrics).inert("kaisa") == ""
    assert trained.inert("sgd") == ""


def test_the_studies_in_which_a_rival_is_inert_are_counted():
    """Truth: by hand; of two studies one is inert, so that the pooled median is not."""
    trained = comparing(swept("resnet50_imagenet", REACHES), {"kaisa": 0.9999})
    runs = trained.runs.assign(study=trained.runs["seed"])
    second = runs.loc[(runs["optimizer"] == "kaisa") & (runs["seed"] == 1), "run"]
    acts = trained.metrics["run"].isin(second) & (trained.metrics["metric"] == DIRECTION[1])
    metrics = trained.metrics.assign(value=trained.metrics["value"].mask(acts, 0.5))
    mixed = type(trained)(trained.name, runs, metrics)
    assert mixed.inert("kaisa") == ""
    assert inert_studies(mixed, "kaisa") == "kaisa is inert in 1 of 2 tuning studies."
    assert inert_studies(mixed, "sgd") == ""
    assert inert_studies(type(trained)(trained.name, runs, trained.metrics), "kaisa") == ""  # in all: `inert` says so
