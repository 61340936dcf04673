"""Kernels, host waits and bytes of a step, counted on PyTorch's ``meta`` device: no GPU, no memory, no time.

``python -m benchmarks.counting`` prints them for the layers of BERT-Large (146, with biases), by method: what the hooks
add to a forward and backward pass, and the preconditioner's step. A GPU launches about one kernel for each operator
that computes something; every launch costs some 5 us on the host, so thousands of them outweigh the arithmetic.

`workflow.bench.probes._counting` says what is counted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from baselines import method_class
from benchmarks.methods import RATE, methods
from benchmarks.models import Encoder
from mkor_core import Method, Preconditioner
from workflow.bench.probes._counting import META, Counting, Counts
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ConfigError
from workflow.bench.support.pages import fill


def bert_large() -> Encoder:
    """Return the 146 layers of BERT-Large that are preconditioned, on the meta device."""
    with META:
        return Encoder()


class StepCounts(NamedTuple):
    """What a preconditioner adds to a training step: its hooks in forward and backward, and its step."""

    plain: Counts
    """A step that updates no factor."""
    update: Counts
    """The update with the most kernels; a window, for one, is cut only when it is full."""


def training_step(model: nn.Module, inputs: Tensor, preconditioner: Preconditioner | None) -> Counts:
    """Return the counts of forward, backward and the preconditioner's step, from fresh gradients."""
    model.zero_grad()
    with Counting(inputs.device) as counts:
        model(inputs).backward()
        if preconditioner is not None:
            preconditioner.step()
    return counts


def count_steps(method: Method, model: nn.Module, inputs: Tensor, updates: int = 2) -> StepCounts:
    """Return what a method adds to a step with an update of its factors, and to one without.

    method: updates in every second step, or in every step if it has no period.
    updates: the number of updates to count, after the first, which also sets up states.
    """
    alone = training_step(model, inputs, None)
    preconditioner = Preconditioner(model, method, lr=RATE)  # kl_clip asks for a learning rate
    steps = [training_step(model, inputs, preconditioner).minus(alone) for _ in range(2 * updates + 2)][2:]
    preconditioner.remove()
    return StepCounts(plain=steps[-1], update=max(steps[::2], key=lambda counts: counts.kernels))


def method_with_period(label: str, period: int) -> Method:
    """Return the second-order method of a label of `benchmarks.methods`.

    Raises:
        ConfigError: an unknown label, or that of a first-order method.
    """
    (one,) = methods([label])
    cls = method_class(one.name) if one.is_second_order else None
    if cls is None:
        raise ConfigError(f"optimizer = '{label}': must be a second-order method, whose preconditioner is counted")
    names = {item.name for item in fields(cls)}
    return cls(**{key: value for key, value in one.at(period).items() if key in names})


def table(chosen: Sequence[str], tokens: int = 512, examples: int = 8, *, detail: bool = False) -> Iterator[str]:
    """Yield the lines of a Markdown table: what each method adds to a step of BERT-Large's layers.

    detail: whether each row is followed by the operators that move the most bytes, and those that wait.
    """
    yield "| method | kernels, plain step | kernels, update | waits, plain | waits, update | GB, plain | GB, update |"
    yield "|---|---|---|---|---|---|---|"
    inputs = torch.empty(examples, tokens, 1024, device=META)
    for label in chosen:
        method = method_with_period(label, 2)
        try:
            plain, update = count_steps(method, bert_large(), inputs)
        except (NotImplementedError, RuntimeError) as error:
            yield f"| {label} | not countable: {str(error).splitlines()[0][:80]} | | | | | |"
            continue
        yield (
            f"| {label} | {plain.kernels:,} | {update.kernels:,} | {plain.waits:,} | {update.waits:,} "
            f"| {plain.bytes / 1e9:.2f} | {update.bytes / 1e9:.2f} |"
        )
        if detail:
            yield from _details("plain", plain)
            yield from _details("update", update)


def _details(step: str, counts: Counts) -> Iterator[str]:
    for name, size in counts.bytes_by_operator.most_common(8):
        yield f"    {step:6} {name:24} {counts.by_operator[name]:6,} kernels {size / 1e9:8.2f} GB"
    for name, number in counts.by_operator.items():
        if name.startswith("wait: "):
            yield f"    {step:6} {name:24} {number:6,} waits"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counting", description=(__doc__ or "").splitlines()[0])
    second_order = [method.label for method in methods() if method.is_second_order]
    parser.add_argument("--optimizers", nargs="+", metavar="LABEL", default=second_order)
    parser.add_argument("--detail", action="store_true", help="list the operators that move the most bytes, or wait")
    parser.add_argument("--page", type=Path, help="the page to write the table into, such as docs/performance.md")

    def work(options: argparse.Namespace) -> None:
        lines = []
        for line in table(options.optimizers, detail=options.detail):
            print(line, flush=True)
            lines.append(line)
        if options.page is not None:
            fill(options.page, "counts", lines)

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
