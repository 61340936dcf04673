"""Kernels, host waits and bytes of a step, counted on PyTorch's ``meta`` device: no GPU, no memory, no time.

``python -m benchmarks.counting`` prints them for the layers of BERT-Large (146, with biases), by method: what the hooks
add to a forward and backward pass, and the preconditioner's step. A GPU launches about one kernel for each operator
that computes something; every launch costs some 5 us on the host, so thousands of them outweigh the arithmetic.

What is counted is the operators that reach the dispatcher below autograd:

- A *kernel* is an operator that computes. Views, allocations and questions about metadata launch none. A ``_foreach_``
  operator counts as one, and `Counts.foreach_tensors` says over how many tensors such operators went in all.
- A *wait* is an operator after which the host has to wait for the device: reading a number (``item``), a result whose
  size depends on values (``nonzero``, a boolean index), errors of a decomposition that are looked up, and copies
  between host and device that are not asynchronous, such as that of a Python number into a tensor. Such copies count
  as no kernels.
- *Bytes* are those of the tensors that kernels read and write, each once for each kernel.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from baselines import method_class
from benchmarks.methods import RATE, methods
from benchmarks.models import Encoder
from benchmarks.page import fill
from mkor_core import Method, Preconditioner
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ConfigError

META: Final = torch.device("meta")
NO_KERNEL: Final = frozenset(
    {
        # allocations
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "set_",
        # views whose schemas name no alias, and metadata
        "_unsafe_view",
        "is_same_size",
        "lift",
        "lift_fresh",
        # a number that is read, and a status that is checked, on the host
        "_linalg_check_errors",
        "_local_scalar_dense",
    }
)
"""Operators that launch no kernel, besides views."""
UPLOADS: Final = (torch.tensor, torch.as_tensor, Tensor.new_tensor)
"""Functions that copy a host's numbers to a device, which on a GPU waits; the meta device gets no copy to count."""
WAITS: Final = frozenset(
    {
        "_linalg_check_errors",
        "_linalg_eigh",
        "_linalg_eigvals",
        "_linalg_svd",
        "_local_scalar_dense",
        "_unique2",
        "bincount",
        "equal",
        "is_nonzero",
        "linalg_eig",
        "masked_select",
        "nonzero",
        "unique_consecutive",
        "unique_dim",
    }
)
"""Operators after which the host waits; decompositions check their status on the host themselves."""
INDEXING: Final = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})
"""Operators that call ``nonzero`` if one of the indices is boolean."""
OVERWRITES: Final = frozenset({"copy_", "fill_", "zero_", "_foreach_copy_", "_foreach_zero_"})
"""Operators that change a tensor in place without reading it."""
GATHERS: Final = frozenset({"embedding", "gather", "index", "index_select"})
"""Operators that read as many entries of their first tensor as they return."""


@dataclass
class Counts:
    """What some code launches, waits for, reads and writes."""

    kernels: int = 0
    waits: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    foreach_tensors: int = 0
    """Tensors that ``_foreach_`` operators changed or returned, all together."""
    by_operator: Counter[str] = field(default_factory=Counter)
    """Kernels by operator, and waits by ``wait: `` and operator."""
    bytes_by_operator: Counter[str] = field(default_factory=Counter)
    """Bytes that each operator's kernels read and write."""

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    def minus(self, other: Counts) -> Counts:
        """Return what this adds to ``other``, which does part of the same work."""
        return Counts(
            self.kernels - other.kernels,
            self.waits - other.waits,
            self.bytes_read - other.bytes_read,
            self.bytes_written - other.bytes_written,
            self.foreach_tensors - other.foreach_tensors,
            _difference(self.by_operator, other.by_operator),
            _difference(self.bytes_by_operator, other.bytes_by_operator),
        )

    def plus(self, other: Counts) -> Counts:
        """Return the counts of both."""
        return self.minus(Counts().minus(other))


def _difference(one: Counter[str], other: Counter[str]) -> Counter[str]:
    """Return how much more of each operator there is, also if that is less than nothing."""
    names = one.keys() | other.keys()
    return Counter({name: one[name] - other[name] for name in names if one[name] != other[name]})


class Counting(TorchDispatchMode):
    """Counts the operators on tensors of a device within ``with Counting() as counts:``.

    Where code waits for values, which the meta device does not have, it gets a number 1 or a copy of zeros.
    """

    def __init__(self, device: torch.device = META) -> None:
        super().__init__()
        self.counts = Counts()
        self._device = device.type
        self._uploads = _Uploads(self.counts, device.type)

    @override
    def __enter__(self) -> Counts:
        super().__enter__()
        self._uploads.__enter__()
        return self.counts

    @override
    def __exit__(self, *raised: Any) -> None:
        self._uploads.__exit__(*raised)
        super().__exit__(*raised)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        inputs = _tensors((args, kwargs))
        places = {tensor.device.type for tensor in inputs}
        if name == "_to_copy" and kwargs.get("device") is not None:
            places.add(torch.device(kwargs["device"]).type)
        is_transfer = name in ("copy_", "_to_copy") and len(places) > 1
        waits = self._waits(name, args, kwargs, is_transfer=is_transfer) and self._device in places
        if waits:
            self.counts.waits += 1
            self.counts.by_operator[f"wait: {name}"] += 1
        result = _run(function, name, args, kwargs)
        outputs = _tensors(result)
        places |= {tensor.device.type for tensor in outputs}
        if self._device in places and not (function.is_view or name in NO_KERNEL or is_transfer):
            self.counts.by_operator[name] += 1
            self._count(function, name, args, kwargs, outputs)
        return result

    def _waits(self, name: str, args: Any, kwargs: Mapping[str, Any], *, is_transfer: bool) -> bool:
        if is_transfer:
            return not kwargs.get("non_blocking", name == "copy_" and len(args) > 2 and args[2])
        if name in INDEXING:
            return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in _tensors(args[1]))
        if name == "repeat_interleave":
            return kwargs.get("output_size") is None
        return name in WAITS

    def _count(self, function: Any, name: str, args: Any, kwargs: Mapping[str, Any], outputs: Sequence[Tensor]) -> None:
        read: list[Tensor] = []
        changed: set[int] = set()
        for position, argument in enumerate(function._schema.arguments):
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            tensors = _tensors(value)
            writes = argument.alias_info is not None and argument.alias_info.is_write
            if writes:
                changed |= {id(tensor) for tensor in tensors}
            if not (writes and (argument.is_out or name in OVERWRITES)):
                read += tensors
        written = [tensor for tensor in outputs if id(tensor) not in changed]
        in_place = {id(tensor): tensor for tensor in _tensors((args, kwargs)) if id(tensor) in changed}
        written += in_place.values()
        if name in GATHERS and read:
            read = [*outputs, *read[1:]]
        self.counts.kernels += 1
        bytes_read, bytes_written = sum(map(_bytes, read)), sum(map(_bytes, written))
        self.counts.bytes_read += bytes_read
        self.counts.bytes_written += bytes_written
        self.counts.bytes_by_operator[name] += bytes_read + bytes_written
        if name.startswith("_foreach_"):
            self.counts.foreach_tensors += len(written)


class _Uploads(TorchFunctionMode):
    """Counts the calls that make a tensor on a device from numbers of the host, as waits."""

    def __init__(self, counts: Counts, device: str) -> None:
        super().__init__()
        self._counts = counts
        self._device = device

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function in UPLOADS and result.device.type == self._device:
            data = kwargs["data"] if "data" in kwargs else args[-1]
            if isinstance(data, Tensor) and data.device == result.device:
                return result
            self._counts.waits += 1
            self._counts.by_operator[f"wait: {function.__name__}"] += 1
        return result


def _run(function: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Call an operator; where it asks a meta tensor for values, answer with ones and zeros."""
    if name == "_local_scalar_dense" and args[0].is_meta:
        return torch.ones((), dtype=args[0].dtype).item()
    if name == "copy_" and args[1].is_meta and not args[0].is_meta:
        return args[0].zero_()
    if name == "_to_copy" and args[0].is_meta and torch.device(kwargs.get("device") or META).type != "meta":
        return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
    return function(*args, **kwargs)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's entries; those of an expanded dimension are the same in memory."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * math.prod(size for size, stride in sizes if stride != 0 or size == 0)


def bert_large(device: torch.device = META) -> Encoder:
    """Return the 146 layers of BERT-Large that are preconditioned."""
    with device:
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
