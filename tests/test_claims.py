"""Each decision on hand-made results: confirmed, refuted, inconclusive, and with data missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.synthetic import iteration_times, numerics, run_rows, write_results
from workflow.bench.claims import (
    COLUMNS,
    NOT_TESTED,
    decide_all,
    decide_descent,
    decide_inverse,
    decide_iterations_to_target,
    decide_period_cost,
    decide_period_loss,
    decide_positive_definite,
)
from workflow.bench.results import METRIC_COLUMNS, RUN_COLUMNS, Results, published
from workflow.bench.statistics import parse_conditions

THRESHOLDS = {
    row["id"]: parse_conditions(row["holds_when"])
    for row in published("claims").to_dict("records")
    if row["id"] not in NOT_TESTED
}


def _runs(**reaches: list[float | None]) -> pd.DataFrame:
    """Rows of bert_pretraining.runs.csv: steps to the target by label, one a seed, None where it was not reached."""
    rows: list[dict[str, Any]] = []
    for label, steps in reaches.items():
        runs = run_rows("bert_pretraining", "bert_pretraining", label, range(len(steps)), period=10, target=4.2)[1]
        rows += [run | {"steps_to_target": step} for run, step in zip(runs, steps, strict=True)]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("mkor", "verdict"),
    [([60.0, 66.0, 72.0], "confirmed"), ([150.0, 160.0, 180.0], "refuted"), ([60.0, 110.0, 160.0], "inconclusive")],
)
def test_c03_iterations_to_target(mkor, verdict):
    decision = decide_iterations_to_target(_runs(lamb=[100.0, 110.0, 120.0], mkor=mkor), THRESHOLDS["C03"])
    assert decision.verdict == verdict
    assert decision.seeds == "0-2"
    assert "bert_pretraining.runs.csv: runs" in decision.data


def test_c03_is_a_ratio_paired_by_seed():
    """Truth: every seed's ratio is 0.6, so the interval has no width."""
    decision = decide_iterations_to_target(_runs(lamb=[100.0, 150.0, 50.0], mkor=[60.0, 90.0, 30.0]), THRESHOLDS["C03"])
    assert (decision.measured, decision.interval) == ("0.6", "[0.6, 0.6]")


def test_c03_leaves_a_tie_open():
    """Two optimizers that reach the target between the same two evaluations cannot be told apart."""
    decision = decide_iterations_to_target(_runs(lamb=[100.0, 110.0], mkor=[100.0, 110.0]), THRESHOLDS["C03"])
    assert decision.verdict == "inconclusive"
    assert "tie in every seed" in decision.why


def test_c03_with_censored_runs_says_so():
    some = decide_iterations_to_target(_runs(lamb=[100.0, 110.0, 120.0], mkor=[60.0, 66.0, None]), THRESHOLDS["C03"])
    assert some.verdict == "inconclusive"
    assert "not reached" in some.why
    assert "censored" in some.interval
    none = decide_iterations_to_target(_runs(lamb=[None] * 3, mkor=[None] * 3), THRESHOLDS["C03"])
    assert none.verdict == "inconclusive"
    assert "Neither" in none.why


def test_c03_without_runs_is_not_tested():
    empty = pd.DataFrame(columns=list(RUN_COLUMNS))
    assert decide_iterations_to_target(empty, THRESHOLDS["C03"]).verdict == "not tested"
    lamb = decide_iterations_to_target(_runs(lamb=[100.0]), THRESHOLDS["C03"])
    assert lamb.verdict == "not tested"
    assert "mkor" in lamb.why


@pytest.mark.parametrize(
    ("kaisa", "mkor", "verdict"),
    [(12.0, 1.2, "confirmed"), (1.4, 1.2, "refuted"), (12.0, 2.5, "refuted")],
)
def test_c08_period_cost(kaisa, mkor, verdict):
    decision = decide_period_cost(iteration_times(kaisa, mkor), THRESHOLDS["C08"])
    assert decision.verdict == verdict
    assert f"KAISA {kaisa:g}, MKOR {mkor:g}" in decision.measured
    assert "Autoencoder: KAISA 21.2, MKOR 1.57; BERT-Large-Uncased: KAISA 24.8, MKOR 1.35" in decision.why


def test_c08_needs_the_workloads_to_agree():
    times = iteration_times(12.0, 1.2)
    bert = (times["workload"] == "bert") & (times["optimizer"] == "kaisa") & (times["inverse_update_period"] == 1)
    times.loc[bert, "iteration_ms"] /= 8
    decision = decide_period_cost(times, THRESHOLDS["C08"])
    assert decision.verdict == "inconclusive"
    assert "autoencoder confirmed; bert refuted" in decision.why


def test_c08_with_scattered_or_missing_repeats():
    times = iteration_times(3.0, 1.2)
    assert decide_period_cost(times, THRESHOLDS["C08"]).verdict in {"confirmed", "inconclusive"}
    once = times[times["repeat"] == 0]
    assert decide_period_cost(once, THRESHOLDS["C08"]).verdict == "inconclusive"
    without = times[times["optimizer"] == "mkor"]
    assert decide_period_cost(without, THRESHOLDS["C08"]).verdict == "not tested"


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
    decision = decide_period_loss({"autoencoder_inversion": _inversion(often, rare)}, THRESHOLDS["C09"])
    assert decision.verdict == verdict
    assert decision.seeds == "autoencoder 0-5"
    assert "autoencoder mkor after 150" in decision.measured


def test_c09_needs_every_contrast_to_agree():
    both = {"autoencoder_inversion": _inversion(0.02, 0.03), "bert_inversion": _inversion(0.03, 0.02)}
    assert decide_period_loss(both, THRESHOLDS["C09"]).verdict == "inconclusive"


def test_c09_with_a_diverged_run_is_inconclusive_and_names_it():
    """Dropping the run that failed would make the rule that failed look good."""
    decision = decide_period_loss({"autoencoder_inversion": _inversion(0.02, 0.03, failed=(2,))}, THRESHOLDS["C09"])
    assert decision.verdict == "inconclusive"
    assert "did not finish: 1 of autoencoder mkor after 150" in decision.why


def test_c09_without_runs_is_not_tested():
    empty = pd.DataFrame(columns=list(METRIC_COLUMNS))
    decision = decide_period_loss({"autoencoder_inversion": empty}, THRESHOLDS["C09"])
    assert decision.verdict == "not tested"
    assert "autoencoder_inversion" in decision.why


@pytest.mark.parametrize(
    ("eigenvalue", "verdict"), [(0.01, "confirmed"), (-1e-3, "refuted"), (float("nan"), "refuted")]
)
def test_c20_positive_definite(eigenvalue, verdict):
    decision = decide_positive_definite(numerics(eigenvalue=eigenvalue), THRESHOLDS["C20"])
    assert decision.verdict == verdict
    assert "mathematics" in decision.evidence


def test_c20_says_where_a_sequence_was_cut():
    probe = numerics().assign(updates=50, of=200)
    assert "4 of them grew without bound" in decide_positive_definite(probe, THRESHOLDS["C20"]).why


@pytest.mark.parametrize(("residual", "verdict"), [(0.5, "refuted"), (1e-12, "confirmed")])
def test_c21_inverse(residual, verdict):
    decision = decide_inverse(numerics(published_residual=residual), THRESHOLDS["C21"])
    assert decision.verdict == verdict
    assert "sherman_morrison 1e-12" in decision.why


@pytest.mark.parametrize(("cosine", "verdict"), [(0.2, "confirmed"), (-0.2, "refuted")])
def test_c23_descent(cosine, verdict):
    assert decide_descent(numerics(cosine=cosine), THRESHOLDS["C23"]).verdict == verdict


@pytest.mark.parametrize("decide", [decide_positive_definite, decide_inverse, decide_descent])
def test_numerics_that_did_not_run_are_not_tested(decide):
    assert decide(numerics().head(0), THRESHOLDS["C21"]).verdict == "not tested"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return decide_all(Results(write_results(tmp_path_factory.mktemp("results") / "test-cpu" / "embedded")))


def test_every_claim_has_a_row_and_a_verdict(table):
    claims = published("claims")
    assert list(table.columns) == list(COLUMNS)
    assert table["id"].tolist() == claims["id"].tolist()
    assert set(table["verdict"]) <= {"confirmed", "refuted", "inconclusive", "not tested"}
    assert table["why"].str.len().gt(20).all()
    tested = table[table["verdict"] != "not tested"]
    assert tested["id"].tolist() == ["C03", "C08", "C09", "C20", "C21", "C23"]
    for column in ("measured", "interval", "seeds", "tier", "evidence", "data"):
        assert tested[column].ne("").all(), column


def test_embedded_evidence_is_never_called_a_reproduction(table):
    embedded = table[table["evidence"] == "embedded evidence"]
    assert len(embedded) == 4
    assert embedded["why"].str.startswith("Embedded evidence, no reproduction of the paper's number.").all()


def test_the_named_runs_hold_the_measured_number(table, tmp_path: Path):
    """Truth: the ratio computed again from the runs that the row names."""
    results = Results(write_results(tmp_path / "test-cpu" / "embedded"))
    row = decide_all(results).set_index("id").loc["C03"]
    runs = results.runs("bert_pretraining")
    named = runs[runs["run"].isin(str(row["data"]).split("runs ")[1].split(", "))]
    steps = named.pivot_table(index="seed", columns="optimizer", values="steps_to_target")
    ratio = np.exp(np.log(steps["mkor"] / steps["lamb"]).mean())
    assert float(str(row["measured"])) == pytest.approx(ratio, rel=5e-3)


def test_claims_of_an_empty_folder_are_all_not_tested(tmp_path: Path):
    assert set(decide_all(Results(tmp_path / "test-cpu" / "embedded"))["verdict"]) == {"not tested"}
