"""Memory of every optimizer: the peak, and the bytes of its state by tensor, measured and computed.

``python -m workflow.bench.probes.memory --tier embedded --out memory.csv`` writes one row a workload, optimizer and
tensor. Every optimizer is measured in a process of its own, over two steps of which the first refreshes. Columns:

- workload, optimizer, update_rule.
- quantity: ``parameters``, ``gradients``; ``first_order_state``, of the base optimizer, and ``preconditioner_state``,
  with the tensor's name in ``tensor``, summed over layers; ``peak``, the most at once: allocated tensors on a GPU
  (allocator's peak), resident memory of the process on a CPU, interpreter and libraries and all;
  ``peak_over_start``, the same without what the process held before it made the model.
- bytes: measured. computed_bytes: from the layers' shapes by each method's formula (`preconditioner_bytes`,
  `FIRST_ORDER`); empty for a peak, for which there is none.
- hardware, code_fingerprint, git_commit.

On a CPU the embedded models' states are small beside the noise of a process's resident memory, so the autoencoder there
is a wide one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from baselines.eva import Eva
from baselines.hylo import HyLo
from baselines.kaisa import KAISA
from mkor_core import MKOR, Method
from mkor_core.discovery import find_layers
from mkor_core.method import LayerShape
from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _ranks
from workflow.bench.probes._models import Contender, Subject, contenders, subjects, workload_of
from workflow.bench.probes._timed_loop import Loop
from workflow.bench.training.peak_memory import peak_memory_bytes, reset_peak_memory

EXPERIMENTS = ("bert_pretraining", "resnet50_imagenet", "autoencoder_inversion")
WIDE: Final = (1024, 1024, 16, 1024, 1024)
"""The wide autoencoder's hidden layers."""
METHODS: Final = ("mkor", "mkor_bfloat16", "mkor_windowed", "kaisa", "kaisa_inverse", "eva", "hylo")
STEPS: Final = 2
LEARNING_RATE: Final = 1e-4
NUMBER: Final = 4  # bytes of a float32
COUNTER: Final = 8  # bytes of MKOR's int64 count of updates
FIRST_ORDER: Final[Mapping[str, Mapping[str, int]]] = {
    "sgd": {"momentum_buffer": 1},
    "lamb": {"exp_avg": 1, "exp_avg_sq": 1},
}
"""Numbers kept for each parameter, by optimizer and tensor."""


class Row(NamedTuple):
    """Bytes of one kind."""

    workload: str
    optimizer: str
    update_rule: str | None
    quantity: str
    tensor: str | None
    bytes: int
    computed_bytes: int | None
    hardware: str


class LayerRows(NamedTuple):
    """A layer's shape, and how many rows a batch has there: examples for a Conv2d, leading indices for a Linear."""

    shape: LayerShape
    rows: int


def preconditioner_bytes(method: Method, layers: Sequence[LayerRows]) -> dict[str, int]:
    """Return the bytes of a method's state by tensor, from the layers' shapes alone (ALGORITHMS.md, every method).

    MKOR: two inverse factors ``d^2`` and their vectors ``rank d``, or ``window`` columns and weights a factor; KAISA:
    two factors and their eigenvectors and eigenvalues, or their inverses; Eva: two mean vectors and a count;
    HyLo: r kept rows ``r (d_in + d_out)`` and a kernel ``r^2``.

    Raises:
        TypeError: a method without a formula here.
    """
    sizes: dict[str, int] = {}

    def add(name: str, size: int) -> None:
        sizes[name] = sizes.get(name, 0) + size

    for (d_out, d_in), rows in layers:
        sides = (("left", d_out), ("right", d_in))
        match method:
            case MKOR():
                number = method.factor_dtype.itemsize
                add("updates", COUNTER)
                for side, d in sides:
                    add(f"{side}_vectors", number * method.rank * d)
                    if method.window is None:
                        add(side, number * d * d)
                    else:
                        add(f"{side}_scale", number)
                        add(f"{side}_columns", number * method.window * d)
                        add(f"{side}_weights", number * method.window)
                        add(f"{side}_position", COUNTER)
            case KAISA():
                for side, d in sides:
                    add(side, NUMBER * d * d)
                    if method.compute_method == "eigen":
                        add(f"{side}_vectors", NUMBER * d * d)
                        add(f"{side}_values", NUMBER * d)
                    else:
                        add(f"{side}_inverse", NUMBER * d * d)
            case HyLo():
                kept = max(int(method.sample_fraction * rows), 1)
                for side, d in sides:
                    add(side, NUMBER * kept * d)
                add("kernel_inverse", NUMBER * kept * kept)
            case Eva():
                for side, d in sides:
                    add(side, NUMBER * d)
                add("batches", COUNTER)
            case _:
                raise TypeError(f"There is no formula for {type(method).__name__}'s state: add one.")
    return sizes


def first_order_bytes(optimizer: Optimizer) -> dict[str, int]:
    """Return the bytes of an optimizer's own state by tensor, summed over parameters."""
    sizes: dict[str, int] = {}
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor):
                sizes[name] = sizes.get(name, 0) + value.numel() * value.element_size()
    return sizes


def rows_by_layer(model: nn.Module, exclude: tuple[str, ...], step: Any) -> list[LayerRows]:
    """Return every preconditioned layer with its rows; step: runs one forward pass."""
    layers = find_layers(model, exclude)
    rows: dict[str, int] = {}

    def note(name: str, is_linear: bool) -> Any:
        def hook(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
            rows[name] = output.numel() // output.shape[-1] if is_linear else output.shape[0]

        return hook

    handles = [
        layer.module.register_forward_hook(note(name, isinstance(layer.module, nn.Linear)))
        for name, layer in layers.items()
    ]
    step()
    for handle in handles:
        handle.remove()
    return [LayerRows(LayerShape(layer.d_out, layer.d_in), rows[name]) for name, layer in layers.items()]


def rows_of(subject: Subject, contender: Contender, device: str, hardware: str) -> list[Row]:
    """Return one optimizer's rows; runs in a fresh process."""
    place = torch.device(device)
    reset_peak_memory(place)
    start = peak_memory_bytes(place)
    loop = Loop(subject, contender, device)
    for _ in range(STEPS):
        loop.step()
    peak = peak_memory_bytes(place)
    label, rule = contender.label, contender.update_rule
    parameters = list(loop.model.parameters())
    numbers = sum(parameter.numel() for parameter in parameters)
    own = [parameter.grad for parameter in parameters if parameter.grad is not None]

    def row(quantity: str, tensor: str | None, size: int, computed: int | None) -> Row:
        return Row(subject.name, label, rule, quantity, tensor, size, computed, hardware)

    found = [
        row("peak", None, peak, None),
        row("peak_over_start", None, peak - start, None),
        row("parameters", None, _bytes(parameters), NUMBER * numbers),
        row("gradients", None, _bytes(own), NUMBER * numbers),
    ]
    formula = FIRST_ORDER[subject.base]
    found += [
        row("first_order_state", tensor, size, NUMBER * formula[tensor] * numbers if tensor in formula else None)
        for tensor, size in first_order_bytes(loop.optimizer).items()
    ]
    if loop.preconditioner is not None:
        computed = preconditioner_bytes(
            loop.preconditioner.method, rows_by_layer(loop.model, subject.data.exclude, loop.step)
        )
        measured = loop.preconditioner.memory_by_tensor()
        found += [
            row("preconditioner_state", tensor, measured.get(tensor, 0), computed.get(tensor))
            for tensor in {**measured, **computed}
        ]
    return found


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def measured_on(plan: Plan) -> list[Subject]:
    """Return a plan's subjects; on a CPU the autoencoder is a wide one."""
    found = [subject for subject in subjects(plan) if subject.name != "autoencoder"]
    given = workload_of(plan, "autoencoder")
    if plan.tier.device == "cpu" and given:
        wide = workloads.create(**{**given, "hidden": list(WIDE)})
        found.append(Subject("wide_autoencoder", wide, "sgd", LEARNING_RATE))
    return found


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows of a plan's tier."""
    for subject in measured_on(plan):
        for contender in contenders(subject, LEARNING_RATE, subject.base, *METHODS):
            (found,) = _ranks.run(1, rows_of, subject, contender, plan.tier.device, plan.hardware)
            yield from found


if __name__ == "__main__":
    sys.exit(_command.run("memory", measure))
