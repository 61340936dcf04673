"""What a preconditioner tells of itself: the text of ``print``, and the warnings when it is made."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields

import torch

from mkor_core.capture.discovery import Coverage
from mkor_core.capture.layer import Layer, wide_dtype
from mkor_core.capture.statistics import LayerShape
from mkor_core.method import LayerState, Method

LEFT_OUT = 0.05
"""The share of a model's matrices, embeddings aside, above which those that are left out are worth a warning."""
SHOWN = 3
"""The groups of modules that a warning names."""
LARGEST_RATIO = 10
"""Bytes of state for each byte of a weight, above which a layer is worth a warning."""
LARGE = 250_000_000
"""Bytes of state of a layer below which it never is: the head of a small model has a large ratio, too."""


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
        # Before the first step. Methods that keep rows (HyLo) start with empty tensors: then 0 bytes would mislead.
        planned = sum(_bytes(_planned(method, layer)) for layer in active)
        state = "state allocated in the first step" + (f": {_size(planned)}, less if ranks share it" if planned else "")
    names = [layer.name for layer in active]
    kinds = {name: _kind(layers[name]) for name in names}
    others = dict(left_out)
    # Layers that could be preconditioned, but are not trained: frozen, or not among the optimizer's parameters.
    others.update({name: _reason(layer) for name, layer in layers.items() if name not in kinds})
    lines = [f"Preconditioner with {_short(method)}: {len(kinds)} layers, {state}"]
    lines += ["Preconditioned, with the shape of D, which has a column for a bias:", *_lines(kinds)]
    if others:
        lines += ["Left to the base optimizer:", *_lines(others)]
    return "\n".join(lines)


def warn(method: Method, layers: Mapping[str, Layer], left_out: Mapping[str, str], coverage: Coverage) -> None:
    """Warn of what a user would not expect: a good part of the model is left out, or states dwarf their weights.

    Args:
        method: the method.
        layers: the layers that were found, by name.
        left_out: the reasons for which other modules with parameters were left out, by name.
        coverage: the numbers of parameters.
    """
    for message in (_left_out(method, left_out, coverage), oversized(method, layers)):
        if message is not None:
            warnings.warn(message, stacklevel=3)  # the line that makes the Preconditioner


def _left_out(method: Method, left_out: Mapping[str, str], coverage: Coverage) -> str | None:
    """Return which matrices are left out, with the share of each group of modules and the reason; None: few are."""
    missing = sum(coverage.matrices.values())
    # A 0 is a lazy module without parameters so far. How much it will have is unknown, so it is always worth a warning.
    if missing <= LEFT_OUT * (coverage.preconditioned + missing) and 0 not in coverage.matrices.values():
        return None
    by_reason: dict[str, list[str]] = {}
    # A Linear to which a further matrix was added is a layer, so left_out has no reason for that matrix.
    for name in sorted(coverage.matrices, key=lambda name: -coverage.matrices[name]):
        by_reason.setdefault(left_out.get(name, "it has more parameters than a layer"), []).append(name)
    sizes = {reason: sum(coverage.matrices[name] for name in names) for reason, names in by_reason.items()}
    shown = sorted(by_reason, key=lambda reason: -sizes[reason])[:SHOWN]
    # A lazy module's parameters have no size yet.
    shares = {reason: _share(size, coverage) if size else "an unknown share" for reason, size in sizes.items()}
    lines = [f"{shares[reason]}: {_listed(by_reason[reason])}: {reason}" for reason in shown]
    if others := missing - sum(sizes[reason] for reason in shown):
        lines.append(f"{_share(others, coverage)}: other modules")
    if rest := coverage.all - coverage.preconditioned - missing:
        lines.append(f"{_share(rest, coverage)}: embeddings, norms and biases")
    first = (
        f"{type(method).__name__} preconditions {_share(coverage.preconditioned, coverage)} of the {coverage.all:,} "
        "parameters that are trained. Left to the base optimizer:"
    )
    last = "If this is meant, name the modules in exclude=; print(preconditioner) lists all of them."
    return "\n  ".join([first, *lines]) + f"\n{last}"


def oversized(method: Method, layers: Mapping[str, Layer]) -> str | None:
    """Return which trained layers have a state that would dwarf their weights, and the remedy; None: none has.

    Allocates nothing.
    """
    kinds: dict[str, str] = {}
    sizes: list[int] = []
    for name, layer in layers.items():
        weight = layer.parameters[0]
        # An output layer for 50,000 tokens and d_in = 768 in float32 has 154 MB, its J_L of 50,000^2 numbers 10 GB. Not
        # weight.numel(), which counts all experts of an ExpertLinear.
        state, own = _bytes(_planned(method, layer)), layer.d_out * layer.d_w * weight.element_size()
        if weight.requires_grad and state >= LARGE and state > LARGEST_RATIO * own:
            kinds[name] = f"{_kind(layer)}, {_size(state)} of state for {_size(own)} of weight"
            sizes.append(state)
    if not kinds:
        return None
    lines, name = _lines(kinds), type(method).__name__
    more = [f"  {len(lines) - SHOWN} other kinds of layers"] if len(lines) > SHOWN else []
    # Only some methods, MKOR among them, have this remedy.
    has_window = any(field.name == "window" for field in fields(method))
    first = (
        f"{name} will allocate {_size(sum(sizes))} for layers whose state is more than {LARGEST_RATIO} times as large "
        "as their weight:"
    )
    last = f"{name}(window=...) keeps columns in place of matrices; " if has_window else ""
    last += "exclude= leaves a layer to the base optimizer."
    return "\n".join([first, *lines[:SHOWN], *more, last])


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


def _kind(layer: Layer) -> str:
    """Return what a layer is: ``Linear 4 x 5``."""
    return f"{type(layer.module).__name__} {layer.d_out} x {layer.d_in}"


def _share(number: int, coverage: Coverage) -> str:
    """Return a share of all trained parameters, ``under 1 %`` where 0 % would say that there are none."""
    percent = round(100 * number / coverage.all) if number else 0
    return f"{percent} %" if percent or not number else "under 1 %"


def _lines(texts: Mapping[str, str]) -> list[str]:
    """Return lines ``name: text``, one for all modules that differ only in numbers in their names."""
    by_text: dict[tuple[str, ...], list[str]] = {}
    for name, text in texts.items():
        # The key of blocks.0.fc1 and of blocks.11.fc1: (blocks, *, fc1, Linear 3072 x 769). Their line is
        # blocks.{0-11}.fc1: Linear 3072 x 769 (12 modules).
        by_text.setdefault((*_pattern(name), text), []).append(name)
    return [
        f"  {_joined(names)}: {key[-1]}" + (f" ({len(names)} modules)" if len(names) > 1 else "")
        for key, names in by_text.items()
    ]


def _listed(names: Sequence[str]) -> str:
    """Return the names of modules in few words."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        groups.setdefault(_pattern(name), []).append(name)
    # blocks.{0-2}.fc1 and 2 other modules: the first group by name, of the others how many modules they are.
    first, *others = groups.values()
    number = sum(map(len, others))
    return _joined(first) + (f" and {number} other module{'s' if number > 1 else ''}" if others else "")


def _pattern(name: str) -> tuple[str, ...]:
    """Return the parts of a name, which those of the same group have in common, without their numbers."""
    return tuple("*" if part.isdecimal() else part for part in name.split("."))


def _joined(names: Sequence[str]) -> str:
    """Return one name for a group: ``blocks.{0-2,4}.norm``."""
    # Names of a group have equally many parts. That of the root module is empty.
    parts = zip(*(name.split(".") for name in names), strict=True)
    return ".".join(map(_numbers, parts)) or "the model itself"


def _numbers(parts: Iterable[str]) -> str:
    """Return one part of the names of a group: the word or number that they share, or their numbers: ``{0-2,4}``."""
    different = list(dict.fromkeys(parts))
    if len(different) == 1:
        return different[0]
    runs: list[list[int]] = []
    # Different parts are numbers, by the group's pattern: 2, 0, 4, 1 become the runs 0-2 and 4.
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
