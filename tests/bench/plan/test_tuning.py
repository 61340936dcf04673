"""Tuning in the plan: the points that trials take, independent studies, and the values that runs get from them."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mkor_core.mkor import MKOR
from tests.support.experiments import block, load, optimizer, write
from workflow.bench.plan.runs import TunedOptimizer
from workflow.bench.plan.targets import Target
from workflow.bench.plan.tuning import Ranking, end_of, points, trial_values
from workflow.bench.support.config import CONFIG, read_mapping

SEEDS = st.integers(0, 2**32 - 1)
LOSS = {"split": "validation", "metric": "loss"}
GOLDEN = (1 + math.sqrt(5)) / 2


def tuning(**changes: Any) -> dict[str, Any]:
    return {"trials": 4, "studies": 3, "seed": 9, "metric": LOSS, "space": {"lr": {"log": [0.001, 10.0]}}} | changes


@given(SEEDS, st.integers(1, 300))
def test_every_beginning_of_the_line_of_points_leaves_no_wide_gap(seed: int, number: int):
    """Truth: the widest of the three gaps between n points k / phi mod 1 on a circle, at most (1 + 2 / sqrt 5) / n."""
    line = sorted(point[0] for point in islice(points(1, seed), number))
    assert 0 <= line[0] <= line[-1] < 1
    gaps = np.diff([*line, line[0] + 1])
    assert gaps.max() <= (1 + 2 / math.sqrt(5)) / number * (1 + 1e-9)


@given(SEEDS, st.integers(2, 6), st.integers(2, 60))
def test_no_two_points_are_close_whatever_their_number(seed: int, dimensions: int, number: int):
    """The nearest two of 20 random points in the plane are a third as far apart."""
    cube = np.array(list(islice(points(dimensions, seed), number)))
    apart = cube[:, None] - cube[None]
    apart -= np.round(apart)  # around the ends
    distances = np.linalg.norm(apart, axis=-1)[~np.eye(number, dtype=bool)]
    assert distances.min() >= 0.55 * number ** (-1 / dimensions)


def test_the_line_is_the_golden_sequence_from_a_shift():
    """Truth: Weyl's formula with the golden ratio, and in two dimensions the plastic number."""
    line = [point[0] for point in islice(points(1, 5), 50)]
    assert line == pytest.approx([(line[0] + n / GOLDEN) % 1 for n in range(50)])
    plastic = 1.32471795724474602596
    plane = np.array(list(islice(points(2, 5), 50)))
    truth = (plane[0] + np.arange(50)[:, None] * np.array([1 / plastic, 1 / plastic**2])) % 1
    assert plane == pytest.approx(truth)


def test_studies_are_independent_and_each_point_is_uniform():
    """Truth: the first points of many seeds are uniform (Kolmogorov-Smirnov, 1e-3) and neighbors' uncorrelated."""
    number = 2000
    first = np.array([next(points(3, seed)) for seed in range(number)])
    ranks = (np.arange(number) + 1) / number
    for column in first.T:
        assert np.abs(np.sort(column) - ranks).max() < 1.95 / math.sqrt(number)
        assert abs(np.corrcoef(column[:-1], column[1:])[0, 1]) < 4 / math.sqrt(number)


def test_trials_take_their_values_from_the_ranges():
    """Truth: the point's share of a range, written out here."""
    space = {
        "rule": {"choices": ["a", None, "c"]},
        "lr": {"log": [0.01, 100.0]},
        "momentum": {"linear": [0.5, 0.9]},
    }
    values = trial_values(space, 30, 7)
    for found, (lr, momentum, rule) in zip(values, points(3, 7), strict=False):
        assert found["lr"] == pytest.approx(0.01 * 10 ** (4 * lr), rel=5e-3)
        assert found["momentum"] == pytest.approx(0.5 + 0.4 * momentum, rel=5e-3)
        assert found["rule"] == ["a", None, "c"][math.floor(3 * rule)]
    assert {found["rule"] for found in values} == {"a", None, "c"}
    assert trial_values(space, 10, 7) == values[:10]
    assert trial_values(dict(reversed(space.items())), 30, 7) == values  # whatever their order in the file
    assert trial_values(space, 30, 8) != values
    narrow = trial_values({"lr": {"log": [1.2344, 1.2345]}}, 20, 1)
    assert all(1.2344 <= found["lr"] <= 1.2345 for found in narrow)


@pytest.mark.parametrize(
    ("interval", "value", "end"),
    [
        ({"log": [0.01, 100.0]}, 0.024, "low"),
        ({"log": [0.01, 100.0]}, 0.026, ""),
        ({"log": [0.01, 100.0]}, 41.0, "high"),
        ({"linear": [0.0, 1.0]}, 0.89, ""),
        ({"linear": [0.0, 1.0]}, 0.91, "high"),
        ({"choices": [0.8, 0.9, 0.95]}, 0.8, "low"),
        ({"choices": [0.8, 0.9, 0.95]}, 0.9, ""),
        ({"choices": [None, 0.001, 0.01]}, 0.01, "high"),
        # Nothing lies beyond no clip or no momentum, and names have no order.
        ({"choices": [None, 0.001, 0.01]}, None, ""),
        ({"choices": [0.0, 0.5, 0.9]}, 0.0, ""),
        ({"choices": ["KID", "KIS"]}, "KIS", ""),
        ({"choices": [True, False]}, True, ""),
        ({"choices": [None, 0.9]}, 0.9, ""),
    ],
)
def test_a_value_lies_at_an_end_of_its_space(interval: dict[str, list[Any]], value: Any, end: str):
    """Truth: a tenth of a range's length, on its own scale; the outer numbers of a list."""
    assert end_of(interval, value) == end


def test_a_ranking_prefers_fewer_steps_to_the_target_then_better_last_values():
    trials = [(0.5, None), (0.3, 40.0), (0.2, None), (0.4, 12.5), (0.1, 40.0)]

    def order(ranking: Ranking) -> list[int]:
        return sorted(range(len(trials)), key=lambda trial: ranking.key(*trials[trial]))

    target = Target("validation", "loss", "below", 0.35)
    assert order(Ranking.parse("target", target)) == [3, 1, 4, 2, 0]
    assert order(Ranking.parse("target", Target("train", "accuracy", "above", 0.35))) == [3, 1, 4, 0, 2]
    assert order(Ranking.parse(LOSS, target)) == [4, 2, 1, 3, 0]
    assert order(Ranking.parse({**LOSS, "best": "highest"}, target)) == [0, 3, 1, 2, 4]
    with pytest.raises(ValueError, match="needs a 'target' in this block"):
        Ranking.parse("target", None)


def tuned_optimizers(folder: Path) -> dict[str, TunedOptimizer]:
    (experiment,) = load(folder, for_tuning=True).experiments.values()
    return {optimizer.label: optimizer for optimizer in experiment.tuned_optimizers}


def test_an_entrys_space_is_merged_over_its_blocks(folder: Path):
    own = {"damping": {"log": [1e-4, 0.1]}, "kl_clip": {"choices": [None, 0.001]}, "lr": {"log": [100.0, 1000.0]}}
    kaisa = {**optimizer("kaisa", lr="tuned", damping="tuned", kl_clip="tuned"), "space": own}
    write(folder, "one", block(optimizer("sgd", lr="tuned"), kaisa, tuning=tuning()))
    found = tuned_optimizers(folder)
    assert [study[0].run.seed for study in found["sgd"].studies] == [9, 10, 11]
    assert [len(study) for each in found.values() for study in each.studies] == [4] * 6
    for label, names in (("sgd", {"lr"}), ("kaisa", {"lr", "damping", "kl_clip"})):
        for trial in found[label].trials:
            assert trial.values.keys() == names
            assert (trial.values["lr"] >= 100) == (label == "kaisa")
            assert trial.run.hyperparameters.items() >= trial.values.items()
            assert trial.run.spec["workload"] == {**found[label].workload, "for_tuning": True}
    assert len({trial.run.id for each in found.values() for trial in each.trials}) == 24
    # One study with one hyperparameter takes the beginning of the same sequence.
    write(folder, "one", block(optimizer("sgd", lr="tuned"), tuning={**tuning(trials=2), "studies": 1}))
    alone = tuned_optimizers(folder)["sgd"]
    assert alone.trial_ids == [found["sgd"].trial_ids[0][:2]]


def test_the_seeds_of_a_block_take_the_studies_in_turn(folder: Path):
    mkor = {**optimizer("mkor", lr=0.1), "sweep": {"inverse_update_period": [5, 10]}}
    described = block(optimizer("sgd", lr="tuned"), mkor, seeds=[0, 1, 4, 5, 6], tuning=tuning())
    described["optimizers"][1]["hyperparameters"]["lr"] = "tuned"
    write(folder, "one", described)
    found = tuned_optimizers(folder)
    records = [
        {
            "workload": dict(found[label].workload),
            "label": label,
            "studies": [
                {"hyperparameters": {"lr": lr}, "score": 0.1, "trials": ids}
                for lr, ids in zip((0.5, 0.25, 0.125), found[label].trial_ids, strict=True)
            ],
        }
        for label in ("sgd", "mkor")
    ]
    file = folder / "tuned" / "embedded" / "one.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(records))
    plan = load(folder)
    assert plan.notes == ()
    for label in ("sgd", "mkor"):
        for planned in plan.job("one", label).planned:
            study = {0: 0, 1: 1, 4: 2, 5: 0, 6: 1}[planned.run.seed]
            assert (planned.study, planned.run.hyperparameters["lr"]) == (study, 0.5 / 2**study)
            assert "for_tuning" not in planned.run.spec["workload"]
    assert len(plan.job("one", "mkor").planned) == 10

    # What starts from a run has its rates in its weights, and is of its study.
    after = block(optimizer("adamw", "sgd", lr=0.1), seeds=[1, 4, 5], start_from={"experiment": "one"})
    write(folder, "after", after)
    started = load(folder).job("after", "sgd").planned
    assert {planned.run.seed: planned.study for planned in started} == {1: 1, 4: 2, 5: 0}
    # A run with values of a study of its own is of that one.
    write(
        folder,
        "after",
        {**described, "seeds": [5, 6], "start_from": {"experiment": "one", "optimizer": "sgd", "seed": 0}},
    )
    kept = [{**record, "studies": record["studies"][:2]} for record in records]
    (file.parent / "after.yaml").write_text(yaml.safe_dump(kept))
    own = load(folder).job("after", "sgd").planned
    assert {planned.run.seed: planned.study for planned in own} == {5: 0, 6: 1}
    (folder / "experiments" / "after.yaml").unlink()

    described["steps"] = 30  # the trials had 20
    write(folder, "one", described)
    notes = load(folder).notes
    assert [note.rpartition("one.yaml: ")[2] for note in notes] == [
        f"autoencoder, {label}: tuned with an older version of its block" for label in ("sgd", "mkor")
    ]


def test_a_grid_is_tried_in_turn_with_the_steps_of_trials(folder: Path):
    """For runs that are too long to be tried often."""
    grid = {"lr": {"grid": [0.1, 0.3, 0.2]}}
    described = block(optimizer("sgd", lr="tuned"), steps=20, tuning={**tuning(space=grid, studies=1), "steps": 15})
    write(folder, "one", described)
    (study,) = tuned_optimizers(folder)["sgd"].studies
    assert [trial.values["lr"] for trial in study] == [0.1, 0.3, 0.2]
    assert [trial.run.spec["steps"] for trial in study] == [15] * 3
    assert (end_of(grid["lr"], 0.3), end_of(grid["lr"], 0.2)) == ("high", "")


def test_mkors_memory_fades_wherever_it_is_searched():
    """With a decay at or below the stabilizer's blend old vectors never fade, and the factors grow until they overflow.

    batch_size searched lower ones, too; its runs are too short to overflow, and its page says what such values do.
    """
    found = set()
    for file in sorted((CONFIG / "experiments").glob("*.yaml")):
        for blocks in read_mapping(file)["tiers"].values():
            for one in blocks:
                for entry in one["optimizers"]:
                    space = {**one.get("tuning", {}).get("space", {}), **entry.get("space", {})}.get("factor_decay")
                    if not entry["name"].startswith("mkor") or space is None:
                        continue
                    blend = entry["hyperparameters"].get("stabilizer_blend", MKOR.stabilizer_blend)
                    (values,) = space.values()
                    found.add((file.stem, min(values) > blend))
    assert {name for name, fades in found if not fades} == {"batch_size"}
    assert sum(fades for _, fades in found) > 5
