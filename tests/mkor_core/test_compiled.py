"""Models under torch.compile, without a break in the graph. Truth: the same training without it.

The backend compiles with AOTAutograd, which makes the backward pass's graph with the forward pass's, and runs their
operators one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager
from torch.func import functional_call
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import Conv1D

from baselines import KAISA, Eva, HyLo
from mkor_core import MKOR, ExpertLinear, Method, Preconditioner
from mkor_core.capture.compiled import Ghosts
from mkor_core.capture.discovery import select_layers
from mkor_core.capture.layer import Layer
from mkor_core.capture.statistics import MEAN, MOMENT, Statistic, Sums
from mkor_core.capture.sums import Capture

METHODS: dict[str, Method] = {
    "mkor": MKOR(inverse_update_period=2),
    "kaisa": KAISA(factor_update_period=2, inverse_update_period=2),
    "eva": Eva(),
}
STEPS = 3


class Compiled:
    """Compiles a function with `fullgraph`, and counts the graphs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.graphs = 0
        self._compiled = torch.compile(function, backend=self._count, fullgraph=True)

    def __call__(self, *args: Any) -> Any:
        return self._compiled(*args)

    def _count(self, graph: Any, examples: Any) -> Any:
        self.graphs += 1
        return aot_eager(graph, examples)


@pytest.fixture(autouse=True)
def _forget_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Network(nn.Module):
    """Layers of several kinds, with and without a bias, one of which is called twice, and inplace activations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(1, 2, 3, stride=2)
        self.twice = nn.Linear(8, 8)
        self.transposed, self.experts = Conv1D(8, 8), ExpertLinear(2, 8, 8)
        self.head = nn.Linear(8, 2, bias=False)
        self.double()

    def images(self, images: Tensor) -> Tensor:
        return torch.relu_(self.convolution(images)).flatten(1)

    def rows(self, rows: Tensor) -> Tensor:
        hidden = self.transposed(torch.tanh(self.twice(torch.relu_(self.twice(rows)))))
        return self.head(self.experts(torch.stack([hidden, -hidden])).mean(0))

    def forward(self, images: Tensor) -> Tensor:
        return self.rows(self.images(images))

    def checkpointed(self, images: Tensor) -> Tensor:
        """Recompute the first layers in a reentrant backward pass, the others in a plain one."""
        hidden = checkpoint(self.images, images, use_reentrant=True)
        return checkpoint(self.rows, hidden, use_reentrant=False)


def batch(step: int, part: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * step + part)
    return torch.randn(9, 1, 5, 5, generator=generator, dtype=torch.float64)


def train(method: Method, *, compiles: bool = False, checkpoints: bool = False) -> tuple[list[Tensor], int]:
    """Train in micro-batches with a gradient scaler; return the weights and the number of graphs."""
    model = Network()
    forward: Callable[[Tensor], Tensor] = model.checkpointed if checkpoints else model
    compiled = Compiled(forward)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)  # doubles its scale in every step
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    Preconditioner(model, method, accumulation_steps=2, grad_scale=scaler).attach(optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            images = batch(step, part).requires_grad_()
            output = compiled(images) if compiles else forward(images)
            scaler.scale((output - 1).square().mean() / 2).backward()
        scaler.step(optimizer)
        scaler.update()
    return [parameter.detach() for parameter in model.parameters()], compiled.graphs


@pytest.mark.parametrize("name", METHODS)
def test_compiled_and_checkpointed_models_train_as_the_plain_one(name):
    """A step that captures has another graph than one that does not; Eva captures in every step."""
    plain, _ = train(METHODS[name])
    recomputed, _ = train(METHODS[name], checkpoints=True)
    compiled, graphs = train(METHODS[name], compiles=True, checkpoints=name == "mkor")
    assert_close(recomputed, plain, rtol=0, atol=1e-10)
    assert_close(compiled, plain, rtol=0, atol=1e-10)
    assert graphs == (1 if name == "eva" else 2)


def linear(bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 3, bias=bias), nn.Tanh(), nn.Linear(3, 3, bias=False)).double()


def rows(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def capture(model: nn.Module, statistic: Statistic, **options: Any) -> Capture:
    layers = {name: Layer(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return Capture(layers, statistic, **options)


def numbers(sums: dict[str, Sums]) -> dict[str, float]:
    return {name: part.number.item() for name, part in sorted(sums.items())}


def test_a_compiled_model_whose_rows_are_kept_is_preconditioned_like_the_plain_one():
    """AOTAutograd compiles the model into graphs that end at every layer's hook."""
    results = []
    for compiles in (False, True):
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        Preconditioner(model, HyLo()).attach(optimizer)
        forward = torch.compile(model, backend="aot_eager") if compiles else model
        for step in range(STEPS):
            optimizer.zero_grad()
            forward(rows(step, 6)).square().mean().backward()
            optimizer.step()
        results.append([parameter.detach() for parameter in model.parameters()])
    assert_close(results[0], results[1], rtol=0, atol=0)


def test_a_model_that_was_compiled_and_called_before_is_refused():
    """Dynamo does not see that hooks were added."""
    model = linear()
    compiled = torch.compile(model, backend="eager")
    compiled(rows(0, 6)).sum().backward()
    preconditioner = Preconditioner(model, MKOR())
    compiled(rows(0, 6)).sum().backward()
    with pytest.raises(RuntimeError, match="after the Preconditioner was made and before the first call of a compiled"):
        preconditioner.step()


def test_passes_of_a_compiled_model_count_as_those_of_the_plain_one():
    """All in one graph. There, weights may have got their gradients before the hooks hear of the pass."""
    model = linear()
    hooks = capture(model, MEAN)
    compiled = Compiled(model)

    def add(seed: int) -> None:
        compiled(rows(seed, 6)).square().mean().backward()

    for set_to_none in (True, False):  # of a step that is never taken
        add(0)
        model.zero_grad(set_to_none=set_to_none)
    add(1)
    sums = hooks.take()
    assert numbers(sums) == {"0": 6, "2": 6}
    assert_close(sums["0"].x[:5], rows(1, 6).sum(0))
    output = model(rows(1, 6)).detach()
    assert_close(sums["2"].g, (2 * output / output.numel()).sum(0))
    add(0)
    for parameter in model.parameters():
        parameter.grad.mul_(0.5)  # clipped, not cleared
    add(1)
    assert numbers(hooks.take()) == {"0": 12, "2": 12}
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    inputs = rows(0, 6).requires_grad_()
    torch.autograd.grad(compiled(inputs).sum(), [*model.parameters()])
    compiled(inputs).sum().backward(inputs=[inputs])
    assert hooks.reached == frozenset()
    hooks.remove()
    add(2)
    assert hooks.reached == frozenset()


def test_the_first_examples_of_compiled_micro_batches_are_counted_on_the_device():
    """One graph for any number of micro-batches. The third holds one of the first seven on rank 0, none on rank 1."""
    model = linear(bias=False)
    ranks = [capture(model, replace(MEAN, examples=7), micro_batches=12, place=rank) for rank in range(2)]
    compiled = Compiled(model)
    for _ in range(2):
        parts = [rows(part, 3, 2) for part in range(12)]
        parts[8][:] = torch.nan  # its examples are not among the first
        for part in parts:
            compiled(part).square().mean().backward()
        for rank, hooks in enumerate(ranks):
            sums = hooks.take()["0"]
            assert sums.number == (14 if rank == 0 else 0)
            assert_close(sums.x, torch.cat(parts)[: 7 if rank == 0 else 0].sum((0, 1)))
            assert sums.g is not None
            assert sums.g.isfinite().all()
        model.zero_grad()
    assert compiled.graphs == 1


def test_the_batch_size_of_a_compiled_model_may_vary():
    """The second size makes a graph for all others; in some versions of PyTorch for all above the first examples."""
    model = linear()
    hooks = capture(model, replace(MEAN, examples=5))
    compiled = Compiled(model)
    for examples in (8, 6, 4, 7, 3):
        compiled(rows(0, examples)).sum().backward()
        sums = hooks.take()["0"]
        assert sums.number == min(examples, 5)
        assert_close(sums.x[:5], rows(0, examples)[:5].sum(0))
        model.zero_grad()
    assert compiled.graphs <= 3


def test_the_limit_of_clamped_rows_follows_the_loss_scale_in_a_compiled_model():
    """As a GradScaler changes it, in place, between two steps. Truth: the model that is not compiled."""
    results: list[list[Sums]] = []
    for compiles in (False, True):
        model, scale = linear(bias=False), torch.tensor(8.0)
        hooks = capture(model, replace(MEAN, clamp=0.1), grad_scale=lambda scale=scale: scale)
        forward = Compiled(model) if compiles else model
        results.append([])
        for step in range(3):
            (forward(rows(step, 6)).square().mean() * scale).backward()
            results[-1].append(hooks.take()["0"])
            model.zero_grad()
            scale.mul_(2)
    assert_close(results[1], results[0])


def test_moments_of_a_compiled_model_are_reduced_in_full_precision_inside_autocast():
    """Truth: float64 moments of the rows that autocast rounds to bfloat16."""
    model = linear().float()
    hooks = capture(model, MOMENT)
    compiled = Compiled(model)
    compiled(rows(0, 0, 4).float()).sum().backward()  # an empty micro-batch
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled(rows(0, 6, 4).float()).float().square().mean().backward()
    moments = hooks.take()["0"]
    x = rows(0, 24).bfloat16().double()
    assert moments.x.dtype == torch.float32
    assert_close(moments.x[:5, :5].double() * 24, x.T @ x, rtol=1e-6, atol=1e-6)


def test_a_compiled_model_may_change_its_precision_after_the_hooks_were_made():
    model = linear().float()
    hooks = capture(model, MEAN)
    compiled = Compiled(model.double())
    for _ in range(2):
        model.zero_grad()
        compiled(rows(0, 6)).sum().backward()
        sums = hooks.take()
        assert_close(sums["0"].x[:5].double(), rows(0, 6).sum(0), rtol=1e-6, atol=1e-6)
    assert sums["0"].x.dtype == torch.float64


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    "statistic",
    [
        MEAN,
        MEAN.of_inputs(),
        replace(MEAN, clamp=0.05),
        replace(MEAN, examples=2),
        replace(MEAN, examples=5),
        replace(MEAN, examples=10),
        MOMENT,
    ],
    ids=str,
)
def test_what_is_compiled_gives_the_sums_of_the_hooks_also_when_it_runs_uncompiled(statistic, world, monkeypatch):
    """Two steps of two micro-batches with a loss scale, on the last rank. Coverage tools cannot see compiled code."""
    sums: dict[bool, dict[str, Sums]] = {False: {}, True: {}}
    sizes = ((3, 4), (4, 0))
    for traced in sums:
        model = Network()
        layers = select_layers(model, ()).layers
        options: dict[str, Any] = {"micro_batches": 2, "shares": world, "place": world - 1}
        hooks = Capture(layers, statistic, grad_scale=lambda: 8.0, **options)
        for step in range(2):
            model.zero_grad()
            for part in range(2):
                with monkeypatch.context() as patch:
                    patch.setattr(torch.compiler, "is_compiling", lambda traced=traced: traced)
                    output = model(batch(step, part)[: sizes[step][part]])
                (8 * (output - 1).square().sum()).backward()
            sums[traced] |= {f"{name} in step {step}": taken for name, taken in hooks.take().items()}
        hooks.remove()
    assert len(sums[True]) == 2 * len(layers)
    for key in sums[True].keys() - sums[False].keys():  # none of the rank's examples is taken
        assert sums[True][key].number == 0
    assert len(sums[False]) == (0 if statistic.examples in (2, 5) and world == 2 else 2 * len(layers))
    for key, (x, g, number, locations) in sums[False].items():
        other = sums[True][key]
        assert_close([other.x, other.number], [x, number])
        assert (other.g is None) == (g is None)
        assert_close(torch.as_tensor(other.locations), torch.as_tensor(locations))
        if g is not None:
            assert_close(other.g, g)


def test_calls_that_a_compiled_graph_does_not_capture_keep_their_output(monkeypatch):
    """Their output is returned as it is, so that the graph has nothing to bring to a leaf."""
    module = nn.Linear(3, 2)
    hooks = Capture({"layer": Layer("layer", module)}, MEAN)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    rows = torch.ones(4, 3)

    def is_captured(output: Tensor) -> bool:
        return "_Attach" in str(output.grad_fn)

    assert is_captured(module(rows))
    with torch.no_grad():
        assert not is_captured(module(rows))
    others = {name: (2 * parameter).detach().requires_grad_() for name, parameter in module.named_parameters()}
    assert not is_captured(functional_call(module, others, (rows,)))
    assert not is_captured(module.eval()(rows))
    module.train()
    hooks.enabled = False
    assert not is_captured(module(rows))
    hooks.enabled = True
    assert is_captured(module(rows))
    assert hooks.on_forward(Layer("layer", module), rows.to_sparse(), module(rows)) is None
    hooks.remove()
    assert hooks.on_forward(Layer("layer", module), rows, module(rows)) is None


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("statistic", [replace(MEAN, examples=2), MOMENT], ids=str)
def test_a_micro_batch_of_one_number_counts(statistic, traced, monkeypatch):
    module = nn.Linear(3, 1, bias=False)
    hooks = Capture({"layer": Layer("layer", module)}, statistic)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: traced)
    output = module(torch.ones(1, 3))
    monkeypatch.undo()
    output.sum().backward()
    sums = hooks.take()["layer"]
    assert sums.number == 1
    assert sums.g is not None
    assert_close(sums.g.flatten(), torch.ones(1))


@pytest.mark.parametrize("traced", [False, True])
def test_after_a_backward_pass_that_failed_the_next_ones_are_told_apart(traced, monkeypatch):
    """Two micro-batches of the next step. Forward passes of compiled graphs do not tell of themselves."""
    module = nn.Linear(3, 2, bias=False)
    hooks = Capture({"layer": Layer("layer", module)}, MOMENT, micro_batches=2)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: traced)

    def fail(grad: Tensor) -> None:
        raise ValueError("a hook of the user")

    rows = 2 * torch.ones(4, 3, requires_grad=True)
    rows.register_hook(fail)
    with pytest.raises(ValueError, match="a hook of the user"):
        module(rows).sum().backward()
    module.zero_grad()
    for _ in range(2):
        module(torch.ones(4, 3)).sum().backward()
    assert hooks.take()["layer"].number == 2


def test_a_compiled_micro_batch_that_is_given_up_before_the_last_is_forgotten():
    """The model is compiled in two parts, between which the backward pass may fail."""
    model = linear()
    hooks = capture(model, MEAN, micro_batches=3)
    first, second = Compiled(model[0]), Compiled(model[1:])

    def fail(grad: Tensor) -> None:
        raise MemoryError

    for fails, set_to_none in product((False, True), (True, False)):
        hidden = first(rows(0, 6))
        if fails:
            hidden.register_hook(fail)
        with pytest.raises(MemoryError) if fails else nullcontext():
            second(hidden).square().mean().backward()
        assert hooks.reached == ({"2"} if fails else {"0", "2"})
        model.zero_grad(set_to_none=set_to_none)
        for part in range(3):
            second(first(rows(part, 6))).square().mean().backward()
        assert numbers(hooks.take()) == {"0": 18, "2": 18}
        model.zero_grad()


def test_as_many_examples_as_ever_are_taken_of_a_compiled_step_that_is_begun_anew():
    """A compiled forward pass counts on from micro-batches that are forgotten; those after the last are the first."""
    model = linear()
    hooks = capture(model, replace(MEAN, examples=7), micro_batches=3)
    compiled = Compiled(model)
    for part in range(4):
        compiled(rows(part, 6)).square().mean().backward()
        if part == 0:
            model.zero_grad(set_to_none=False)
    assert numbers(hooks.take()) == {"0": 7, "2": 7}


def test_leaves_fit_a_weight_of_their_device_and_precision_only():
    weight = nn.Linear(3, 2).weight
    ghosts = Ghosts({"x": (3,), "g": (2,)}, weight, lambda name, value: None)
    assert ghosts.fit(weight)
    assert ghosts.fit(weight.bfloat16())
    assert not ghosts.fit(weight.double())
    assert not ghosts.fit(weight.to("meta"))
