"""Tables of fine-tuning: cells of scores, the pre-training behind them, and the paper's rows.

All fine-tuning runs use the same method. The label of a run is that of the pre-training whose checkpoint it starts
from (its column ``start_from``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.common_steps import by_seed
from workflow.bench.analysis.estimates import Estimate, estimate, paired_difference
from workflow.bench.analysis.finetuning_scores import pretraining_experiment
from workflow.bench.analysis.paper_names import paper_name
from workflow.bench.analysis.step_times import NOT_TESTED, StepTimes
from workflow.bench.analysis.time_to_target import of_any_length
from workflow.bench.analysis.training_time import Training, mean_seconds, time_ratio
from workflow.bench.analysis.wording import number
from workflow.bench.results.sources import NO_SOURCES, Sources, from_rows, from_runs
from workflow.bench.results.tables import Results, published
from workflow.bench.tables._files import write_table

REFERENCE: Final = "lamb"
"""The optimizer that the others are compared with, as in the paper."""
SCORE_DIGITS: Final = 4
BROKE_DOWN: Final = "broke down"

SCORE_NOTE: Final = (
    "The optimizer of a row is that of the pre-training whose checkpoint a run starts from; fine-tuning is the same "
    "for all. Scores are those of a run's last evaluation, and can be compared with the paper's only if the task is "
    "the same. A run that broke down counts as the worst; the cell is then a median, with no interval below six "
    "seeds"
)
COST_NOTE: Final = (
    "Iterations and time are those of the pre-training after phase 1; time is iterations times the time of a step, "
    "which the probe step_time measures in turns. A factor above 1, paired by seed, favors the optimizer; it does not "
    "mean that the scores are equal, for which see the difference from LAMB's"
)
PAPER_NOTE: Final = (
    "The paper's MKOR is compared with each of our update rules: an optimizer's longest pre-training with the paper's "
    "longest, a shorter one with the paper's run of as many iterations. A row with an empty left side has no such run "
    "at this tier"
)


@dataclass(frozen=True)
class Overview:
    """A table with one row per optimizer: its score, the cost of its pre-training, and the paper's row."""

    name: str
    title: str
    experiment: str
    """The fine-tuning experiment."""
    score: str
    """Title of the column of scores."""
    difference: str
    """Title of the column with the differences from the reference's score."""
    paper: str
    """Name of the paper's file."""
    paper_score: str
    """The file's column of scores."""
    paper_title: str
    """Title of that column."""


def score_sources(file: str, runs: pd.DataFrame, last: pd.Series, *labels: str) -> Sources:
    """Return the runs of some labels that have a score in ``last`` (`finetuning_scores.last_values`) as a source."""
    scored = runs[runs["run"].isin(last.index)]
    return from_runs(file, pd.concat([scored[scored["optimizer"] == label] for label in labels]))


def shown(values: Mapping[int, float] | Estimate | None, digits: int = 3) -> str:
    """Return the cell of values by seed or of their estimate, with its interval; empty without values."""
    if not values:
        return ""
    summary = values if isinstance(values, Estimate) else estimate(list(values.values()))
    if math.isinf(summary.value):
        return BROKE_DOWN
    # A median's interval may reach down to the runs that broke down.
    low = BROKE_DOWN if math.isinf(summary.low) else number(summary.low, digits)
    interval = f" [{low}, {number(summary.high, digits)}]" if summary.has_interval else ""
    return f"{number(summary.value, digits)}{interval}"


def finished(runs: pd.DataFrame) -> str:
    """Return how many of the planned runs finished, such as ``2 of 3``."""
    return f"{int((runs['status'] == 'finished').sum())} of {len(runs)}"


def pretraining_of(runs: pd.DataFrame, pretraining: pd.DataFrame) -> pd.DataFrame:
    """Return the finished pre-training runs that ``runs`` start from, one per seed, with the seeds of ``runs``."""
    starts = runs[["seed", "start_from"]].dropna().drop_duplicates().rename(columns={"start_from": "run"})
    done = pretraining[pretraining["status"] == "finished"]
    return starts.merge(done.drop(columns="seed"), on="run")


def costs(runs: pd.DataFrame, pretraining: pd.DataFrame, times: StepTimes) -> dict[str, dict[str, Any]]:
    """Return, by label, the cells on the pre-training behind its runs: iterations, seconds, speed and sources."""
    starts = {str(label): pretraining_of(rows, pretraining) for label, rows in runs.groupby("optimizer", sort=False)}
    trainings = {
        label: Training.of(rows, by_seed(rows, "steps_done")) for label, rows in starts.items() if not rows.empty
    }
    cells = {}
    for label, rows in starts.items():
        cells[label] = {
            "iterations here": ", ".join(f"{steps:g}" for steps in sorted(rows["steps_done"].unique())),
            "time here (s)": _seconds(trainings.get(label), times),
            "times as fast as LAMB here": _faster(trainings.get(REFERENCE), trainings.get(label), times),
            "data": _pretraining_sources(pd.concat([rows, starts.get(REFERENCE, rows)])),
        }
    return cells


def _pretraining_sources(rows: pd.DataFrame) -> Sources:
    by_experiment = (from_runs(f"{name}.runs.csv", of_name) for name, of_name in rows.groupby("experiment"))
    return sum(by_experiment, NO_SOURCES)


def _seconds(training: Training | None, times: StepTimes) -> str:
    """Return the cell of a pre-training's seconds; empty without one."""
    if training is None:
        return ""
    return NOT_TESTED if times.problem(*training.labels) else shown(mean_seconds(times, training))


def _faster(reference: Training | None, training: Training | None, times: StepTimes) -> str:
    """Return the cell of the reference's seconds over a pre-training's; empty for the reference itself."""
    if reference is None or training is None or reference is training:
        return ""
    if times.problem(*reference.labels, *training.labels):
        return NOT_TESTED
    return shown(time_ratio(times, reference, training))


def difference(values: Mapping[str, Mapping[int, float]], label: str) -> str:
    """Return the cell of a label's scores minus the reference's, paired by seed.

    It is empty for the reference and without a pair. Seeds with a run that broke down have no difference, and are
    counted.
    """
    if label == REFERENCE:
        return ""
    scores, reference = values[label], values.get(REFERENCE, {})
    shared = scores.keys() & reference.keys()
    broken = sum(math.isinf(scores[seed]) or math.isinf(reference[seed]) for seed in shared)
    remark = f"{broken} of {len(shared)} seeds {BROKE_DOWN}" if broken else ""
    return "; ".join(filter(None, [shown(paired_difference(scores, reference)), remark]))


def counterpart(label: str, paper: pd.DataFrame, pretraining: pd.DataFrame) -> Any:
    """Return the index of the paper's row that is compared with a label, or None if the paper has no such run.

    An optimizer's longest pre-training is compared with the paper's longest, a shorter one with the paper's run of as
    many iterations. A label without planned pre-training has no row to compare with.

    Args:
        label: the pre-training's label.
        paper: the paper's rows, with the columns ``optimizer`` and ``iterations``.
        pretraining: rows of the pre-training's ``<experiment>.runs.csv``.
    """
    rows = paper[paper["optimizer"] == paper_name(label)]
    iterations = rows["iterations"].astype(int)
    steps = pretraining.loc[pretraining["optimizer"] == label, "steps"]
    if steps.empty:
        return None  # of unknown length
    is_shorter = steps.max() < of_any_length(pretraining, label)["steps"].max()
    same_length = rows[iterations == (steps.max() if is_shorter else iterations.max())]
    return None if same_length.empty else same_length.index[0]


def join_paper(
    rows: Sequence[Mapping[str, Any]],
    pretraining: pd.DataFrame,
    paper: str,
    columns: Mapping[str, str],
    ours: Sequence[str],
) -> pd.DataFrame:
    """Return our rows, each with the row of the paper that it is compared with; the paper's other rows come last.

    Args:
        rows: our rows, each with a label under ``optimizer here``.
        pretraining: rows of the pre-training's ``<experiment>.runs.csv``.
        paper: the paper's numbers, ``workflow/paper/<paper>.csv``.
        columns: the paper's columns and their titles in the table.
        ours: our columns, in their order.
    """
    theirs = published(paper, as_text=True)
    indices = [counterpart(row["optimizer here"], theirs, pretraining) for row in rows]
    unmatched = [index for index in theirs.index if index not in indices]
    pairs = [*zip(rows, indices, strict=True), *(({"optimizer here": ""}, index) for index in unmatched)]
    table = []
    for row, index in pairs:
        cells: dict[str, Any] = {"data": row.get("data", NO_SOURCES)}
        if index is not None:
            cells |= {title: theirs.loc[index, column] for column, title in columns.items()}
            keys = theirs.loc[index, ["optimizer", "iterations"]].to_dict()
            cells["data"] += from_rows(f"workflow/paper/{paper}.csv", **keys)
        table.append({**row, **cells})
    return pd.DataFrame(table, columns=[*ours, *columns.values(), "data"])


def with_pretraining(runs: pd.DataFrame, pretraining: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the caption: the fine-tuning runs and the pre-training runs that they start from."""
    starts = pretraining[pretraining["run"].isin(runs["start_from"])]
    frames = [frame for frame in (runs, starts) if not frame.empty]
    return pd.concat(frames, ignore_index=True) if frames else runs


def write_overview(
    results: Results,
    folder: Path,
    table: Overview,
    *,
    last: pd.Series,
    scores: Mapping[str, Mapping[int, float]],
    note: str,
) -> list[Path]:
    """Write an overview and return its files.

    Args:
        results: the results of this machine.
        folder: the folder to write to.
        table: the table's titles, its experiment and its file of the paper.
        last: the score of each run (`finetuning_scores.last_values`).
        scores: the score by label and seed.
        note: the last sentence of the caption.
    """
    runs = results.runs(table.experiment)
    source = pretraining_experiment(results, runs)
    pretraining = results.runs(source)
    titles = {
        "optimizer": "optimizer in the paper",
        table.paper_score: table.paper_title,
        "iterations": "iterations in the paper",
        "time_h": "time in the paper (h)",
        "speedup": "speedup over LAMB in the paper",
    }
    ours = ["optimizer here", "runs finished", table.score, table.difference]
    ours += ["iterations here", "time here (s)", "times as fast as LAMB here"]
    times = StepTimes(results.probe("step_time"))
    rows = _overview_rows(table, runs, costs(runs, pretraining, times), last, scores)
    return write_table(
        join_paper(rows, pretraining, table.paper, titles, ours),
        folder,
        table.name,
        title=table.title,
        caption=caption(
            results,
            with_pretraining(runs, pretraining),
            notes=[SCORE_NOTE, COST_NOTE, *_untimed(runs, pretraining, times), PAPER_NOTE, note],
            absent=[source] if pretraining.empty else [],
        ),
    )


def _untimed(runs: pd.DataFrame, pretraining: pd.DataFrame, times: StepTimes) -> list[str]:
    """Return sentences on why the times of pre-trainings are not tested, each reason once."""
    starts = pretraining_of(runs, pretraining)
    trainings = (Training.of(rows, {}) for _, rows in starts.groupby("optimizer", sort=False))
    problems = dict.fromkeys(times.problem(*training.labels) for training in trainings)
    return [f"Not tested: {problem}" for problem in problems if problem]


def _overview_rows(
    table: Overview,
    runs: pd.DataFrame,
    cost: Mapping[str, dict[str, Any]],
    last: pd.Series,
    scores: Mapping[str, Mapping[int, float]],
) -> list[dict[str, Any]]:
    """Return one row per label: its score, the difference from the reference's, and the cost of its pre-training."""
    rows = []
    for label, of_label in runs.groupby("optimizer", sort=False):
        cells = {
            "optimizer here": label,
            "runs finished": finished(of_label),
            table.score: shown(scores[str(label)], SCORE_DIGITS),
            table.difference: difference(scores, str(label)),
        }
        labels = dict.fromkeys([str(label), REFERENCE])
        scored = score_sources(f"{table.experiment}.csv", runs, last, *labels)
        rows.append(cells | cost[str(label)] | {"data": scored + cost[str(label)]["data"]})
    return rows
