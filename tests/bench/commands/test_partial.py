"""Partial results: every run has a row with its status, every artefact with data is drawn, and nothing else changes."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.experiments import block, load, make_folder, optimizer, options, rows, write
from workflow.bench import partial, train
from workflow.bench.analysis.captions import from_rst
from workflow.bench.plan import Plan
from workflow.bench.plan.artefacts import Artefact, Kind, planned_artefacts
from workflow.bench.support.errors import FileWarning
from workflow.bench.training import runner
from workflow.bench.training.record import METRIC_COLUMNS, RunFolder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of four optimizers: finished, one seed missing, interrupted and failed, never begun."""
    made = make_folder(tmp_path_factory.mktemp("partial") / "config")
    labels = [optimizer("sgd"), optimizer("mkor"), optimizer("kaisa"), optimizer("eva")]
    write(made, "update_rules", block(*labels, seeds=[0, 1]))
    write(made, "bert_pretraining", block(optimizer("sgd", lr=0.3)))
    assert train.main(["update_rules", "sgd", *options(made)]) == 0
    assert train.main(["update_rules", "mkor", "--seed", "0", *options(made)]) == 0
    plan = load(made)
    begun = RunFolder.of(plan.results, plan.job("update_rules", "kaisa").run_ids[0])
    begun.path.mkdir(parents=True)
    whole = [(0, 0.21), (10, 0.19)]
    lines = [f"{step},0.5,validation,loss,{loss},0.1,0.01,0.02" for step, loss in whole]
    begun.metrics.write_text("\n".join([",".join(METRIC_COLUMNS), *lines, "20,0.9,valid"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "train", _break)
        with pytest.raises(ArithmeticError):
            train.main(["update_rules", "kaisa", "--seed", "1", *options(made)])
    return made


def _break(*arguments: object, **named: object) -> None:
    raise ArithmeticError("the sixth factor\nis odd")


@pytest.fixture
def plan(folder: Path) -> Plan:
    return load(folder)


@pytest.fixture(scope="module")
def drawn(folder: Path) -> tuple[dict[Kind, list[str]], dict[str, str]]:
    """The artefacts that were drawn, and the reasons for the others."""
    plan = load(folder)
    before = {file: file.stat().st_mtime_ns for file in plan.results.rglob("*")}
    partial.gather(plan)
    made = partial.draw(plan)
    assert {file: file.stat().st_mtime_ns for file in plan.results.rglob("*")} == before
    return made


@pytest.mark.usefixtures("drawn")
def test_every_planned_run_has_a_row_with_its_status(plan):
    found = rows(plan.partial / "update_rules.runs.csv")
    assert {(row["optimizer"], row["seed"]): (row["status"], row["reason"]) for row in found} == {
        ("sgd", "0"): ("finished", ""),
        ("sgd", "1"): ("finished", ""),
        ("mkor", "0"): ("finished", ""),
        ("mkor", "1"): ("missing", "not trained yet"),
        ("kaisa", "0"): ("interrupted", "not at its end: 10 of 20 steps so far"),
        ("kaisa", "1"): ("failed", "ArithmeticError: the sixth factor"),
        ("eva", "0"): ("missing", "not trained yet"),
        ("eva", "1"): ("missing", "not trained yet"),
    }
    assert {row["code_current"] for row in found if row["status"] == "missing"} == {""}


@pytest.mark.usefixtures("drawn")
def test_evaluations_are_those_so_far_and_none_of_a_run_that_is_missing_or_failed(plan):
    steps = defaultdict(set)
    for row in rows(plan.partial / "update_rules.csv"):
        steps[row["optimizer"], row["seed"]].add(row["step"])
    assert steps["sgd", "0"] == {"0", "10", "20"}
    assert steps["kaisa", "0"] == {"0", "10"}, "the row that its process was writing is left out"
    assert steps["kaisa", "1"] == steps["mkor", "1"] == steps["eva", "0"] == {""}


def test_an_experiment_without_any_result_has_no_table(plan, drawn):
    assert not (plan.partial / "bert_pretraining.runs.csv").exists()
    _, without = drawn
    assert "bert_pretraining" in without["fig02_bert_loss"]


def test_every_artefact_with_data_is_drawn_and_its_caption_names_the_missing_runs(plan, drawn):
    made, without = drawn
    assert "fig13_update_rules" in made["figures"]
    assert {"claims", "time_to_target"} <= set(made["tables"])
    assert not [reason for reason in without.values() if reason.startswith("failed: ")]
    for kind, suffix in (("figures", "png"), ("tables", "csv")):
        for name in made[kind]:
            assert (plan.partial / kind / f"{name}.{suffix}").stat().st_size > 0
    caption = from_rst((plan.partial / "figures" / "fig13_update_rules.rst").read_text())
    for said in (
        "partial results",
        "Missing: Autoencoder Eva seeds 0-1, MKOR (exact rule) seed 1.",
        "Failed: Autoencoder KFAC (KAISA) seed 1 [ArithmeticError: the sixth factor].",
        "Interrupted: Autoencoder KFAC (KAISA) seed 0.",
    ):
        assert said in caption


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan has a figure and a table; `drawn` makes all of them."""

    def planned(plan: Plan, kind: Kind) -> list[Artefact]:
        return [one for one in planned_artefacts(plan, kind) if one.name in ("fig13_update_rules", "time_to_target")]

    monkeypatch.setattr(partial, "planned_artefacts", planned)


@pytest.mark.usefixtures("_few")
def test_a_mistake_in_one_figure_costs_no_other(plan, monkeypatch):
    from workflow.bench.figures import fig13_update_rules

    partial.gather(plan)
    monkeypatch.setattr(fig13_update_rules, "make", _break)
    made, without = partial.draw(plan)
    assert without["fig13_update_rules"] == "failed: ArithmeticError: the sixth factor"
    assert "time_to_target" in made["tables"]


@pytest.mark.usefixtures("_few")
def test_the_command_says_what_is_there_and_forgets_what_an_earlier_call_left(plan, folder, capsys):
    (plan.partial / "tables").mkdir(parents=True, exist_ok=True)
    (plan.partial / "tables" / "old.csv").write_text("")
    assert partial.main(options(folder)) == 0
    said = capsys.readouterr().out
    assert said.startswith("runs: 1 failed, 3 finished, 1 interrupted, 4 missing\n")
    assert said.rstrip().endswith(f"of partial results in {plan.partial}")
    assert not (plan.partial / "tables" / "old.csv").exists()
    partial.forget(plan)
    assert not (plan.results.parents[1] / "partial").exists()


def test_a_failed_run_is_tried_again(folder, capsys):
    assert train.main(["update_rules", "kaisa", *options(folder)]) == 0
    plan = load(folder)
    assert {row["status"] for row in rows(plan.csv_of(plan.job("update_rules", "kaisa")))} == {"finished"}


def test_a_probe_that_is_a_link_is_left_out_and_said(tmp_path: Path):
    config = make_folder(tmp_path / "config")
    write(config, "one", block(optimizer("sgd")))
    plan = load(config)
    (plan.results / "probes").mkdir(parents=True)
    (tmp_path / "private").write_text("a private key")
    (plan.results / "probes" / "memory.csv").symlink_to(tmp_path / "private")
    with pytest.warns(FileWarning, match=r"memory\.csv: is a link, to .*; left out$"):
        partial.gather(plan)
    assert list((plan.partial / "probes").iterdir()) == []
