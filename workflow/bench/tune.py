"""Tune every optimizer of an experiment with the same number of trials, on a seed that no run uses."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.runs import Experiment, Trial, TunedOptimizer
from workflow.bench.results.rows import write_csv
from workflow.bench.support.command_line import refuse_unwritable, run_command
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.support.files import write_atomically
from workflow.bench.support.strict_yaml import dump
from workflow.bench.training.record import RunFolder, read_record
from workflow.bench.training.stop_signals import EXIT_RESUMABLE

TRIAL_COLUMNS: Final = (
    "experiment",
    "workload",
    "optimizer",
    "values",
    "seed",
    "run",
    "status",
    "split",
    "metric",
    "score",
    "chosen",
)


@dataclass(frozen=True)
class Score:
    """The result of a trial: its metric after the last step, NaN if it did not finish."""

    trial: Trial
    status: str
    value: float


def best_of(scores: Sequence[Score], best: str) -> Score | None:
    """Return the score with the ``lowest`` or ``highest`` value, the first of equals; None if no trial finished."""
    finished = [score for score in scores if math.isfinite(score.value)]
    if not finished:
        return None
    pick = min if best == "lowest" else max
    return pick(finished, key=lambda score: score.value)


def score(plan: Plan, optimizer: TunedOptimizer, trial: Trial) -> Score:
    """Read a trial's score from its run folder.

    Raises:
        UnreadableError, DamagedFileError: as `read_record`.
    """
    record = read_record(RunFolder.of(plan.results, trial.run.id), trial.run)
    if record.status != "finished":
        return Score(trial, record.status or "missing", math.nan)
    metric = (optimizer.metric["split"], optimizer.metric["metric"])
    values = [float(row["value"]) for row in record.rows if (row["split"], row["metric"]) == metric]
    return Score(trial, record.status, values[-1] if values else math.nan)


def publish(plan: Plan, experiment: Experiment, folder: Path) -> list[str]:
    """Write ``<experiment>.yaml`` with the best values and ``<experiment>.trials.csv`` with all trials.

    Returns:
        Remarks for the user, one line each.
    """
    entries: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    remarks: list[str] = []
    for optimizer in experiment.tuned_optimizers:
        scores = [score(plan, optimizer, trial) for trial in optimizer.trials]
        best = best_of(scores, optimizer.metric["best"])
        rows += [_row(experiment, optimizer, result, chosen=result is best) for result in scores]
        if best is not None:
            entries.append(_entry(optimizer, best))
        remarks += [f"{optimizer.workload['name']}, {optimizer.label}: {text}" for text in _remarks(optimizer, best)]
    header = (
        f"# Made by python -m workflow.bench.tune {experiment.name}; {experiment.name}.trials.csv lists the trials.\n"
        "# Every optimizer of a block had the same number of trials, on a seed that its runs do not use.\n"
    )
    write_csv(folder / f"{experiment.name}.trials.csv", TRIAL_COLUMNS, rows)
    write_atomically(folder / f"{experiment.name}.yaml", header, dump(entries))
    return remarks


def _entry(optimizer: TunedOptimizer, best: Score) -> dict[str, Any]:
    """Return an optimizer's entry in the file of tuned values."""
    return {
        "workload": dict(optimizer.workload),
        "label": optimizer.label,
        "hyperparameters": dict(best.trial.values),
        "score": best.value,
        "trials": [trial.run.id for trial in optimizer.trials],
    }


def _remarks(optimizer: TunedOptimizer, best: Score | None) -> Iterator[str]:
    """Yield what a user should know about an optimizer's result."""
    if best is None:
        yield "no trial finished; change its space"
        return
    values = ", ".join(f"{name} = {value}" for name, value in best.trial.values.items())
    yield f"{values}, {optimizer.metric['metric']} {best.value:.5g}"
    for name, value in best.trial.values.items():
        if _is_at_an_end(value, [trial.values[name] for trial in optimizer.trials]):
            yield f"{name} = {value} is at an end of its space; widen it"
    if optimizer.given:
        names = ", ".join(optimizer.given)
        yield f"not in use, the experiment's file gives {names}; write 'tuned' there"


def _is_at_an_end(value: Any, tried: Sequence[Any]) -> bool:
    return isinstance(value, float) and value in (min(tried), max(tried)) and len(tried) > 1


def _row(experiment: Experiment, optimizer: TunedOptimizer, result: Score, *, chosen: bool) -> dict[str, Any]:
    """Return a row of `TRIAL_COLUMNS`."""
    return {
        "experiment": experiment.name,
        "workload": optimizer.workload["name"],
        "optimizer": optimizer.label,
        "values": json.dumps(result.trial.values),
        "seed": result.trial.run.seed,
        "run": result.trial.run.id,
        "status": result.status,
        "split": optimizer.metric["split"],
        "metric": optimizer.metric["metric"],
        "score": result.value if math.isfinite(result.value) else None,
        "chosen": chosen,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune the optimizers of experiments that have a 'tuning', and write config/tuned/<tier>/<experiment>.yaml.

    Finished trials are skipped. When asked to stop, it saves a checkpoint and exits with code 75; the same command
    resumes it.
    """
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.tune", description=main.__doc__)
    parser.add_argument("experiment", nargs="*", help="names of files in <config>/experiments (default: all to tune)")
    add_arguments(parser)
    return run_command(parser, _tune, arguments)


def _tune(options: argparse.Namespace) -> int | None:
    plan = load_from(options, for_tuning=True)
    experiments = _chosen(plan, options.experiment)
    folder = options.config_dir / "tuned" / plan.tier.name
    for experiment in experiments:
        refuse_unwritable("file of tuned values", folder / f"{experiment.name}.yaml")
    # Imported here because torch takes seconds to import, and mistakes in the options should be reported at once.
    from workflow.bench.training.runner import Runner

    runner = Runner(plan)
    for experiment in experiments:
        if not runner.train(trial.run for optimizer in experiment.tuned_optimizers for trial in optimizer.trials):
            print("interrupted and saved; the same command resumes it", file=sys.stderr)
            return EXIT_RESUMABLE
        for remark in publish(plan, experiment, folder):
            print(remark)
        print(shown_path(folder / f"{experiment.name}.yaml"))
    return None


def _chosen(plan: Plan, names: Sequence[str]) -> list[Experiment]:
    """Return the named experiments, by default all that have a tuning."""
    if not names:
        return [experiment for experiment in plan.experiments.values() if experiment.tuned_optimizers]
    for name in names:
        if not plan.experiment(name).tuned_optimizers:
            raise ConfigError(f"experiment = '{name}': has no 'tuning' with a 'space' at this tier")
    return [plan.experiment(name) for name in names]


if __name__ == "__main__":
    sys.exit(main())
