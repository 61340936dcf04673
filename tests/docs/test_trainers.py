"""How accelerate, Lightning and the Hugging Face Trainer treat an optimizer, tested on the real libraries.

Truth: the same steps in a bare loop, in the order unscale, clip, precondition, step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from mkor_core import torchvision_operators  # noqa: F401  (before lightning and transformers, which import torchvision)

# isort: split
import lightning
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

from mkor_core import MKOR, MKORH, Preconditioner
from mkor_core.saving.entries import saved_counters

STEPS, BATCH, CLIP, SCALE = 8, 8, 0.5, 1024.0
METHOD = MKOR(inverse_update_period=3)
SWITCHING = MKORH(inverse_update_period=1, warmup_steps=2, knee_beta=1e9)
"""Takes any loss for a knee, so that it hands over as soon as it has heard of a few."""


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> Iterator[None]:
    """Accelerate keeps its settings in the process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


def batches(size: int = BATCH) -> DataLoader:
    generator = torch.Generator().manual_seed(1)
    return DataLoader(
        TensorDataset(*(torch.randn(STEPS * BATCH, width, generator=generator) for width in (5, 2))), size
    )


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return (model(inputs).float() - targets).square().mean()


def sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.5, **options)


class ByHand(NamedTuple):
    weights: dict[str, Tensor]
    switch_step: int | None


def by_hand(method: MKOR = METHOD, *, scale: float = 1.0, half: bool = False, skipped: int | None = None) -> ByHand:
    """Train an epoch, one step left out; after it the loss scale is halved, as a scaler does."""
    model = network()
    optimizer = sgd(model)
    preconditioner = Preconditioner(model, method, grad_scale=lambda: scale)
    for step, batch in enumerate(batches()):
        if step == skipped:
            scale /= 2
            continue
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=half):
            loss = loss_of(model, *batch)
        (scale * loss).backward()
        preconditioner.observe(loss)
        for parameter in model.parameters():
            parameter.grad.div_(scale)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        preconditioner.step()
        optimizer.step()
    return ByHand(dict(model.state_dict()), preconditioner.switch_step)


def test_accelerates_wrapper_lacks_the_hooks_of_an_optimizer():
    """The reason why attach() looks for the wrapped optimizer."""
    wrapped = Accelerator(cpu=True).prepare(sgd(network()))
    assert isinstance(wrapped, AcceleratedOptimizer)
    assert isinstance(wrapped, torch.optim.Optimizer)
    with pytest.raises(AttributeError, match="hooks"):
        wrapped.register_step_pre_hook(print)


@pytest.mark.parametrize("attached", ["before prepare", "after prepare"])
def test_accelerate_accumulates_clips_and_preconditions_like_the_loop_by_hand(attached):
    model, parts = network(), 2
    optimizer, accelerator = sgd(model), Accelerator(cpu=True, gradient_accumulation_steps=parts)
    preconditioner = Preconditioner(model, METHOD, accumulation_steps=parts)
    if attached == "before prepare":
        preconditioner.attach(optimizer)
    model, optimizer, loader = accelerator.prepare(model, optimizer, batches(BATCH // parts))
    if attached == "after prepare":
        preconditioner.attach(optimizer)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, *batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
    assert preconditioner.state_dict()["step"] == STEPS
    assert_close(dict(model.state_dict()), by_hand().weights)


def test_accelerate_prepares_in_the_middle_of_a_training_and_saves_the_preconditioner(tmp_path):
    """prepare() loads the optimizer's state immediately; save_state() saves it and load_state() restores it."""
    model = network()
    optimizer = sgd(model)
    Preconditioner(model, METHOD).attach(optimizer)
    accelerator = Accelerator(cpu=True)
    for step, batch in enumerate(batches()):
        if step == 2:
            model, optimizer = accelerator.prepare(model, optimizer)
        if step == 5:
            accelerator.save_state(tmp_path)
            saved = torch.load(tmp_path / "optimizer.bin", weights_only=True)
            assert (saved_counters(saved) or {})["step"] == 5
            accelerator.free_memory()
            model, accelerator = network(), Accelerator(cpu=True)
            optimizer = sgd(model)
            Preconditioner(model, METHOD).attach(optimizer)
            model, optimizer = accelerator.prepare(model, optimizer)
            accelerator.load_state(tmp_path)
        optimizer.zero_grad()
        accelerator.backward(loss_of(model, *batch))
        accelerator.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    assert_close(dict(model.state_dict()), by_hand().weights, rtol=0, atol=0)


@pytest.mark.parametrize("fused", [False, True])
def test_accelerate_unscales_and_clips_before_it_preconditions(fused):
    """With the scaler of the Hugging Face Trainer's fp16, and a step that it skips."""
    Accelerator(cpu=True)
    model, scaler = network(), torch.amp.GradScaler("cpu", init_scale=SCALE)
    inner = sgd(model, fused=fused)
    Preconditioner(model, METHOD, grad_scale=scaler).attach(inner)
    optimizer = AcceleratedOptimizer(inner, scaler=scaler)
    for step, batch in enumerate(batches()):
        loss = loss_of(model, *batch) * (torch.inf if step == 3 else 1)
        scaler.scale(loss).backward()
        scaler.unscale_(inner)  # as Accelerator.clip_grad_norm_ does
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        assert optimizer.step_was_skipped == (step == 3 and not fused)
        optimizer.zero_grad()
    assert_close(dict(model.state_dict()), by_hand(skipped=3).weights)


class Module(lightning.LightningModule):
    """A network, its loss, and SGD under a method; at one step the loss overflows."""

    def __init__(self, method: MKOR = METHOD, overflow_at: int | None = None) -> None:
        super().__init__()
        self.network, self.method, self.overflow_at = network(), method, overflow_at
        self.closures: list[Any] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return loss_of(self.network, *batch) * (torch.inf if index == self.overflow_at else 1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        optimizer = sgd(self)
        optimizer.register_step_pre_hook(lambda _, args, kwargs: self.closures.append(kwargs.get("closure")))
        self.preconditioner = Preconditioner(self, self.method, grad_scale=scaler or 1.0).attach(optimizer)
        return optimizer


def fit(module: Module, **options: Any) -> dict[str, Tensor]:
    """Train an epoch by Lightning; return the network's weights."""
    quiet = dict.fromkeys(("enable_checkpointing", "enable_model_summary", "enable_progress_bar", "logger"), False)
    lightning.Trainer(accelerator="cpu", max_epochs=1, gradient_clip_val=CLIP, **quiet, **options).fit(
        module, batches()
    )
    return module.network.state_dict()


@pytest.mark.parametrize(("method", "switch"), [(METHOD, None), (SWITCHING, 7)], ids=["mkor", "mkor_h"])
def test_lightning_passes_a_closure_that_clips_and_its_gradients_are_preconditioned(method, switch):
    """MKOR-H hears the loss from the closure."""
    module, truth = Module(method), by_hand(method)
    assert_close(dict(fit(module)), truth.weights, rtol=0, atol=0)
    assert module.preconditioner.switch_step == truth.switch_step == switch
    assert len(module.closures) == STEPS
    assert all(map(callable, module.closures))


def test_lightning_unscales_and_clips_before_it_preconditions():
    """With a scaler, Lightning runs the closure itself and passes none to the optimizer."""
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=SCALE))
    module = Module(overflow_at=3)
    weights = fit(module, plugins=plugin)
    assert module.closures == [None] * (STEPS - 1)
    assert_close(dict(weights), by_hand(scale=SCALE, half=True, skipped=3).weights)


class WithLoss(nn.Module):
    """A network that returns an output with its loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, inputs: Tensor, labels: Tensor) -> SequenceClassifierOutput:
        return SequenceClassifierOutput(loss=loss_of(self.network, inputs, labels))


@pytest.mark.parametrize("method", [METHOD, SWITCHING], ids=["mkor", "mkor_h"])
def test_the_hugging_face_trainer_takes_an_optimizer_with_a_preconditioner(method, tmp_path):
    """With ``optimizers=``; MKOR-H reads the loss from the model's output."""
    model = WithLoss()
    optimizer = sgd(model)
    preconditioner = Preconditioner(model, method).attach(optimizer)
    arguments = TrainingArguments(
        str(tmp_path), num_train_epochs=1, per_device_train_batch_size=BATCH, lr_scheduler_type="constant",
        max_grad_norm=CLIP, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        train_sampling_strategy="sequential",
    )  # fmt: skip
    data = [{"inputs": inputs, "labels": targets} for inputs, targets in batches().dataset]
    Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None)).train()
    truth = by_hand(method)
    assert preconditioner.switch_step == truth.switch_step
    assert_close(dict(model.network.state_dict()), truth.weights, rtol=0, atol=0)
