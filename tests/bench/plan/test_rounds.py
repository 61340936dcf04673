"""Rounds of seeds: which seeds a block has in a round, and the file that says in which round an experiment is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.experiments import block, load, make_folder, optimizer, with_looks, write
from workflow.bench.plan import Plan
from workflow.bench.plan.rounds import FILE, Rounds, read_rounds, seeds_of, write_rounds
from workflow.bench.support.config import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_looks(make_folder(tmp_path / "config"), 3)


def seeds(folder: Path, experiment: str = "one") -> list[int]:
    return [run.seed for run in load(folder, tier="evidence").job(experiment, "sgd").runs]


def test_each_further_round_adds_consecutive_seeds_after_the_largest():
    given = {"seeds": [0, 7, 3], "rounds": {"seeds": 2, "most": 3}}
    assert [seeds_of(given, rounds) for rounds in (1, 2, 3, 4)] == [
        [0, 7, 3],
        [0, 7, 3, 8, 9],
        [0, 7, 3, 8, 9, 10, 11],
        [0, 7, 3, 8, 9, 10, 11],
    ]
    assert seeds_of({"seeds": [4]}, 3) == [4]


def test_the_plan_has_the_seeds_of_the_rounds_in_the_results_folder(folder: Path):
    write(folder, "one", block(optimizer("sgd"), rounds={"seeds": 2, "most": 3}), tier="evidence")
    write(folder, "two", block(optimizer("sgd")), tier="evidence")
    assert seeds(folder) == [0]
    plan = load(folder, tier="evidence")
    assert plan.experiments["one"].most_rounds == 3
    ids = plan.job("one", "sgd").run_ids
    write_rounds(plan.results, Rounds(2, {"one": 2, "gone": 2}))
    assert read_rounds(plan.results, plan.tier) == Rounds(2, {"one": 2, "gone": 2})
    assert (seeds(folder), seeds(folder, "two")) == ([0, 1, 2], [0])
    after = load(folder, tier="evidence")
    assert after.rounds.look == 2
    assert after.job("one", "sgd").run_ids[:1] == ids


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("look: 4\nexperiments: {}\n", r"rounds\.yaml: look = 4: must be at most 3, the looks of tier 'evidence'"),
        ("look: 2\nexperiments: {one: 4}\n", r"experiments\.one = 4: must be at most 3"),
        ("look: 2\n", r"the key 'experiments' is missing"),
        ("look: {", r"not valid YAML"),
    ],
)
def test_a_damaged_file_of_rounds_is_refused(folder: Path, text: str, says: str):
    write(folder, "one", block(optimizer("sgd")), tier="evidence")
    results = load(folder, tier="evidence").results
    results.mkdir(parents=True)
    (results / FILE).write_text(text)
    with pytest.raises(ConfigError, match=says):
        load(folder, tier="evidence")
    assert load(folder).rounds == Rounds()  # another tier's


@pytest.mark.parametrize(
    ("tier", "shared", "says"),
    [
        ("evidence", {"rounds": {"seeds": 1, "most": 4}}, r"rounds\.most = 4: must be at most 3, the 'looks' of tier"),
        ("embedded", {"rounds": {"seeds": 1, "most": 2}}, r"rounds\.most = 2: must be at most 1"),
        ("evidence", {"rounds": {"seeds": 0, "most": 2}}, r"rounds\.seeds = 0: must be at least 1"),
        ("evidence", {"seeds": [4294967295], "rounds": {"seeds": 1, "most": 2}}, r"reaches the seed 4294967296"),
        (
            "evidence",
            {
                "rounds": {"seeds": 10, "most": 2},
                "tuning": {
                    "trials": 1,
                    "seed": 5,
                    "metric": {"split": "validation", "metric": "loss"},
                    "space": {"lr": {"log": [0.1, 1.0]}},
                },
            },
            r"tuning\.seed = 5: must differ from all of 'seeds'",
        ),
        ("evidence", {"seeds": [*range(1000)], "rounds": {"seeds": 1000, "most": 3}, "sgds": 4}, r"makes 12,000 runs"),
    ],
)
def test_rounds_that_cannot_be_are_refused(folder: Path, tier: str, shared: dict, says: str):
    number = shared.pop("sgds", 1)
    optimizers = [optimizer("sgd", f"sgd{index}") for index in range(number)]
    write(folder, "one", block(*optimizers, **shared), tier=tier)
    with pytest.raises(ConfigError, match=says):
        load(folder, tier="evidence")


def test_the_committed_experiments_have_their_seeds_in_every_round(tmp_path: Path):
    """Runs start from runs with the same seed, so the experiments that they start from need as many rounds."""

    plan = Plan.load(tier="evidence", hardware="test", results=str(tmp_path))
    for number in range(2, plan.tier.looks + 1):
        write_rounds(plan.results, Rounds(number, dict.fromkeys(plan.experiments, number)))
        later = Plan.load(tier="evidence", hardware="test", results=str(tmp_path))
        assert len(later.runs) > len(plan.runs)
