"""Mean iteration time of KAISA and MKOR over the inverse update period.

On a CPU the models are those of the inversion experiments; on a GPU they are BERT-Large and ResNet-50 on random data.

``python -m workflow.bench.probes.iteration_time --out iteration_time.csv`` writes one row a workload, optimizer,
period and repeat. It wants the machine to itself. ``iteration_ms`` is the mean over a cycle of the period:

- ``estimate`` measured: the mean of the steps of a whole cycle, its refresh among them;
- ``estimate`` combined, for periods too long to wait for: a refreshing step and the steps between refreshes, timed
  in the same repeat, at their true share of the period.

``median_ms`` is the median of the single steps behind it, and ``steps`` their number.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import torch

from baselines import build
from workflow.bench import workloads
from workflow.bench.plan import Plan
from workflow.bench.probes import _command, _models
from workflow.bench.probes._models import Trainable

EXPERIMENTS: Final = {"autoencoder_inversion": "autoencoder", "bert_inversion": "bert"}
"""Experiments whose optimizers are timed, and the name of their model in all probes."""
WIDE: Final = (512, 256, 16, 256, 512)
REPEATS: Final = 6
CYCLE: Final = 10
"""The longest period whose whole cycle is timed; KAISA's factor_update_period, if it has one, must divide it."""
LONG_PERIODS: Final = (100, 1000)
EVERY_STEP: Final = 4  # steps timed at period 1
WARM_UP: Final = 2  # steps before each timing, for the caches that the optimizer timed before has emptied


class Row(NamedTuple):
    """One repeat of one optimizer at one period."""

    workload: str
    optimizer: str
    update_rule: str | None
    inverse_update_period: int
    repeat: int
    steps: int
    iteration_ms: float
    median_ms: float
    estimate: str
    hardware: str
    threads: int


@dataclass(frozen=True, eq=False)
class Contender:
    """An optimizer on a workload: what is timed at every period."""

    workload: str
    label: str
    method: str
    update_rule: str | None
    by_period: Mapping[int, Mapping[str, Any]]
    """The hyperparameters that the experiment has at a period; the nearest one's serve those that it leaves out."""
    data: Trainable

    def hyperparameters(self, period: int) -> dict[str, Any]:
        """Return all hyperparameters at a period."""
        nearest = min(self.by_period, key=lambda known: abs(known - period))
        values = {**self.by_period[nearest], "inverse_update_period": period}
        # A hundredth of the rate takes as long, and cannot diverge while it is timed.
        values["lr"] /= 100
        if self.update_rule is not None:
            values["update_rule"] = self.update_rule
        return values


class Step(NamedTuple):
    """One timed step."""

    refreshed: bool
    ms: float


class Loop:
    """A contender's training at one period, timed in slices."""

    def __init__(self, contender: Contender, period: int, device: str) -> None:
        self._loss = contender.data.loss
        self._model = contender.data.model(seed=0).to(device)
        self._optimizer, preconditioner = build(
            contender.method,
            self._model,
            contender.hyperparameters(period),
            exclude=contender.data.exclude,
        )
        assert preconditioner is not None  # a first-order method has no period
        self._refreshes = preconditioner.method.refreshes
        # A few batches over and over, since making them is no part of the optimizer's step.
        self._batches = itertools.cycle(itertools.islice(contender.data.batches(seed=0), CYCLE))
        self._done = 0

    def times(self, steps: int) -> list[Step]:
        """Return the times of the next steps, after a few that only warm up."""
        return [self._step() for _ in range(WARM_UP + steps)][WARM_UP:]

    def _step(self) -> Step:
        batch = next(self._batches)
        start = _now()
        self._optimizer.zero_grad()
        self._loss(self._model, batch).backward()
        self._optimizer.step()
        step = Step(self._refreshes(self._done), 1000 * (_now() - start))
        self._done += 1
        return step


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def contenders(plan: Plan) -> Iterator[Contender]:
    """Yield what is timed: the optimizers of the inversion experiments, and MKOR's released rule.

    The autoencoder is timed once more with wide layers, since the paper's are wide: where layers are narrow, the time
    of a decomposition hides behind the rest of the step.
    """
    if plan.tier.device == "cuda":
        yield from _at_true_size(plan)
        return
    for name, model in EXPERIMENTS.items():
        if name not in plan.experiments:
            continue
        jobs = plan.experiments[name].jobs
        given = jobs["mkor"].runs[0].spec["workload"]
        sizes = {model: given}
        if model == "autoencoder":
            sizes["wide_autoencoder"] = {**given, "hidden": list(WIDE)}
        for workload, parameters in sizes.items():
            data = workloads.create(**parameters)
            for label, job in jobs.items():
                by_period = {run.hyperparameters["inverse_update_period"]: run.hyperparameters for run in job.runs}
                rule = job.runs[0].hyperparameters.get("update_rule")
                yield Contender(workload, label, job.runs[0].method, rule, by_period, data)
                if label == "mkor":
                    yield Contender(workload, "mkor_released", "mkor", "released", by_period, data)


def _at_true_size(plan: Plan) -> Iterator[Contender]:
    for subject in _models.subjects(plan):
        for known in _models.contenders(subject, subject.lr, "kaisa", "mkor", "mkor_released"):
            values = {name: value for name, value in known.hyperparameters.items() if name != "update_rule"}
            yield Contender(subject.name, known.label, known.method, known.update_rule, {CYCLE: values}, subject.data)


def measure(found: Sequence[Contender], device: str, hardware: str, repeats: int = REPEATS) -> Iterator[Row]:
    """Yield all repeats; in each, every contender has its turn at every period, so that drift hits all alike.

    A GPU, which may not hold all at once, takes one contender after the other.
    """
    for group in [found] if device == "cpu" else [[contender] for contender in found]:
        yield from _measure_together(group, device, hardware, repeats)
        gc.collect()  # before the next one's models are made


def _measure_together(found: Sequence[Contender], device: str, hardware: str, repeats: int) -> Iterator[Row]:
    longest = max(LONG_PERIODS)
    loops = {
        (contender, period): Loop(contender, period, device) for contender in found for period in (1, CYCLE, longest)
    }
    for loop in loops.values():
        loop.times(0)
    for repeat in range(repeats):
        timed = {key: loop.times(EVERY_STEP if key[1] == 1 else CYCLE) for key, loop in loops.items()}
        for contender in found:
            every, cycle, between = (timed[contender, period] for period in (1, CYCLE, longest))
            for period, summary in summaries(every, cycle, between).items():
                yield Row(
                    contender.workload,
                    contender.label,
                    contender.update_rule,
                    period,
                    repeat,
                    *summary,
                    hardware,
                    torch.get_num_threads(),
                )


class Summary(NamedTuple):
    """The steps behind a row, and what they say."""

    steps: int
    iteration_ms: float
    median_ms: float
    estimate: str


def summaries(every: Sequence[Step], cycle: Sequence[Step], between: Sequence[Step]) -> dict[int, Summary]:
    """Return a summary by period.

    every: steps at period 1; cycle: `CYCLE` steps at that period, one of them a refresh; between: steps of the longest
    period, none of them a refresh.
    """
    found = {}
    for period, steps in ((1, every), (CYCLE, cycle)):
        times = [step.ms for step in steps]
        found[period] = Summary(len(times), fmean(times), median(times), "measured")
    refresh = fmean(step.ms for step in cycle if step.refreshed)
    times = [step.ms for step in between if not step.refreshed]
    for period in LONG_PERIODS:
        mean = (refresh + (period - 1) * fmean(times)) / period
        found[period] = Summary(len(times) + 1, mean, median(times), "combined")
    return found


def measure_plan(plan: Plan) -> Iterator[Row]:
    """Yield all rows of a plan's tier."""
    return measure(list(contenders(plan)), plan.tier.device, plan.hardware)


if __name__ == "__main__":
    sys.exit(_command.run("iteration_time", measure_plan))
