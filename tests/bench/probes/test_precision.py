"""Probes train in the precision of the model's experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import pytest
import torch

from baselines import build
from tests.support.small_models import autoencoder
from workflow.bench.plan import Plan
from workflow.bench.probes import iteration_time, memory, rank1_error, scaling, spectra, step_breakdown
from workflow.bench.probes._models import EXPERIMENTS, ProbeModel, precision_of, probe_models
from workflow.bench.probes._optimizers import optimizers
from workflow.bench.probes._timed_loop import TimedLoop


def test_a_tier_s_probes_have_the_precision_of_its_experiments(tmp_path):
    """Truth: the experiments' files."""
    at = {tier: Plan.load(tier=tier, results=str(tmp_path), hardware="here") for tier in ("embedded", "single_gpu")}
    assert {model.name: model.precision for model in probe_models(at["single_gpu"])} == {
        "bert": "bfloat16",
        "resnet": "float32",
    }
    assert {precision_of(at["embedded"], name) for name in EXPERIMENTS} == {"float32"}


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_timed_loop_trains_in_its_model_s_precision(precision):
    """Truth: a loop written out, with autocast and, for float16, torch's scaler."""
    model = replace(autoencoder(), precision=precision)
    (optimizer,) = optimizers(model, 1e-2, ["mkor"])
    loop = TimedLoop(model, optimizer, "cpu")
    loop.times(3)

    network = model.data.model(seed=0)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "float16")
    bare, _ = build(optimizer.method, network, optimizer.hyperparameters, grad_scale=scaler)
    for step in range(5):
        with torch.autocast("cpu", getattr(torch, precision)):
            loss = model.data.loss(network, next(islice(model.data.batches(seed=0), step % 4, None)))
        bare.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(bare)
        scaler.update()
    for name, weight in network.state_dict().items():
        assert torch.equal(loop.model.state_dict()[name], weight), name


def breakdown(model: ProbeModel) -> Iterator[object]:
    chosen = optimizers(model, 1e-4, ["mkor"])
    return step_breakdown.rows(model, chosen, [step_breakdown.cycles(model, chosen, "cpu", 1)], "here")


PROBES: dict[str, Callable[[ProbeModel], Iterator[object]]] = {
    "rank1_error": lambda model: rank1_error.follow(model, 0, (0,), "cpu", "here"),
    "spectra": lambda model: spectra.follow(model, 0, (0,), "cpu", "here"),
    "step_breakdown": breakdown,
    "memory": lambda model: iter(memory.rows(model, optimizers(model, 1e-4, ["mkor"])[0], "cpu", "here")),
    "scaling": lambda model: scaling.rows(model, optimizers(model, 1e-4, ["mkor"]), "cpu", "here", (1,), repeats=1),
    "iteration_time": lambda model: iteration_time.rows(
        [
            iteration_time.PeriodSweep(
                model, "mkor", "mkor", {10: dict(optimizers(model, 1e-4, ["mkor"])[0].hyperparameters)}
            )
        ],
        "cpu",
        "here",
        repeats=1,
    ),
}


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_trains_in_and_records_its_model_s_precision(name, monkeypatch):
    model = replace(autoencoder(), precision="bfloat16")
    seen = set()
    loss_of = model.data.loss

    def watched(network, batch):
        seen.add(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32)
        return loss_of(network, batch)

    monkeypatch.setattr(model.data, "loss", watched)
    assert {row.precision for row in PROBES[name](model)} == {"bfloat16"}
    assert seen == {torch.bfloat16}
