"""Iterations and training time to each experiment's target and to its base's final quality, and speedups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.estimates import studies_of
from workflow.bench.analysis.final_quality import break_even
from workflow.bench.analysis.step_times import NOT_TESTED, StepTimes, Training, mean_seconds
from workflow.bench.analysis.target_sweep import FINAL, NoSweepError, TargetSweep, common_base, target_sweep
from workflow.bench.analysis.time_to_target import (
    Configuration,
    by_configuration,
    rate_of,
    reaching,
    target_ratio,
    to_target,
    varied,
)
from workflow.bench.analysis.wording import estimated, number
from workflow.bench.results.columns import ENDED
from workflow.bench.results.sources import from_runs
from workflow.bench.results.tables import NoDataError, Results
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("*",)
PROBES = ("step_time",)

RIVAL: Final = "kaisa"
"""Optimizers are compared with their base, and with this one."""
VIEWS: Final = ("mean of targets", "last target", "final quality")
COLUMNS: Final = (
    *("experiment", "workload", "dataset", "varied", "target", "optimizer", "rate", "inverse update period"),
    *("runs", "reached", "iterations", "ms a step", "training seconds"),
    *("its base", "fewer iterations than its base", "less time than its base"),
    *(f"fewer iterations than {RIVAL}", f"less time than {RIVAL}", "targets"),
    *(f"{saving} than its base, {view}" for saving in ("fewer iterations", "less time") for view in VIEWS),
    *("break-even step over its base", f"break-even step over {RIVAL}", "data"),
)
_SHARED: Final = list(COLUMNS[:5])
"""Columns with the same values in all runs that are compared with each other."""


def _reference(
    configurations: Mapping[Configuration, pd.DataFrame], label: str, rate: float | tuple[float, ...]
) -> pd.DataFrame | None:
    """Return a label's runs at a learning rate, or those of its only configuration.

    None if the label has no runs, or several configurations to choose from.
    """
    of_label = [
        (configuration.hyperparameters.get("lr"), runs)
        for configuration, runs in configurations.items()
        if configuration.optimizer == label
    ]
    at_rate = [runs for lr, runs in of_label if lr == rate] or [runs for _, runs in of_label]
    return at_rate[0] if len(at_rate) == 1 else None


def _faster(runs: pd.DataFrame, reference: pd.DataFrame | None, times: StepTimes | None) -> str:
    """Return the cell with a reference's iterations, or with ``times`` its seconds, over those of ``runs``.

    It is empty without a reference.
    """
    if reference is None or reference is runs:
        return ""
    compared = target_ratio(reference, runs, times)
    if compared is None:
        return NOT_TESTED
    if compared.short:
        return f"{compared.short} of {compared.seeds} too short to tell"
    text = estimated(compared.ratio).replace(number(math.inf), "∞")
    undecided = f"{compared.undecided} undecided" if compared.undecided else ""
    return "; ".join(filter(None, [text, undecided]))


def _seconds(runs: pd.DataFrame, times: StepTimes) -> tuple[str, str]:
    """Return the cells of the time of a step, and of the seconds to the target."""
    training = Training.of(runs, to_target(runs, "steps"))
    if times.problem(*training.labels):
        return NOT_TESTED, NOT_TESTED
    seconds = reaching(mean_seconds(times, training), studies_of(runs))
    ms = number(float(times.blocks(training.label).mean()))
    return ms, estimated(seconds.took, seconds.values) if seconds else ""


def _sweep(runs: pd.DataFrame, metrics: pd.DataFrame) -> TargetSweep | str:
    """Return the sweep over the targets that the base of most labels sets, or why there is none."""
    base = common_base(runs)
    if base is None:
        return "no base optimizer has runs"
    try:
        return target_sweep(runs, metrics, base)
    except NoSweepError as problem:
        return str(problem)


def _swept(sweep: TargetSweep | str, times: StepTimes, label: str, base: str) -> dict[str, str]:
    """Return the cells of a label's ratios over the targets of a sweep, and of what its step may cost."""
    if isinstance(sweep, str):
        return {"targets": sweep}
    cells = {"targets": f"{len(sweep.targets)} of {len(sweep.targets) + len(sweep.dropped)}"}
    if label not in sweep.courses:
        return cells
    final = sweep.at(FINAL) if FINAL in sweep.targets else None
    for rival, name in ((base, "its base"), (RIVAL, RIVAL)):
        if final and rival != label and rival in sweep.courses:
            cells[f"break-even step over {name}"] = str(break_even(final, times, label, rival) or "")
    if base == label or base not in sweep.courses:
        return cells
    timed = not times.problem(*sweep.training(base).labels, *sweep.training(label).labels)
    for view, part in zip(VIEWS, (sweep, sweep.last(), final), strict=True):
        steps = part.steps_ratio(base, label).estimate if part else None
        seconds = part.time_ratio(times, base, label).estimate if part and timed else None
        cells[f"fewer iterations than its base, {view}"] = estimated(steps)
        cells[f"less time than its base, {view}"] = estimated(seconds) if timed else NOT_TESTED
    return cells


def _rows(runs: pd.DataFrame, metrics: pd.DataFrame, times: StepTimes) -> Iterator[dict[str, Any]]:
    """Yield one row for each configuration of runs that share experiment, workload, data and target."""
    configurations, sweep = by_configuration(runs), _sweep(runs, metrics)
    for configuration, rows in configurations.items():
        iterations = reaching(to_target(rows, "steps"), studies_of(rows))
        if iterations is None:
            continue
        rate, base_label = configuration.hyperparameters.get("lr", math.nan), configuration.hyperparameters.get("base")
        base, rival = (_reference(configurations, label, rate) for label in (str(base_label), RIVAL))
        compared = pd.concat([rows, *(other for other in (base, rival) if other is not None)])
        compared = compared[compared["status"].isin(ENDED)]  # no cell is computed from a run that was interrupted
        values = (
            configuration.experiment,
            configuration.workload,
            configuration.dataset,
            str(rows["varied"].iloc[0]),
            configuration.target.describe(),
            configuration.optimizer,
            rate_of(configuration),
            configuration.period,
            iterations.runs,
            iterations.reached,
            estimated(iterations.took, iterations.values),
            *_seconds(rows, times),
            base_label,
            _faster(rows, base, None),
            _faster(rows, base, times),
            _faster(rows, rival, None),
            _faster(rows, rival, times),
        )
        # A target that a file sets is compared as ever; what the base reaches needs one run a label and seed.
        swept = _swept(sweep, times, configuration.optimizer, str(base_label))
        data = from_runs(f"{configuration.experiment}.runs.csv", compared)
        yield dict(zip(COLUMNS, values, strict=False)) | swept | {"data": data}


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per configuration of an optimizer, in every experiment with a target and a run that has ended."""
    frames = [results.runs(experiment) for experiment in results.experiments()]
    if not frames:
        raise NoDataError(f"no *.runs.csv in {results.root}: run an experiment first.")
    runs = pd.concat(frames, ignore_index=True)
    aimed = runs.dropna(subset=["target"])
    aimed = aimed.assign(varied=varied(aimed))
    times = StepTimes(results.probe("step_time"))
    rows = [
        row
        for name, of_experiment in aimed.groupby("experiment", sort=False)
        for metrics in (results.metrics(str(name)),)
        for _, shared in of_experiment.groupby(_SHARED, sort=False)
        for row in _rows(shared, metrics, times)
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table["inverse update period"] = table["inverse update period"].astype("Int64")
    notes = [
        "A run that ended without reaching its target counts as infinitely long: it is part of the median, which is "
        "'not reached' if most runs never reach the target. Below six runs or tuning studies the "
        "cell is a geometric mean with the t interval of logarithms, of two or three runs with these in parentheses, "
        "or a median without an interval if a run never reached the target",
        "A factor above 1, paired by seed, favors the optimizer. It is ∞ if the other side diverged, or took longer "
        "without reaching the target; seeds on which neither side reaches it are undecided and left out. Too short to "
        "tell: a run ended without reaching the target before the other side reached it, so that it is unknown which "
        "is faster. A target is reached where the metric, smoothed by the monotone curve nearest to it, crosses it "
        "between two evaluations",
        "Targets: of eight, what the base of most labels reaches after 30, 40, ... 100 % of its steps, those that are "
        "better than the trivial predictor and that the base crosses after its third evaluation. Final quality is the "
        "target at 90 %. Ratios to these targets are geometric means, with intervals over the tuning studies; a run "
        "that misses a target enters with its budget, one that diverged with the longer budget of the two",
        "Break-even: the multiple of the other's step time below which the optimizer takes less time to final quality, "
        "which is the ratio of iterations; here: the multiple that step_time measured, at which it wins, loses, or "
        "neither can be told",
        "A label that was tuned in several studies has the rates of all of them, and its seeds take them in turn. All "
        "intervals then are those of the means of the studies; the mean of a study of which a run misses the target is "
        "infinite",
        "Seconds are iterations times the time of a step, which the probe step_time measures in turns on an idle "
        "machine; the interval of a ratio holds the variance over seeds and that of the step times",
    ]
    problems = (times.problem(*Training.of(rows, {}).labels) for rows in by_configuration(aimed).values())
    notes += [f"Not tested: {problem}" for problem in dict.fromkeys(problems) if problem]
    title, text = "Iterations and training time to each experiment's target", caption(results, aimed, notes=notes)
    return write_table(table, folder, "time_to_target", title=title, caption=text)
