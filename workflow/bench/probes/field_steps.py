"""What every label of the field tier does in a step: state, operations, kernels, bytes, and the turn of the gradient.

``python -m workflow.bench.probes.field_steps --tier field --out field_steps.csv`` writes one row for each label of an
experiment. Each trains `WARM_UP` + `COUNTED` + `FOLLOWED` steps at its tuned values, without a schedule. Columns:

- experiment, workload, optimizer; run: the id of the run that was followed, the hash of its whole specification.
- parameter_bytes; state_bytes: of the optimizer and its preconditioner, after the steps.
- operations, kernels, moved_bytes: of a step, the mean of `COUNTED` steps, which hold whole periods, without the
  forward and backward pass (`_counting`). moved_bytes are read and written.
- sent_bytes: what a rank of two hands to collectives in a step beside the gradients, the mean of `COUNTED` steps; empty
  for a method that cannot train on several ranks.
- cosine, norm: of the step that a matrix takes, against the step that SGD would take with the same gradients, learning
  rate and momentum: cosine of both, and ratio of their lengths; medians over matrices and the last `FOLLOWED` steps.
- least_cosine: of the matrix with the least median cosine. norm_spread: the largest median ratio over the least.
- hardware, code_fingerprint, git_commit.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from statistics import median
from typing import Final, NamedTuple

import torch
from torch import Tensor

from baselines import build
from mkor_core.capture.discovery import find_layers
from mkor_core.ranks import comm
from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.probes import _command, _ranks
from workflow.bench.probes._counting import Counting, Counts
from workflow.bench.probes._state_bytes import all_bytes
from workflow.bench.workloads.base import Workload

EXPERIMENTS: Final = (
    "field_autoencoder",
    "field_autoencoder_lamb",
    "field_alexnet",
    "field_language_model",
    "krona",
    "kronecker_rnn",
)
USES_GPU: Final = False
WARM_UP: Final = 20
COUNTED: Final = 10
"""A multiple of the tier's periods."""
FOLLOWED: Final = 20
RANKS: Final = 2
ONE_PROCESS: Final = ("singd",)
"""Methods that refuse to train on several ranks."""


class Row(NamedTuple):
    """One label of an experiment."""

    experiment: str
    workload: str
    optimizer: str
    run: str
    parameter_bytes: int
    state_bytes: int
    operations: float
    kernels: float
    moved_bytes: float
    sent_bytes: float | None
    cosine: float | None
    least_cosine: float | None
    norm: float | None
    norm_spread: float | None
    hardware: str


class TrainedMethod:
    """A model in training by a run's optimizer, one step after the other."""

    def __init__(self, run: Run, data: Workload) -> None:
        self.model = data.model(run.seed)
        self.optimizer, self.preconditioner = build(run.method, self.model, run.hyperparameters, exclude=data.exclude)
        self._data, self._batches = data, data.batches(run.seed)

    def backward(self) -> None:
        """Compute the gradients of the next batch."""
        self.optimizer.zero_grad()
        loss = self._data.loss(self.model, next(self._batches))
        loss.backward()
        if self.preconditioner is not None:
            self.preconditioner.observe(loss)

    def train(self, steps: int) -> None:
        """Train some steps."""
        for _ in range(steps):
            self.backward()
            self.optimizer.step()


def plain_counts(run: Run, data: Workload) -> Counts:
    """Return the counts of `COUNTED` forward and backward passes of a run's model."""
    model, batches = data.model(run.seed), data.batches(run.seed)
    with Counting(torch.device("cpu")) as counts:
        for batch in islice(batches, COUNTED):
            model.zero_grad()
            data.loss(model, batch).backward()
    return counts


class Turn(NamedTuple):
    """The cosine of a matrix's step and SGD's, and the ratio of their lengths."""

    cosine: float
    norm: float


def turns(trained: TrainedMethod, matrices: Mapping[str, Tensor], momentum: float, steps: int) -> dict[str, list[Turn]]:
    """Train ``WARM_UP + steps`` steps and return each matrix's turns in the last ``steps``.

    SGD's step is that of the velocity ``v <- momentum v + D`` at the matrix's learning rate.
    """
    rates = {id(weight): group for group in trained.optimizer.param_groups for weight in group["params"]}
    velocities = {name: torch.zeros_like(weight) for name, weight in matrices.items()}
    found: dict[str, list[Turn]] = {name: [] for name in matrices}
    for step in range(WARM_UP + steps):
        before = {name: weight.detach().clone() for name, weight in matrices.items()}
        trained.backward()
        for name, weight in matrices.items():
            velocities[name].mul_(momentum).add_(torch.zeros_like(weight) if weight.grad is None else weight.grad)
        trained.optimizer.step()
        for name, weight in matrices.items() if step >= WARM_UP else ():
            moved, velocity = before[name] - weight.detach(), velocities[name]
            lengths = moved.norm().item(), velocity.norm().item()
            if min(lengths) > 0 and math.isfinite(lengths[0]):
                cosine = (moved * velocity).sum().item() / math.prod(lengths)
                found[name].append(Turn(cosine, lengths[0] / (lengths[1] * float(rates[id(weight)]["lr"]))))
    return found


def sent(runs: Sequence[Run]) -> dict[str, float]:
    """Return the bytes that this rank hands to collectives in a step, by the run's id; runs on every rank."""
    found = {}
    for run in runs:
        trained = TrainedMethod(run, workloads.create(**run.spec["workload"]))
        comm.reset_bytes_sent()
        trained.train(COUNTED)
        found[run.id] = sum(comm.bytes_sent().values()) / COUNTED
    return found


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows of a plan's tier."""
    for name in EXPERIMENTS:
        if name not in plan.experiments:
            continue
        runs = {label: job.runs[0] for label, job in plan.experiments[name].jobs.items()}
        first = next(iter(runs.values()))
        data = workloads.create(**first.spec["workload"])
        plain = plain_counts(first, data)
        several = [run for run in runs.values() if run.method not in ONE_PROCESS]
        by_rank = _ranks.run(RANKS, sent, several)
        most = {run.id: max(of[run.id] for of in by_rank) for run in several}
        for label, run in runs.items():
            yield _row(name, label, run, data, plain, most.get(run.id), plan.hardware)


def _row(
    experiment: str, label: str, run: Run, data: Workload, plain: Counts, sent_bytes: float | None, hardware: str
) -> Row:
    trained = TrainedMethod(run, data)
    trained.train(WARM_UP)
    with Counting(torch.device("cpu")) as counts:
        trained.train(COUNTED)
    added = counts.minus(plain)
    # From the start once more, so that the same steps are followed whatever was counted before.
    again = TrainedMethod(run, data)
    values = run.hyperparameters
    matrices = {layer: found.module.weight for layer, found in find_layers(again.model, data.exclude).items()}
    followed = turns(again, matrices, values.get("momentum", values.get("beta1", 0.0)), FOLLOWED).values()
    cosines = [median(turn.cosine for turn in of_one) for of_one in followed if of_one]
    norms = [median(turn.norm for turn in of_one) for of_one in followed if of_one]
    return Row(
        *(experiment, run.workload, label, run.id),
        parameter_bytes=sum(weight.nbytes for weight in trained.model.parameters()),
        state_bytes=all_bytes(trained.optimizer, trained.preconditioner),
        operations=added.operations / COUNTED,
        kernels=added.kernels / COUNTED,
        moved_bytes=added.bytes / COUNTED,
        sent_bytes=sent_bytes,
        cosine=median(cosines) if cosines else None,
        least_cosine=min(cosines, default=None),
        norm=median(norms) if norms else None,
        norm_spread=max(norms) / min(norms) if norms else None,
        hardware=hardware,
    )


if __name__ == "__main__":
    sys.exit(_command.run("field_steps", measure, uses_gpu=USES_GPU, columns=Row._fields))
