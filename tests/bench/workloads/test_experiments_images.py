"""The experiments on image classifiers: the paper's settings, in epochs, and the optimizers at every tier."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from workflow.bench import workloads
from workflow.bench.support.config import CONFIG, read_yaml

PAPERS_DECAYS = [25, 35, 40, 45, 50, 55, 56]
IMAGES = {"imagenet": 1_281_167, "cifar10": 50_000, "cifar100": 50_000, "digits": 1_437}
RATES = [10.0, 1.0, 0.1, 0.01]


def blocks(experiment: str, tier: str) -> list[dict[str, Any]]:
    blocks_of_tier: list[dict[str, Any]] = read_yaml(CONFIG / "experiments" / f"{experiment}.yaml")["tiers"][tier]
    return blocks_of_tier


def labels(tier_blocks: list[dict[str, Any]]) -> set[str]:
    return {entry.get("label", entry["name"]) for block in tier_blocks for entry in block["optimizers"]}


def steps_per_epoch(block: dict[str, Any]) -> int:
    name, given = block["workload"]["name"], {key: value for key, value in block["workload"].items() if key != "name"}
    resolved = workloads.resolve(name, **given)
    return IMAGES[resolved["dataset"]] // resolved["batch_size"]


@pytest.mark.parametrize(
    ("experiment", "optimizers"),
    [
        ("alexnet_cifar100", {"sgd", "mkor", "kaisa", "hylo"}),
        ("resnet_cifar10_lr", {"sgd", "mkor", "kaisa", "kaisa_no_clip", "hylo"}),
        ("resnet50_imagenet", {"sgd", "mkor", "kaisa", "hylo", "eva"}),
    ],
)
@pytest.mark.parametrize("tier", ["embedded", "single_gpu", "paper"])
def test_every_tier_has_the_papers_optimizers_and_one_target(experiment, optimizers, tier):
    tier_blocks = blocks(experiment, tier)
    ours = {"embedded": {"mkor_normalized"} if experiment != "resnet_cifar10_lr" else set(), "paper": {"mkor_released"}}
    assert labels(tier_blocks) == optimizers | ours.get(tier, set())
    (target,) = {tuple(block["target"].items()) for block in tier_blocks}
    assert target[2][0] == "above"


@pytest.mark.parametrize("tier", ["single_gpu", "paper"])
def test_mkors_rate_halves_at_the_papers_epochs(tier):
    """Truth: the paper's epochs, with a warm-up of five."""
    (block,) = (block for block in blocks("resnet50_imagenet", tier) if "mkor" in labels([block]))
    schedule, epoch = block["schedule"], steps_per_epoch(block)
    assert schedule["milestones"] == [epoch * decay for decay in PAPERS_DECAYS]
    assert schedule["factor"] == 0.5
    assert schedule["warmup"] * block["steps"] == pytest.approx(5 * epoch, rel=1e-3)
    assert block["workload"]["label_smoothing"] == 0.1
    assert block["target"] == {"split": "validation", "metric": "accuracy", "above": 0.759}


def test_the_embedded_stand_in_decays_at_the_same_fractions_of_its_run():
    (block,) = blocks("resnet50_imagenet", "embedded")
    fractions = [milestone / block["steps"] for milestone in block["schedule"]["milestones"]]
    assert fractions == pytest.approx([decay / 60 for decay in PAPERS_DECAYS], abs=0.006)


@pytest.mark.parametrize("tier", ["embedded", "single_gpu", "paper"])
def test_all_optimizers_have_the_papers_learning_rates(tier):
    (block,) = blocks("resnet_cifar10_lr", tier)
    assert all(entry["sweep"] == {"lr": RATES} for entry in block["optimizers"])
    with_clip, without = (entry["hyperparameters"] for entry in block["optimizers"] if entry["name"] == "kaisa")
    assert without == {**with_clip, "kl_clip": None}


@pytest.mark.parametrize(
    ("experiment", "millions"), [("alexnet_cifar100", 20.3), ("resnet50_imagenet", 25.5), ("resnet_cifar10_lr", 23.5)]
)
@pytest.mark.parametrize("tier", ["single_gpu", "paper"])
def test_models_have_their_true_size_on_gpus(experiment, millions, tier):
    """Truth: the paper's table of models; with CIFAR-10's ten classes, ResNet-50 has fewer weights."""
    for block in blocks(experiment, tier):
        with torch.device("meta"):
            model = workloads.architecture(**block["workload"])
        assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.3)
