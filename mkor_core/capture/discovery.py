"""Selection of the layers of a model that can be preconditioned, and refusal of models without layers' matrices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple, cast

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from mkor_core.capture.blocks import is_dtensor
from mkor_core.capture.layer import Convolution, Layer, Supported, is_transposed, kind_of, layers_of, modules_of
from mkor_core.experts import ExpertLinear

Pattern = str | re.Pattern[str] | nn.Module
Exclude = Pattern | Iterable[Pattern]

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
"""Tables in which rows are looked up: no matrix is multiplied, so that nobody expects them to be preconditioned."""

EXCLUDED = "excluded"
"""The reason for which a module is left out by the caller's wish."""


class Selection(NamedTuple):
    """The modules of a model that have parameters of their own, by name, in the model's order."""

    layers: dict[str, Layer]
    """Those to precondition."""
    left_out: dict[str, str]
    """The others, each with the reason."""
    roster: Roster
    """All modules, to find out later which have come and gone."""
    coverage: Coverage


class Coverage(NamedTuple):
    """The entries of a model's trainable parameters, without those of excluded modules alone."""

    all: int
    preconditioned: int
    matrices: dict[str, int]
    """Those of matrices that are left out and are no embeddings, by the module's name in `Selection.left_out`; 0 for a
    module whose parameters do not exist yet."""


class Changes(NamedTuple):
    """The layers by which a model differs from what it was."""

    new: list[str]
    """Names of layers that could be preconditioned, and are trained and not excluded."""
    gone: list[str]
    """Names of preconditioned layers that are no longer in the model."""


class Roster:
    """The modules of a model when its layers were selected.

    Args:
        model: the model.
        patterns: those of ``exclude``.
        layers: the layers that are preconditioned.
    """

    def __init__(self, model: nn.Module, patterns: Sequence[Pattern], layers: Mapping[str, Layer]) -> None:
        self._model = model
        self._patterns = patterns
        self._layers = dict(layers)
        # The modules themselves: the id of one that is gone may be given to another.
        self._modules = modules_of(model)

    def changes(self) -> Changes | None:
        """Return how the layers differ from those at the last call; None, which is found out fast, if they do not."""
        modules = modules_of(self._model)
        if modules == self._modules:  # modules compare by identity
            return None
        known, self._modules = {*self._modules}, modules
        present = {*modules}
        gone = [name for name, layer in self._layers.items() if layer.module not in present]
        self._layers = {name: layer for name, layer in self._layers.items() if name not in gone}
        named = {_unwrapped_name(self._model, name): module for name, module in self._model.named_modules()}
        excluded = _excluded_modules(named, self._patterns)
        users = _users_of_parameters(named)
        new = [
            name
            for name, module in named.items()
            if module not in known
            and module not in excluded
            and _has_parameters(module)
            and (unsupported_reason(module) or _unsuitable_parameters(name, module, users)) is None
            and cast("Supported", module).weight.requires_grad
        ]
        return Changes(new, gone) if new or gone else None


def find_layers(model: nn.Module, exclude: Exclude) -> dict[str, Layer]:
    """Return the layers of `select_layers` that have a whole weight each, and so are no experts.

    For optimizers that treat the parameters of layers in their own way.

    Raises:
        ValueError: as `select_layers`, or there are experts only.
    """
    found = select_layers(model, exclude).layers
    layers = {name: layer for name, layer in found.items() if not isinstance(layer.module, ExpertLinear)}
    if not layers:
        raise ValueError("The model has no layer with a weight of its own, but only experts, which share one.")
    return layers


def select_layers(model: nn.Module, exclude: Exclude) -> Selection:
    """Return the layers to precondition and what is left out.

    Raises:
        ValueError: ``exclude`` has a pattern that matches no module or a module of another model, or no layer is left.
    """
    modules = {_unwrapped_name(model, name): module for name, module in model.named_modules()}
    patterns = [exclude] if isinstance(exclude, str | re.Pattern | nn.Module) else list(exclude)
    _refuse_strangers(modules, patterns)
    excluded = _excluded_modules(modules, patterns)
    users = _users_of_parameters(modules)
    layers: dict[str, Layer] = {}
    left_out: dict[str, str] = {}
    for name, module in modules.items():
        if not _has_parameters(module):
            continue
        if module in excluded:
            left_out[name] = EXCLUDED
            continue
        reason = unsupported_reason(module) or _unsuitable_parameters(name, module, users)
        if reason is None:
            layers |= layers_of(name, cast("Supported", module))
        else:
            left_out[name] = reason
    if not layers:
        unfit = [f"{name or 'the model itself'} ({why})" for name, why in left_out.items() if why != EXCLUDED]
        reasons = f": {'; '.join(unfit)}" if unfit else ""
        raise ValueError(f"The model has no Linear or convolution to precondition, or all are excluded{reasons}.")
    return Selection(layers, left_out, Roster(model, patterns, layers), _coverage(modules, layers, left_out))


def unsupported_reason(module: nn.Module) -> str | None:
    """Return why a module with parameters cannot be preconditioned, whatever they are; None if it can."""
    name, kind = type(module).__name__, kind_of(module)
    if kind is None:
        return _why_no_layer(module)
    # Each group multiplies its own channels by its own matrix, so that no single D = G^T X describes the layer.
    if isinstance(module, Convolution) and module.groups > 1:
        return f"{name} with groups={module.groups} > 1"
    # Of a subclass, the forward may be another. A method's __func__ is the function of its class; a function that was
    # set on the module has none.
    functions = ("forward", "_conv_forward") if isinstance(module, Convolution) else ("forward",)
    is_known = all(getattr(getattr(module, key), "__func__", None) is getattr(kind, key) for key in functions)
    weight = module._parameters.get("weight")
    # Conv1D keeps d_out as nf, and its weight is [d_in, nf]. With any other shape, D would be read the wrong way round.
    if is_transposed(kind) and weight is not None:
        is_known = is_known and weight.shape[1:] == (getattr(module, "nf", None),)
    return None if is_known else f"{name} computes its output in a forward of its own"


def _why_no_layer(module: nn.Module) -> str:
    """Return why a module is left out that is of no kind that is preconditioned."""
    name = type(module).__name__
    if isinstance(module, nn.MultiheadAttention):
        return (
            f"{name} multiplies by its packed weights itself, without calling a layer; an attention with a Linear for "
            "each of q, k and v is preconditioned"
        )
    own = {
        key: [*value.shape] for key, value in module._parameters.items() if value is not None and not _is_small(value)
    }
    if own and not isinstance(module, EMBEDDINGS) and not type(module).__module__.startswith("torch.nn."):
        key, shape = max(own.items(), key=lambda item: prod(item[1]))
        # Three dimensions are most likely [experts, out, in].
        advice = "; for experts there is mkor_core.ExpertLinear" if len(shape) == 3 and shape[0] > 1 else ""
        return f"{name} uses its {key} {shape} itself, without calling a layer{advice}"
    return f"{name} is no Linear, Conv1d, Conv2d or Conv3d"


def _is_small(parameter: nn.Parameter) -> bool:
    """Return whether a parameter is no matrix: empty, a vector of any number of dimensions, or not initialized."""
    # A class token [1, 1, 768] has no more entries than its longest side, so it is a vector; a scalar has no sides. An
    # uninitialized parameter is asked first, because its shape and numel() raise errors.
    return isinstance(parameter, UninitializedParameter) or parameter.numel() <= max(parameter.shape, default=1)


def _coverage(modules: Mapping[str, nn.Module], layers: Mapping[str, Layer], left_out: Mapping[str, str]) -> Coverage:
    """Count the parameters of a model's modules, each once if several share it."""
    holders: dict[nn.Parameter, list[str]] = {}
    for name, module in modules.items():
        for parameter in module.parameters(recurse=False):
            # What a parametrized weight is computed from belongs to a module inside that of the weight.
            # "fc.parametrizations.weight" counts as "fc".
            holders.setdefault(parameter, []).append(name.partition("parametrizations")[0].removesuffix("."))
    covered = {id(parameter) for layer in layers.values() for parameter in layer.parameters}
    everything, preconditioned = 0, 0
    matrices: dict[str, int] = {}
    for parameter, names in holders.items():
        chosen = [name for name in names if left_out.get(name) != EXCLUDED]
        # A shared parameter is left out of the count only if every module that holds it is excluded.
        if not parameter.requires_grad or not chosen:
            continue
        if isinstance(parameter, UninitializedParameter):
            matrices.setdefault(chosen[0], 0)
            continue
        everything += parameter.numel()
        if id(parameter) in covered:
            preconditioned += parameter.numel()
        elif not _is_small(parameter) and not any(isinstance(modules[name], EMBEDDINGS) for name in names):
            matrices[chosen[0]] = matrices.get(chosen[0], 0) + parameter.numel()
    return Coverage(everything, preconditioned, matrices)


def _has_parameters(module: nn.Module) -> bool:
    """Return whether a module has parameters of its own, or had before they were parametrized."""
    if isinstance(module, ParametrizationList):  # holds the parameters of the module that is named instead
        return False
    # torch.nn.utils.parametrize moves the weight out of _parameters, into a ParametrizationList inside the module.
    return is_parametrized(module) or any(parameter is not None for parameter in module._parameters.values())


def _users_of_parameters(modules: Mapping[str, nn.Module]) -> dict[int, list[str]]:
    """Return the names of the modules that hold each parameter, by the parameter's id."""
    users: dict[int, list[str]] = {}
    for name, module in modules.items():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), []).append(name)
    return users


def _unsuitable_parameters(name: str, module: nn.Module, users: Mapping[int, Sequence[str]]) -> str | None:
    """Return why a layer cannot be preconditioned because of its weight or bias; None if it can."""
    for key in ("weight", "bias"):
        # Not getattr, which would compute a parametrized weight.
        if key not in module._parameters:
            sources = [own for own in module._parameters if own.startswith(f"{key}_")]  # weight_norm, prune
            return f"its {key} is computed from {' and '.join(sources) or 'other parameters'}"
        parameter = module._parameters[key]
        if parameter is None:  # no bias
            continue
        if isinstance(parameter, UninitializedParameter):
            return "it is uninitialized: run a forward pass first"
        # `layers_of` makes a ShardedLayer of every sharded weight, and that one knows nothing of weights that are
        # transposed (Conv1D of transformers) or that several experts share.
        if is_dtensor(parameter) and (isinstance(module, ExpertLinear) or not isinstance(module, Supported)):
            return f"its {key} is sharded, which {type(module).__name__} does not support"
        if not parameter.is_floating_point():
            return f"its {key} is {parameter.dtype}, not real floating-point"
        if parameter.numel() == 0:
            return f"its {key} is empty"
        if sharing := [user for user in users[id(parameter)] if user != name]:
            return f"its {key} is shared with {', '.join(sharing)}"
    # The class of an attention's out_proj. Its forward is never called, so a hook on it would never run.
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return "MultiheadAttention multiplies by its weight itself, without calling it"
    return None


def _refuse_strangers(modules: Mapping[str, nn.Module], patterns: Sequence[Pattern]) -> None:
    """Raise a ValueError for a pattern that matches no module."""
    for pattern in patterns:
        if not _matches(modules, pattern):
            shown = type(pattern).__name__ if isinstance(pattern, nn.Module) else repr(pattern)
            raise ValueError(f"exclude={shown} matches no module of the model.")


def _excluded_modules(modules: Mapping[str, nn.Module], patterns: Sequence[Pattern]) -> set[nn.Module]:
    """Return the modules that patterns match, with all inside: exclude=model.head leaves out model.head.proj, too."""
    matches = [module for pattern in patterns for module in _matches(modules, pattern)]
    return {inner for module in matches for inner in module.modules()}


def _matches(modules: Mapping[str, nn.Module], pattern: Pattern) -> list[nn.Module]:
    """Return the modules that a pattern of ``exclude`` names."""
    if isinstance(pattern, nn.Module):
        return [module for module in modules.values() if module is pattern]
    return [module for name, module in modules.items() if name and re.search(pattern, name)]


def refuse_sharded(model: nn.Module) -> None:
    """Raise an error for a model whose parameters are sharded in a way that hides the layers' matrices.

    Raises:
        TypeError: the first version of FSDP, or DeepSpeed ZeRO-3, by name.
    """
    advice = "use torch.distributed.fsdp.fully_shard or DistributedDataParallel"
    # Recognized by name: importing the classes would cost time, and DeepSpeed need not be installed.
    for module in model.modules():
        if "FullyShardedDataParallel" in type(module).__name__:
            raise TypeError(f"FullyShardedDataParallel flattens the parameters, so that layers have none; {advice}.")
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id"):
            raise TypeError(f"DeepSpeed ZeRO-3 shards parameter {name!r} without telling how; {advice}.")


def _unwrapped_name(model: nn.Module, name: str) -> str:
    """Return a module's name without the prefix of a data-parallel wrapper."""
    if not isinstance(model, DistributedDataParallel | DataParallel):
        return name
    # The wrapper itself ("") and the model in it ("module") both become "". In a dict by name, filled in the order of
    # named_modules(), the model takes the wrapper's place.
    return "" if name == "module" else name.removeprefix("module.")
