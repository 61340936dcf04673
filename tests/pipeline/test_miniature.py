"""The pipeline on small forms of all experiments of the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import miniature
from tests.support.experiments import rows
from tests.support.miniature import RESULTS, SAID
from workflow.bench.plan import Plan
from workflow.bench.plan.artefacts import available, planned_artefacts
from workflow.bench.support.config import ROOT


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of a pipeline run."""
    return miniature.finished(tmp_path_factory)


def test_every_artefact_is_made(finished):
    plan = Plan.load(finished / "config", hardware="test")
    names = {kind: [artefact.name for artefact in planned_artefacts(plan, kind)] for kind in ("figures", "tables")}
    of_field = {"fig17_curves_appendix", "fig17_families_appendix", "fig17_field", "fig17_ratios_appendix"}
    elsewhere = of_field | {"fig21_ladder", "fig22_batch_size", "fig23_width"}
    assert set(available("figures")) - set(names["figures"]) <= elsewhere, "these belong to other tiers"
    figures = [f"{name}.{kind}" for name in names["figures"] for kind in ("pdf", "png")]
    tables = [f"{name}.{kind}" for name in names["tables"] for kind in ("csv", "md", "html")]
    texts = [f"{kind}/{name}.rst" for kind in names for name in names[kind]]
    made = [*(f"figures/{file}" for file in figures), *(f"tables/{file}" for file in tables)]
    made += ["report.html", "snakemake-report.html"]
    sizes = {file: (finished / RESULTS / file).stat().st_size for file in made}
    assert min(sizes.values()) > 200, sizes
    assert [text for text in texts if not (finished / RESULTS / text).read_text().strip()] == []
    copies = {file.name: file.read_bytes() for file in (finished / "figures").iterdir()}
    assert copies == {file: (finished / RESULTS / "figures" / file).read_bytes() for file in figures}


def test_a_whole_run_prints_few_lines_that_fit(finished):
    lines = (finished / SAID).read_text().splitlines()
    assert [line for line in lines if line.startswith("100%, ")]
    assert len(lines) <= 30, lines
    assert max(len(line) for line in lines if "Complete log" not in line) <= 120, max(lines, key=len)


def test_every_run_finished_and_stands_in_its_experiment_s_table(finished):
    tables = [rows(table) for table in (finished / RESULTS).glob("*.runs.csv")]
    assert len(tables) == len(list((finished / "config" / "experiments").glob("*.yaml")))
    statuses = {row["run"]: row["status"] for table in tables for row in table}
    assert set(statuses) == {folder.name for folder in (finished / RESULTS / "runs").iterdir()}
    assert set(statuses.values()) == {"finished"}


def test_the_probes_without_made_up_rows_have_measured(finished):
    assert {row["check"] for row in rows(finished / RESULTS / "probes" / "numerics.csv")} == {"C20", "C21", "C23"}
    trained = {file.name.partition(".")[0] for file in (finished / RESULTS).glob("*.runs.csv")}
    assert {row["experiment"] for row in rows(finished / RESULTS / "probes" / "sizes.csv")} >= trained


def test_claims_are_decided_where_these_runs_can_decide_them(finished):
    """The verdicts on mathematical claims do not depend on the length of training; the others may vary."""
    claims = {row["id"]: row for row in rows(finished / RESULTS / "tables" / "claims.csv")}
    assert list(claims) == [row["id"] for row in rows(ROOT / "workflow" / "paper" / "claims.csv")]
    decided = {claim for claim, row in claims.items() if row["verdict"] != "not tested"}
    assert decided >= {"C08", "C09", "C20", "C21", "C23"}
    assert claims["C21"]["verdict"] == "refuted"
