"""The results of tuning: the scores of trials, and the files of config/tuned. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Experiment, Trial, TunedOptimizer
from workflow.bench.plan.tuned_values import is_of, read_records
from workflow.bench.plan.tuning import Ranking, end_of
from workflow.bench.results.columns import ENDED, TRIAL_COLUMNS
from workflow.bench.results.rows import read_csv, write_csv
from workflow.bench.support.config import dump
from workflow.bench.support.files import write_atomically
from workflow.bench.training.record import RunFolder, read_record


@dataclass(frozen=True)
class Score:
    """The result of a trial."""

    trial: Trial
    status: str
    value: float
    """The last value of the metric; NaN if the trial did not finish."""
    steps: float | None = None
    """The steps to the target that ranks the trials; None without one, or if the trial did not reach it."""


def best_of(scores: Sequence[Score], ranking: Ranking) -> Score | None:
    """Return the best score, the first of equals; None if no trial finished."""
    finished = [score for score in scores if math.isfinite(score.value)]
    return min(finished, key=lambda score: ranking.key(score.value, score.steps), default=None)


def score(plan: Plan, ranking: Ranking, trial: Trial) -> Score:
    """Read a trial's score from its run folder.

    Raises:
        UnreadableError, DamagedFileError: as `read_record`.
    """
    record = read_record(RunFolder.of(plan.results, trial.run.id), trial.run)
    if record.status != "finished":
        return Score(trial, record.status or "missing", math.nan)
    rows = [row for row in record.rows if (row["split"], row["metric"]) == (ranking.split, ranking.metric)]
    crossing = ranking.target.crossing(rows) if ranking.target else None
    return Score(
        trial, record.status, float(rows[-1]["value"]) if rows else math.nan, crossing.step if crossing else None
    )


def publish(plan: Plan, experiment: Experiment, folder: Path) -> list[str]:
    """Write ``<experiment>.yaml`` with the best values and ``<experiment>.trials.csv`` with the trials.

    An optimizer of which trials have not ended keeps what the files say about it. There is no ``<experiment>.yaml``
    before the first optimizer is complete.

    Returns:
        Remarks for the user, one line each.
    """
    file, table = folder / f"{experiment.name}.yaml", folder / f"{experiment.name}.trials.csv"
    earlier = read_records(file)
    earlier_rows = read_csv(table) if table.is_file() else []
    records: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    remarks: list[str] = []
    for optimizer in experiment.tuned_optimizers:
        studies = [[score(plan, optimizer.ranking, trial) for trial in study] for study in optimizer.studies]
        about = f"{optimizer.workload['name']}, {optimizer.label}"
        left = sum(result.status not in ENDED for scores in studies for result in scores)
        if left:
            kept = [record for record in earlier if is_of(record, optimizer.workload, optimizer.label)]
            ids = {run for record in kept for study in record["studies"] for run in study["trials"]}
            records += kept
            rows += [row for row in earlier_rows if row["run"] in ids]
            remarks.append(f"{about}: {left} of {len(optimizer.trials)} trials have not ended; its record is unchanged")
            continue
        bests = [best_of(scores, optimizer.ranking) for scores in studies]
        for number, (scores, best) in enumerate(zip(studies, bests, strict=True)):
            rows += [_row(experiment, optimizer, number, result, chosen=result is best) for result in scores]
        finished = [best for best in bests if best is not None]
        if len(finished) == len(bests):
            records.append(_record(optimizer, finished))
        remarks += [f"{about}: {text}" for text in _remarks(optimizer, bests)]
    header = (
        f"# Made by python -m workflow.bench.tune {experiment.name}; {experiment.name}.trials.csv lists the trials.\n"
        "# Every optimizer of a block has its trials in that table, on seeds and held-out data that no run uses.\n"
    )
    write_csv(table, TRIAL_COLUMNS, rows)
    if records:
        write_atomically(file, header, dump(records))
    else:
        file.unlink(missing_ok=True)  # one without any record would be refused
    return remarks


def _record(optimizer: TunedOptimizer, bests: Sequence[Score]) -> dict[str, Any]:
    """Return an optimizer's record in the file of tuned values."""
    return {
        "workload": dict(optimizer.workload),
        "label": optimizer.label,
        "studies": [
            {
                "hyperparameters": dict(best.trial.values),
                "score": best.value,
                **({} if best.steps is None else {"steps_to_target": best.steps}),
                "trials": trials,
            }
            for best, trials in zip(bests, optimizer.trial_ids, strict=True)
        ],
    }


def _remarks(optimizer: TunedOptimizer, bests: Sequence[Score | None]) -> Iterator[str]:
    """Yield what a user should know about an optimizer's result."""
    for number, best in enumerate(bests):
        study = f"study {number}: " if len(bests) > 1 else ""
        if best is None:
            yield f"{study}no trial finished; change its space"
            continue
        values = ", ".join(f"{name} = {value}" for name, value in best.trial.values.items())
        steps = "" if best.steps is None else f", {best.steps:.4g} steps to the target"
        yield f"{study}{values}, {optimizer.ranking.metric} {best.value:.5g}{steps}"
        for name, value in best.trial.values.items():
            if end_of(optimizer.space[name], value):
                yield f"{study}{name} = {value} is near an end of its space; widen it"
    if optimizer.given:
        names = ", ".join(optimizer.given)
        yield f"not in use, the experiment's file gives {names}; write 'tuned' there"


def _row(
    experiment: Experiment, optimizer: TunedOptimizer, study: int, result: Score, *, chosen: bool
) -> dict[str, Any]:
    """Return a row of `TRIAL_COLUMNS`."""
    return {
        "experiment": experiment.name,
        "workload": optimizer.workload["name"],
        "optimizer": optimizer.label,
        "study": study,
        "values": result.trial.values,
        "seed": result.trial.run.seed,
        "run": result.trial.run.id,
        "status": result.status,
        "split": optimizer.ranking.split,
        "metric": optimizer.ranking.metric,
        "score": result.value if math.isfinite(result.value) else None,
        "steps_to_target": result.steps,
        "chosen": chosen,
    }
