"""Tuning: the same number of trials for every optimizer of a block, from declared spaces, on a seed of its own."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.runs import Contender, Experiment, Trial
from workflow.bench.results.rows import write_csv
from workflow.bench.support.config import ConfigError, shown_path
from workflow.bench.support.files import write_atomically
from workflow.bench.training.record import RunFolder, read_metrics, read_summary
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
    """How a trial ended: its metric after the last step, NaN where it did not finish."""

    trial: Trial
    status: str
    value: float


def best_of(scores: Sequence[Score], best: str) -> Score | None:
    """Return the score with the ``lowest`` or ``highest`` value, the first of equals; None where none finished."""
    finished = [score for score in scores if math.isfinite(score.value)]
    if not finished:
        return None
    pick = min if best == "lowest" else max
    return pick(finished, key=lambda score: score.value)


def score(plan: Plan, contender: Contender, trial: Trial) -> Score:
    """Return how a trial ended."""
    folder = RunFolder.of(plan.results, trial.run.id)
    status = (read_summary(folder) or {"status": "missing"})["status"]
    if status != "finished":
        return Score(trial, status, math.nan)
    metric = (contender.metric["split"], contender.metric["metric"])
    rows = [row for row in read_metrics(folder) if (row["split"], row["metric"]) == metric]
    return Score(trial, status, float(rows[-1]["value"]))


def publish(plan: Plan, experiment: Experiment, folder: Path) -> list[str]:
    """Write ``<experiment>.yaml``, which holds the best values, and ``<experiment>.trials.csv``; return remarks."""
    entries: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    remarks: list[str] = []
    for contender in experiment.contenders:
        who = f"{contender.workload['name']}, {contender.label}"
        scores = [score(plan, contender, trial) for trial in contender.trials]
        best = best_of(scores, contender.metric["best"])
        rows += [_row(experiment, contender, found, chosen=found is best) for found in scores]
        if best is None:
            remarks.append(f"{who}: no trial finished; change its space")
            continue
        entries.append(
            {
                "workload": dict(contender.workload),
                "label": contender.label,
                "hyperparameters": dict(best.trial.values),
                "score": best.value,
                "trials": [trial.run.id for trial in contender.trials],
            }
        )
        remarks.append(f"{who}: {_shown(best.trial.values)}, {contender.metric['metric']} {best.value:.5g}")
        for name, value in best.trial.values.items():
            tried = [trial.values[name] for trial in contender.trials]
            if isinstance(value, float) and value in (min(tried), max(tried)) and len(tried) > 1:
                remarks.append(f"{who}: {name} = {value} is at an end of its space; widen it")
        if contender.given:
            names = ", ".join(contender.given)
            remarks.append(f"{who}: not in use, the experiment's file gives {names}; say 'tuned' there")
    header = (
        f"# Made by python -m workflow.bench.tune {experiment.name}, trials in {experiment.name}.trials.csv beside.\n"
        "# Every optimizer of a block had as many trials, on a seed that its runs do not use.\n"
    )
    body = yaml.dump(entries, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110)
    write_csv(folder / f"{experiment.name}.trials.csv", TRIAL_COLUMNS, rows)
    write_atomically(folder / f"{experiment.name}.yaml", header, body)
    return remarks


class _Dumper(yaml.SafeDumper):
    """Writes equal values out in full, where YAML would say: the same as above."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _row(experiment: Experiment, contender: Contender, found: Score, *, chosen: bool) -> dict[str, Any]:
    return {
        "experiment": experiment.name,
        "workload": contender.workload["name"],
        "optimizer": contender.label,
        "values": json.dumps(found.trial.values),
        "seed": found.trial.run.seed,
        "run": found.trial.run.id,
        "status": found.status,
        "split": contender.metric["split"],
        "metric": contender.metric["metric"],
        "score": found.value if math.isfinite(found.value) else None,
        "chosen": chosen,
    }


def _shown(values: Any) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def main(arguments: list[str] | None = None) -> int:
    """Tune the optimizers of experiments with a 'tuning', and write config/tuned/<tier>/<experiment>.yaml.

    Trials that are done are kept.  Asked to stop, it saves a checkpoint and exits with code 75: the same command
    goes on.
    """
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.tune", description=main.__doc__)
    parser.add_argument("experiment", nargs="*", help="files of <config>/experiments (default: all with a tuning)")
    add_arguments(parser)
    given = parser.parse_args(arguments)
    try:
        plan = load_from(given, for_tuning=True)
        chosen = [plan.experiment(name) for name in given.experiment]
        for experiment in chosen:
            if not experiment.contenders:
                raise ConfigError(f"experiment = '{experiment.name}': has no 'tuning' with a 'space' at this tier")
        chosen = chosen or [experiment for experiment in plan.experiments.values() if experiment.contenders]
        # Here and not above: torch takes seconds, and a mistake should be told at once.
        from workflow.bench.training.runner import Runner

        runner = Runner(plan)
        for experiment in chosen:
            trials = [trial for contender in experiment.contenders for trial in contender.trials]
            if not runner.train(trial.run for trial in trials):
                print("interrupted and saved; the same command goes on", file=sys.stderr)
                return EXIT_RESUMABLE
            folder = given.config_dir / "tuned" / plan.tier.name
            for remark in publish(plan, experiment, folder):
                print(remark)
            print(shown_path(folder / f"{experiment.name}.yaml"))
    except (ConfigError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
