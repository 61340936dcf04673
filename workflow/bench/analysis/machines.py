"""Comparison of machines: step times, and measured or projected times to targets.

The data are the tidy CSV files of this machine's folder and of other machines' folders at the same tier. A projection
multiplies the iterations to a target, measured on another machine, by the step time measured on this one. It assumes
that the same model, batch and optimizer take the same iterations on any machine.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import pandas as pd

from workflow.bench.analysis.estimates import Estimate, studies_of
from workflow.bench.analysis.fits import cycle_mean
from workflow.bench.analysis.step_times import StepTimes, Timed, timed, times_note
from workflow.bench.analysis.time_to_target import (
    Configuration,
    Reaching,
    by_configuration,
    estimate_times,
    reaching,
    to_target,
)
from workflow.bench.results.sources import Sources, from_rows, from_runs
from workflow.bench.results.tables import NoDataError, Results

TIMED_MODELS: Final[Mapping[tuple[str, str], str]] = {
    ("bert_pretraining", "bert_pretraining"): "bert",
    ("resnet50_imagenet", "resnet20"): "resnet",
    ("update_rules", "autoencoder"): "autoencoder",
    ("update_rules", "bert_pretraining"): "bert",
}
"""The probes' model for each (experiment, workload) whose model, batch and data the probes time unchanged on a CPU.

On a GPU the probes time the paper's models on random data, so nothing is projected there.
"""


@dataclass(frozen=True)
class StepTime:
    """The mean time of one optimizer's training step on one machine."""

    machine: str
    probe: str
    workload: str
    """The probes' name of the model."""
    optimizer: str
    period: float
    """Steps between refreshes; NaN for a method without a period."""
    took: Estimate
    """Milliseconds; the estimate is over the probe's repeats."""
    repeats: tuple[float, ...]
    """Milliseconds in each repeat."""
    data: Sources


@dataclass(frozen=True)
class TargetTime:
    """The training time to an experiment's target in one configuration on one machine, measured or projected."""

    machine: str
    configuration: Configuration
    iterations: Reaching
    iterations_from: str
    """The machine that measured the iterations."""
    seconds: Estimate
    by_run: tuple[float, ...]
    """Seconds of each run that reached the target; empty if they are projected."""
    projected: bool
    own_seconds: bool
    """Whether they are the runs' own seconds, which depend on the jobs beside them (`step_times`)."""
    data: Sources


@dataclass(frozen=True)
class Machine:
    """One machine's results."""

    results: Results
    prefix: str
    """The path of its folder from this machine's folder, with a slash at the end; empty for this machine."""
    place: str = ""
    """The folder of its results, to tell it from an earlier one of the same name; otherwise empty."""

    @property
    def name(self) -> str:
        """Name of the machine."""
        return f"{self.results.hardware} ({self.place})" if self.place else self.results.hardware

    @cached_property
    def _breakdown(self) -> pd.DataFrame:
        """Step times of one process, summed over phases: one row a workload, optimizer, period and repeat."""
        rows = self.results.probe("step_breakdown")
        alone = rows[(rows["workers"] == 1) & (rows["estimate"] == "measured")]
        keys = ["workload", "optimizer", "inverse_update_period", "repeat"]
        grouped = alone.groupby(keys, dropna=False, sort=False)[["ms", "refresh_ms", "other_ms"]]
        # Without min_count, the times of refreshing steps, missing for a method without a period, would sum to 0.
        return grouped.sum(min_count=1).reset_index()

    @cached_property
    def _cycles(self) -> pd.DataFrame:
        return self.results.probe("iteration_time")

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Rows of all experiments' runs that this machine trained itself; a frame without columns if there are none."""
        frames = [self.results.runs(experiment) for experiment in self.results.experiments()]
        # Adopted runs were trained, and timed, elsewhere: they belong to the machine that made them.
        frames = [frame[frame["hardware"] == self.results.hardware] for frame in frames]
        frames = [frame for frame in frames if not frame.empty]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    @cached_property
    def timed(self) -> Timed:
        """The runs, with the seconds of the probe ``step_time`` where it has them."""
        no_evaluations = pd.DataFrame(columns=["run", "step", "train_seconds"])
        return timed(StepTimes(self.results.probe("step_time")), self.runs, no_evaluations)

    @property
    def is_empty(self) -> bool:
        """Whether the machine has neither step times nor runs."""
        return self._breakdown.empty and self._cycles.empty and self.runs.empty

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of the code that measured each run (by id) and each probe (by name)."""
        probes = (self.results.probe(name).assign(run=name) for name in ("step_breakdown", "iteration_time"))
        frames = [frame for frame in (self.runs, *probes) if "code_fingerprint" in frame]
        rows = pd.concat(frames)[["run", "code_fingerprint"]].dropna() if frames else pd.DataFrame()
        return {str(measurement): str(code) for measurement, code in rows.to_numpy()}

    def step_times(self) -> Iterator[StepTime]:
        """Yield every step time that the probes measured, at the periods that they measured."""
        for probe, rows in (("step_breakdown", self._breakdown), ("iteration_time", self._cycles)):
            keys = ["workload", "optimizer", "inverse_update_period"]
            for (workload, optimizer, period), of_setting in rows.groupby(keys, dropna=False, sort=False):
                times = of_setting["ms" if probe == "step_breakdown" else "iteration_ms"]
                yield self._step_time(probe, str(workload), str(optimizer), float(str(period)), times)

    def step_time(self, model: str, optimizer: str, period: float) -> StepTime | None:
        """Return an optimizer's step time on a probes' model at any period; None if the probes do not determine it.

        A cycle holds one refresh, so its mean is linear in 1 / period. It is computed from a refreshing step and the
        others if both were timed, else interpolated between measured periods; it is never extrapolated.
        """
        phases, cycles = (
            rows[(rows["workload"] == model) & (rows["optimizer"] == optimizer)]
            for rows in (self._breakdown, self._cycles)
        )
        has_period = not math.isnan(period)
        times = cycle_mean(phases["refresh_ms"], phases["other_ms"], period) if has_period else phases["ms"]
        if len(times) and times.notna().all():
            return self._step_time("step_breakdown", model, optimizer, period, times)
        # Between two periods the mean is known by arithmetic; beyond them a refresh may cost what nobody timed.
        interpolated = _interpolated(cycles, period)
        return (
            None if interpolated is None else self._step_time("iteration_time", model, optimizer, period, interpolated)
        )

    def goals(self, *, own_seconds: bool = False) -> Iterator[tuple[Configuration, pd.DataFrame, Reaching]]:
        """Yield the configurations with a target and a run that has ended, their runs, and the iterations to it.

        own_seconds: whether the runs have the seconds that they measured themselves, or those of `timed`.
        """
        if self.runs.empty:
            return
        for configuration, runs in by_configuration(self.runs if own_seconds else self.timed.runs).items():
            if (iterations := reaching(to_target(runs, "steps"), studies_of(runs))) is not None:
                yield configuration, runs, iterations

    def _step_time(self, probe: str, workload: str, optimizer: str, period: float, times: pd.Series) -> StepTime:
        where: dict[str, object] = {"workload": workload, "optimizer": optimizer}
        if probe == "step_breakdown":
            where["workers"] = 1
        if times.isna().any():
            file = self.results.root / "probes" / f"{probe}.csv"
            raise NoDataError(f"{file} lacks a time of {workload} with {optimizer}. Delete it and run again.")
        data = from_rows(f"{self.prefix}probes/{probe}.csv", **where)
        repeats = times.to_numpy(float)
        return StepTime(self.name, probe, workload, optimizer, period, estimate_times(repeats), tuple(repeats), data)


def _interpolated(cycles: pd.DataFrame, period: float) -> pd.Series | None:
    """Return the mean step time at a period by repeat, from rows of ``iteration_time.csv`` of one optimizer.

    The mean is linear in 1 / period between the nearest measured periods; None if the period lies outside of them.
    """
    measured = {
        float(str(timed)): rows.sort_values("repeat")["iteration_ms"].reset_index(drop=True)
        for timed, rows in cycles.groupby("inverse_update_period")
    }
    longer, shorter = [timed for timed in measured if timed >= period], [timed for timed in measured if timed <= period]
    if not longer or not shorter:
        return None
    above, below = min(longer), max(shorter)
    if above == below:
        return measured[above]
    # One refresh in a cycle: the mean step is plain + (refresh - plain) / period.
    weight = (1 / period - 1 / above) / (1 / below - 1 / above)
    return weight * measured[below] + (1 - weight) * measured[above]


def gather(results: Results) -> tuple[list[Machine], list[str]]:
    """Return the machines to compare, that of ``results`` first, and sentences on those that are left out.

    Several folders of one name are told apart by the folders that hold them, ``results`` or ``reference``.

    Raises:
        NoDataError: no machine has anything to compare.
    """
    machines: dict[str, Machine] = {}
    notes = []
    for folder in (results.root, *results.compared):
        if folder == results.root:
            machine = Machine(results, "")
        else:
            path = Path(os.path.relpath(folder.resolve(), results.root.resolve())).as_posix()
            machine = Machine(Results(folder, results.tier_title), f"{path}/")
        # A machine's earlier results may lie in the reference folder under the same name.
        if machine.name in machines:
            machine = replace(machine, place=folder.resolve().parents[1].name)
        if machine.name in machines:
            notes.append(f"a second folder of {machine.name} is not shown")
        elif machine.is_empty:
            notes.append(f"no step time and no run of {machine.name} yet")
        else:
            machines[machine.name] = machine
    if not machines:
        measure = f"python -m workflow.bench.timing --tier {results.root.name}"
        raise NoDataError(f"no step time and no run in {results.root} or elsewhere: run {measure} first.")
    return list(machines.values()), notes


def target_times(machines: Iterable[Machine]) -> list[TargetTime]:
    """Return the time to target of every configuration on every machine, if it was measured or can be projected.

    Configurations are in the order of the first machine that has them, each with its machines in their order.
    """
    listed = list(machines)
    measured: dict[Configuration, dict[str, tuple[Machine, pd.DataFrame, Reaching]]] = {}
    for machine in listed:
        for configuration, runs, iterations in machine.goals():
            measured.setdefault(configuration, {})[machine.name] = machine, runs, iterations
    found = (_target_time(machine, *of_one) for of_one in measured.items() for machine in listed)
    return [time for time in found if time is not None]


def _target_time(
    machine: Machine, configuration: Configuration, by_machine: Mapping[str, tuple[Machine, pd.DataFrame, Reaching]]
) -> TargetTime | None:
    """Return the measured time on a machine, or the projection of the first machine's iterations; None without one."""
    projected = machine.name not in by_machine
    source, runs, iterations = next(iter(by_machine.values())) if projected else by_machine[machine.name]
    data = from_runs(f"{source.prefix}{configuration.experiment}.runs.csv", runs)
    if projected:
        if (projection := project(machine, configuration, runs, iterations)) is None:
            return None
        seconds, took = projection[0], {}
        data += projection[1].data
    else:
        took = to_target(runs, "seconds")
        summary = reaching(took, studies_of(runs))
        assert summary is not None  # as its iterations are
        seconds = summary.took
    return TargetTime(
        machine=machine.name,
        configuration=configuration,
        iterations=iterations,
        iterations_from=source.name,
        seconds=seconds,
        by_run=tuple(value for value in took.values() if math.isfinite(value)),
        projected=projected,
        own_seconds=not projected and (configuration.experiment, configuration.workload) in machine.timed.own,
        data=data,
    )


def project(
    machine: Machine, configuration: Configuration, runs: pd.DataFrame, iterations: Reaching
) -> tuple[Estimate, StepTime] | None:
    """Return the projected seconds of ``iterations`` on a machine, and its step time; None without a step time.

    The bounds of the interval are the products of the bounds of both factors. runs: those of the iterations.
    """
    model = TIMED_MODELS.get((configuration.experiment, configuration.workload))
    # On a GPU the probes time the paper's models, which are not those that the runs trained.
    if model is None or runs["gpu"].notna().any():
        return None
    step = machine.step_time(model, configuration.optimizer, configuration.period)
    if step is None:
        return None
    steps, seconds = iterations.took, step.took.scaled(1e-3)
    least, most = (seconds.low, seconds.high) if seconds.has_interval else (seconds.value, seconds.value)
    # A t interval of a few noisy times may reach below 0; the product of two such bounds would be positive.
    low = max(steps.low, 0.0) * max(least, 0.0)
    return replace(steps, value=steps.value * seconds.value, low=low, high=steps.high * most), step


def note_on_times(times: Iterable[TargetTime], name: Callable[[str], str]) -> str:
    """Return a caption's sentence on measured times to targets; name: how it names a workload."""
    own = {(time.configuration.experiment, time.configuration.workload): time.own_seconds for time in times}
    return times_note(list(own), [pair for pair, is_own in own.items() if is_own], name)


def projection_check(machines: Iterable[Machine]) -> tuple[float, float] | None:
    """Return the smallest and largest ratio of projected seconds to the runs' own on one machine; None without any.

    The projection uses the machine's own iterations, so the ratio compares a step in a probe with a step in training.
    """
    ratios = []
    for machine in machines:
        for configuration, runs, iterations in machine.goals(own_seconds=True):
            seconds = reaching(to_target(runs, "seconds"), studies_of(runs))
            projection = project(machine, configuration, runs, iterations)
            if seconds and projection and math.isfinite(seconds.took.value):
                ratios.append(projection[0].value / seconds.took.value)
    return (min(ratios), max(ratios)) if ratios else None


def describe(machines: Iterable[Machine], experiments: Collection[str] | None = None) -> list[str]:
    """Return sentences for a caption: the other machines' runs, and whether all machines ran the same code.

    experiments: those whose runs are counted; None: all.
    """
    listed = list(machines)
    notes = []
    for machine in listed:
        runs = machine.runs
        if experiments is not None and not runs.empty:
            runs = runs[runs["experiment"].isin(experiments)]
        if machine.prefix:
            statuses = [] if runs.empty else runs["status"].astype(str).str.replace("_", " ").value_counts().items()
            counted = ", ".join([f"{len(runs)} runs", *(f"{count} {status}" for status, count in statuses)])
            notes.append(f"compared with {machine.name}: {'step times only, no runs' if runs.empty else counted}")
    codes: dict[str, list[str]] = defaultdict(list)
    for machine in listed:
        for measurement, code in machine.fingerprints.items():
            codes[measurement].append(code)
    shared = [fingerprints for fingerprints in codes.values() if len(fingerprints) > 1]
    if differing := sum(len(set(fingerprints)) > 1 for fingerprints in shared):
        notes.append(f"different code measured {differing} of the {len(shared)} runs and probes that machines share")
    return notes
