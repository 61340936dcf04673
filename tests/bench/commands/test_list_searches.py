"""Tuning is equal for all optimizers of an experiment, and chosen values at an end of their space have a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.experiments import block, load, optimizer, write
from workflow.bench import list_searches, workloads
from workflow.bench.claims import RULES
from workflow.bench.list_searches import Search, searches
from workflow.bench.plan import Plan
from workflow.bench.plan.experiment_files import label_of
from workflow.bench.support.config import CONFIG, ROOT, read_mapping
from workflow.bench.tables import claims as claims_table

TIERS = sorted(file.stem for file in (CONFIG / "tiers").glob("*.yaml"))
TUNING = {"trials": 4, "studies": 4, "seed": 9, "metric": {"split": "validation", "metric": "loss"}}
PAGE = "# Page\n\n- At an end of its space: `lr` of `sgd`, `adamw`: nothing trains beyond it.\n"


def tuned_plan(tier: str) -> Plan:
    return Plan.load(for_tuning=True, tier=tier, hardware="test")


def unequal(blocks: list[dict[str, Any]], found: list[Search]) -> Iterator[str]:
    """Yield what is unequal in the tuning of an experiment's blocks at a tier; found: its searches."""
    workload_of = {id(one): {"name": one["workload"]["name"], **workloads.resolve(**one["workload"])} for one in blocks}
    for workload in ({**one.optimizer.workload} for one in found):
        sizes = {one.label: one.size for one in found if one.optimizer.workload == workload}
        labels = {label_of(entry) for one in blocks if workload_of[id(one)] == workload for entry in one["optimizers"]}
        yield from (f"{label} of {workload['name']} is not tuned" for label in sorted(labels - sizes.keys()))
        if len(set(sizes.values())) > 1:
            yield f"{workload['name']}: {sizes}"


def at_an_end(one: Search) -> list[str]:
    """Return the hyperparameters of which half of the studies, or more, chose one end."""
    return [name for (name, _), count in (one.ends or {}).items() if 2 * count >= len(one.optimizer.studies)]


def unexplained(found: list[Search], pages: Mapping[str, str]) -> Iterator[str]:
    """Yield the chosen ends that the page of their experiment does not name with a reason."""
    for one in found:
        for name in at_an_end(one):
            reason = rf"^- At an end of its space: `{name}` of (?:`\w+`, )*`{one.label}`(?:, `\w+`)*: \S.+\.$"
            if not re.search(reason, pages[one.experiment], re.MULTILINE):
                yield f"{one.experiment}, {one.optimizer.workload['name']}, {one.label}: {name}"


def test_the_command_writes_the_page(tmp_path):
    """Run `python -m workflow.bench.list_searches` after a change of search spaces, and after tuning."""
    assert list_searches.main([f"--out={tmp_path / 'page.md'}"]) == 0
    assert (tmp_path / "page.md").read_text() == list_searches.PAGE.read_text()


@pytest.mark.parametrize("tier", TIERS)
def test_all_labels_of_an_experiment_that_a_claim_rests_on_have_equal_trials(tier: str):
    """The experiments that `RULES` reads; `test_claims` compares their list with what the rules read."""
    assert RULES
    plan = tuned_plan(tier)
    by_experiment: dict[str, list[Search]] = {}
    for one in searches(plan):
        by_experiment.setdefault(one.experiment, []).append(one)
    for name in by_experiment.keys() & set(claims_table.EXPERIMENTS):
        blocks = read_mapping(CONFIG / "experiments" / f"{name}.yaml")["tiers"][tier]
        assert list(unequal(blocks, by_experiment[name])) == [], name


@pytest.mark.parametrize("tier", TIERS)
def test_a_value_that_most_studies_choose_at_an_end_has_a_reason_on_its_page(tier: str):
    pages = {file.stem: file.read_text() for file in (ROOT / "docs" / "experiments").glob("*.md")}
    assert list(unexplained(searches(tuned_plan(tier)), pages)) == []


def _folder(folder: Path, *optimizers: dict[str, Any], **changes: Any) -> tuple[list[dict[str, Any]], list[Search]]:
    space = {"lr": {"log": [0.001, 10.0]}}
    blocks = [block(*optimizers, tuning={**TUNING, "space": space, **changes}, seeds=[0, 1])]
    write(folder, "one", *blocks)
    return blocks, searches(load(folder, for_tuning=True), folder)


def test_a_label_whose_rate_was_set_by_hand_has_no_equal_trials(folder: Path):
    blocks, found = _folder(folder, optimizer("sgd", lr="tuned"), optimizer("adamw", lr="tuned"))
    assert list(unequal(blocks, found)) == []
    by_hand = {**blocks[0], "optimizers": [optimizer("lamb", lr=0.1)]}
    assert set(unequal([*blocks, by_hand], found)) == {"lamb of autoencoder is not tuned"}


def test_a_shorter_grid_has_fewer_trials(folder: Path):
    grid = {**optimizer("sgd", lr="tuned"), "space": {"lr": {"grid": [0.1, 0.2, 0.3]}}}
    blocks, found = _folder(folder, grid, optimizer("adamw", lr="tuned"))
    assert set(unequal(blocks, found)) == {
        "autoencoder: {'sgd': (3, 3, 3, 3), 'adamw': (4, 4, 4, 4)}",
    }


@pytest.mark.parametrize(("chosen", "names"), [([9.0, 9.0, 0.1, 0.1], ["lr"]), ([9.0, 0.1, 0.1, 0.0011], [])])
def test_an_end_counts_where_half_of_the_studies_choose_it(folder: Path, chosen: list[float], names: list[str]):
    """Truth: by hand; a low and a high end are two, and values of other trials are none of today's space."""
    _, (untuned,) = _folder(folder, optimizer("sgd", lr="tuned"))
    assert (untuned.ends, at_an_end(untuned)) == (None, [])
    studies = [
        {"hyperparameters": {"lr": lr}, "score": 1.0, "trials": trials}
        for lr, trials in zip(chosen, untuned.optimizer.trial_ids, strict=True)
    ]
    record = {"workload": {**untuned.optimizer.workload}, "label": "sgd", "studies": studies}
    tuned = folder / "tuned" / load(folder).tier.name / "one.yaml"
    tuned.parent.mkdir(parents=True)
    tuned.write_text(yaml.safe_dump([record]))
    (one,) = searches(load(folder, for_tuning=True), folder)
    assert at_an_end(one) == names
    assert list(unexplained([one], {"one": "# Page\n"})) == [f"one, autoencoder, sgd: {name}" for name in names]
    assert list(unexplained([one], {"one": PAGE})) == []
    studies[0]["trials"] = studies[1]["trials"]
    tuned.write_text(yaml.safe_dump([record]))
    assert searches(load(folder, for_tuning=True), folder)[0].ends is None
