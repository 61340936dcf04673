"""What a step asks of a GPU: no waits, and operands on wide words. Truth: strides and reads, on a CPU and on meta."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from baselines import KAISA, Eva, build
from baselines.kfac.thermo_kfac import ThermoKFAC
from baselines.muon.newton_muon import NewtonMuon
from baselines.natural._wake import WakeRegularized
from baselines.natural.foof import FOOF
from benchmarks.models import EncoderLayer
from mkor_core import MKOR, Method, Preconditioner
from mkor_core.capture.losses import LossHistory
from mkor_core.devices import ALIGNMENT, DeferredScalar, aligned, upload
from mkor_core.engines import engine
from mkor_core.maths.linalg import product
from tests.support.operators import Operators
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


PRODUCTS = {"mm", "mv", "bmm", "addmm", "addmm_", "addmv", "addmv_", "baddbmm", "baddbmm_", "addbmm", "addbmm_"}
"""Operators that multiply matrices; their last two tensors are the operands."""


class Operands(Operators):
    """Collects the operands of products that have rows of unaligned starts."""

    @property
    def unaligned(self) -> list[tuple[Any, ...]]:
        operands = [
            (operator.name, operand)
            for operator in self.named(*PRODUCTS)
            for operand in [arg for arg in operator.args if isinstance(arg, Tensor)][-2:]
        ]
        return [(name, tuple(x.shape), x.stride()) for name, x in operands if not starts_well(x)]


def starts_well(operand: Tensor) -> bool:
    """Return whether all rows, or all columns, lie in one piece and start on multiples of `ALIGNMENT`.

    A column alone, ``[d, 1]``, counts as d rows, as a GPU's library takes it. A vector ``[d]`` may have any step.
    """
    if operand.dim() == 1:
        return operand.storage_offset() * operand.element_size() % ALIGNMENT == 0
    ways = [operand] if operand.shape[-1] == 1 else [operand, operand.mT]
    return any(starts_plainly(way) for way in ways)


def starts_plainly(rows: Tensor) -> bool:
    places = [rows.storage_offset(), *(step for size, step in zip(rows.shape, rows.stride(), strict=True) if size > 1)]
    if rows.shape[-1] > 1 and places.pop() != 1:
        return False
    return all(place * rows.element_size() % ALIGNMENT == 0 for place in places)


def models() -> Iterable[nn.Module]:
    yield nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
    yield nn.Sequential(nn.Conv2d(4, 16, 2), nn.Flatten(), nn.Linear(16 * 9, 32))


METHODS: list[Method] = [
    MKOR(inverse_update_period=1),
    MKOR(inverse_update_period=1, window=4),
    MKOR(inverse_update_period=1, sides="input"),
    KAISA(factor_update_period=1, inverse_update_period=1),
    KAISA(factor_update_period=1, inverse_update_period=1, compute_method="inverse"),
    FOOF(factor_update_period=1, inverse_update_period=1),
    NewtonMuon(update_period=1),
    ThermoKFAC(factor_update_period=1, inverse_update_period=1),
    *(
        WakeRegularized(
            subproblem=subproblem,
            damping=0.1,
            factor_decay=0.9,
            rms_clip=None,
            factor_update_period=1,
            inverse_update_period=1,
            lr=lambda: 0.1,
        )
        for subproblem in ("SO", "Q")
    ),
]


@pytest.mark.parametrize("is_gathered", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: repr(method)[:70])
def test_no_product_of_a_step_has_an_operand_whose_rows_start_between_wide_words(
    method: Method, is_gathered: bool, monkeypatch: pytest.MonkeyPatch
):
    if is_gathered:
        monkeypatch.setattr(engine, "goes_alone", lambda device: False)
    for model, shape in zip(models(), [(8, 32), (8, 4, 4, 4)], strict=True):
        preconditioner = Preconditioner(model, method, lr=0.1)
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(shape)).square().mean().backward()
            with Operands() as seen:
                preconditioner.step()
            assert len(seen.named(*PRODUCTS)) > 0
            assert seen.unaligned == []


LARGE: dict[str, tuple[Method, int]] = {
    "mkor": (MKOR(inverse_update_period=1), 2),
    "window 4": (MKOR(inverse_update_period=1, window=4), 6),
    "kaisa, eigen": (KAISA(factor_update_period=1, inverse_update_period=1), 2),
    "kaisa, inverse": (KAISA(factor_update_period=1, inverse_update_period=1, compute_method="inverse"), 2),
}
"""Methods, and the steps after which all their products have occurred: a full window of 4 is cut in the fifth."""


@pytest.mark.parametrize("name", LARGE)
def test_no_product_at_the_shapes_of_bert_large_has_an_unaligned_operand(name: str):
    """On the meta device: stacks of 8, 2 and 2 layers with biases, J_R of 1025 and 4097. The hooks' products count."""
    method, steps = LARGE[name]
    with META:
        model = nn.Sequential(EncoderLayer(1024, 4096), EncoderLayer(1024, 4096))
    preconditioner = Preconditioner(model, method, lr=0.1)
    with Counting(), Operands() as seen:  # `Counting` answers where a value is read
        for _ in range(steps):
            model.zero_grad()
            model(torch.empty(2, 128, 1024, device=META)).square().mean().backward()
            preconditioner.step()
    assert len(seen.named(*PRODUCTS)) > 100
    assert seen.unaligned == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, 5, 16, 33])
def test_an_aligned_product_is_the_product(columns: int, dtype: torch.dtype):
    a, b = torch.randn(7, 9).to(dtype), torch.randn(9, columns).to(dtype)
    result = product(a, b)
    assert result.stride(0) * dtype.itemsize % ALIGNMENT == 0
    torch.testing.assert_close(result, a @ b)
    assert not aligned((3, columns), dtype, a.device).any()
