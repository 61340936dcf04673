"""What optimizers that capture statistics on their own share: an entry in the state dict, and no GradScaler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

SCALED_ROWS = (
    "the rows that it captures would be multiplied by the scale, of which an optimizer's file is not told; train in "
    "bfloat16 instead"
)
"""The reason for which an optimizer with hooks takes no GradScaler."""


def keep_in_state_dict(
    optimizer: Optimizer, key: str, save: Callable[[], Mapping[str, Any]], load: Callable[[Mapping[str, Any]], None]
) -> None:
    """Put what ``save`` returns into an optimizer's state dict, and give it to ``load`` when one is loaded.

    torch casts the tensors of parameters to the parameters' precision; these keep their own.

    Raises:
        ValueError: in `load_state_dict`, for the state dict of another optimizer.
    """

    def restore(_: Optimizer, state: dict[str, Any]) -> None:
        if key not in state:
            raise ValueError(f"This state dict has no entry {key!r}: it is another optimizer's.")
        load(state[key])

    optimizer.register_state_dict_post_hook(lambda _, state: state.update({key: save()}))
    optimizer.register_load_state_dict_pre_hook(restore)


def refuse_scaler(optimizer: Optimizer, name: str, reason: str) -> None:
    """Make an optimizer raise a RuntimeError, which gives the reason, when a GradScaler steps it."""

    def refuse(*_: Any) -> None:
        if hasattr(optimizer, "found_inf"):
            raise RuntimeError(f"{name} does not take a GradScaler: {reason}.")

    # torch reads this attribute. Without it a GradScaler would unscale the gradients silently, after the rows have been
    # captured; with it, the step sees the scaler's `found_inf`.
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    optimizer.register_step_pre_hook(refuse)
