"""Numbers and tensors of the host reach a device without a wait; the meta device stands in for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from baselines import KAISA, Eva, build
from mkor_core import MKOR, Preconditioner
from mkor_core.capture.losses import LossHistory
from mkor_core.devices import DeferredScalar, upload
from tests.support.rank_processes import fake_world
from workflow.bench.probes._counting import META, Counting


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


class OnGPU(Tensor):
    """A tensor that says it lies on a GPU, and lists what is done with it."""

    done: list[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if getattr(func, "__self__", None) is Tensor.is_cuda:
            return True
        if func is torch.empty_like:
            cls.done.append(f"pinned={options.pop('pin_memory')}")
        if func is Tensor.copy_:
            cls.done.append(f"copied, non_blocking={options['non_blocking']}")
        return super().__torch_function__(func, types, args, options)


def test_a_value_on_a_gpu_is_copied_without_waiting_and_read_after_its_event(monkeypatch):
    OnGPU.done = []
    event = SimpleNamespace(
        record=lambda: OnGPU.done.append("recorded"), synchronize=lambda: OnGPU.done.append("waited")
    )
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    scalar = DeferredScalar(torch.tensor(2.5).as_subclass(OnGPU))
    assert OnGPU.done == ["pinned=True", "copied, non_blocking=True", "recorded"]
    assert scalar.read() == 2.5
    assert OnGPU.done[3:] == ["waited"]


@pytest.fixture
def one_of_64_ranks() -> Iterator[None]:
    """A group whose collectives do nothing."""
    with fake_world(0, 64):
        yield


@pytest.mark.usefixtures("one_of_64_ranks")
@pytest.mark.parametrize(
    ("name", "options", "groups"),
    [
        ("mkor", {}, []),
        ("eva", {}, []),
        ("hylo", {}, []),
        ("kaisa", {}, []),
        ("kaisa", {"grad_worker_fraction": 0.5}, [[*range(0, 64, 2)], [0, 1]]),
        ("kaisa", {"grad_worker_fraction": 1 / 64}, []),
    ],
    ids=str,
)
def test_a_rank_makes_the_groups_that_it_uses_and_no_second_one_of_all_ranks(monkeypatch, name, options, groups):
    made: list[list[int]] = []
    monkeypatch.setattr(dist, "new_group", lambda ranks, **_: made.append(ranks))
    build(name, nn.Linear(5, 5), {"lr": 0.1, **options})
    assert made == groups


@pytest.mark.usefixtures("one_of_64_ranks")
@pytest.mark.parametrize(
    ("name", "options", "waits"),
    [
        ("mkor", {}, 0),
        ("mkor", {"factor_dtype": torch.bfloat16}, 0),
        ("mkor_h", {}, 0),
        ("eva", {}, 0),
        ("kaisa", {"compute_method": "inverse"}, 0),
        ("hylo", {}, 1),
        ("mkor", {"rank": 2}, 12),
    ],
    ids=str,
)
def test_ranks_exchange_statistics_without_a_wait(name, options, waits):
    """But for HyLo's numbers of rows, read at once for all layers, and two decompositions of each sketch at rank 2."""
    model = nn.Sequential(*[nn.Linear(5, 5) for _ in range(3)]).to(META)
    optimizer, preconditioner = build(name, model, {"lr": 0.1, **options})
    assert preconditioner is not None
    counted = []
    for _ in range(2):
        with Counting() as counts:
            loss = model(torch.empty(4, 5, device=META)).square().mean()
            loss.backward()
            preconditioner.observe(loss)
            optimizer.step()
        counted.append(counts.waits)
    assert counted == [waits, 0], counts.by_operator


def test_a_step_without_a_loss_is_noted_without_a_wait():
    history = LossHistory(nn.Linear(2, 2), micro_batches=1)
    with Counting() as counts:
        for loss in (None, 0.5):
            if loss is not None:
                history.put("closure", loss)
            mean = history.take(torch.empty(1, device=META))
            assert (mean.device.type, mean.dtype, mean.shape) == ("meta", torch.float32, ())
    assert counts.waits == 0


@pytest.mark.parametrize("method", [KAISA(), Eva()], ids=str)
def test_different_rates_are_no_wait(method):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to(META)
    optimizer = torch.optim.SGD(
        [{"params": [parameter], "lr": 0.1 * number} for number, parameter in enumerate(model.parameters(), 1)]
    )
    Preconditioner(model, method).attach(optimizer)
    for _ in range(2):  # the first step of KAISA decomposes
        with Counting() as counts:
            model(torch.empty(4, 3, device=META)).square().mean().backward()
            optimizer.step()
    assert counts.waits == 0, counts.by_operator


def test_a_fixed_scale_of_clamped_rows_is_no_wait():
    layer = nn.Linear(3, 2).to(META)
    preconditioner = Preconditioner(layer, MKOR(update_rule="released", inverse_update_period=1), grad_scale=8.0)
    for _ in range(2):
        with Counting() as counts:
            layer(torch.empty(4, 3, device=META)).square().mean().backward()
            preconditioner.step()
    assert counts.waits == 0, counts.by_operator
