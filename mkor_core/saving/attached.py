"""A preconditioner's entries in the state of the optimizer that it is attached to: saved, loaded, and marked.

The format is that of `mkor_core.saving.entries`. In the live optimizer the entries have no content: torch takes
their names from there when it loads a flattened state, and tensors kept there would outlive those that the
preconditioner replaces.

Nothing is put beside a weight before the optimizer has made its own state of it, since most optimizers do so where they
find none. A layer that has no entries for this reason has had no gradient, and starts anew. SGD without momentum never
makes any; its first step shows that.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from mkor_core.capture.layer import Layer
from mkor_core.method import LayerState
from mkor_core.ranks import comm
from mkor_core.saving.entries import (
    KEY,
    StateDict,
    entries_of,
    is_ours,
    joined_tensors,
    saved_counters,
    saved_entries,
    saved_tensors,
    split_tensors,
    with_preconditioner,
    without_preconditioner,
)

logger = logging.getLogger(__name__)

MARK = "attached"
"""The entry of a live optimizer's parameter group."""
NOTHING = torch.empty(0)
"""The entries of a live optimizer's parameter."""


class StateKeeper(Protocol):
    """What keeps the tensors of layers: an engine, as far as it is needed here."""

    def prepare_states(self, layers: Sequence[Layer]) -> None:
        """Make the states of layers that have none yet."""

    def saved(self) -> dict[str, LayerState]:
        """Return the states by layer, not copied."""
        ...

    def consolidate(self, rank: int | None) -> None:
        """Gather every rank's part of the states, for the next `saved`; a collective call."""

    def clear(self) -> None:
        """Forget all states."""

    def refreshed(self, name: str) -> tuple[str, ...]:
        """Return the tensors of a layer that some ranks may lack (`Distributed.refreshed`)."""
        ...


class StateSource(NamedTuple):
    """What the state in an optimizer is made of: parts and methods of a preconditioner."""

    layers: Mapping[str, Layer]
    engine: StateKeeper
    save: Callable[[], dict[str, Any]]
    """`Preconditioner.state_dict`."""
    load: Callable[[Mapping[str, Any] | None, Collection[str] | None], None]
    """Restores a state; None: starts anew. The second argument names the layers that it must have; None: all."""
    has_switched: Callable[[], bool]
    """Returns whether the method is over, so that there are no tensors any more."""


class StateInOptimizer:
    """The state of one preconditioner in the state dicts of one optimizer.

    Args:
        optimizer: the optimizer.
        source: the preconditioner.
    """

    def __init__(self, optimizer: Optimizer, source: StateSource) -> None:
        self._optimizer = optimizer
        self._source = source
        self._keeps: list[bool | None] = []
        """Of each parameter group, whether the optimizer keeps state; None: no step has shown it yet."""
        self._blank: dict[str, LayerState] = {}
        """What stands for the tensors after MKOR-H's switch."""
        if _remove_entries(optimizer):
            warnings.warn(
                "The optimizer has loaded the state of a preconditioner before it was attached, which is lost: load it "
                "after attach().",
                stacklevel=5,
            )
        # Around a load: `_load_from` loads our entries and takes them out of what torch loads next; then `mark` puts
        # their names into the optimizer's new state.
        self._handles = [
            optimizer.register_state_dict_post_hook(self._save_into),
            optimizer.register_load_state_dict_pre_hook(self._load_from),
            optimizer.register_load_state_dict_post_hook(lambda _: self.mark()),
        ]
        self.mark()

    @property
    def is_settled(self) -> bool:
        """Whether a step of the optimizer would show nothing new."""
        return len(self._keeps) == len(self._optimizer.param_groups) and None not in self._keeps

    def mark(self, *, stepped: bool = False) -> None:
        """Put the names of our entries into the live optimizer, as far as it has its own state or keeps none.

        stepped: whether the optimizer has just taken a step with the gradients that there are.
        """
        groups = self._optimizer.param_groups
        self._keeps += [None] * (len(groups) - len(self._keeps))  # for groups added since
        for index, group in enumerate(groups):
            # When torch loads a flattened state, it looks only for the entries that the live groups have.
            group[KEY] = MARK
            if self._keeps[index] is None and any(self._has_state(parameter) for parameter in group["params"]):
                self._keeps[index] = True  # such as Adam, or SGD with momentum
            elif self._keeps[index] is None and stepped and any(p.grad is not None for p in group["params"]):
                self._keeps[index] = False  # had a gradient and made nothing: SGD without momentum
        # Before the first step `_begun` yields nothing, and `_held` would make states that are not needed yet.
        if self._optimizer.state or False in self._keeps:
            states = self._held()
            for weight, layers in self._begun():
                if tensors := joined_tensors([states.get(layer.name, {}) for layer in layers]):
                    # Adam's weight then has its exp_avg, and NOTHING as preconditioner_left and under our other names.
                    self._optimizer.state.setdefault(weight, {}).update(dict.fromkeys(entries_of(tensors), NOTHING))

    def after_step(self) -> None:
        """Mark what a step of the optimizer has shown."""
        open_groups = [
            group
            for index, group in enumerate(self._optimizer.param_groups)
            if index >= len(self._keeps) or self._keeps[index] is None
        ]
        if any(parameter.grad is not None for group in open_groups for parameter in group["params"]):
            self.mark(stepped=True)

    def remove(self) -> None:
        """Remove the hooks and the entries."""
        for handle in self._handles:
            handle.remove()
        _remove_entries(self._optimizer)

    def _has_state(self, parameter: Tensor) -> bool:
        return not all(map(is_ours, self._optimizer.state.get(parameter, ())))  # indexing would add an entry

    def _held(self) -> Mapping[str, LayerState]:
        """Return the tensors of the layers that this rank keeps, made if need be; after a switch, zeros."""
        if self._blank:
            return self._blank
        layers, engine = self._layers(), self._source.engine
        weights = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        stepped = [layer for weight in weights for layer in layers.get(id(weight), ())]
        engine.prepare_states([layer for layer in stepped if _is_trained(layer)])
        # After a switch these are initial tensors, made for their names and shapes, and freed again below.
        states = engine.saved()
        if self._source.has_switched():
            engine.clear()
            states = self._blank = {
                # Zeros of the same shapes that take no memory.
                layer: {name: tensor.new_zeros(()).expand(tensor.shape) for name, tensor in tensors.items()}
                for layer, tensors in states.items()
            }
        return states

    def _begun(self) -> Iterator[tuple[Tensor, list[Layer]]]:
        """Yield the weights, each with its layers, of which the optimizer has its own state or will not have any."""
        layers = self._layers()
        for keeps, group in zip(self._keeps, self._optimizer.param_groups, strict=True):
            for parameter in group["params"]:
                if id(parameter) in layers and (keeps is False or self._has_state(parameter)):
                    yield parameter, layers[id(parameter)]

    def _layers(self) -> dict[int, list[Layer]]:
        """Return the layers by the ids of their weights; several if they are experts, which share one."""
        found: dict[int, list[Layer]] = {}
        for layer in self._source.layers.values():
            if (weight := layer.weight) is not None:  # None where it is computed, as by prune
                found.setdefault(id(weight), []).append(layer)
        return found

    def _save_into(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        # A full state dict must hold the parts of all ranks, any other one what this rank keeps.
        options = _options_of_caller()
        whole = options is not None and options.full_state_dict
        self.mark()  # parameter groups may have come since the last step
        saved = self._source.save()
        switched = self._source.has_switched()
        if whole and not switched:
            self._make_whole(saved["layers"], is_for_first_rank=options.cpu_offload)
            saved = self._source.save()
        states: Mapping[str, LayerState] = saved.pop("layers")
        # A new run has not switched, and loads by names and shapes that its own state has: it must find such tensors.
        if switched and not whole:
            states = self._held()
        # Names are indices here, 0 for the first parameter; `get_optimizer_state_dict` makes 0.weight of it later.
        names = {id(parameter): name for parameter, name in self._named(state)}
        chosen = {
            names[id(weight)]: tensors
            for weight, layers in self._begun()
            if (tensors := joined_tensors([states.get(layer.name, {}) for layer in layers]))
        }
        if whole:  # torch broadcasts these tensors, which must be contiguous for it
            chosen = {name: {key: t.contiguous() for key, t in tensors.items()} for name, tensors in chosen.items()}
        # Of all ranks: with owners this rank may keep tensors of 1 layer while 4 have begun. Loading compares the two.
        begun = sum(_is_trained(layer) for _, layers in self._begun() for layer in layers)
        joined = with_preconditioner(state, {**saved, "begun": begun}, chosen)  # NOTHING gives way to tensors
        for keeps, group in zip(self._keeps, joined["param_groups"], strict=True):
            if keeps is False:
                # torch refuses to load a state in which some parameters have entries and others have none.
                for name in group["params"]:
                    joined["state"].setdefault(name, {})
        return joined

    def _make_whole(self, states: Mapping[str, LayerState], *, is_for_first_rank: bool) -> None:
        """Gather the parts of the state that other ranks keep, for a state dict that one rank saves.

        Raises:
            RuntimeError: there are such parts, and the parameters are not sharded.
        """
        if any(layer.block is not None for layer in self._source.layers.values()):
            # All ranks are here, since torch gathers the optimizer's own state of sharded parameters with all of them.
            self._source.engine.consolidate(0 if is_for_first_rank else None)
            return
        # The parameters are whole, so torch itself sends nothing here, and may have been called on rank 0 alone. A
        # collective call would wait for the others forever; hence the error below.
        if is_for_first_rank and comm.rank(None) > 0:
            return  # torch drops what this rank returns
        begun = [layer.name for _, layers in self._begun() for layer in layers]
        # With owners, a layer of another rank has no tensors here; with KAISA it has factors without decompositions.
        kept = {name: states.get(name, {}).keys() for name in begun}
        if not all(names and names >= set(self._source.engine.refreshed(name)) for name, names in kept.items()):
            raise RuntimeError(
                "Other ranks keep parts of the preconditioner's state, which a full state dict lacks: call "
                "consolidate() on all ranks before get_optimizer_state_dict."
            )

    def _named(self, state: StateDict) -> list[tuple[Tensor, Any]]:
        """Return the parameters of the optimizer with their names in a state dict.

        Raises:
            ValueError: the state dict has other groups.
        """
        # A name is 0, or 0.weight in a state of `get_optimizer_state_dict`; the order of parameters is the same.
        pairs = zip(self._optimizer.param_groups, state["param_groups"], strict=True)
        return [pair for own, saved in pairs for pair in zip(own["params"], saved["params"], strict=True)]

    def _load_from(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        plain = without_preconditioner(state)
        counters = saved_counters(state)
        if counters is None:
            warnings.warn(
                "The optimizer's state dict holds no preconditioner state: the preconditioner starts anew.",
                stacklevel=3,
            )
            self._source.load(None, None)
        elif KEY in state:  # saved by an earlier version
            self._source.load(state[KEY], None)
        else:
            try:
                named = self._named(state)
            except ValueError:
                return plain  # torch refuses it next
            self._load_entries(counters, state, named)
        return plain

    def _load_entries(self, counters: dict[str, Any], state: StateDict, named: list[tuple[Tensor, Any]]) -> None:
        """Load a state of the present form."""
        # With Adam, tensors = {0: {"left": ..., "updates": ...}} and own = {0: {"exp_avg": ...}, 1: {"exp_avg": ...}}.
        tensors, own, layers = saved_tensors(state), saved_entries(without_preconditioner(state)), self._layers()
        layers_of = {name: layers[id(parameter)] for parameter, name in named if id(parameter) in layers}
        if foreign := sorted(map(str, tensors.keys() - layers_of.keys())):
            raise ValueError(
                f"The saved state has tensors of parameter {foreign[0]!r}, which is no weight of a layer that this "
                "Preconditioner preconditions."
            )
        keeps: list[bool | None] = []
        begun: set[str] = set()
        """The layers that some rank must have had a state of."""
        for group in state["param_groups"]:
            names = group["params"]
            has_state, has_ours = any(name in own for name in names), any(name in tensors for name in names)
            # A group with neither shows nothing, and its entry stays as this run's steps have set it.
            keeps.append(True if has_state else False if has_ours else None)
            begun.update(
                layer.name
                for name in names
                # Without the optimizer's own state nothing tells which weights had a gradient: all of the group count.
                if (name in own if has_state else has_ours)
                for layer in layers_of.get(name, ())
                if _is_trained(layer)
            )
        found: dict[str, LayerState] = {}
        for name, of_weight in tensors.items():
            parts = split_tensors(of_weight, len(layers_of[name]))
            found.update({layer.name: part for layer, part in zip(layers_of[name], parts, strict=True) if part})
        # Begun, but not in this state: it is another rank's part, the state is incomplete, or the model has grown.
        missing = begun - found.keys()
        number = counters.pop("begun", 0)
        if counters.get("switch_step") is not None:
            found = {}  # zeros, which stand for the freed tensors
        elif any(one.get("switch_step") is not None for one in counters.get("methods", {}).values()):
            begun -= missing  # one of several methods has switched, and keeps nothing
        elif missing and len(found) < number and (lacking := [name for name in self._held() if name in missing]):
            # It has fewer layers than had begun. A rank's own part may lack those of others, but not one of this rank.
            raise ValueError(
                f"The saved state lacks the tensors of layer {lacking[0]!r}, which this rank keeps: call consolidate() "
                "on all ranks before one of them saves, or save every rank's part by torch.distributed.checkpoint."
            )
        elif missing and len(found) >= number:
            # Nothing was lost: these layers had not begun when the state was saved, or were not preconditioned.
            begun -= missing
            logger.warning("The saved state has nothing of layers %s, which start anew.", ", ".join(sorted(missing)))
        self._source.load({**counters, "layers": found}, begun)
        known = self._keeps + [None] * len(keeps)
        self._keeps = [old if new is None else new for new, old in zip(keeps, known, strict=False)]


def _is_trained(layer: Layer) -> bool:
    return layer.weight is not None and layer.weight.requires_grad


def _remove_entries(optimizer: Optimizer) -> bool:
    """Remove all entries from a live optimizer; return whether they had content."""
    had_content = False
    for parameter, entries in list(optimizer.state.items()):
        ours = [key for key in entries if is_ours(key)]
        values = [entries.pop(key) for key in ours]
        had_content = had_content or any(value is not NOTHING for value in values)
        if ours and not entries:  # the entry was made by `mark` alone
            del optimizer.state[parameter]
    for group in optimizer.param_groups:
        # MARK has no content; the text of a saved state, loaded before attach(), has.
        had_content = group.pop(KEY, MARK) != MARK or had_content
    return had_content


def _options_of_caller() -> Any:
    """Return the options of the `get_optimizer_state_dict` that asks for a state dict; None if another caller does.

    It passes them to nobody, and leaves out what other ranks keep without a word; so they are looked up in its frame.
    Where a later torch has other names, a state that lacks something is refused as it is loaded.
    """
    module = "torch.distributed.checkpoint.state_dict"
    frame = sys._getframe(1) if module in sys.modules else None
    for _ in range(8):  # this function, a hook, state_dict, those of wrappers
        if frame is None:
            return None
        if frame.f_code.co_name == "_get_optim_state_dict" and frame.f_globals.get("__name__") == module:
            return frame.f_locals.get("info")
        frame = frame.f_back
    return None
