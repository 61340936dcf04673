"""Mean time of a training step over the inverse update period.

On a CPU the models are those of the inversion experiments; on a GPU they are BERT-Large and ResNet-50 on random data.

``python -m workflow.bench.probes.iteration_time --out iteration_time.csv`` writes one row for each workload, optimizer,
period and repeat. It needs the machine to itself. ``iteration_ms`` is the mean over a cycle of the period:

- ``estimate`` measured: the mean of the steps of a whole cycle, including its refresh;
- ``estimate`` combined, for periods too long to time: a refreshing step and the steps between refreshes, timed in the
  same repeat and weighted as in a cycle of the period.

``median_ms`` is the median of the single steps behind a row, ``steps`` their number, and ``busy_share`` the share of
the cores that other processes took in the repeat: a busy one is repeated if there is time (`_timing.idle_rounds`). On a
GPU a step's time is that between two CUDA events; the host runs ahead of the device, as in training. ``precision`` is
that of training in the model's experiment.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import torch

from workflow.bench import workloads
from workflow.bench.analysis.fits import cycle_mean
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Job
from workflow.bench.probes import _command, _models
from workflow.bench.probes._models import ProbeModel, TimedOptimizer
from workflow.bench.probes._timing import PhaseTimes, TimedLoop, idle_rounds, in_groups

EXPERIMENTS: Final = {"autoencoder_inversion": "autoencoder", "bert_inversion": "bert"}
"""Experiments whose optimizers are timed on a CPU, and the name of their model."""
CORES: Final = "all"
TIMING: Final = True
OPTIMIZERS: Final = ("kaisa", "mkor", "mkor_released")
"""Labels to time in addition to those of the experiments."""
WIDE: Final = (512, 256, 16, 256, 512)
"""Hidden layers of the wide autoencoder."""
REPEATS: Final[Mapping[str, int]] = {"cpu": 12, "cuda": 4}
"""By device: a virtual machine's cores change their speed by half from second to second, a GPU does not."""
CYCLE: Final = 10
"""The longest period whose whole cycle is timed; KAISA's factor_update_period, if it has one, must divide it."""
LONG_PERIODS: Final = (100, 1000)
EVERY_STEP: Final = 4  # steps timed at period 1


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
    busy_share: float | None
    precision: str
    hardware: str
    threads: int


@dataclass(frozen=True, eq=False)
class PeriodSweep:
    """An optimizer on a model, to be timed at every period."""

    model: ProbeModel
    label: str
    method: str
    by_period: Mapping[int, Mapping[str, Any]]
    """The hyperparameters by period. Other periods take those of the nearest one."""

    def at(self, period: int) -> TimedOptimizer:
        """Return the optimizer at a period."""
        nearest = min(self.by_period, key=lambda known: abs(known - period))
        name = _models.period_field(self.method)
        assert name is not None  # see `sweeps`
        # At a hundredth of the learning rate a step takes equally long, and training cannot diverge meanwhile.
        values = {**self.by_period[nearest], name: period, "lr": self.by_period[nearest]["lr"] / 100}
        return TimedOptimizer(self.label, self.method, values)


def sweeps(plan: Plan, labels: Sequence[str]) -> list[PeriodSweep]:
    """Return the optimizers to time at every period; one without a refresh period is left out.

    On a CPU the experiments' own optimizers come first. A label that is another variant of one of their methods takes
    that optimizer's hyperparameters, so that only the variant differs; any other label takes the probes' defaults.
    """
    models: list[tuple[ProbeModel, Mapping[str, Job]]] = []
    if plan.tier.device == "cuda":
        models = [(model, {}) for model in _models.probe_models(plan)]
    for experiment, name in EXPERIMENTS.items() if plan.tier.device == "cpu" else ():
        if experiment in plan.experiments:
            jobs = timed_jobs(plan.experiments[experiment].jobs)
            run = next(iter(jobs.values())).runs[0]
            base, lr = run.hyperparameters.get("base", run.method), run.hyperparameters["lr"]
            models.append((ProbeModel(name, workloads.create(**run.spec["workload"]), base, lr, run.precision), jobs))
            if name == "autoencoder":
                # Once more with wide layers, since the paper's are wide: with narrow ones the time of a decomposition
                # hides behind the rest of the step.
                models.append((_models.wide_autoencoder(plan, WIDE, lr), jobs))
    found = (sweep_of(model, label, jobs) for model, jobs in models for label in dict.fromkeys([*jobs, *labels]))
    return [sweep for sweep in found if sweep is not None]


def timed_jobs(jobs: Mapping[str, Job]) -> dict[str, Job]:
    """Return the jobs whose steps are not those of an earlier one: the decay of the factors costs nothing."""
    kept: dict[str, Job] = {}
    seen: set[tuple[str, str]] = set()
    for label, job in jobs.items():
        steps = {(run.method, str(sorted({**run.hyperparameters, "factor_decay": None}.items()))) for run in job.runs}
        if not steps <= seen:
            kept[label] = job
        seen |= steps
    return kept


def sweep_of(model: ProbeModel, label: str, jobs: Mapping[str, Job]) -> PeriodSweep | None:
    """Return a label's optimizer on a model, with its job's hyperparameters if it has one; None without a period."""
    variant = _models.variant_of(label)
    job = jobs.get(label) or jobs.get(variant.method)
    (default,) = _models.optimizers(model, model.lr, [label], period=CYCLE)
    method = default.method if job is None else job.runs[0].method
    period = _models.period_field(method)
    if period is None:
        return None
    if job is None:
        return PeriodSweep(model, label, method, {CYCLE: default.hyperparameters})
    changes = {} if label in jobs else variant.hyperparameters
    by_period = {run.hyperparameters[period]: {**run.hyperparameters, **changes} for run in job.runs}
    return PeriodSweep(model, label, method, by_period)


def rows(chosen: Sequence[PeriodSweep], device: str, hardware: str, repeats: int) -> Iterator[Row]:
    """Yield all repeats. In each, every optimizer has its turn at every period, so that drift affects all equally."""

    def of_group(group: Sequence[PeriodSweep]) -> Iterator[Row]:
        # The steps between refreshes are alike at all long periods, so that one of them is timed for all.
        periods = 1, CYCLE, max(LONG_PERIODS)
        loops = {
            (sweep, period): TimedLoop(sweep.model, sweep.at(period), device, by_phase=False)
            for sweep in group
            for period in periods
        }
        for loop in loops.values():
            loop.times(0)  # warm up; the first step of all also refreshes, which no timed step at a long period may
        turns = {key: partial(loop.times, EVERY_STEP if key[1] == 1 else CYCLE) for key, loop in loops.items()}
        for repeat, timed in enumerate(idle_rounds(turns, repeats)):
            for sweep in group:
                where = timed.busy_share, sweep.model.precision, hardware, torch.get_num_threads()
                for period, summary in summaries(*(timed.results[sweep, period] for period in periods)).items():
                    about = sweep.model.name, sweep.label, sweep.at(period).update_rule, period
                    yield Row(*about, repeat, *summary, *where)

    return in_groups(chosen, device, of_group)


class Summary(NamedTuple):
    """The columns of a `Row` that the timed steps give."""

    steps: int
    iteration_ms: float
    median_ms: float
    estimate: str


def summaries(
    every: Sequence[PhaseTimes], cycle: Sequence[PhaseTimes], between: Sequence[PhaseTimes]
) -> dict[int, Summary]:
    """Return a summary by period.

    every: steps at period 1; cycle: `CYCLE` steps at that period, one of them a refresh; between: steps at the longest
    period, none of them a refresh.
    """
    by_period = {}
    for period, steps in ((1, every), (CYCLE, cycle)):
        times = [step.total for step in steps]
        by_period[period] = Summary(len(times), fmean(times), median(times), "measured")
    refresh = fmean(step.total for step in cycle if step.refreshed)
    times = [step.total for step in between if not step.refreshed]
    for period in LONG_PERIODS:
        mean = cycle_mean(refresh, fmean(times), period)
        by_period[period] = Summary(len(times) + 1, mean, median(times), "combined")
    return by_period


def measure(plan: Plan, labels: Sequence[str] = OPTIMIZERS) -> Iterator[Row]:
    """Yield all rows of a plan's tier."""
    return rows(sweeps(plan, labels), plan.tier.device, plan.hardware, REPEATS[plan.tier.device])


if __name__ == "__main__":
    sys.exit(_command.run("iteration_time", measure, optimizers=OPTIMIZERS))
