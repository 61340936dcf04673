"""What the host learns of the device without waiting for it: a number on its way, and the training loss's history."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mkor_core.layer import wide_dtype


class Arriving:
    """A scalar on its way from the device, to be read later: then it waits for nothing that was queued since."""

    def __init__(self, scalar: Tensor) -> None:
        self._copy = torch.empty_like(scalar, device="cpu", pin_memory=scalar.is_cuda)
        self._copy.copy_(scalar, non_blocking=True)
        self._copied = torch.cuda.Event() if scalar.is_cuda else None
        if self._copied is not None:
            self._copied.record()

    def read(self) -> float:
        """Return the value."""
        if self._copied is not None:
            self._copied.synchronize()
        return float(self._copy)


class LossHistory:
    """The training loss, per step from the best source that spoke, and its means between statistics."""

    SOURCES = ("closure", "output.loss", "observe")  # the first that spoke in a step counts

    def __init__(self, model: nn.Module, micro_batches: int = 1) -> None:
        self.history: list[tuple[int, float]] = []
        """(Steps, mean loss over them) at every record but the last."""
        self.heard = False
        """Whether any loss ever came."""
        # A step's micro-batches only: those of a step that was skipped are pushed out.
        self._seen: dict[str, deque[Tensor | float]] = defaultdict(lambda: deque(maxlen=micro_batches))
        self._sum: Tensor | float = 0.0
        self._steps = 0
        self._last: tuple[int, Arriving] | None = None
        self._handle = model.register_forward_hook(_OutputHook(self))

    def put(self, source: str, loss: Tensor | float) -> None:
        """Take a micro-batch's loss from one of `SOURCES`."""
        self._seen[source].append(loss.detach() if isinstance(loss, Tensor) else loss)

    def take(self, like: Tensor) -> Tensor:
        """Close a step; return the mean loss since the last record, on the device of ``like``; NaN if there is none."""
        source = next((name for name in self.SOURCES if name in self._seen), None)
        if source is not None:
            self._sum = self._sum + sum(self._seen[source]) / len(self._seen[source])
            self._steps += 1
            self.heard = True
        self._seen.clear()
        mean = self._sum / self._steps if self._steps else torch.nan
        return torch.as_tensor(mean, dtype=wide_dtype(like.dtype), device=like.device)

    def record(self, mean: Tensor | None) -> None:
        """Note the mean since the last record; it enters the history at the next, when reading it waits for nothing."""
        self._settle()
        assert mean is not None  # take() gave one
        self._last = (max(self._steps, 1), Arriving(mean))
        self._sum, self._steps = 0.0, 0

    def remove(self) -> None:
        """Stop listening to the model."""
        self._handle.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers."""
        self._settle()
        return {"history": list(self.history), "sum": float(self._sum), "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        self.history = [(steps, loss) for steps, loss in state["history"]]
        self.heard = bool(self.history) or state["steps"] > 0
        self._sum, self._steps, self._last = state["sum"], state["steps"], None

    def _settle(self) -> None:
        if self._last is not None:
            steps, mean = self._last[0], self._last[1].read()
            if math.isfinite(mean):  # a skipped step's may not be
                self.history.append((steps, mean))
            self._last = None


class _OutputHook:
    """The root module's forward hook; copied or pickled with the model, it hears nothing."""

    def __init__(self, history: LossHistory | None) -> None:
        self._history = history

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if self._history is not None and module.training and isinstance(loss, Tensor):
            self._history.put("output.loss", loss)

    def __reduce__(self) -> tuple[type[_OutputHook], tuple[None]]:
        return _OutputHook, (None,)
