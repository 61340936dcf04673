"""The layers' state tensors on one rank: created, changed, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

import torch
from torch import Tensor

from mkor_core.capture.layer import Layer, wide_dtype
from mkor_core.method import LayerShape, LayerState, Method
from mkor_core.ranks.kaisa import Sharing


class LayerStates:
    """The states of a model's preconditioned layers, as far as this rank holds them.

    Args:
        layers: the layers by name.
        method: creates their states.
        sharing: the assignment of layers to ranks; None on one process.
        failed: called with the name of a layer of which a decomposition has failed.
    """

    def __init__(
        self, layers: Mapping[str, Layer], method: Method, sharing: Sharing | None, failed: Callable[[str], None]
    ) -> None:
        self._layers = layers
        self._method = method
        self._sharing = sharing
        self._failed = failed
        self._states: dict[str, LayerState] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        """The dtypes of the layers' weights at the last use of their states."""
        self._whole: dict[str, LayerState] | None = None

    def __getitem__(self, name: str) -> LayerState:
        """Return a layer's state, on the device of its weight and in the precision that suits the weight's."""
        # Created at the first use, and moved when the weight has moved, so that a model may go to its device after the
        # preconditioner was constructed.
        if name not in self._states:
            self._states[name] = self._local_part(name, self._initial(name))
        state, weight = self._states[name], self._layers[name].parameters[0]
        if self._dtypes.setdefault(name, weight.dtype) != weight.dtype:
            initial = self._initial(name)
            state.update({key: tensor.to(initial[key].dtype) for key, tensor in state.items()})
            self._dtypes[name] = weight.dtype
        for key, tensor in state.items():
            if tensor.device != weight.device:
                state[key] = tensor.to(weight.device)
        return state

    def change(self, name: str, accept: Tensor | None, change: Callable[[LayerState], None]) -> bool:
        """Change a layer's state in place; undo it where ``accept``, a boolean device scalar, is false.

        The host does not wait for ``accept``: the choice is made on the device. If a decomposition fails, nothing
        changes.

        Returns:
            Whether no decomposition failed.
        """
        state = self[name]
        before = dict(state)
        try:
            change(state)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            state.update(before)
            self._failed(name)
            return False
        if accept is None:
            return True
        for key, tensor in before.items():
            if state[key].shape != tensor.shape:
                # HyLo's kept rows differ in number. No device-side choice is possible, so the host must wait.
                state[key] = state[key] if accept.is_meta or accept else tensor
            elif state[key] is not tensor:
                state[key] = torch.where(accept, state[key], tensor)
        return True

    def bytes_by_tensor(self, names: Iterable[str]) -> dict[str, int]:
        """Return the bytes of some layers' states by tensor name (``left``, ``right``, ...)."""
        sizes: dict[str, int] = {}
        for name in names:
            for key, tensor in self[name].items():
                sizes[key] = sizes.get(key, 0) + tensor.numel() * tensor.element_size()
        return sizes

    def non_finite(self) -> list[str]:
        """Return the layers whose state holds a NaN or an infinity; waits for the device."""
        finite = [
            (name, torch.stack([tensor.isfinite().all() for tensor in state.values()]).all())
            for name, state in self._states.items()
        ]
        return [name for name, is_finite in finite if not is_finite]

    def consolidate(self, rank: int | None) -> None:
        """Gather every rank's part in host memory, for the next `saved`; a collective call.

        Does nothing if every rank holds all.

        rank: the rank that keeps them; None: all do.
        """
        if self._sharing is not None and not self._sharing.is_whole:
            self._whole = self._sharing.gather(self._states, self._initial, rank)

    def forget_consolidated(self) -> None:
        """Drop what `consolidate` gathered: the states are about to change."""
        self._whole = None

    def saved(self) -> dict[str, LayerState]:
        """Return the states by layer, consolidated ones if `consolidate` was called in this step; not copied."""
        return {name: dict(state) for name, state in (self._whole or self._states).items()}

    def load(self, saved: Mapping[str, LayerState]) -> None:
        """Replace the states with copies of saved ones, of which this rank takes its part.

        Raises:
            ValueError: a layer that the model lacks, or a tensor that is missing, unknown or of another shape.
        """
        renamed = {local_name(self._layers, name): state for name, state in saved.items()}
        self._states = {name: self._loaded(name, state) for name, state in renamed.items()}
        self._dtypes = {name: self._layers[name].parameters[0].dtype for name in renamed}
        self._whole = None

    def clear(self) -> None:
        """Forget all states."""
        self._states = {}
        self._whole = None

    def _initial(self, name: str) -> LayerState:
        layer = self._layers[name]
        weight = layer.parameters[0]
        return self._method.initial_state(
            LayerShape(layer.d_out, layer.d_in), wide_dtype(weight.dtype), torch.device(weight.device)
        )

    def _local_part(self, name: str, state: LayerState) -> LayerState:
        return state if self._sharing is None else self._sharing.local_part(name, state)

    def _loaded(self, name: str, saved: LayerState) -> LayerState:
        if name not in self._layers:
            raise ValueError(unknown_layer(name))
        return fitted(name, self._local_part(name, self._initial(name)), self._local_part(name, saved))


def local_name(layers: Container[str], name: str) -> str:
    """Return this model's name of a saved layer; only one of the two models may be in a data-parallel wrapper."""
    candidates = (name, name.removeprefix("module."), f"module.{name}", "" if name == "module" else name)
    return next((candidate for candidate in candidates if candidate in layers), name)


def unknown_layer(name: str) -> str:
    """Return the message about a saved layer that the model lacks."""
    return f"The saved state has a layer {name!r} that this Preconditioner does not precondition."


def fitted(name: str, initial: LayerState, saved: LayerState) -> LayerState:
    """Return copies of a layer's saved tensors, with the devices and dtypes of its initial ones.

    Raises:
        ValueError: a tensor that is missing, unknown, of another shape or of another kind of number.
    """
    tensors = dict(saved)
    if differing := sorted(initial.keys() ^ tensors.keys()):
        raise ValueError(
            f"The saved state of layer {name!r} and this method's differ in tensor {differing[0]!r}: "
            "construct the method with the hyperparameters that it was saved with."
        )
    for key, tensor in tensors.items():
        if not _fits(tensor.shape, initial[key].shape):
            shapes = f"{tuple(tensor.shape)}, not {tuple(initial[key].shape)}"
            raise ValueError(f"Tensor {key!r} of layer {name!r} has shape {shapes}.")
        if tensor.is_complex() or tensor.is_floating_point() != initial[key].is_floating_point():
            dtypes = f"{tensor.dtype}, which is no form of {initial[key].dtype}"
            raise ValueError(f"Tensor {key!r} of layer {name!r} has dtype {dtypes}.")
        tensors[key] = tensor.detach().to(initial[key].device, initial[key].dtype, copy=True)
    return tensors


def _fits(shape: torch.Size, initial: torch.Size) -> bool:
    """Return whether a shape suits a state that starts with the shape ``initial``, whose sizes of 0 may grow."""
    return len(shape) == len(initial) and all(b in (0, a) for a, b in zip(shape, initial, strict=True))
