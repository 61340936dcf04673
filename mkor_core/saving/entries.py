"""A preconditioner's state within an optimizer's state dict (format 1).

As in any `torch.optim` optimizer, tensors belong to a parameter and plain values to a parameter group, so that whatever
saves and loads the optimizer's state takes ours along, `torch.distributed.checkpoint.state_dict` for one::

    {
        "state": {
            0: {"exp_avg": ..., "preconditioner_left": J_L, "preconditioner_updates()": [20], ...},  # a layer's weight
            1: {"exp_avg": ...},  # its bias
        },
        "param_groups": [{"lr": 0.1, "preconditioner": '{"format": 1, "method": "MKOR", "step": 20, ...}', ...}],
    }

- ``state[weight]["preconditioner_" + name]``: the tensor ``name`` of the layer that has this weight, a view of the one
  that the preconditioner works with, in its own dtype, whatever that of the weight. A scalar has the shape ``[1]`` and
  ``()`` after its name: a full state dict is not loaded by a rank that lacks one of its scalars, and ranks keep
  different layers. Of a weight of several experts, ``name`` begins with the expert's number and a dot.
- ``param_groups[i]["preconditioner"]``: the rest of `Preconditioner.state_dict` as JSON, the same in every group: the
  method, its hyperparameters, the step, the step of MKOR-H's switch, its losses; and ``begun``, the number of layers of
  which some rank keeps tensors, by which a state that lacks some is told from one of fewer layers. It is text because
  `torch.distributed.checkpoint` loads text of any length into a new run's state, but only tensors of equal shapes and
  mappings of equal keys; the history of losses grows, and a flattened state takes neither text nor None outside of
  groups.

Once MKOR-H has switched, its tensors are zeros that take no memory: a new run, which has not switched, asks for them.

Earlier versions put all of it into a third entry, ``{"state": ..., "param_groups": ..., "preconditioner": {...}}``, in
the form of `Preconditioner.state_dict`. It is still read.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

KEY = "preconditioner"
"""The entry of a parameter group; in states of earlier versions, of the state dict itself."""
PREFIX = "preconditioner_"
"""What the names of our tensors in a parameter's state begin with."""
SCALAR = "()"
"""What the name of a scalar ends with."""
FORMAT = 1
StateDict = Mapping[str, Any]
"""An optimizer's state dict."""
ByParameter = dict[Any, dict[str, Tensor]]
"""Tensors by parameter, which is an index, or a name in states of `get_optimizer_state_dict`."""


def is_ours(key: object) -> bool:
    """Return whether an entry of a parameter's state is a preconditioner's."""
    return isinstance(key, str) and key.startswith(PREFIX)


def saved_counters(state: StateDict) -> dict[str, Any] | None:
    """Return a preconditioner's state without the tensors, as `Preconditioner.state_dict` has it; None without one.

    In the present form also ``begun``, see above.

    Raises:
        ValueError: it cannot be read, or is of a later version.
    """
    if KEY in state:
        old = state[KEY]
        if not isinstance(old, Mapping):
            raise ValueError(f"The saved state is no mapping, but a value of type {type(old).__name__}.")
        return {key: value for key, value in old.items() if key != "layers"}
    # All groups have the same text, so the first one is enough.
    text = next((group[KEY] for group in state.get("param_groups", ()) if KEY in group), None)
    if text is None:
        return None
    try:
        counters = json.loads(text)  # {"format": 1, "method": "MKOR", "step": 20, ...}
    except (TypeError, ValueError):
        counters = None
    # What the groups of a live optimizer have there, `mkor_core.saving.attached.MARK`, is no JSON.
    if not isinstance(counters, dict) or type(number := counters.pop("format", None)) is not int:
        raise ValueError(f"The entry {KEY!r} of a parameter group is not the text that a Preconditioner saves there.")
    if number > FORMAT:
        raise ValueError(f"The saved state has the format {number}: a later version has saved it.")
    return counters


def saved_tensors(state: StateDict) -> ByParameter:
    """Return a preconditioner's tensors by parameter, without those of the third entry of earlier versions."""
    return {
        parameter: dict(_tensor_of(name, value) for name, value in entries.items() if is_ours(name))
        for parameter, entries in saved_entries(state).items()
        if any(map(is_ours, entries))
    }


def saved_entries(state: StateDict) -> dict[Any, dict[str, Any]]:
    """Return all entries by parameter, the optimizer's own too.

    Without the empty mappings that torch makes of what a flattened state lacks, and parameters that have nothing else.
    """
    found = {
        # Where a flattened state has no "state.0.weight.exp_avg", torch puts {"exp_avg": {}} into the state to load.
        parameter: {k: v for k, v in entries.items() if not (isinstance(v, Mapping) and not v)}
        for parameter, entries in state.get("state", {}).items()
        if isinstance(entries, Mapping)
    }
    return {parameter: entries for parameter, entries in found.items() if entries}


def entries_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries in a weight's state that its layer's tensors make, as views."""
    # {"left": [4, 4], "updates": []} becomes {"preconditioner_left": [4, 4], "preconditioner_updates()": [1]} (shapes).
    scalars = {f"{PREFIX}{name}{SCALAR}": tensor.view(1) for name, tensor in tensors.items() if tensor.dim() == 0}
    return {**{PREFIX + name: tensor for name, tensor in tensors.items() if tensor.dim() > 0}, **scalars}


def joined_tensors(of_layers: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of a weight's layers; of several, which are experts, the number and a dot before each name."""
    if len(of_layers) == 1:
        return dict(of_layers[0])
    # Two experts in a weight [2, d_out, d_in]: {"0.left": ..., "0.right": ..., "1.left": ..., "1.right": ...}.
    return {f"{index}.{name}": tensor for index, layer in enumerate(of_layers) for name, tensor in layer.items()}


def split_tensors(tensors: Mapping[str, Tensor], layers: int) -> list[dict[str, Tensor]]:
    """Return the tensors of each of a weight's layers, which `joined_tensors` has joined."""
    if layers == 1:
        return [dict(tensors)]
    # An expert whose layer had no state stays empty; the caller leaves it out.
    parts: list[dict[str, Tensor]] = [{} for _ in range(layers)]
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        if not name or not index.isdecimal() or int(index) >= layers:
            raise ValueError(f"The saved state has a tensor {key!r} of a weight of {layers} experts.")
        parts[int(index)][name] = tensor
    return parts


def _tensor_of(entry: str, value: Any) -> tuple[str, Any]:
    """Return the name and tensor that an entry of a weight's state stands for."""
    name = entry.removeprefix(PREFIX)
    if not name.endswith(SCALAR):
        return name, value
    # Anything else is passed on as it is, and refused when the state is checked.
    is_scalar = isinstance(value, Tensor) and value.shape == (1,)
    return name.removesuffix(SCALAR), value.reshape(()) if is_scalar else value


def without_preconditioner(state: StateDict) -> dict[str, Any]:
    """Return a state dict as the optimizer alone has it; tensors are not copied, and the one given stays as it is."""
    plain = {key: value for key, value in state.items() if key != KEY}
    if isinstance(state.get("state"), Mapping):
        plain["state"] = copy.copy(state["state"])  # a live optimizer's is a defaultdict
        # New inner mappings: the given ones may be those of the live optimizer.
        plain["state"].update({p: _plain_entries(entries) for p, entries in state["state"].items()})
    if isinstance(state.get("param_groups"), list):
        plain["param_groups"] = [
            {key: value for key, value in group.items() if key != KEY} if isinstance(group, Mapping) else group
            for group in state["param_groups"]
        ]
    return plain


def with_preconditioner(state: StateDict, counters: Mapping[str, Any], tensors: ByParameter) -> dict[str, Any]:
    """Return a state dict with a preconditioner's state in place of one that it has, not copied.

    counters: what `saved_counters` returns.
    """
    # First without the empty tensors of a live optimizer, also beside weights that get no others below.
    joined = without_preconditioner(state)
    for parameter, named in tensors.items():
        # Ours come after the optimizer's own. SGD without momentum has no entry for the weight yet.
        joined["state"][parameter] = {**joined["state"].get(parameter, {}), **entries_of(named)}
    # A method of a user may have hyperparameters that JSON lacks; their text is compared instead.
    text = json.dumps({"format": FORMAT, **counters}, default=str)
    for group in joined["param_groups"]:
        group[KEY] = text
    return joined


def with_counters(state: StateDict, counters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict of either form with other `saved_counters`."""
    if KEY in state:
        return {**state, KEY: {**state[KEY], **counters}}
    # The tensors are taken out, renamed by `saved_tensors`, and put back with the other text.
    return with_preconditioner(state, counters, saved_tensors(state))


def _plain_entries(entries: Any) -> Any:
    if not isinstance(entries, Mapping):
        return entries
    return {key: value for key, value in entries.items() if not is_ours(key)}
