"""The examples behave as docs/training_loops.md says: the loss falls, resumed training equals uninterrupted training,
and a trainer takes the same steps as a loop written by hand.
"""

from __future__ import annotations

import json
import os
import re
import runpy
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from docs.examples import hugging_face_trainer, lightning_module, own_loop
from mkor_core import MKOR, Preconditioner
from mkor_core.saving.entries import saved_counters, saved_tensors
from workflow.bench.support.config import ROOT

STEPS, SAVED = 45, hugging_face_trainer.SAVED
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "config" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, made as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings():
    """Addresses on the web are not tried: tests run offline."""
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(((?!https://)[^)]+)\)", page.read_text()):
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def test_references_in_commands_exist():
    """Examples of a reader's own machine do not: ``my-gpu``, ``other-machine``."""
    named = {path.rstrip(".") for page in PAGES for path in re.findall(r"results/reference/[\w./-]+", page.read_text())}
    own = tuple(f"results/reference/{machine}/" for machine in ("my-gpu", "other-machine"))
    assert [path for path in sorted(named) if not path.startswith(own) and not (ROOT / path).exists()] == []


def snippet(page: str, word: str) -> str:
    """Return the lines of Python on a page that have a word."""
    texts = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    (found,) = (text for text in texts if word in text)
    return str(found)


def test_the_pages_loop_with_a_gradient_scaler_is_the_loop_without():
    """Truth: gradients clipped, preconditioned and used by hand. The snippet leaves out the forward pass."""
    before, after = snippet("training_loops.md", "GradScaler").split("scaler.scale(loss)")
    weights = []
    for by_page in (True, False):
        torch.manual_seed(0)
        model, rows = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if by_page:
            names = {"model": model, "optimizer": optimizer, "device": "cpu", "torch": torch}
            names |= {"MKOR": MKOR, "Preconditioner": Preconditioner}
            exec(before, names)
            names["loss"] = model(rows).square().sum()
            exec("scaler.scale(loss)" + after, names)
        else:
            preconditioner = Preconditioner(model, MKOR())
            model(rows).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            preconditioner.step()
            optimizer.step()
        weights.append([parameter.detach() for parameter in model.parameters()])
    assert_close(weights[0], weights[1])


def test_the_pages_lines_about_several_methods_and_about_the_saved_state_run():
    head, body = nn.Linear(3, 2), nn.Linear(4, 3)
    model = nn.Sequential(OrderedDict(body=body, head=head))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    names = {"model": model, "optimizer": optimizer, "MKOR": MKOR, "Preconditioner": Preconditioner}
    exec(snippet("library.md", "preconditioner.set("), names)
    of_layers = names["preconditioner"].state_dict()["layers"]
    assert {name: "right_weights" in layer for name, layer in of_layers.items()} == {"head": True, "body": False}
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    first, *values = snippet("training_loops.md", "state = optimizer.state_dict()").splitlines()
    exec(first, names)
    left, text = (eval(value, names) for value in values)
    assert left.shape == (3, 3)
    methods = json.loads(text)["methods"].values()
    assert [method["hyperparameters"]["stabilizer_blend"] for method in methods] == [0.9, 0.9]
    assert all(method.keys() >= {"method", "step", "switch_step", "losses"} for method in methods)


@pytest.mark.parametrize("name", ["own_loop", "lightning_module", "hugging_face_trainer"])
def test_an_example_runs_as_a_script_on_a_machine_of_64_cores(name, monkeypatch, capsys, recwarn):
    """Lightning warns if its data loader could have more workers, and pytest-xdist must pass that warning on."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    runpy.run_path(str(ROOT / "docs" / "examples" / f"{name}.py"), run_name="__main__")
    assert "loss" in capsys.readouterr().out
    told = [str(warning.message) for warning in recwarn if "num_workers" in str(warning.message)]
    assert bool(told) == (name == "lightning_module"), "Lightning's warning is what this test is about"


def saved(file: Path) -> dict[str, Any]:
    return torch.load(file, weights_only=True)


def kept(state: dict[str, Any]) -> tuple[int, set[int]]:
    """Return the preconditioner's step in an optimizer's state, and the indices of the weights with tensors of it."""
    counters = saved_counters(state)
    assert counters is not None
    return counters["step"], set(saved_tensors(state))


def assert_same_optimizer(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two states of an optimizer and of the preconditioner in it agree to the last bit."""
    assert_close(one["state"], other["state"], rtol=0, atol=0)
    assert one["param_groups"] == other["param_groups"]
    assert kept(one) == kept(other)


def test_a_loop_of_ones_own_learns_and_goes_on_bitwise(tmp_path):
    """Interrupted after step 28: between two updates of the factors."""
    losses = own_loop.train(tmp_path / "whole.pt", 4)
    assert losses[-1] < 0.2 * losses[0]
    halves = own_loop.train(tmp_path / "halves.pt", 2) + own_loop.train(tmp_path / "halves.pt", 4)
    assert halves == losses
    whole, resumed = saved(tmp_path / "whole.pt"), saved(tmp_path / "halves.pt")
    assert_close(resumed["model"], whole["model"], rtol=0, atol=0)
    assert_same_optimizer(resumed["optimizer"], whole["optimizer"])
    assert kept(whole["optimizer"]) == (4 * 14, {0, 2})


def test_lightning_learns_and_goes_on_bitwise_from_its_own_checkpoint(tmp_path):
    first, *_, last = (
        lightning_module.train(tmp_path / f"{name}.ckpt", epochs).callback_metrics["loss"]
        for name, epochs in (("halves", 1), ("halves", 2), ("halves", 4), ("whole", 4))
    )
    assert last < 0.2 * first
    whole, resumed = saved(tmp_path / "whole.ckpt"), saved(tmp_path / "halves.ckpt")
    assert_close(resumed["state_dict"], whole["state_dict"], rtol=0, atol=0)
    assert_same_optimizer(resumed["optimizer_states"][0], whole["optimizer_states"][0])
    assert kept(whole["optimizer_states"][0]) == (4 * 14, {0, 2})


def test_lightning_accumulates_clips_and_preconditions_like_the_loop_by_hand(tmp_path):
    """The two examples train one network on the same batches."""
    lightning_module.train(tmp_path / "lightning.ckpt", 2)
    own_loop.train(tmp_path / "own.pt", 2)
    by_hand = {f"network.{name}": weight for name, weight in saved(tmp_path / "own.pt")["model"].items()}
    assert_close(saved(tmp_path / "lightning.ckpt")["state_dict"], by_hand, rtol=0, atol=0)


class Trained(NamedTuple):
    """A run of the Hugging Face example with its micro-batches and the random state before each."""

    trainer: hugging_face_trainer.MKORTrainer
    folder: Path
    micro_batches: list[tuple[dict[str, Tensor], Tensor]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The Hugging Face example, uninterrupted."""
    folder, seen = tmp_path_factory.mktemp("whole"), []
    trainer = hugging_face_trainer.make_trainer(folder, STEPS)
    trainer.model.register_forward_pre_hook(
        lambda model, args, inputs: seen.append((dict(inputs), torch.get_rng_state())), with_kwargs=True
    )
    trainer.train()
    return Trained(trainer, folder, seen)


def test_the_hugging_face_trainer_learns_under_mkor(trained):
    losses = [entry["loss"] for entry in trained.trainer.state.log_history if "loss" in entry]
    assert losses[0] < 6.3  # chance on 500 words is log 500 = 6.2, also with two micro-batches
    assert sum(losses[-3:]) < sum(losses[:3]) - 1.5


def test_the_hugging_face_trainer_goes_on_bitwise_from_its_own_checkpoint(trained, tmp_path):
    """Interrupted in the middle of an epoch and between two updates; dropout is on."""
    checkpoint = trained.folder / f"checkpoint-{SAVED}"
    step, weights = kept(saved(checkpoint / "optimizer.pt"))
    assert (step, len(weights)) == (SAVED, 12)
    resumed = hugging_face_trainer.make_trainer(tmp_path, STEPS)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert_close(dict(resumed.model.state_dict()), dict(trained.trainer.model.state_dict()), rtol=0, atol=0)
    assert_same_optimizer(resumed.optimizer.state_dict(), trained.trainer.optimizer.state_dict())


def test_the_hugging_face_trainer_accumulates_clips_and_preconditions_like_the_loop_by_hand(trained, tmp_path):
    """Truth: its micro-batches replayed in a bare loop. The last step of an epoch has one micro-batch, not two."""
    untrained = hugging_face_trainer.make_trainer(tmp_path, STEPS)
    model, epoch = untrained.model.train(), len(untrained.get_train_dataloader())
    assert epoch % 2 == 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    preconditioner = Preconditioner(model, MKOR(inverse_update_period=5), exclude=r"^cls\.", accumulation_steps=2)
    waiting = list(trained.micro_batches)
    while waiting:
        left_in_epoch = epoch - (len(trained.micro_batches) - len(waiting)) % epoch
        step, waiting = waiting[: min(2, left_in_epoch)], waiting[min(2, left_in_epoch) :]
        optimizer.zero_grad()
        for inputs, random in step:
            torch.set_rng_state(random)
            (model(**inputs).loss / len(step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        preconditioner.step()
        optimizer.step()
    assert preconditioner.state_dict()["step"] == STEPS
    assert_close(dict(model.state_dict()), dict(trained.trainer.model.state_dict()), rtol=0, atol=0)
