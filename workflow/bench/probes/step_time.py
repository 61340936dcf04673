"""Time of a training step of every optimizer of the experiments whose times are compared, in turns in one process.

``python -m workflow.bench.probes.step_time --out step_time.csv`` writes one row for each label of an experiment, kind
of step and round. In a round every optimizer of a workload has its turn, in random order, with the hyperparameters,
batch and precision of the experiment. What is timed is a run, and ``run`` is its id, the hash of its whole
specification. A label is no identity: two experiments give one label to different optimizers, and the studies that
tuned a label may choose different steps, with a clip and without. ``runs`` is the number of the label's runs that take
such a step. Labels of one experiment whose runs do the same work share their measurements; two experiments never do.
The base optimizer of each workload takes part twice (`again`), so that the noise of the machine is known.

``step_ms`` is the mean time of the ``steps`` of a turn. An optimizer repeats itself every ``cycle`` steps, so that a
turn has whole cycles, and all optimizers of a workload have turns of equally many steps, or within one cycle of it. The
first `_timing.WARM_UP` steps of a turn are not timed: after another optimizer's turn they take longer, on a small model
by an eighth, and by the larger share the cheaper the optimizer is. A busy round (`support.load.BUSY` of the cores taken
by other processes) is ``left_out``, and repeated if there is time. Without ``/proc/stat`` their share is unknown, and
no round is left out. A workload that cannot be timed has one row for each label, with the reason in ``note``.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Final, NamedTuple

import torch

from baselines import method_class
from mkor_core.method import FollowsLoss
from workflow.bench import workloads
from workflow.bench.analysis.fits import cycle_mean
from workflow.bench.data.folder import DataNotFound
from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run, Spec
from workflow.bench.probes import _command
from workflow.bench.probes._models import PERIOD_FIELDS, ProbeModel, TimedOptimizer
from workflow.bench.probes._timing import Round, TimedLoop, release, until_idle, watched_rounds
from workflow.bench.support.config import ConfigError

EXPERIMENTS: Final = ("*",)
CORES: Final = "all"
TIMING: Final = True
WITHOUT_TARGET: Final = ("bert_pretraining", "bert_pretraining_small")
"""Experiments whose times are compared even where only their fine-tuning has a target."""
ITERATIONS_ALONE: Final = ("ladder", "batch_size", "width")
"""Experiments that compare iterations, and no times. Their labels train several variants of a workload."""
CYCLE_FIELDS: Final = (*PERIOD_FIELDS, "factor_update_period")
"""The hyperparameters that are numbers of steps after which something repeats."""
ROUNDS: Final = 30
"""Rounds on an idle machine."""
MOST_ROUNDS: Final = 45
"""Rounds after which a busy machine is measured no longer."""
TURN_MS: Final = 10.0
"""The shortest turn of the fastest optimizer of a workload, in milliseconds."""
LONGEST_CYCLE: Final = 10
"""The longest cycle whose steps are all timed. Of a longer one, a refresh and the steps between are, and weighted."""


class Row(NamedTuple):
    """One kind of step of a label in one round."""

    experiment: str
    workload: str
    optimizer: str
    inverse_update_period: int | None
    run: str
    runs: int
    again: bool
    cycle: int
    round: int | None
    steps: int | None
    step_ms: float | None
    busy_share: float | None
    left_out: bool
    hardware: str
    threads: int
    precision: str
    note: str | None


class Label(NamedTuple):
    """A label of an experiment, on one of its workloads and at one refresh period."""

    experiment: str
    label: str
    workload: str
    period: int | None


Key = tuple[str, str, bool]
"""An experiment, the id of a run, and whether it takes part for the second time."""


class Turn(NamedTuple):
    """What a contender trained in a round."""

    steps: int
    step_ms: float
    """Mean milliseconds of a step in a cycle."""


@dataclass(frozen=True)
class Contender:
    """A run whose step is timed, and the labels of an experiment that take such a step."""

    experiment: str
    run: Run
    period: int | None
    """Steps between refreshes; None for a method without a period."""
    labels: Counter[Label] = field(default_factory=Counter)
    """How many runs of each label take such a step, in the order of the plan."""
    again: bool = False

    @property
    def key(self) -> Key:
        """What tells it apart from all others of its workload."""
        return self.experiment, self.run.id, self.again

    @property
    def cycle(self) -> int:
        """Steps after which refreshes and updates of factors repeat."""
        return math.lcm(*(self.run.hyperparameters.get(name) or 1 for name in CYCLE_FIELDS))

    @property
    def problem(self) -> str | None:
        """Why its mean step cannot be timed; None if it can."""
        if self.cycle <= LONGEST_CYCLE or self.cycle == self.period:
            return None
        return f"its cycle of {self.cycle} steps is too long to time"

    @property
    def timed(self) -> TimedOptimizer:
        """The optimizer as it is timed: with a short cycle, a low rate, and without MKOR-H's switch."""
        values = dict(self.run.hyperparameters)
        if self.cycle > LONGEST_CYCLE:
            values |= {name: LONGEST_CYCLE for name in CYCLE_FIELDS if values.get(name)}
        # A step takes equally long at a hundredth of the rate, and training cannot diverge meanwhile.
        values["lr"] /= 100
        cls = method_class(self.run.method)
        if cls is not None and issubclass(cls, FollowsLoss):
            values["warmup_steps"] = 10**9
        return TimedOptimizer(self.run.id, self.run.method, values)

    @property
    def timed_cycle(self) -> int:
        """The steps of a cycle as it is timed: `LONGEST_CYCLE` in place of more."""
        return min(self.cycle, LONGEST_CYCLE)

    def steps(self, fewest: int) -> int:
        """Return the steps of a turn: whole cycles, of at least ``fewest`` steps."""
        return self.timed_cycle * math.ceil(fewest / self.timed_cycle)

    def turn(self, loop: TimedLoop, steps: int) -> Turn:
        """Train a turn of some steps."""
        times = loop.times(steps)
        if self.cycle <= LONGEST_CYCLE:
            return Turn(steps, fmean(time.total for time in times))
        refresh, between = (fmean(time.total for time in times if time.refreshed is kind) for kind in (True, False))
        return Turn(steps, cycle_mean(refresh, between, self.cycle))


def groups(plan: Plan) -> list[list[Contender]]:
    """Return the contenders of a plan: all optimizers of experiments whose times are compared, by what is trained.

    A group trains one workload in one precision; the last of it is the base optimizer's second turn.

    Raises:
        ConfigError: a label trains on two variants of a workload, which the rows, with its name alone, cannot hold.
    """
    found: dict[str, dict[tuple[str, str], Contender]] = {}
    variants: dict[Label, str] = {}
    for job in (job for job in plan.jobs if job.experiment not in ITERATIONS_ALONE):
        for planned in job.planned:
            if planned.target is None and job.experiment not in WITHOUT_TARGET:
                continue
            run = planned.run
            period = next((steps for name in PERIOD_FIELDS if (steps := run.hyperparameters.get(name))), None)
            label = Label(job.experiment, job.label, run.workload, period)
            trained = json.dumps([run.spec["workload"], run.precision, run.accumulation_steps], sort_keys=True)
            if variants.setdefault(label, trained) != trained:
                raise ConfigError(
                    f"experiment = '{job.experiment}': label '{job.label}' trains on two variants of {run.workload}; "
                    "give each its own label, so that their steps can be timed apart"
                )
            what = (job.experiment, work_of(run.spec))
            contender = found.setdefault(trained, {}).setdefault(what, Contender(job.experiment, run, period))
            contender.labels[label] += 1
    return [[*of_group.values(), _again([*of_group.values()])] for of_group in found.values()]


def _again(contenders: list[Contender]) -> Contender:
    """Return the base optimizer of most contenders for its second turn."""
    named = Counter(base for one in contenders if (base := one.run.hyperparameters.get("base")))
    most_named = named.most_common(1)[0][0] if named else None
    base = next((one for one in contenders if one.run.method == most_named), contenders[0])
    first = next(iter(base.labels))
    return replace(base, labels=Counter({first: base.labels[first]}), again=True)


def work_of(spec: Spec) -> str:
    """Return, as text, what decides the work of a run's step: all of its optimizer but the rate.

    Of real numbers it holds only whether they are 0 or 1, which save a product: other values change no step's work.
    """
    optimizer = spec["optimizer"]
    values = {
        name: value in (0, 1) if isinstance(value, float) else value
        for name, value in optimizer["hyperparameters"].items()
        if name != "lr"
    }
    return json.dumps([optimizer["name"], values], sort_keys=True)


def measure(plan: Plan) -> Iterator[Row]:
    """Yield all rows of a plan's tier, and report rounds that are left out."""
    for group in groups(plan):
        run, note, timed = group[0].run, None, list[Round[Key, Turn]]()
        try:
            timed = rounds_of(run, [one for one in group if one.problem is None], plan.tier.device)
        except (DataNotFound, Untimed, torch.OutOfMemoryError) as problem:
            note = str(problem).partition("\n")[0]
        release(plan.tier.device)
        if busy := sum(one.is_busy for one in timed):
            print(f"step_time: {run.workload}: busy in {busy} of {len(timed)} rounds", file=sys.stderr)
        for contender in group:
            yield from _rows(contender, timed, note or contender.problem, plan)


class Untimed(Exception):
    """A workload cannot be timed by one process; the message is the reason."""


def rounds_of(run: Run, contenders: list[Contender], device: str) -> list[Round[Key, Turn]]:
    """Time the contenders in turns until `ROUNDS` rounds had an idle machine, or `MOST_ROUNDS` are over."""
    if run.accumulation_steps > 1:
        raise Untimed(f"its batch is accumulated over {run.accumulation_steps} micro-batches")
    data = workloads.create(**run.spec["workload"])
    model = ProbeModel(run.workload, data, run.method, run.hyperparameters["lr"], run.precision)
    loops = {one.key: TimedLoop(model, one.timed, device, by_phase=False) for one in contenders}
    fastest = min(loop.times(1)[0].total for loop in loops.values())
    fewest = max(math.ceil(TURN_MS / fastest), *(one.timed_cycle for one in contenders))
    turns = {one.key: partial(one.turn, loops[one.key], one.steps(fewest)) for one in contenders}
    return until_idle(watched_rounds(turns, MOST_ROUNDS), ROUNDS)


def _rows(contender: Contender, timed: list[Round[Key, Turn]], note: str | None, plan: Plan) -> Iterator[Row]:
    # A turn of a longer cycle is a whole one, by its weights.
    cycle = contender.cycle if contender.cycle <= LONGEST_CYCLE else 1
    key, where = contender.key, (plan.hardware, torch.get_num_threads(), contender.run.precision, note)
    for (experiment, label, workload, period), runs in contender.labels.items():
        about = experiment, workload, label, period, contender.run.id, runs, contender.again, cycle
        if note is not None:
            yield Row(*about, None, None, None, None, False, *where)
            continue
        for number, one in enumerate(timed):
            turn = one.results[key]
            yield Row(*about, number, turn.steps, turn.step_ms, one.busy_share, one.is_busy, *where)


if __name__ == "__main__":
    sys.exit(_command.run("step_time", measure, columns=Row._fields))
