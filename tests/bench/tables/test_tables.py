"""Tables from synthetic results: numbers computed by hand, and the sources of every row."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.synthetic import write_results
from tests.support.synthetic_claims import swept, write_swept
from tests.support.synthetic_probes import SLOPES, step_time, write_probe
from tests.support.synthetic_tables import LABELS, TASKS, final_score, pretraining, write_tables
from workflow.bench.analysis.lr_outcomes import converging_rates, outcome_of, outcomes
from workflow.bench.make_artefact import main
from workflow.bench.results.sources import Source, Sources, files_in, from_rows, from_runs
from workflow.bench.results.tables import Results, published
from workflow.bench.tables._files import write_table
from workflow.bench.tables._finetuning import counterpart, shown
from workflow.bench.tables.published_consistency import Derived, Printed, compare, derive


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tables(write_results(tmp_path_factory.mktemp("results") / "test-cpu" / "embedded"))


@pytest.fixture
def copied(results: Path, tmp_path: Path) -> Path:
    """A copy of the results that a test may change."""
    return Path(shutil.copytree(results, tmp_path / "test-cpu" / "embedded"))


def make(name: str, root: Path, out: Path, index: str | list[str] | None = None) -> pd.DataFrame:
    """Make a table and return its CSV file, all values as text, by the columns of ``index``."""
    assert main([name, "--results", str(root), "--out-dir", str(out)]) == 0
    table = pd.read_csv(out / f"{name}.csv", dtype=str, keep_default_na=False)
    return table if index is None else table.set_index(index, drop=False)


def caption_of(name: str, out: Path) -> str:
    return (out / f"{name}.md").read_text().splitlines()[-1]


def change(root: Path, experiment: str, wanted: str, **values: str | float | None) -> list[str]:
    """Set columns of the runs whose id contains ``wanted``, in both CSV files, and return their ids."""
    for file in (root / f"{experiment}.runs.csv", root / f"{experiment}.csv"):
        frame = pd.read_csv(file, dtype=object)
        chosen_rows = frame["run"].str.contains(wanted, regex=True)
        for column, value in values.items():
            if column in frame:
                frame.loc[chosen_rows, column] = value
        frame.to_csv(file, index=False)
    return sorted(set(frame.loc[chosen_rows, "run"]))


def test_sources_are_named_once_and_shortened_for_people():
    frame = pd.DataFrame({"run": ["a1", "b2", "a1"]})
    data = from_runs("x.csv", frame) + from_runs("x.csv", frame) + from_runs("y.csv", frame[:0])
    data += from_rows("probes/p.csv", d=1)
    assert str(data) == "x.csv: runs a1, b2; probes/p.csv: d=1"
    assert data.brief() == "x.csv (2 runs); probes/p.csv: d=1"
    assert from_runs("x.csv", frame[:1]).brief() == "x.csv (1 run)"
    assert str(Sources()) == Sources().brief() == ""
    assert files_in(str(data)) == {"x.csv", "probes/p.csv"}


def test_the_ids_of_runs_stand_in_the_csv_alone(tmp_path):
    frame = pd.DataFrame({"n": [1], "data": [Sources((Source("x.csv", ("a1", "b2")),))]})
    write_table(frame, tmp_path, "t", title="T", caption="C.")
    assert (tmp_path / "t.md").read_text().splitlines()[2:5] == ["| n |", "| --- |", "| 1 |"]
    assert "x.csv" not in (tmp_path / "t.html").read_text()
    assert pd.read_csv(tmp_path / "t.csv")["data"].tolist() == ["x.csv: runs a1, b2"]


def test_texts_of_records_are_neither_tags_nor_formulas(tmp_path):
    frame = pd.DataFrame({"reason": ["<script>x</script> 1 < 2", "=cmd|' /C calc'!A0", "+x()", "-0.5 [-1, 0]", "-"]})
    write_table(frame, tmp_path, "t", title="T", caption="C.")
    assert "| &lt;script>x&lt;/script> 1 < 2 |" in (tmp_path / "t.md").read_text().splitlines()
    texts = pd.read_csv(tmp_path / "t.csv")["reason"].tolist()
    assert texts == ["<script>x</script> 1 < 2", "'=cmd|' /C calc'!A0", "'+x()", "-0.5 [-1, 0]", "-"]


# Tables 2 to 4: fine-tuning


def test_table2_averages_over_seeds_and_stands_beside_the_paper(results, tmp_path):
    table = make("table2_squad", results, tmp_path, "optimizer here")
    assert list(table.index) == [*LABELS, "", ""]  # MKOR-H and Eva were not trained here
    mkor = table.loc["mkor"]
    mean = 100 * sum(final_score("mkor", "SQuAD v1.1", seed) for seed in range(3)) / 3
    assert mkor["F1 here (%)"].split()[0] == f"{mean:.4g}"
    each = [f"{100 * final_score('mkor', 'SQuAD v1.1', seed):.4g}" for seed in range(3)]
    assert mkor["F1 here (%)"] == f"{mean:.4g} ({', '.join(each)})"  # no interval above 100 %
    assert mkor["F1 minus LAMB's here"] == "2 (2, 2, 2)"  # the same in every seed
    assert mkor["runs finished"] == "3 of 3"
    # 150 iterations at 0.03 s for MKOR and LAMB, at 0.05 s for KAISA.
    assert (mkor["iterations here"], mkor["time here (s)"]) == ("150", "4.5 (4.5, 4.5, 4.5)")
    assert mkor["times as fast as LAMB here"] == "1 [1, 1]"
    compared = [f"bert_squad-{label}-v1.1-{seed}" for label in ("mkor", "lamb") for seed in range(3)]
    assert mkor["data"].startswith(f"bert_squad.csv: runs {', '.join(compared)}; bert_pretraining.runs.csv: runs ")
    assert table.loc["kaisa", "times as fast as LAMB here"].split()[0] == "0.6"
    assert table.loc["lamb", "F1 minus LAMB's here"] == table.loc["lamb", "times as fast as LAMB here"] == ""
    assert (mkor["F1 in the paper (%)"], mkor["iterations in the paper"]) == ("90.50", "1000")
    assert set(table["optimizer in the paper"]) == set(published("squad")["optimizer"])
    assert "Questions here: SQuAD v1.1" in caption_of("table2_squad", tmp_path)
    assert "mkor_released = released" in caption_of("table2_squad", tmp_path)


def test_a_fine_tuning_run_that_broke_down_is_never_left_out_of_the_mean(copied, tmp_path):
    change(copied, "bert_squad", "mkor-v1.1-0", status="diverged")
    table = make("table2_squad", copied, tmp_path, "optimizer here")
    # Of three seeds the median, with the broken one as the worst: no interval.
    others = [f"{100 * final_score('mkor', 'SQuAD v1.1', seed):.4g}" for seed in (1, 2)]
    assert table.loc["mkor", "F1 here (%)"] == f"{others[0]} (broke down, {', '.join(others)})"
    assert table.loc["mkor", "runs finished"] == "2 of 3"
    assert table.loc["mkor", "F1 minus LAMB's here"] == "2 (broke down, 2, 2); 1 of 3 seeds broke down"
    assert "diverged: bert mkor seed 0" in caption_of("table2_squad", tmp_path).lower()
    change(copied, "bert_squad", "mkor-v1.1-", status="diverged")
    assert (
        make("table2_squad", copied, tmp_path, "optimizer here").loc["mkor", "F1 here (%)"].startswith("broke down (")
    )


def test_scores_are_shown_by_study():
    """Truth: the means of studies; one whose seeds broke down on both sides tells nothing."""
    values, studies = {0: 0.1, 1: 0.2, 2: 0.5, 3: 0.7}, {0: 0, 1: 0, 2: 1, 3: 1}
    assert shown(values, studies) == "0.375 (0.15, 0.6)"
    assert shown(values, {}) == "0.375 (0.1, 0.2, 0.5, 0.7)"
    assert shown({**values, 0: math.inf, 1: -math.inf}, studies) == "0.6"
    assert shown({0: math.nan}, {}) == ""


def test_without_times_of_steps_the_pre_training_s_iterations_stand(copied, tmp_path):
    (copied / "probes" / "step_time.csv").unlink()
    for name in ("table2_squad", "table3_glue_average"):
        mkor = make(name, copied, tmp_path, "optimizer here").loc["mkor"]
        cells = mkor[["iterations here", "time here (s)", "times as fast as LAMB here"]]
        assert cells.tolist() == ["150", "not tested", "not tested"]
        assert "Not tested: step_time.csv is missing or empty" in caption_of(name, tmp_path)


def test_fine_tuning_of_one_seed_has_no_interval_and_missing_runs_are_counted(copied, tmp_path):
    change(copied, "bert_squad", "v1.1-[12]", status="missing")
    table = make("table2_squad", copied, tmp_path, "optimizer here")
    assert table.loc["lamb", "F1 here (%)"] == "70"
    assert table.loc["lamb", "runs finished"] == "1 of 3"
    assert "missing" in caption_of("table2_squad", tmp_path).lower()
    assert table.loc["lamb", "data"].startswith("bert_squad.csv: runs bert_squad-lamb-v1.1-0; ")  # where numbers are


def test_fine_tuning_without_its_pre_training_names_it(copied, tmp_path):
    for suffix in (".csv", ".runs.csv"):
        (copied / f"bert_pretraining{suffix}").unlink()
    for name in ("table2_squad", "table3_glue_average", "table4_glue_tasks"):
        make(name, copied, tmp_path)
        assert caption_of(name, tmp_path).endswith("No results yet: bert_pretraining. Commit 012345678.")
    table = pd.read_csv(tmp_path / "table3_glue_average.csv").set_index("optimizer here")
    assert pd.isna(table.loc["mkor", "time here (s)"])
    assert not pd.isna(table.loc["mkor", "average here"])


def test_table3_averages_tasks_before_seeds(results, tmp_path):
    table = make("table3_glue_average", results, tmp_path, "optimizer here")
    by_seed = [sum(final_score("kaisa", task, seed) for task in TASKS) / len(TASKS) for seed in range(3)]
    assert table.loc["kaisa", "average here"].split()[0] == f"{sum(by_seed) / 3:.4g}"
    assert table.loc["kaisa", "average minus LAMB's here"] == "0.01 (0.01, 0.01, 0.01)"
    assert "over 2 tasks: GLUE MNLI, GLUE QQP" in caption_of("table3_glue_average", tmp_path)
    # MKOR's 1,500 iterations stand beside ours, its 600 beside none of this tier.
    beside_mkor = (table.loc["mkor", "average in the paper"], table.loc["mkor", "iterations in the paper"])
    assert beside_mkor == ("0.8214", "1500")
    assert "600" in set(table.loc[[""], "iterations in the paper"])


def test_a_seed_that_lacks_a_task_has_no_average(copied, tmp_path):
    change(copied, "bert_glue", "kaisa-QQP-2", status="missing")
    table = make("table3_glue_average", copied, tmp_path, "optimizer here")
    by_seed = [sum(final_score("kaisa", task, seed) for task in TASKS) / len(TASKS) for seed in range(2)]
    assert table.loc["kaisa", "average here"].split()[0] == f"{sum(by_seed) / 2:.4g}"
    assert table.loc["kaisa", "runs finished"] == "5 of 6"


def test_table4_has_a_column_for_each_task_with_its_metric(results, tmp_path):
    table = make("table4_glue_tasks", results, tmp_path, "optimizer here")
    assert {"GLUE MNLI here (accuracy)", "GLUE QQP here (f1)", "MNLI (acc) in the paper"} <= set(table.columns)
    mean = sum(final_score("lamb", "GLUE QQP", seed) for seed in range(3)) / 3
    assert table.loc["lamb", "GLUE QQP here (f1)"].split()[0] == f"{mean:.4g}"
    assert table.loc["lamb", "RTE (acc) in the paper"] == "0.664"


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("lamb", ("LAMB", "1563")),
        ("mkor", ("MKOR", "1500")),
        ("mkor_released", ("MKOR", "1500")),
        ("mkor_released_600", ("MKOR", "600")),
        ("mkor_h", ("MKOR-H", "600")),
        ("kaisa_1000", None),  # the paper has no such run on GLUE
        ("eva", None),  # its pre-training is not planned
        ("sgd", None),
    ],
)
def test_the_papers_row_beside_a_label(label, expected):
    steps = {"lamb": 1563, "mkor": 1563, "mkor_released": 1563, "mkor_released_600": 600, "mkor_h": 600, "sgd": 1563}
    steps |= {"kaisa": 1563, "kaisa_1000": 1000}
    pretraining = pd.DataFrame({"optimizer": list(steps), "steps": list(steps.values())})
    pretraining["method"] = pretraining["optimizer"].str.extract("^(mkor_h|[a-z]+)")[0]
    pretraining["hyperparameters"] = [{"update_rule": "released"} if "released" in name else {} for name in steps]
    paper = published("glue", as_text=True)
    index = counterpart(label, paper, pretraining)
    assert (None if index is None else (paper.loc[index, "optimizer"], paper.loc[index, "iterations"])) == expected


# The table of learning rates


@pytest.mark.parametrize(
    ("status", "steps", "expected"),
    [
        ("finished", 12.0, "converged"),
        ("finished", math.nan, "local-minimum"),
        ("finished", None, "local-minimum"),
        ("diverged", math.nan, "diverged"),
        ("diverged", 12.0, "diverged"),  # it passed its target and broke down after
        ("out_of_memory", math.nan, "out-of-memory"),
        ("skipped", math.nan, None),
        ("missing", math.nan, None),
        ("failed", math.nan, None),
        ("interrupted", 12.0, None),
    ],
)
def test_how_a_run_ended(status, steps, expected):
    assert outcome_of(status, steps) == expected


def test_a_seed_counts_only_where_every_rate_ended(results):
    runs = Results(results).runs("resnet_cifar10_lr")
    counts = converging_rates(outcomes(runs))
    assert counts == {
        "mkor": dict.fromkeys(range(3), 4),
        **{label: dict.fromkeys(range(3), 1) for label in ("sgd", "kaisa", "kaisa_no_clip", "hylo")},
    }
    runs.loc[runs["run"] == "mkor-1.0-2", "status"] = "missing"
    assert converging_rates(outcomes(runs))["mkor"] == {0: 4, 1: 4}
    assert converging_rates(outcomes(runs.assign(target=None))) == {}


def test_table5_has_the_papers_form(results, tmp_path):
    table = make("table5_lr_sensitivity", results, tmp_path, "optimizer here")
    here = [f"lr {rate} here" for rate in ("10", "1", "0.1", "0.01")]
    # An epoch is 50 steps: the target is met at step 50, the best value of the others too.
    assert list(table.loc["mkor", here]) == ["1", "1", "1", "1"]
    assert list(table.loc["sgd", here]) == ["D", "1* (best 0.6)", "1", "1* (best 0.6)"]
    assert list(table["rates that converge here"]) == ["1", "4", "1", "1", "1"]
    paper = [name.replace("here", "in the paper") for name in here]
    assert list(table.loc["sgd", paper]) == ["D", "D", "108", "145*"]
    assert list(table.loc["kaisa_no_clip", paper]) == list(table.loc["kaisa", paper]) == ["112", "100", "90", "89*"]
    assert table.loc["mkor", "rates that converge in the paper"] == "4"
    caption = caption_of("table5_lr_sensitivity", tmp_path)
    assert "validation accuracy ≥ 0.9" in caption
    assert "diverged: resnet20" in caption.lower()


def test_seeds_that_end_differently_are_all_in_the_cell(copied, tmp_path):
    change(copied, "resnet_cifar10_lr", "^mkor-10.0-0$", status="diverged")
    change(copied, "resnet_cifar10_lr", "^mkor-10.0-1$", steps_to_target=None)
    table = make("table5_lr_sensitivity", copied, tmp_path, "optimizer here")
    assert table.loc["mkor", "lr 10 here"] == "1 (1 of 3); 2* (best 0.95, 1 of 3); D (1 of 3)"
    assert table.loc["mkor", "rates that converge here"] == "3, 3, 4"


# Table 7 and table 1: probes


def test_table7_takes_the_base_off_and_computes_it_too(results, tmp_path):
    table = make("table7_memory", results, tmp_path, ["model here", "optimizer here"])
    mkor = table.loc["bert", "mkor"]
    assert (mkor["overhead over the base here (MB)"], mkor["computed overhead (MB)"]) == ("2", "2")
    assert (mkor["optimizer state here (MB)"], mkor["peak over the base's here (MB)"]) == ("3", "2")
    assert mkor["KAISA's overhead over this one's here"] == "2"
    assert mkor["overhead over the parameters' bytes here"] == "2"
    assert mkor["data"].startswith("probes/memory.csv: workload=bert, optimizer=mkor, lamb, kaisa; ")
    assert (mkor["memory in the paper (GB)"], mkor["overhead in the paper (GB)"]) == ("23.34", "10.5")
    assert table.loc["resnet", "sgd"]["overhead in the paper (GB)"] == "0"
    assert "Commit 012345678" in caption_of("table7_memory", tmp_path)


def test_a_state_without_a_formula_has_no_computed_size(copied, tmp_path):
    file = copied / "probes" / "memory.csv"
    memory = pd.read_csv(file)
    memory.loc[memory["tensor"] == "left", "computed_bytes"] = None
    memory.to_csv(file, index=False)
    mkor = make("table7_memory", copied, tmp_path, ["model here", "optimizer here"]).loc["bert", "mkor"]
    assert (mkor["overhead over the base here (MB)"], mkor["computed overhead (MB)"]) == ("2", "")


def test_table1_finds_the_exponents_and_the_bytes(results, tmp_path):
    table = make("table1_complexity", results, tmp_path, "optimizer here")
    for label in ("mkor", "kaisa", "eva"):
        assert float(table.loc[label, "factor update: slope over d here"]) == pytest.approx(
            SLOPES[label, "factor"], rel=5e-3
        )
    kaisa = table.loc["kaisa"]
    assert kaisa["bytes a factor update here"] == f"{12 * 256**2} (d = 256)"  # its owner's: 4 d^2 and 8 d^2
    assert kaisa["bytes: slope over d here"] == "2"
    assert kaisa["bytes by the paper's formula"] == f"{16 * 256**2} (d = 256)"
    assert kaisa["state over the parameters' bytes here"] == "bert 4, resnet 4"
    assert (kaisa["computation in the paper"], table.loc["mkor", "communication in the paper"]) == ("d³", "2d/2")
    # The paper's optimizers that no probe measured come last, without numbers of ours.
    assert list(table.loc[[""], "optimizer in the paper"]) == ["HyLo"]


def test_table1_names_the_probes_that_have_not_run(copied, tmp_path):
    for name in ("cost_scaling", "communication"):
        (copied / "probes" / f"{name}.csv").unlink()
    table = make("table1_complexity", copied, tmp_path)
    assert not table["factor update: slope over d here"].any()
    assert "No results yet: probe cost_scaling, probe communication" in caption_of("table1_complexity", tmp_path)


# What the published numbers imply


def test_a_printed_number_stands_for_all_that_round_to_it():
    assert Printed("7.97").range == pytest.approx((7.965, 7.975))
    assert Printed("1536").range == (1536, 1536)
    assert derive(lambda a, b: a / b, Printed("7.97"), Printed("5.25")).high == pytest.approx(7.975 / 5.245)


@pytest.mark.parametrize(
    ("stated", "value", "half", "expected"),
    [
        ("1.52", 1.521, 0.002, "yes"),
        ("0.8023", 0.80225, 0.0, "yes"),  # a tie goes up
        ("1.39", 1.3958, 0.0021, "within rounding"),
        ("1.51", 1.5181, 0.0024, "no, cut off"),
        ("1.50", 1.5181, 0.0024, "no"),
        ("0.809", 0.81, 0.0005, "no"),  # the ranges touch where numbers round up
        ("1536", 1563, 0.0, "no"),
    ],
)
def test_stated_beside_implied(stated, value, half, expected):
    assert compare(Printed(stated), Derived(value, value - half, value + half)) == expected


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.integers(1, 4))
def test_a_correctly_rounded_number_is_never_called_wrong(a, b, digits):
    """Truth: if two numbers and their exact ratio are all rounded, the rounded inputs can explain the ratio."""
    inputs = [Printed(f"{value:.{digits + 2}f}") for value in (a, b)]
    found = derive(lambda above, below: above / below, *inputs)
    assert found.low <= found.value <= found.high
    assert compare(Printed(f"{a / b:.{digits}f}"), found) in ("yes", "within rounding")


def test_the_papers_known_disagreements_are_found(results, tmp_path):
    table = make("published_consistency", results, tmp_path, "quantity")
    agrees = table["agrees"]
    assert tuple(table.loc["iterations of LAMB", ["stated", "implied", "agrees"]]) == ("1536", "1563", "no")
    assert agrees["squad: speedup of MKOR, 1000 iterations"] == "no, cut off"  # 7.97 / 5.25 = 1.518, printed 1.51
    assert agrees["glue: average of Eva, 1000 iterations"] == "no"  # 0.8095 at the least, printed 0.809
    assert tuple(table.loc["glue: average of Eva, 1000 iterations", ["stated", "implied"]]) == ("0.809", "0.81000")
    abstract = table.loc["C02: seconds to the target, KAISA over MKOR-H"]
    assert (abstract["stated"], abstract["implied"], abstract["agrees"]) == ("1.85", "1.8419", "within rounding")
    assert agrees["C01: seconds to the target, LAMB over MKOR-H"] == "yes"
    by_table = table.loc["C03: iterations to the target, MKOR over LAMB"]
    assert list(by_table["agrees"]) == ["yes", "no"]
    periods = agrees[agrees.index.str.startswith("C08")]
    assert list(periods) == ["yes", "yes"]
    yes = table.loc["glue: MRPC F1 of LAMB, that of an answer that is always yes"]
    assert (yes["stated"], yes["implied"], yes["agrees"]) == ("0.812", "0.81223", "yes")
    without = table[table.index.str.contains("average without MRPC")]
    assert set(without["stated"]) == {"> 0.8009"}  # (6.418 - 0.812) / 7
    assert list(without["implied"]) == ["0.8096", "0.7956", "0.7989", "0.7966"]
    assert list(without["agrees"]) == ["yes", "no", "no", "no"]
    slopes = table[table.index.str.startswith(("C11", "C12"))]
    assert [tuple(row) for row in slopes[["stated", "implied", "agrees"]].to_numpy()] == [
        ("2d/2 and 4d²", "2d/2 and 4d²", "yes"),
        ("2 and 3", "2 and 3", "yes"),
    ]
    sizes = agrees[agrees.index.str.startswith("C13")]
    assert list(sizes) == ["yes", "no", "yes", "no"]  # 1.5 is of the whole memory, not of the overhead
    derived = agrees[agrees.index.str.contains("average of|speedup of")]
    assert len(derived) == len(published("squad")) + 2 * len(published("glue"))
    # The caption counts the verdicts.
    caption = caption_of("published_consistency", tmp_path)
    counted = {name: int(n) for name, n in re.findall(r"(yes|within rounding|cut off|no) \((\d+) of", caption)}
    assert counted == agrees.str.removeprefix("no, ").value_counts().to_dict()
    assert "Nothing here is measured" in caption


def test_the_aa_test_counts_over_all_workloads(copied, tmp_path):
    """Truth: 12 intervals of 36 rounds without noise on each of three workloads, the second name 3 % slower on one."""
    runs = pd.concat([Results(copied).runs(name) for name in ("bert_pretraining", "update_rules")])
    quiet, biased = step_time(runs, rounds=36), step_time(runs, rounds=36, bias=0.03, noise=1e-4)
    write_probe(copied, "step_time", quiet)
    table = make("aa_test", copied, tmp_path)
    assert list(table.columns[:6]) == ["experiment", "contender", "intervals", "excluding_1", "rate", "passes"]
    assert len(table) == 3
    assert set(table["intervals"]) == {"12"}
    assert set(table["passes"]) == {"True"}
    here = biased["experiment"] == "bert_pretraining"
    write_probe(copied, "step_time", pd.concat([quiet[~here], biased[here]]))
    table = make("aa_test", copied, tmp_path)
    assert table["excluding_1"].astype(int).sum() == 12
    assert set(table["passes"]) == {"False"}
    assert "12 of 36 intervals exclude 1; at most 5 may" in caption_of("aa_test", tmp_path)


def test_a_tier_without_targets_has_an_empty_aa_test(copied, tmp_path):
    write_probe(copied, "step_time", step_time(Results(copied).runs("bert_pretraining"))[:0])
    assert make("aa_test", copied, tmp_path).empty


def test_time_to_target_names_the_runs_that_it_compares_with(results, tmp_path):
    table = make("time_to_target", results, tmp_path)
    table = table[table["experiment"] == "bert_pretraining"].set_index("optimizer")
    runs = pd.read_csv(results / "bert_pretraining.runs.csv").groupby("optimizer")["run"].agg(list)
    named = table.loc["mkor", "data"].removeprefix("bert_pretraining.runs.csv: runs ").split(", ")
    assert named == runs["mkor"] + runs["lamb"] + runs["kaisa"]  # its own, its base's, its rival's
    assert pretraining(results)["mkor"][0] in named


def test_table6_stands_beside_the_papers_settings(results, tmp_path):
    assert main(["table6_settings", "--results", str(results), "--out-dir", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "table6_settings.csv").set_index("experiments", drop=False)
    bert = table.loc["bert_pretraining"]
    assert (bert["model in the paper"], bert["parameters in the paper (M)"]) == ("BERT-Large-Uncased", 335.1)
    assert (bert["train here"], bert["test here"], bert["hardware here"]) == (1437, 360, "Test CPU")
    assert set(table["model in the paper"].dropna()) == set(published("settings")["model"])
    # A model of the paper's size that nobody trained: its parameters are known all the same, as the paper counts them.
    large = table.loc["bert_phase1"]
    assert (large["parameters here (M)"], large["counted the paper's way here (M)"]) == (336.2, 335.1)
    assert large[["train here", "hardware here"]].isna().all()
    # One row for a model, whatever the number of experiments that train it.
    assert list(table["experiments"]).count("update_rules, autoencoder_inversion") == 1
    # The probe, and the run that tells the data.
    assert bert["data"].startswith("probes/sizes.csv: workload=bert_pretraining, model=bert_pretraining model")
    assert ".runs.csv: runs " in bert["data"]
    assert bert["data"].endswith("workflow/paper/settings.csv: model=BERT-Large-Uncased")
    assert "workflow/paper" not in table.loc["update_rules, autoencoder_inversion", "data"]


def test_table6_needs_no_trained_run(results, tmp_path):
    (tmp_path / "probes").mkdir()
    shutil.copy(results / "probes" / "sizes.csv", tmp_path / "probes")
    table = make("table6_settings", tmp_path, tmp_path)
    assert set(table["counted the paper's way here (M)"]) - {""} == {"0.1", "335.1"}
    assert not table["train here"].any()


def test_time_to_target_shows_final_quality_beside_all_targets_and_what_a_step_may_cost(tmp_path):
    """Truth: MKOR takes .6 of SGD's steps to every target, and each of its steps 1.5 times as long."""
    root = tmp_path / "test-cpu" / "embedded"
    trained = swept("resnet50_imagenet", {"sgd": [100.0, 110.0], "mkor": [60.0, 66.0]})
    given = [{"lr": 0.1, **({"base": "sgd"} if label == "mkor" else {})} for label in trained.runs["optimizer"]]
    write_swept(root, replace(trained, runs=trained.runs.assign(hyperparameters=given)))
    write_probe(
        root, "step_time", step_time(trained.runs.assign(inverse_update_period=None), {"sgd": 30.0, "mkor": 45.0})
    )
    row = make("time_to_target", root, tmp_path).set_index("optimizer").loc["mkor"]
    assert row["targets"] == "8 of 8"
    for view in ("mean of targets", "last target", "final quality"):
        assert row[f"fewer iterations than its base, {view}"] == "1.67 [1.67, 1.67]"
        assert row[f"less time than its base, {view}"] == "1.11 [1.11, 1.11]"
    assert row["break-even step over its base"] == "< 1.67 [1.67, 1.67], here 1.5: wins"
    assert row["break-even step over kaisa"] == ""


def test_the_aa_test_has_the_intervals_of_steps_beside_those_of_times(tmp_path):
    """Truth: eight runs of SGD, one a study, of which each half is as fast as the other but for noise."""
    root = tmp_path / "test-cpu" / "embedded"
    rng = np.random.default_rng(0)
    trained = swept("resnet50_imagenet", {"sgd": [*(100 * np.exp(0.1 * rng.standard_normal(8)))]})
    write_swept(root, replace(trained, runs=trained.runs.assign(study=range(8))))
    write_probe(root, "step_time", step_time(trained.runs))
    (row,) = make("aa_test", root, tmp_path).to_dict("records")
    assert row["steps_intervals"] == "200"
    assert 0 <= int(row["steps_excluding_1"]) <= 30
    assert float(row["steps_rate"]) == int(row["steps_excluding_1"]) / 200


@pytest.mark.parametrize(("probe", "time"), [("iteration_time", "iteration_ms"), ("step_breakdown", "ms")])
def test_a_probe_s_row_without_a_time_is_named(probe, time, copied, tmp_path, capsys):
    """As in a file that was cut off."""
    file = copied / "probes" / f"{probe}.csv"
    rows = pd.read_csv(file, dtype=str)
    rows.loc[rows["optimizer"] == "mkor", time] = None
    rows.to_csv(file, index=False)
    assert main(["hardware", "--results", str(copied), "--out-dir", str(tmp_path / "out")]) != 0
    assert re.search(rf"{file} lacks a time of \w+ with mkor\. Delete it and run again\.", capsys.readouterr().err)
