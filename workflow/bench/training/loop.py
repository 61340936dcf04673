"""The training loop of one run: batches, steps, evaluations, checkpoints, requests to stop, and early ends."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

import torch
from torch import Tensor, nn

from mkor_core import Preconditioner
from workflow.bench.data.batches import Batch
from workflow.bench.support.errors import first_line
from workflow.bench.training.build import Parts, RunSetting, micro_batches, share_batches
from workflow.bench.training.replicas import difference
from workflow.bench.training.state import TrainingState

MEETING_SECONDS: float = 1.0
"""Seconds between two meetings, the steps after which ranks agree whether to stop or to save."""


class DivergedError(Exception):
    """The loss, the weights or the factors are no longer finite; the message is the reason."""


class OneRankDivergedError(DivergedError):
    """This rank cannot continue; the other ranks do not know yet."""


class InterruptedRunError(Exception):
    """The run was asked to stop, and its checkpoint is saved."""


class Loop:
    """Trains the remaining steps of a run."""

    def __init__(self, parts: Parts, state: TrainingState, setting: RunSetting) -> None:
        self._parts = parts
        self._state = state
        self._account = state.account
        self._clock = state.clock
        self._setting = setting
        self._ranks = setting.ranks
        self._steps: int = parts.run.spec["steps"]
        self._steps_before = state.account.steps_done
        self._seconds_before = state.clock.train_seconds
        self._save_after_ns = round(setting.checkpoint_minutes * 60e9)
        self._look_after_ns = min(setting.progress.interval_ns, self._save_after_ns)
        # Readings of the clock: the last look at what is due, and the last line of progress.
        self._looked_at = self._shown_at = 0
        self._next_meeting = state.account.steps_done + 1
        if parts.preconditioner is not None:
            parts.preconditioner.phases = state.clock

    def run(self) -> None:
        """Train to the end of the run.

        Raises:
            DivergedError: the run cannot be continued.
            InterruptedRunError: the run was asked to stop, and its checkpoint is saved.
        """
        state, clock = self._state, self._clock
        self._setting.progress.start(self._parts.run.describe(), self._steps, self._account.steps_done)
        clock.start("data")
        state.saved_at = self._shown_at = clock.last
        try:
            with warnings.catch_warnings():
                # The rate is a function of the step, even if float16's first steps overflow and update nothing.
                warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step\(\)` before", UserWarning)
                self._train()
        except torch.linalg.LinAlgError as problem:  # type: ignore[attr-defined]
            losses = torch.stack(state.losses) if state.losses else None
            reason = non_finite(self._parts, losses, self._account.steps_done)
            raise OneRankDivergedError(reason or f"a decomposition failed: {first_line(problem)}") from problem
        finally:
            clock.stop()
            state.update_account()

    def _train(self) -> None:
        account, clock, state = self._account, self._clock, self._state
        evaluate_every = self._parts.run.spec["evaluate_every"]
        save_every = self._setting.checkpoint_steps or self._steps + 1
        batches = self._batches()
        before: Sequence[Tensor] = ()
        if account.steps_done == 0:
            self._evaluate(before)  # the row of the untrained model
        self._looked_at = clock.last
        while account.steps_done < self._steps:
            clock.switch("data")
            next_step = account.steps_done + 1
            is_evaluated = next_step % evaluate_every == 0 or next_step == self._steps
            if is_evaluated:
                clock.switch("evaluation")
                before = sampled_matrices(self._parts.model)
                if self._parts.preconditioner is not None:
                    self._parts.preconditioner.compare_next_step()
            loss = self._step(micro_batches(next(batches), self._parts.share.micro_batches))
            # Kept, not read: reading a loss in every step would make the CPU wait for the GPU.
            state.losses.append(loss)
            account.steps_done += 1
            is_last = account.steps_done == self._steps
            if is_evaluated:
                self._evaluate(before)
            if account.steps_done % save_every == 0 and not is_last:
                state.save()
            if self._asked_to_stop() and not is_last:
                state.save()
                state.wait_for_checkpoint()
                raise InterruptedRunError

    def timed(self, steps: int) -> Iterator[float]:
        """Train so many steps and yield the seconds of each, with its batch: no evaluation, checkpoint or meeting.

        The host waits for the device after each of them.
        """
        clock, batches = self._clock, self._batches()
        clock.start("data")
        before = time.perf_counter()
        for _ in range(steps):
            clock.switch("data")
            self._step(micro_batches(next(batches), self._parts.share.micro_batches))
            clock.stop()
            _ = clock.train_seconds  # waits for the device
            now = time.perf_counter()
            yield now - before
            clock.start("data")
            before = time.perf_counter()
        clock.stop()

    def _batches(self) -> Iterator[Batch]:
        """Return this rank's part of the batches, from the next step on."""
        workload, seed, start = self._parts.workload, self._parts.run.seed, self._account.steps_done
        if self._ranks.size == 1:
            return workload.batches(seed, start)
        return share_batches(workload, seed, start, self._parts.share, self._setting.device)

    def _step(self, batches: Sequence[Batch]) -> Tensor:
        """Update the weights once, from the micro-batches of a step; return their mean loss, a scalar on the device."""
        parts, clock = self._parts, self._clock
        model: nn.Module = parts.parallel or parts.model
        losses = []
        for batch in batches:
            if parts.parallel is not None:
                # As DistributedDataParallel.no_sync() does: gradients are averaged over ranks once a step, in the
                # backward pass of its last micro-batch.
                parts.parallel.require_backward_grad_sync = batch is batches[-1]
            clock.switch("forward")
            with parts.precision.autocast:
                loss = parts.workload.loss(model, batch)
            clock.switch("backward")
            parts.precision.backward(loss if len(batches) == 1 else loss / len(batches))
            if parts.preconditioner is not None:
                parts.preconditioner.observe(loss)
            losses.append(loss.detach())
        clock.switch("update")
        if not parts.precision.step(parts.optimizer):
            self._account.skipped_steps += 1
        parts.optimizer.zero_grad()
        if parts.scheduler is not None:
            parts.scheduler.step()
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    def _evaluate(self, before: Sequence[Tensor]) -> None:
        """Append the mean training loss since the last evaluation, and the validation metrics, to metrics.csv.

        before: `sampled_matrices` before the last step; none before the first.

        Raises:
            DivergedError: a loss, weight or factor is not finite, on any rank.
        """
        state, clock, steps_done = self._state, self._clock, self._account.steps_done
        clock.switch("evaluation")
        train_seconds, wall_seconds = clock.train_seconds, clock.wall_seconds
        # losses: [steps since the last evaluation], each the mean over the ranks.
        losses = self._ranks.mean(torch.stack(state.losses)) if state.losses else None
        for reason in self._ranks.gathered(non_finite(self._parts, losses, steps_done)):
            if reason is not None:
                raise DivergedError(reason)
        state.losses.clear()
        self._compare_replicas()
        validation, training = self._measure()
        if not math.isfinite(validation["loss"]):
            raise DivergedError(f"the validation loss is {validation['loss']} after step {steps_done}")
        values = {} if losses is None else {("train", "loss"): losses.double().mean().item()}
        values |= {("train", metric): value for metric, value in training.items()}
        if before:
            values["train", "update_rms"] = update_rms(self._parts.model, before)
        values |= {("preconditioner", metric): value for metric, value in effects(self._parts.preconditioner).items()}
        # Metrics other than the loss may be undefined, such as a correlation with a constant: they get no row.
        values |= {("validation", metric): value for metric, value in validation.items() if math.isfinite(value)}
        self._note_preconditioner_size()
        if state.log is not None:
            state.log.append(
                step=steps_done,
                epoch=steps_done / self._parts.workload.steps_per_epoch,
                lr=self._parts.learning_rate(steps_done),
                train_seconds=train_seconds,
                wall_seconds=wall_seconds,
                values=values,
            )

    def _compare_replicas(self) -> None:
        """Note it, once a run, if ranks no longer have the same weights and factors."""
        if self._account.replicas_differ_after is not None:
            return
        problem = difference(self._parts, self._ranks)
        if problem is not None:
            self._account.replicas_differ_after = self._account.steps_done
            advice = "its numbers are not those of one model (docs/distributed.md)"
            self._setting.progress.note(f"warning: after step {self._account.steps_done}, {problem}; {advice}")

    def _measure(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the validation metrics and, unless the validation loss is not finite, those of the training data.

        Each rank evaluates its part of the examples; all return the first one's metrics.
        """
        workload, model, ranks = self._parts.workload, self._parts.model, self._ranks
        ranks.share_buffers(model)
        with self._parts.precision.autocast:
            validation = ranks.from_first(workload.evaluate(model, ranks))
            if not math.isfinite(validation["loss"]):
                return validation, {}
            return validation, ranks.from_first(workload.evaluate_training(model, ranks))

    def _note_preconditioner_size(self) -> None:
        """Record the preconditioner's memory if it is the largest so far; MKOR-H frees it when it switches off."""
        preconditioner = self._parts.preconditioner
        if preconditioner is None:
            return
        size = preconditioner.memory_bytes()
        if size > self._account.preconditioner_bytes:
            self._account.preconditioner_bytes = size
            self._account.preconditioner_bytes_by_tensor = preconditioner.memory_by_tensor()

    def _asked_to_stop(self) -> bool:
        """Show progress and save a checkpoint if they are due; return whether the run is asked to stop."""
        if self._ranks.size > 1:
            return self._account.steps_done == self._next_meeting and self._meet()
        stops = self._setting.stop()
        now = self._clock.last
        if now - self._looked_at > self._look_after_ns:
            self._looked_at = now
            self._look(save=self._save_is_due)
        return stops

    def _meet(self) -> bool:
        """Agree with the other ranks whether to save and when to meet again; return whether any is asked to stop.

        Ranks cannot act on their own: one that left a step early would leave the others waiting in a collective. They
        do not meet after every step, because each meeting costs an all-reduce. The first rank's clock decides.
        """
        steps = self._account.steps_done - self._steps_before
        # On a GPU the clock waits for the device here, once a meeting.
        step_seconds = (self._clock.train_seconds - self._seconds_before) / max(steps, 1)
        stops, save, steps_ahead = self._ranks.agree(
            stop=self._setting.stop(),
            save=self._save_is_due,
            # With steps of 0.2 s, meet again after 5 steps.
            steps=max(1, int(MEETING_SECONDS / max(step_seconds, 1e-9))),
        )
        self._next_meeting = self._account.steps_done + steps_ahead
        self._look(save=save)
        return stops

    @property
    def _save_is_due(self) -> bool:
        return self._clock.last - self._state.saved_at > self._save_after_ns

    def _look(self, *, save: bool) -> None:
        """Show progress if it is due, and save a checkpoint if asked to."""
        now = self._clock.last
        progress, losses = self._setting.progress, self._state.losses
        if now - self._shown_at > progress.interval_ns and losses:
            # Reading the loss waits for the GPU, which must not count as training.
            self._clock.switch("evaluation")
            seconds = self._clock.train_seconds - self._seconds_before
            steps = self._account.steps_done - self._steps_before
            progress.show(self._account.steps_done, self._steps, losses[-1].item(), steps / seconds)
            self._shown_at = now
        if save:
            self._state.save()


def non_finite(parts: Parts, losses: Tensor | None, steps_done: int) -> str | None:
    """Return which loss, weight or factor is not finite, as a sentence; None if all are finite.

    losses: ``[steps]``, the training losses of the last steps, up to ``steps_done``.
    """
    if losses is not None:
        positions = (~losses.isfinite()).nonzero()
        if len(positions):
            first = int(positions[0])
            # Of 5 losses up to step 20, the one at index 2 belongs to step 18.
            return f"the training loss is {losses[first].item()} in step {steps_done - len(losses) + first + 1}"
    names, weights = zip(*parts.model.named_parameters(), strict=True)
    # One number for each tensor, and all of them read at once.
    finite = torch.stack([weight.isfinite().all() for weight in weights]).tolist()
    for name, is_finite in zip(names, finite, strict=True):
        if not is_finite:
            return f"the weights {name} are not finite after step {steps_done}"
    if parts.preconditioner is not None and (layers := parts.preconditioner.non_finite_layers()):
        return f"the factors of {layers[0]} are not finite after step {steps_done}"
    return None


_SAMPLED: Final = 65536
"""Entries of a matrix that `sampled_matrices` copies: all of them would raise the peak memory of a large run."""


def sampled_matrices(model: nn.Module) -> list[Tensor]:
    """Return a copy of evenly spaced entries of each weight with two or more dimensions, at most 65,536 of each."""
    matrices = (weight.detach().flatten() for weight in model.parameters() if weight.ndim > 1)
    return [entries[:: math.ceil(len(entries) / _SAMPLED)].clone() for entries in matrices]


def update_rms(model: nn.Module, before: Sequence[Tensor]) -> float:
    """Return the root mean square, over a model's matrices, of the change since ``before`` (`sampled_matrices`)."""
    sizes = [weight.numel() for weight in model.parameters() if weight.ndim > 1]
    changes = zip(sampled_matrices(model), before, strict=True)
    squares = torch.stack([(after - start).double().square().mean() for after, start in changes])
    return math.sqrt(float(squares @ squares.new_tensor(sizes)) / sum(sizes))


def is_overflow(problem: BaseException) -> bool:
    """Return whether a number does not fit into the dtype of the tensors that it should scale, such as a huge rate."""
    # torch's error has no type of its own.
    return isinstance(problem, RuntimeError) and "without overflow" in str(problem)


def effects(preconditioner: Preconditioner | None) -> dict[str, float]:
    """Return medians and extremes over layers of how V differs from D in the step before an evaluation.

    - ``cosine``, ``cosine_least``, ``cosine_most``: of V and D; a median of 1 means that the method is inert.
    - ``length``, ``length_least``, ``length_most``: ``|V| / |D|``.
    - ``cosine_left``, ``cosine_right``: medians of the cosine that one side alone gives.
    - ``start_weight``: the largest weight that the identity, from which the factors start, still has.

    Empty without a step that compared them: at step 0, without a preconditioner, after MKOR-H has switched.
    """
    layers = [] if preconditioner is None else list(preconditioner.comparisons().values())
    values: dict[str, list[float]] = {
        "cosine": [layer.cosine for layer in layers],
        "length": [layer.ratio for layer in layers],
    }
    for side in ("left", "right"):
        values[f"cosine_{side}"] = [layer.by_side[side] for layer in layers if side in layer.by_side]
    metrics: dict[str, float] = {}
    for name, found in values.items():
        finite = [value for value in found if math.isfinite(value)]
        if finite:
            metrics[name] = median(finite)
            if name in ("cosine", "length"):
                metrics |= {f"{name}_least": min(finite), f"{name}_most": max(finite)}
    starts = [layer.start_weight for layer in layers if layer.start_weight is not None]
    return metrics | ({"start_weight": max(starts)} if starts else {})
