"""Which layers of a model can be preconditioned, and which models cannot be at all."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import cast

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter

from mkor_core.capture import Layer, Supported, unsupported_reason

logger = logging.getLogger(__name__)


def find_layers(model: nn.Module, exclude: str | nn.Module | Iterable[str | nn.Module]) -> dict[str, Layer]:
    """Return the layers to precondition by name; log once which modules with a weight are left out, and why.

    Raises:
        ValueError: a pattern that matches no module, or no layer at all.
    """
    patterns = [exclude] if isinstance(exclude, str | nn.Module) else list(exclude)
    excluded = _excluded_modules(model, patterns)
    owners: dict[int, list[str]] = {}
    modules = [(strip_prefix(name) if _is_parallel(model) else name, module) for name, module in model.named_modules()]
    for name, module in modules:
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(name)
    layers: dict[str, Layer] = {}
    left_out: list[str] = []
    for name, module in modules:
        weight = module._parameters.get("weight")
        if weight is None or module in excluded:
            continue
        reason = unsupported_reason(module)
        if reason is None and isinstance(weight, UninitializedParameter):
            reason = "it is uninitialised: run a forward pass first"
        elif reason is None and len(owners[id(weight)]) > 1:
            others = ", ".join(owner for owner in owners[id(weight)] if owner != name)
            reason = f"its weight is shared with {others}"
        if reason is None:
            layers[name] = Layer(name, cast("Supported", module))
        else:
            left_out.append(f"{name} ({reason})")
    if left_out:
        logger.info("Left to the base optimizer: %s.", "; ".join(left_out))
    if not layers:
        raise ValueError("The model has no Linear or Conv2d layer to precondition that is not excluded.")
    return layers


def _excluded_modules(model: nn.Module, patterns: Sequence[str | nn.Module]) -> set[nn.Module]:
    excluded: set[nn.Module] = set()
    for pattern in patterns:
        if isinstance(pattern, nn.Module):
            found = [pattern]
        else:
            found = [module for name, module in model.named_modules() if name and re.search(pattern, name)]
        if not found:
            raise ValueError(f"exclude={pattern!r} matches no module of the model.")
        excluded.update(inner for module in found for inner in module.modules())
    return excluded


def refuse_sharded(model: nn.Module) -> None:
    """Raise TypeError for a model whose parameters are sharded (FSDP, DTensor, DeepSpeed ZeRO-3), by name."""
    advice = "second-order methods need whole parameters on every rank: use DistributedDataParallel"
    for module in model.modules():
        if "FullyShardedDataParallel" in type(module).__name__:
            raise TypeError(f"FSDP shards the parameters; {advice}.")
    for name, parameter in model.named_parameters():
        if type(parameter.data).__name__ == "DTensor" or type(parameter).__name__ == "DTensor":
            raise TypeError(f"Parameter {name!r} is a DTensor; {advice}.")
        if hasattr(parameter, "ds_id"):
            raise TypeError(f"DeepSpeed ZeRO-3 shards parameter {name!r}; {advice}.")


def _is_parallel(model: nn.Module) -> bool:
    return isinstance(model, DistributedDataParallel | DataParallel)


def strip_prefix(name: str) -> str:
    """Return a module's name without what a data-parallel wrapper puts before it."""
    return name.removeprefix("module.")
