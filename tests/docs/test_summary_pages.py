"""The summary of the reproduction and the artifact's page are those of the tables that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.experiments import block, load, make_folder, optimizer, write
from workflow.bench import summarize
from workflow.bench.plan.artefacts import Artefact
from workflow.bench.results.costs import JobCost
from workflow.bench.support.config import ROOT, ConfigError
from workflow.bench.support.errors import UnreadableError


def test_the_pages_are_current(tmp_path):
    """Run `python -m workflow.bench.summarize` after a change of results/reference, facts.yaml or the artefacts."""
    assert summarize.main([f"--out-dir={tmp_path}"]) == 0
    made = {file.relative_to(tmp_path).as_posix(): file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.md")}
    assert made.keys() == {"docs/reproduction.md", "docs/artifact.md", "README.md", "docs/evidence.md"}
    assert made == {name: (ROOT / name).read_text(encoding="utf-8") for name in made}


def keep(folder: Path, hardware: str, tier: str, **verdicts: str) -> Path:
    """Write a reference with verdicts, and one run in two experiments' tables."""
    reference = folder / hardware / tier
    (reference / "tables").mkdir(parents=True)
    rows = "".join(f"{claim},{verdict}\n" for claim, verdict in verdicts.items())
    (reference / "tables" / "claims.csv").write_text(f"id,verdict\n{rows}")
    for name in ("one", "two"):
        (reference / f"{name}.runs.csv").write_text(f"run,experiment,gpu\na,{name},\n")
    return reference


def test_references_have_verdicts_and_those_of_the_main_tier_come_first(tmp_path):
    with pytest.raises(ConfigError, match="merge a run first"):
        summarize.references(tmp_path)
    for tier in ("evidence", "field"):
        keep(tmp_path, "a-cpu", tier, C01="refuted")
    with pytest.raises(ConfigError, match="merge a run first"):
        summarize.references(tmp_path)
    keep(tmp_path, "b-cpu", "embedded", C01="confirmed", C02="refuted", C03="confirmed")
    (tmp_path / "c-gpu" / "embedded").mkdir(parents=True)
    kept = summarize.references(tmp_path)
    assert [one.name for one in kept] == ["embedded tier, b-cpu", "evidence tier, a-cpu", "field tier, a-cpu"]
    counted = [summarize.counted(kept[0], verdict) for verdict in ("confirmed", "refuted", "inconclusive")]
    assert counted == ["2: C01, C03", "1: C02", "none"]
    assert len(kept[0].runs) == 1
    assert kept[0].distinct("gpu") == []


def test_an_artefact_takes_what_its_experiments_start_from_too(tmp_path):
    folder = make_folder(tmp_path / "config")
    write(folder, "first", block(optimizer("sgd")))
    write(folder, "second", block(optimizer("sgd"), start_from={"experiment": "first", "optimizer": "sgd", "seed": 0}))
    plan = load(folder)
    made_from = summarize.made_from(Artefact("figures", "fig06_resnet50_accuracy", ("second",), ("sizes",)), plan)
    assert made_from == ["second", "sizes", "first"]


@pytest.mark.parametrize(("peak", "shown"), [(700.0, "900"), (None, "≥ 900")])
def test_what_an_artefact_takes_alone(peak, shown):
    """Truth: by hand, on two cores: half of 30 and of its share of the drawing, and 20 seconds alone."""
    parts = [JobCost("one", 3, 30.0, None, 900.0), JobCost("probe", None, None, 20.0, peak)]
    drawing = JobCost("figures", None, 40.0, None, 200.0)
    assert summarize.alone("x", parts, drawing, 10) == {"name": "x", "seconds": "37", "peak": shown}


def test_a_reference_with_a_link_is_refused(tmp_path):
    reference = keep(tmp_path, "a-cpu", "embedded", C01="confirmed")
    (reference / "one.runs.csv").rename(tmp_path / "private")
    (reference / "one.runs.csv").symlink_to(tmp_path / "private")
    with pytest.raises(UnreadableError, match=r"one\.runs\.csv: is a link"):
        summarize.references(tmp_path)
