"""The table of claims: a row each, what it reads, what it calls its evidence, and folders where results are missing."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from tests.support.synthetic import iteration_times, numerics, reaching, run_rows, write_experiment, write_rows
from tests.support.synthetic_claims import (
    communication,
    conditions,
    cost_scaling,
    descents,
    fine_tuned,
    half_precision,
    hybrid,
    learning_rates,
    memory,
    projection,
    rank1_error,
    scaling,
    spectra,
    swept,
)
from tests.support.synthetic_probes import step_time, write_probe
from workflow.bench.analysis.estimates import Estimate, looks
from workflow.bench.claims import RULES, decide_all, published_sizes
from workflow.bench.claims.decision import Condition, Trained, all_of, parse_margin
from workflow.bench.make_artefact import main
from workflow.bench.plan.artefacts import describe, sources
from workflow.bench.results.columns import EVALUATION_COLUMNS, RUN_COLUMNS
from workflow.bench.results.rows import read_csv
from workflow.bench.results.tables import Results, published
from workflow.bench.tables import claims as claims_table

REACHES = {
    "sgd": [120.0, 121.0, 122.0],
    "lamb": [100.0, 101.0, 102.0],
    "kaisa": [90.0, 92.0, 91.0],
    "hylo": [95.0, 96.0, 97.0],
    "mkor": [80.0, 80.0, 81.0],
    "mkor_h": [70.0, 72.0, 71.0],
}
SCORES = {"lamb": [0.7, 0.71, 0.72], "kaisa": [0.69, 0.7, 0.71], "mkor": [0.71, 0.72, 0.73], "mkor_h": [0.72] * 3}
RATES = {"mkor": [4] * 3, "kaisa": [3] * 3, "kaisa_no_clip": [2] * 3, "hylo": [1] * 3, "sgd": [1] * 3}


def _write_trained(root: Path, trained: Trained) -> None:
    write_rows(root / f"{trained.name}.csv", EVALUATION_COLUMNS, trained.metrics)
    write_rows(root / f"{trained.name}.runs.csv", RUN_COLUMNS, trained.runs)


def _write(root: Path) -> Path:
    """Results that test every claim but the one that needs 64 GPUs."""
    probes = {
        "iteration_time": iteration_times(),
        "cost_scaling": cost_scaling(),
        "communication": communication(),
        "memory": memory(),
        "rank1_error": rank1_error(),
        "spectra": spectra(),
        "numerics": numerics(),
        "half_precision": half_precision(),
        "scaling": scaling({2: 0.9}),
        "projection": projection(),
    }
    for name, rows in probes.items():
        write_probe(root, name, rows)
    every = []
    for experiment in ("bert_pretraining", "autoencoder_lamb", "resnet50_imagenet", "alexnet_cifar100"):
        runs = swept(experiment, REACHES).runs
        if experiment in ("bert_pretraining", "autoencoder_lamb"):
            switches = hybrid([51, 52, 53]).set_index(["optimizer", "seed"])["switch_step"]
            keys = pd.MultiIndex.from_frame(runs[["optimizer", "seed"]])
            given = [{"lr": 0.1, "base": "lamb"} for _ in runs.index]
            runs = runs.assign(
                switch_step=switches.reindex(keys).to_numpy(), update_rule="sherman_morrison", hyperparameters=given
            )
        if experiment == "bert_pretraining":
            runs = runs.assign(target=None)
        _write_trained(root, Trained(experiment, runs, descents(runs)))
        every.append(runs)
    write_probe(root, "step_time", step_time(pd.concat(every)))
    _write_trained(root, learning_rates(RATES))
    for experiment, tasks in (("bert_squad", ["quotes"]), ("bert_glue", ["copy", "package"])):
        metrics, runs = fine_tuned(experiment, SCORES, tasks)
        write_rows(root / f"{experiment}.csv", EVALUATION_COLUMNS, metrics)
        write_rows(root / f"{experiment}.runs.csv", RUN_COLUMNS, runs)
    name = "autoencoder_inversion"
    cases = product(("kaisa", "mkor"), ((10, 0.95), (100, 0.95**10)))
    parts = [run_rows(name, "x", label, range(6), period=period, decay=decay) for label, (period, decay) in cases]
    write_experiment(root, name, parts)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("results") / "test-cpu" / "embedded")


@pytest.fixture(scope="module")
def table(root: Path) -> pd.DataFrame:
    return decide_all(Results(root)).claims


def test_every_claim_has_a_rule_a_row_and_a_verdict(table):
    claims = published("claims")
    assert list(RULES) == claims["id"].tolist() == table["id"].tolist()
    assert [*table.columns[:2], *table.columns[-2:]] == ["id", "verdict", "look", "data"]
    assert set(table["verdict"]) <= {"confirmed", "refuted", "no difference", "inconclusive", "not tested"}
    assert table["why"].str.fullmatch(r"\S.{20,}\.").all()
    assert not table["why"].str.contains(r"\.\s+[A-Z]").any(), "a reason is one sentence; more stands in details"


@pytest.mark.parametrize(("probe", "claims"), [("iteration_time", ["C08"]), ("cost_scaling", ["C10", "C11"])])
def test_times_of_a_busy_machine_decide_nothing(root, tmp_path, probe, claims):
    """Truth: planted loads, of a tenth of the cores or more in two rows, and of less in the others."""
    rows = Results(root).probe(probe)
    few = [0.09] * (len(rows) - 2)
    for busy, shares in ((True, [0.1, 0.523, *few]), (False, [0.09, None, *few])):
        folder = tmp_path / str(busy)
        write_probe(folder, probe, rows.assign(busy_share=shares))
        for claim in claims:
            decision = RULES[claim](Results(folder), conditions(claim))
            assert decision.verdict == ("not tested" if busy else "confirmed")
            assert ("took up to 52% of the cores in 2 of " in decision.why) is busy


def test_where_everything_was_measured_only_the_claim_of_64_gpus_is_not_tested(table):
    untested = table[table["verdict"] == "not tested"]
    assert untested["id"].tolist() == ["C24"]
    assert untested["why"].str.startswith("Needs 64 measured GPUs").all()
    tested = table[table["verdict"] != "not tested"]
    for column in ("measured", "interval", "seeds", "evidence", "data"):
        assert tested[column].ne("").all(), column
    assert (set(tested["tier"]), set(untested["tier"])) == ({"embedded"}, {""})
    # Mathematics is the same at every tier; nothing else of a small one is called a reproduction.
    evidence = tested.set_index("id")["evidence"]
    mathematics = evidence.index.isin(("C20", "C21", "C22"))
    assert evidence[mathematics].str.contains("the same at every tier").all()
    assert set(evidence[~mathematics]) == {"measured at the embedded tier, no reproduction of the paper's number"}


def test_a_row_says_whether_the_published_size_lies_inside_its_interval(table):
    """Truth: by hand, from the intervals in the row; an undecided row states the smallest effect that it could see."""
    rows = table.set_index("id")
    for claim in ("C04", "C05"):
        low, high = map(float, str(rows.loc[claim, "interval"]).strip("[]").split(", "))
        (size,) = published_sizes(str(rows.loc[claim, "published"]))
        assert rows.loc[claim, "published_inside"] == ("yes" if low <= size <= high else "no")
    undecided = rows["verdict"].isin(("inconclusive", "no difference"))
    assert rows.loc[~undecided, "smallest_visible"].eq("").all()


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("2.57", [2.57]),
        ("0.8214 vs 0.8023", [0.8214 - 0.8023]),
        ("1.31 / 1.26 / 1.58", [1.31, 1.26, 1.58]),
        ("2 and 3", []),
        ("up to 1.5", []),
        ("4 of 4 rates converge", []),
        ("O((gamma + 4 (1-gamma)/gamma^2 m^3 d^2) eps)", []),
        ("", []),
    ],
)
def test_published_sizes_are_read_where_they_are_effects(text, sizes):
    assert published_sizes(text) == pytest.approx(sizes)


@pytest.mark.parametrize("claim", ["C01", "C02", "C03", "C06", "C07", "C19"])
def test_a_rule_holds_for_the_papers_own_number(claim):
    """A rule that the published effects fail could not have confirmed the paper's claim."""
    stated = str(published("claims").set_index("id").loc[claim, "published"])
    assert all(conditions(claim)[0].holds(size) for size in published_sizes(stated))


def test_c07s_second_part_holds_for_the_papers_own_epochs():
    epochs = published("resnet50_imagenet").set_index("optimizer")["epochs_to_target"]
    assert conditions("C07")[1].holds(epochs["MKOR"] / epochs["KAISA"])


def test_an_undecided_row_states_the_effect_that_it_could_have_seen(tmp_path):
    """Truth: log ratios that deviate by .055 in three seeds show an effect of 14 %."""
    root = tmp_path / "test-cpu" / "embedded"
    reaches: dict[str, list[float | None]] = {
        "lamb": [100.0] * 3,
        "mkor": [100 * math.exp(0.055 * sign) for sign in (-1, 0, 1)],
    }
    _write_trained(root, swept("autoencoder_lamb", reaches))
    row = decide_all(Results(root)).claims.set_index("id").loc["C03"]
    assert (row["verdict"], row["smallest_visible"], row["published_inside"]) == (
        "inconclusive",
        "autoencoder: 15 %",
        "autoencoder: no",
    )


@pytest.mark.parametrize(
    ("claim", "probe", "rows", "stated"),
    [
        ("C17", "spectra", spectra(singular=6), "95 % order-statistics interval"),
        ("C24", "scaling", scaling({64: 0.9}), "95 % t interval"),
    ],
)
def test_a_claim_of_a_probe_alone_is_judged_at_the_level_of_one_look(tmp_path, claim, probe, rows, stated):
    """Truth: further seeds add nothing to a probe. The median of six layers has an interval of 95 %, none of 97.5 %."""
    write_probe(tmp_path, probe, rows)
    with looks(2):
        row = decide_all(Results(tmp_path, looks=2)).claims.set_index("id").loc[claim]
    assert row["verdict"] == "confirmed"
    assert stated in row["details"] + row["why"]


def test_a_row_quotes_the_paper_and_has_no_missing_value(table):
    quoted = ["id", "source", "claim"]
    assert table[quoted].equals(published("claims")[quoted])
    stated = table.set_index("id")["published"]
    assert (str(stated["C01"]), str(stated["C04"]), stated["C08"]) == ("2.57", "0.8214 vs 0.8023", "")
    assert table.notna().all(axis=None)


def test_at_the_papers_tier_a_verdict_is_not_qualified(tmp_path):
    root = tmp_path / "polaris" / "paper"
    write_probe(root, "memory", memory())
    row = decide_all(Results(root)).claims.set_index("id").loc["C13"]
    assert (row["verdict"], row["tier"], row["evidence"]) == ("confirmed", "paper", "")
    assert row["why"].startswith("Bytes that KAISA keeps")


def test_the_parts_hold_the_numbers_of_every_verdict(root):
    """Truth: the texts of the table, and its verdicts made again from the parts alone."""
    claims, parts = decide_all(Results(root))
    assert set(parts["id"]) == set(claims["id"]) - {"C24"}
    for claim in claims[claims["id"] != "C24"].to_dict("records"):
        own = parts[parts["id"] == claim["id"]]
        assert all_of(list(own["verdict"])) == claim["verdict"]
        assert all(f"{name}: " in claim["measured"] for name in own["part"] if name)
        for part in own.dropna(subset=["threshold"]).to_dict("records"):
            condition = Condition("", part["comparison"], part["threshold"], parse_margin(part["margin"]))
            is_above = part["comparison"].startswith(">")
            assert (part["verdict"] == "confirmed") <= ((part["low"] >= part["bound"]) == is_above), part
            estimate = Estimate(part["value"], part["low"], part["high"], 2, "mean", part["interval_method"])
            if part["margin"] != "2 % of the fall":
                assert condition.judge(estimate) == part["verdict"], part


def test_the_named_runs_hold_the_measured_number(table, root):
    """Truth: the ratio computed again from the runs that the row names, each of which takes equally long to a share."""
    row = table.set_index("id").loc["C03"]
    runs = Results(root).runs("autoencoder_lamb")
    named = runs[runs["run"].isin(re.findall(r"[0-9a-f]{16}", str(row["data"])))]
    steps = named.pivot_table(index="seed", columns="optimizer", values="crossing_step")
    ratio = np.exp(np.log(steps["mkor"] / steps["lamb"]).mean())
    assert float(str(row["measured"]).removeprefix("autoencoder: ")) == pytest.approx(ratio, rel=5e-3)


def test_sources_name_files_that_are_there(table, root):
    for data in table.loc[table["verdict"] != "not tested", "data"].map(str):
        for source in data.split("; "):
            file, colon, rest = source.partition(": ")
            assert (root / file).is_file(), source
            assert colon, source
            assert rest, source


def test_claims_of_an_empty_folder_are_all_not_tested(tmp_path):
    table = decide_all(Results(tmp_path / "test-cpu" / "embedded")).claims
    assert set(table["verdict"]) == {"not tested"}
    assert table["why"].str.contains("has not run|has no results|No finished pair").all()


def test_runs_that_are_planned_and_missing_change_no_claim_that_has_others(root, tmp_path):
    """A pipeline that was interrupted: the last seed of everything is there as a row without values."""
    partial = _write(tmp_path / "test-cpu" / "embedded")
    for file in partial.glob("*.csv"):
        rows = pd.read_csv(file)
        last = rows["seed"] == rows["seed"].max()
        empty: dict[str, Any] = dict.fromkeys(rows.columns.intersection([*reaching(None, 1.0)]))
        rows.loc[last, [*empty]] = np.nan
        rows.assign(status=rows["status"].where(~last, "missing")).to_csv(file, index=False)
    before, after = (decide_all(Results(folder)).claims.set_index("id") for folder in (root, partial))
    assert after.loc["C06", "verdict"] == before.loc["C06", "verdict"] == "confirmed"
    assert after.loc["C06", "seeds"] == "0-1"
    assert "Left out: 1 missing of sgd, 1 missing of mkor." in str(after.loc["C06", "details"])
    assert set(after.index[after["verdict"] == "not tested"]) == {"C24"}


@pytest.mark.parametrize("seed", range(4))
def test_any_part_of_the_results_gives_a_whole_table(tmp_path, seed):
    """Whatever an interrupted pipeline leaves: half of the rows of every file, and a third of the files gone."""
    partial = _write(tmp_path / "test-cpu" / "embedded")
    rng = np.random.default_rng(seed)
    for file in sorted(partial.rglob("*.csv")):
        rows = pd.read_csv(file)
        rows[rng.random(len(rows)) < 0.5].to_csv(file, index=False)
        if rng.random() < 1 / 3:
            file.unlink()
    table = decide_all(Results(partial)).claims
    assert table["id"].tolist() == published("claims")["id"].tolist()
    assert table["why"].ne("").all()
    assert not table["measured"].str.contains("nan").any()


class _Recording(Results):
    """Results that keep what was asked of them."""

    asked: ClassVar[set[str]] = set()

    def metrics(self, experiment: str) -> pd.DataFrame:
        self.asked.add(experiment)
        return super().metrics(experiment)

    def runs(self, experiment: str) -> pd.DataFrame:
        self.asked.add(experiment)
        return super().runs(experiment)

    def probe(self, name: str) -> pd.DataFrame:
        self.asked.add(name)
        return super().probe(name)


def test_the_table_names_everything_that_the_claims_read(root):
    """What a module names decides when it is made again, so that a claim may read nothing else."""
    recording = _Recording(root)
    decide_all(recording)
    named = describe("tables", "claims")
    assert recording.asked == {*named.experiments, *named.probes}
    code = "".join(file.read_text() for file in sources(named.module) if file.parent.name == "claims")
    assert set(re.findall(r'published\("(\w+)"\)', code)) <= set(named.published)


def test_a_package_s_files_are_sources_of_what_imports_it():
    files = {file.as_posix() for file in sources(describe("tables", "claims").module)}
    for name in ("__init__", "decision", "numerics", "rank1", "costs", "time_to_target"):
        assert any(file.endswith(f"workflow/bench/claims/{name}.py") for file in files), name


def test_the_page_of_claims_counts_verdicts_and_names_every_detail_once_and_what_is_absent(root, tmp_path):
    assert main(["claims", "--results", str(root), "--out-dir", str(tmp_path)]) == 0
    page = (tmp_path / "claims.md").read_text()
    assert (
        "| id | verdict | claim | tested on | quantity (unit) | published | measured [interval] | threshold |" in page
    )
    claim = read_csv(tmp_path / "claims.csv")[0]
    section = page.partition("## C01\n")[2].partition("\n## ")[0]
    assert f"- why: {claim['why']}\n" in section
    assert claim["quantity"] not in section
    assert (
        f"| C01 | {claim['wording']} | {claim['claim']} | {claim['proxy']} | {claim['quantity']} ({claim['unit']}) |"
        in page
    )
    assert '<h2 id="C01">C01</h2>\n<dl><dt>' in (tmp_path / "claims.html").read_text()
    assert "1 not tested" in page
    assert "no results yet" not in page.lower()
    assert main(["claims", "--results", str(tmp_path / "none"), "--out-dir", str(tmp_path)]) == 0
    absent = (tmp_path / "claims.md").read_text()
    # What only some tiers have is not missed.
    assert [
        name
        for name in {*claims_table.EXPERIMENTS, *claims_table.PROBES} - set(claims_table.OPTIONAL)
        if name not in absent
    ] == []
