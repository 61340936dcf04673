"""The training loss that MKOR-H follows, collected from several sources and read without waiting for the device."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mkor_core.capture.blocks import whole
from mkor_core.capture.layer import wide_dtype
from mkor_core.devices import DeferredScalar

REMEDY = "pass a closure to step(), let the model return an output with .loss, or call observe(loss) before the step."


class LossHistory:
    """The history of the training loss: its means between records, which are the steps with statistics.

    Args:
        model: the root module; the attribute ``.loss`` of its output is one of the sources.
        micro_batches: backward passes per step.
    """

    SOURCES = ("closure", "output.loss", "observe")
    """In order of precedence: the first that gave a loss in a step is used for that step."""

    def __init__(self, model: nn.Module, micro_batches: int) -> None:
        self.history: list[tuple[int, float]] = []
        """(steps since the previous record, mean loss over them) for every record but the last."""
        self.has_loss = False
        """Whether any source has given a loss."""
        # By source, the losses of one step. The bound drops those of an earlier step that a gradient scaler skipped.
        self._micro_batch_losses: dict[str, deque[Tensor | float]] = defaultdict(lambda: deque(maxlen=micro_batches))
        self._sum: Tensor | float = 0.0
        self._steps = 0
        # The last record: its steps, and its mean on the way to the host.
        self._last: tuple[int, DeferredScalar] | None = None
        self._handle = model.register_forward_hook(_OutputHook(self))

    def put(self, source: str, loss: Tensor | float) -> None:
        """Add a micro-batch's loss from one of `SOURCES`."""
        # Detached, or the losses would keep their graphs in memory until the step.
        self._micro_batch_losses[source].append(whole(loss.detach()) if isinstance(loss, Tensor) else loss)

    def take(self, like: Tensor) -> Tensor:
        """End a step; return the mean loss since the last record, on the device of ``like``; NaN if there is none."""
        # Only one source a step: a closure usually returns the loss that the model's output has, too.
        source = next((name for name in self.SOURCES if name in self._micro_batch_losses), None)
        if source is not None:
            losses = self._micro_batch_losses[source]
            # A tensor stays on the device: no value is read here.
            self._sum = self._sum + sum(losses) / len(losses)
            self._steps += 1
            self.has_loss = True
        self._micro_batch_losses.clear()
        # NaN stands for no loss: a tensor is returned in any case, since all ranks take part in the average.
        mean = self._sum / self._steps if self._steps else torch.nan
        dtype = wide_dtype(like.dtype)
        if isinstance(mean, Tensor):
            return mean.to(like.device, dtype)
        return torch.full((), mean, dtype=dtype, device=like.device)

    def record(self, mean: Tensor | None) -> None:
        """Record the mean that `take` returned, averaged over ranks, and start the next one.

        It enters the history at the next record: by then it has arrived, and reading it does not make the host wait.
        """
        self._settle()
        assert mean is not None
        self._last = None if mean.is_meta else (self._steps, DeferredScalar(mean))  # meta: no value
        self._sum, self._steps = 0.0, 0

    def warn_of_none(self, method: str, step: int) -> None:
        """Warn in the first step (0) if no source has given a loss; the method's name says who needs it."""
        if step == 0 and not self.has_loss:
            warnings.warn(
                f"{method} follows the training loss and has received none in its first step: {REMEDY}", stacklevel=2
            )

    def require_any(self, method: str, steps: int) -> None:
        """Raise an error if no source has given a loss.

        Raises:
            RuntimeError: there is none, and the method's name says who needs it after so many steps.
        """
        if not self.has_loss:
            raise RuntimeError(f"{method} follows the training loss and has received none in {steps} steps: {REMEDY}")

    def remove(self) -> None:
        """Remove the hook from the model."""
        self._handle.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers."""
        self._settle()
        # The last record is in the history by now. float() makes the host wait, which a checkpoint may.
        return {"history": list(self.history), "sum": float(self._sum), "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.history = [(steps, loss) for steps, loss in state["history"]]
        # The history may be empty although there were losses: none is recorded yet, or none was finite.
        self.has_loss = bool(self.history) or state["steps"] > 0
        self._sum, self._steps, self._last = state["sum"], state["steps"], None

    def _settle(self) -> None:
        """Move the last record into the history."""
        if self._last is not None:
            steps, mean = self._last[0], self._last[1].read()
            if math.isfinite(mean):  # the loss of a step that a gradient scaler skipped may be infinite
                self.history.append((steps, mean))
            self._last = None


class _OutputHook:
    """The root module's forward hook. Deep copies and pickles of the model carry one that does nothing."""

    def __init__(self, history: LossHistory | None) -> None:
        self._history = history

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        # An output of transformers is a Mapping. Losses of an evaluation, in eval mode, do not count.
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if self._history is not None and module.training and isinstance(loss, Tensor):
            self._history.put("output.loss", loss)

    def __reduce__(self) -> tuple[type[_OutputHook], tuple[None]]:
        return _OutputHook, (None,)
