"""Claims about the scores after fine-tuning (C04, C05) on hand-made runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from tests.support.synthetic import run_rows, write_experiment
from tests.support.synthetic_claims import conditions, fine_tuned
from workflow.bench.analysis.finetuning_scores import pretraining_experiment
from workflow.bench.claims.decision import Decision, Trained
from workflow.bench.claims.finetuning import decide_glue_average
from workflow.bench.results.tables import Results


@pytest.mark.parametrize(
    ("mkor", "verdict"),
    [([0.75, 0.76, 0.77], "confirmed"), ([0.65, 0.66, 0.67], "refuted"), ([0.6, 0.71, 0.8], "inconclusive")],
)
def test_c04_averages_are_paired_by_seed(mkor, verdict):
    metrics, runs = fine_tuned("bert_glue", {"lamb": [0.7, 0.71, 0.72], "mkor": mkor})
    decision = decide_glue_average(Trained("bert_glue", runs, metrics), conditions("C04"), "mkor")
    assert decision.verdict == verdict
    assert "docstrings: copy, docstrings: package" in decision.details


def test_c04_averages_the_last_scores_of_all_tasks():
    """Truth: (0.7 + 0.9) / 2 - (0.7 + 0.7) / 2 in both seeds; the scores before the last are 0.1 for all."""
    metrics, runs = fine_tuned("bert_glue", {"lamb": [0.7, 0.7], "mkor": [0.7, 0.7]})
    better = runs.loc[(runs["optimizer"] == "mkor") & (runs["dataset"] == "docstrings: copy"), "run"]
    metrics.loc[metrics["run"].isin(better) & (metrics["step"] == 100), "value"] = 0.9
    decision = decide_glue_average(Trained("bert_glue", runs, metrics), conditions("C04"), "mkor")
    assert (decision.measured, decision.interval) == ("0.1", "[0.1, 0.1]")
    assert "mkor 0.8, 0.8; lamb 0.7, 0.7" in decision.details


def test_c04_leaves_out_a_seed_of_which_a_task_is_missing():
    """A run that was not begun has a row without a data set."""
    metrics, runs = fine_tuned("bert_glue", {"lamb": [0.7, 0.71, 0.72], "mkor": [0.75, 0.76, 0.77]})
    absent = (runs["optimizer"] == "mkor") & (runs["seed"] == 2) & (runs["dataset"] == "docstrings: copy")
    metrics = metrics[~metrics["run"].isin(runs.loc[absent, "run"])]
    runs.loc[absent, ["dataset", "status"]] = [None, "missing"]
    decision = decide_glue_average(Trained("bert_glue", runs, metrics), conditions("C04"), "mkor")
    assert decision.seeds == "0-1"
    assert "Tasks: docstrings: copy, docstrings: package;" in decision.details


def test_c04_states_averages_with_four_digits():
    """Truth: a third of 0.7 + 0.7 + 0.75, and of 0.7 + 0.7 + 0.7."""
    metrics, runs = fine_tuned("bert_glue", {"lamb": [0.7], "mkor": [0.7]}, ["a", "b", "c"])
    better = runs.loc[(runs["optimizer"] == "mkor") & (runs["dataset"] == "a"), "run"]
    metrics.loc[metrics["run"].isin(better) & (metrics["step"] == 100), "value"] = 0.75
    decision = decide_glue_average(Trained("bert_glue", runs, metrics), conditions("C04"), "mkor")
    assert "mkor 0.7167; lamb 0.7." in decision.details


def test_c04_at_the_papers_tier_is_about_the_released_rule():
    scores = {"lamb": [0.7, 0.71], "mkor": [0.5, 0.51], "mkor_released": [0.75, 0.76]}
    metrics, runs = fine_tuned("bert_glue", scores)
    paper = decide_glue_average(Trained("bert_glue", runs.assign(tier="paper"), metrics), conditions("C04"), "mkor")
    assert (paper.verdict, paper.measured) == ("confirmed", "0.05")
    assert "mkor_released's minus lamb's" in paper.why
    assert decide_glue_average(Trained("bert_glue", runs, metrics), conditions("C04"), "mkor").verdict == "refuted"


@pytest.mark.parametrize(("kaisa", "verdict"), [(0.6, "confirmed"), (0.8, "refuted")])
def test_c05_kaisa_below_lamb(kaisa, verdict):
    metrics, runs = fine_tuned("bert_glue", {"lamb": [0.7, 0.71], "kaisa": [kaisa, kaisa + 0.01]})
    assert decide_glue_average(Trained("bert_glue", runs, metrics), conditions("C05"), "kaisa").verdict == verdict


def test_a_seed_that_lacks_a_task_has_no_average():
    metrics, runs = fine_tuned("bert_glue", {"lamb": [0.7, 0.71, 0.72], "mkor": [0.75, 0.76, 0.77]})
    lost = (runs["optimizer"] == "mkor") & (runs["seed"] == 1) & (runs["dataset"] == "docstrings: copy")
    rows = metrics["run"].isin(runs.loc[lost, "run"])
    runs.loc[lost, "status"] = metrics.loc[rows, "status"] = "missing"
    decision = decide_glue_average(Trained("bert_glue", runs, metrics), conditions("C04"), "mkor")
    assert (decision.verdict, decision.seeds) == ("confirmed", "0, 2")
    assert "Left out: 1 missing of mkor." in decision.details
    runs.loc[lost, "status"] = metrics.loc[rows, "status"] = "diverged"
    broken = decide_glue_average(Trained("bert_glue", runs, metrics), conditions("C04"), "mkor")
    assert broken.verdict == "inconclusive"
    assert "1 runs broke down, and count as the worst." in broken.details


def test_an_open_verdict_says_how_many_seeds_would_show_the_published_difference():
    """Truth: differences of 0 and .04 deviate by .0283; (1.96 + .84)^2 (.0283 / .02)^2 is 15.7."""
    metrics, runs = fine_tuned("bert_glue", {"lamb": [0.5, 0.5], "mkor": [0.5, 0.54]})
    glue = Trained("bert_glue", runs, metrics)
    why = decide_glue_average(glue, conditions("C04"), "mkor", 0.02).why
    assert "to see the published 0.02 in 80 % of cases takes about 16 seeds, of 2." in why
    assert "published" not in decide_glue_average(glue, conditions("C04"), "mkor").why


def test_an_open_verdict_says_that_its_interval_excludes_the_published_difference():
    """Truth: the t interval of 0 and .04 ends at .02 + 12.71 * .02, at .274."""
    metrics, runs = fine_tuned("bert_glue", {"lamb": [0.5, 0.5], "mkor": [0.5, 0.54]})
    glue = Trained("bert_glue", runs, metrics)
    for published, end in ((0.28, "0 inside its interval and the published 0.28 outside."), (0.27, "seeds, of 2.")):
        assert decide_glue_average(glue, conditions("C04"), "mkor", published).why.endswith(end)


def test_the_seeds_of_a_study_of_pretraining_are_one_unit():
    """Truth: by study the differences are 0.05 and -0.03; by seed, as if independent, MKOR would be better."""
    scores = {"lamb": [0.7] * 8, "mkor": [0.75, 0.67, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75]}
    metrics, runs = fine_tuned("bert_glue", scores)

    def decided(studies: Mapping[int, int]) -> Decision:
        glue = Trained("bert_glue", runs.assign(study=runs["seed"].map(studies)), metrics)
        return decide_glue_average(glue, conditions("C04"), "mkor", 0.02)

    assert decided(dict.fromkeys(range(8), 0)).verdict == "confirmed"
    nested = decided({seed: int(seed == 1) for seed in range(8)})
    assert (nested.verdict, nested.measured) == ("inconclusive", "0.01")
    assert "studies, of 2." in nested.why


def test_fine_tuning_starts_from_the_experiment_that_has_its_checkpoints(tmp_path: Path):
    root = tmp_path / "results" / "test-cpu" / "evidence"
    names = ("bert_pretraining", "bert_pretraining_small")
    for name in names:
        write_experiment(root, name, [run_rows(name, "bert", "mkor", range(2))])
    results = Results(root)
    for name in names:
        tuned = pd.DataFrame({"start_from": [results.runs(name)["run"].iloc[1], None]})
        assert pretraining_experiment(results, tuned) == name
    assert pretraining_experiment(results, pd.DataFrame({"start_from": ["elsewhere"]})) == "bert_pretraining"
