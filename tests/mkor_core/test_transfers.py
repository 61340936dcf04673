"""Numbers and tensors of the host reach a device without a wait; the meta device stands in for a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from baselines import KAISA
from benchmarks.counting import META, Counting
from mkor_core import Preconditioner
from mkor_core.losses import LossHistory
from mkor_core.transfers import upload


class Recorded:
    """A tensor's place, and what is asked of it."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.asked: list[Any] = []

    def pin_memory(self) -> Recorded:
        self.asked.append("pin_memory")
        return self

    def to(self, device: torch.device, *, non_blocking: bool) -> Recorded:
        self.asked.append((device.type, non_blocking))
        return self


def test_only_a_copy_to_a_gpu_comes_from_page_locked_memory():
    asked = {}
    for source, target in (("cpu", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")):
        tensor: Any = Recorded(source)
        asked[source, target] = upload(tensor, torch.device(target)).asked
    assert asked == {
        ("cpu", "cuda"): ["pin_memory", ("cuda", True)],
        ("cuda", "cuda"): [("cuda", True)],
        ("cpu", "cpu"): [("cpu", True)],
    }


def test_a_step_without_a_loss_is_noted_without_a_wait():
    history = LossHistory(nn.Linear(2, 2), micro_batches=1)
    with Counting() as counts:
        for loss in (None, 0.5):
            if loss is not None:
                history.put("closure", loss)
            mean = history.take(torch.empty(1, device=META))
            assert (mean.device.type, mean.dtype, mean.shape) == ("meta", torch.float32, ())
    assert counts.waits == 0


def test_different_rates_of_weight_and_bias_are_no_wait():
    layer = nn.Linear(3, 2).to(META)
    optimizer = torch.optim.SGD([{"params": [layer.weight], "lr": 0.1}, {"params": [layer.bias], "lr": 0.2}])
    Preconditioner(layer, KAISA()).attach(optimizer)
    for _ in range(2):  # the first step decomposes
        with Counting() as counts:
            layer(torch.empty(4, 3, device=META)).square().mean().backward()
            optimizer.step()
    assert counts.waits == 0, counts.by_operator
