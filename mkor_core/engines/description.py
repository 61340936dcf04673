"""The text that ``print(preconditioner)`` shows: layers, modules that are left out and why, and bytes of state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields

import torch

from mkor_core.capture.layer import Layer, wide_dtype
from mkor_core.capture.statistics import LayerShape
from mkor_core.method import LayerState, Method


def describe(
    method: Method,
    layers: Mapping[str, Layer],
    active: Collection[Layer],
    left_out: Mapping[str, str],
    states: Mapping[str, LayerState] | None,
) -> str:
    """Return the description of a preconditioner; allocates no state.

    Args:
        method: the method.
        layers: the layers that were found, by name.
        active: those that are trained, by the attached optimizer if there is one.
        left_out: the reasons for which other modules with parameters were left out, by name.
        states: the states on this rank by layer, empty before the first step; None once they are freed.
    """
    if states is None:
        state = "state freed, because it was removed or has switched to the base optimizer"
    elif states:
        state = f"{_size(sum(map(_bytes, states.values())))} of state on this rank"
    else:
        planned = sum(_bytes(_planned(method, layer)) for layer in active)
        state = "state allocated in the first step" + (f": {_size(planned)}, less if ranks share it" if planned else "")
    names = [layer.name for layer in active]
    kinds = {name: f"{type(layers[name].module).__name__} {layers[name].d_out} x {layers[name].d_in}" for name in names}
    others = dict(left_out)
    others.update({name: _reason(layer) for name, layer in layers.items() if name not in kinds})
    lines = [f"Preconditioner with {_short(method)}: {len(kinds)} layers, {state}"]
    lines += ["Preconditioned, with the shape of D, which has a column for a bias:", *_listed(kinds)]
    if others:
        lines += ["Left to the base optimizer:", *_listed(others)]
    return "\n".join(lines)


def _short(method: Method) -> str:
    """Return the call that makes the method, with the values that differ from the defaults."""
    given = [field.name for field in fields(method) if getattr(method, field.name) != field.default]
    return f"{type(method).__name__}({', '.join(f'{name}={getattr(method, name)!r}' for name in given)})"


def _planned(method: Method, layer: Layer) -> LayerState:
    """Return the state that a layer starts with, on the meta device."""
    dtype = wide_dtype(layer.parameters[0].dtype)
    return method.initial_state(LayerShape(layer.d_out, layer.d_in), dtype, torch.device("meta"))


def _bytes(state: LayerState) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def _reason(layer: Layer) -> str:
    """Return why a layer that was found is not preconditioned."""
    if layer.weight is None:
        return "its weight or bias has become complex or a function of others"
    if not layer.weight.requires_grad:
        return "its weight is frozen"
    return "the attached optimizer does not have its weight"


def _listed(texts: Mapping[str, str]) -> list[str]:
    """Return lines ``name: text``, one for all modules that differ only in numbers in their names."""
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for name, text in texts.items():
        parts = name.split(".")
        groups.setdefault((*("*" if part.isdecimal() else part for part in parts), text), []).append(parts)
    return [
        f"  {'.'.join(map(_numbers, zip(*names, strict=True))) or 'the model itself'}: {key[-1]}"
        + (f" ({len(names)} modules)" if len(names) > 1 else "")
        for key, names in groups.items()
    ]


def _numbers(parts: Iterable[str]) -> str:
    """Return one part of the names of a group: the word or number that they share, or their numbers: ``{0-2,4}``."""
    different = list(dict.fromkeys(parts))
    if len(different) == 1:
        return different[0]
    runs: list[list[int]] = []
    for number in sorted(map(int, different)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "{" + ",".join(_run(run) for run in runs) + "}"


def _run(run: Sequence[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


def _size(number: int) -> str:
    """Return a number of bytes with a unit."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
