"""Kernels, host waits and bytes of code, counted as it runs; on PyTorch's ``meta`` device without a GPU or memory.

What is counted is the operators that reach the dispatcher below autograd:

- A *kernel* is an operator that computes. Views, allocations and questions about metadata launch none. A ``_foreach_``
  operator counts as one, and `Counts.foreach_tensors` says over how many tensors such operators went in all.
- A *wait* is an operator after which the host has to wait for the device: reading a number (``item``), a result whose
  size depends on values (``nonzero``, a boolean index), errors of a decomposition that are looked up, and copies
  between host and device that are not asynchronous, such as that of a Python number into a tensor. Such copies count
  as no kernels.
- *Bytes* are those of the tensors that kernels read and write, each once for each kernel.
- *Operations* are floating-point ones: those of matrix products and convolutions by PyTorch's formulas, those of
  decompositions by Golub and Van Loan's, and one for each entry that any other kernel writes.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from typing_extensions import override

from workflow.bench.probes._costs import EIGEN_OPERATIONS

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


def _batched(formula: Callable[[int, int], float]) -> Callable[[Sequence[int], Sequence[int]], float]:
    """Return the operations of a batch of matrices; formula: of one, from its larger and its smaller side."""
    return lambda shape, _: math.prod(shape[:-2]) * formula(max(shape[-2:]), min(shape[-2:]))


DECOMPOSITIONS: Final[Mapping[str, Callable[[Sequence[int], Sequence[int]], float]]] = {
    "_linalg_eigh": _batched(lambda d, _: EIGEN_OPERATIONS * d**3),
    "_linalg_svd": _batched(lambda m, n: 14 * m * n**2 + 8 * n**3),
    "linalg_qr": _batched(lambda m, n: 4 * m * n**2 - 4 * n**3 / 3),
    "linalg_inv_ex": lambda shape, _: 2.0 * math.prod(shape) * shape[-1],
    "linalg_cholesky_ex": lambda shape, _: math.prod(shape) * shape[-1] / 3,
    "cholesky_inverse": lambda shape, _: 2 * math.prod(shape) * shape[-1] / 3,
    "linalg_solve_triangular": lambda shape, right: float(math.prod(shape) * right[-1]),
    "_linalg_solve_ex": lambda shape, right: (
        math.prod(shape[:-2]) * (2 * shape[-1] ** 3 / 3 + 2 * shape[-1] ** 2 * right[-1])
    ),
}
"""Operations by operator, from the shapes of its first two tensors (Golub and Van Loan, Matrix Computations)."""


@dataclass
class Counts:
    """What some code launches, waits for, reads and writes."""

    kernels: int = 0
    waits: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    foreach_tensors: int = 0
    """Tensors that ``_foreach_`` operators changed or returned, all together."""
    operations: float = 0
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
        found: dict[str, Any] = {}
        for name, one in vars(self).items():
            taken = getattr(other, name)
            if isinstance(one, Counter):
                # Counter's own operators would drop what is less than nothing.
                rest = {key: one[key] - taken[key] for key in {**one, **taken}}
                found[name] = Counter({key: number for key, number in rest.items() if number})
            else:
                found[name] = one - taken
        return Counts(**found)


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
        # Waits are counted before the call: on meta tensors, those whose result depends on values raise an error.
        result = _run(function, name, args, kwargs)
        outputs = _tensors(result)
        places |= {tensor.device.type for tensor in outputs}
        if self._device in places and not (function.is_view or name in NO_KERNEL or is_transfer):
            self.counts.by_operator[name] += 1
            self._count(function, name, args, kwargs, outputs)
            self.counts.operations += _operations(function, name, args, kwargs, result)
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
        changed: dict[int, Tensor] = {}
        for position, argument in enumerate(function._schema.arguments):
            tensors = _tensors(args[position] if position < len(args) else kwargs.get(argument.name))
            writes = argument.alias_info is not None and argument.alias_info.is_write
            if name.startswith("_fused_") and argument.name == "grads":
                # Their schemas allow for a gradient scaler, for which they store what they unscale.
                writes = kwargs.get("grad_scale") is not None
            if writes:
                changed |= {id(tensor): tensor for tensor in tensors}
            if not (writes and (argument.is_out or name in OVERWRITES)):
                read += tensors
        written = [*(tensor for tensor in outputs if id(tensor) not in changed), *changed.values()]
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
    if name == "_fused_sgd_" and args[0][0].is_meta:
        return None  # torch has no kernel of it for meta tensors; it changes its arguments only
    return function(*args, **kwargs)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's entries; those of an expanded dimension are the same in memory."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * math.prod(size for size, stride in sizes if stride != 0 or size == 0)


def _operations(function: Any, name: str, args: Any, kwargs: Mapping[str, Any], result: Any) -> float:
    if (formula := flop_registry.get(function.overloadpacket)) is not None:
        return float(formula(*args, **kwargs, out_val=result))
    if (decomposed := DECOMPOSITIONS.get(name)) is not None:
        shapes = [tensor.shape for tensor in _tensors(args)]
        return decomposed(shapes[0], shapes[min(1, len(shapes) - 1)])
    return float(sum(tensor.numel() for tensor in _tensors(result)))


class LiveBytes(TorchDispatchMode):
    """Counts the memory that operators inside its ``with`` block allocate, until it is freed; views have none."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        """Bytes that live now."""
        self.peak = 0
        """The most that lived at any time."""
        self._storages: set[int] = set()

    @override
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if type(leaf) is Tensor}
        outputs = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(outputs):
            # A sharded tensor is none: its local part passes here by itself.
            if type(leaf) is Tensor:
                storage = leaf.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key not in given | self._storages:
                    self._storages.add(key)
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._free, key, size)
        return outputs

    def _free(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.now -= size
