"""Tables of fine-tuning: cells of scores, the pre-training behind them, and the paper's rows.

All fine-tuning runs use the same method. The label of a run is that of the pre-training whose checkpoint it starts
from (its column ``start_from``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.curves import by_seed
from workflow.bench.analysis.estimates import Estimate, estimate, median_minimum
from workflow.bench.analysis.finetuning_scores import averages, last_values, pretraining_experiment, scores
from workflow.bench.analysis.step_times import NOT_TESTED, StepTimes, Training, mean_seconds, time_ratio
from workflow.bench.analysis.time_to_target import of_any_length
from workflow.bench.analysis.wording import number, paper_name
from workflow.bench.results.sources import NO_SOURCES, from_rows, from_runs
from workflow.bench.results.tables import Results, published
from workflow.bench.tables._files import write_table

REFERENCE: Final = "lamb"
"""The optimizer that the others are compared with, as in the paper."""
BROKE_DOWN: Final = "broke down"

SCORE_NOTE: Final = (
    "The optimizer of a row is that of the pre-training whose checkpoint a run starts from; fine-tuning is the same "
    "for all. Scores are those of a run's last evaluation, and can be compared with the paper's only if the task is "
    "the same. A run that broke down counts as the worst; the cell is then a median. Below six seeds those of the "
    "seeds stand in parentheses in place of an interval"
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


def score_cells(file: str, label: str, runs: pd.DataFrame, last: pd.Series, *others: str) -> dict[str, Any]:
    """Return a row's first cells: the label, how many of its runs finished, and the runs that have a score.

    Args:
        file: the CSV file of the runs.
        label: the row's label.
        runs: all planned runs.
        last: the score of each run (`finetuning_scores.last_values`).
        others: further labels from whose runs the row is computed.
    """
    of_label, scored = runs[runs["optimizer"] == label], runs[runs["run"].isin(last.index)]
    used = pd.concat([scored[scored["optimizer"] == name] for name in dict.fromkeys((label, *others))])
    finished = int((of_label["status"] == "finished").sum())
    return {
        "optimizer here": label,
        "runs finished": f"{finished} of {len(of_label)}",
        "data": from_runs(file, used),
    }


def shown(values: Mapping[int, float] | Estimate | None, digits: int = 4) -> str:
    """Return the cell of values by seed or of their estimate, with its interval; empty without values.

    Values of too few seeds for a median stand in parentheses: an interval around their mean may reach below 0, or above
    100 %, where no score is.
    """
    if not values:
        return ""
    if isinstance(values, Mapping) and 1 < len(values) < median_minimum():
        each = [BROKE_DOWN if math.isinf(value) else number(value, digits) for value in values.values()]
        value = estimate(list(values.values())).value
        return f"{BROKE_DOWN if math.isinf(value) else number(value, digits)} ({', '.join(each)})"
    summary = values if isinstance(values, Estimate) else estimate(list(values.values()))
    if math.isinf(summary.value):
        return BROKE_DOWN
    # A median's interval may reach to the runs that broke down, a difference's to those of the reference.
    bounds = (BROKE_DOWN if math.isinf(bound) else number(bound, digits) for bound in (summary.low, summary.high))
    interval = f" [{', '.join(bounds)}]" if summary.has_interval else ""
    return f"{number(summary.value, digits)}{interval}"


def costs(starts: Mapping[str, pd.DataFrame], times: StepTimes) -> dict[str, dict[str, Any]]:
    """Return, by label, the cells on the pre-training behind its runs: iterations, seconds, speed and sources.

    starts: the finished pre-training runs of each label.
    """
    trainings = {
        label: Training.of(rows, by_seed(rows, "steps_done")) for label, rows in starts.items() if not rows.empty
    }
    reference, cells = trainings.get(REFERENCE), {}
    for label, rows in starts.items():
        training, seconds, faster = trainings.get(label), "", ""
        if training is not None:
            is_tested = not times.problem(*training.labels)
            seconds = shown(mean_seconds(times, training), 3) if is_tested else NOT_TESTED
        if training is not None and reference is not None and training is not reference:
            is_tested = not times.problem(*reference.labels, *training.labels)
            faster = shown(time_ratio(times, reference, training), 3) if is_tested else NOT_TESTED
        # The factor is computed from the reference's runs, too.
        both = pd.concat([rows, starts.get(REFERENCE, rows)])
        by_experiment = (from_runs(f"{name}.runs.csv", of_name) for name, of_name in both.groupby("experiment"))
        cells[label] = {
            "iterations here": ", ".join(f"{steps:g}" for steps in sorted(rows["steps_done"].unique())),
            "time here (s)": seconds,
            "times as fast as LAMB here": faster,
            "data": sum(by_experiment, NO_SOURCES),
        }
    return cells


def difference(values: Mapping[str, Mapping[int, float]], label: str) -> str:
    """Return the cell of a label's scores minus the reference's, paired by seed.

    It is empty for the reference and without a pair. A run that broke down counts as the worst; such seeds are counted.
    """
    if label == REFERENCE:
        return ""
    scores, reference = values[label], values.get(REFERENCE, {})
    shared = sorted(scores.keys() & reference.keys())
    broken = [seed for seed in shared if math.isinf(scores[seed]) or math.isinf(reference[seed])]
    remark = f"{len(broken)} of {len(shared)} seeds {BROKE_DOWN}" if broken else ""
    # A seed on which both broke down tells neither from the other.
    known = {
        seed: scores[seed] - reference[seed] for seed in shared if seed not in broken or scores[seed] != reference[seed]
    }
    return "; ".join(filter(None, [shown(known, 3), remark]))


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
    rows: Sequence[Mapping[str, Any]], pretraining: pd.DataFrame, paper: str, titles: Mapping[str, str]
) -> pd.DataFrame:
    """Return our rows, each with the row of the paper that it is compared with; the paper's other rows come last.

    Args:
        rows: our rows, with the same columns: labels under ``optimizer here``, sources under ``data``.
        pretraining: rows of the pre-training's ``<experiment>.runs.csv``.
        paper: the paper's numbers, ``workflow/paper/<paper>.csv``.
        titles: the paper's columns and their titles in the table.
    """
    theirs = published(paper, as_text=True)
    indices = [counterpart(row["optimizer here"], theirs, pretraining) for row in rows]
    unmatched = [index for index in theirs.index if index not in indices]
    pairs = [*zip(rows, indices, strict=True), *(({"optimizer here": ""}, index) for index in unmatched)]
    table = []
    for row, index in pairs:
        cells: dict[str, Any] = {"data": row.get("data", NO_SOURCES)}
        if index is not None:
            cells |= {title: theirs.loc[index, column] for column, title in titles.items()}
            keys = theirs.loc[index, ["optimizer", "iterations"]].to_dict()
            cells["data"] += from_rows(f"workflow/paper/{paper}.csv", **keys)
        table.append({**row, **cells})
    ours = [column for column in rows[0] if column != "data"]
    return pd.DataFrame(table, columns=[*ours, *titles.values(), "data"])


def with_pretraining(runs: pd.DataFrame, pretraining: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the caption: the fine-tuning runs and the pre-training runs that they start from."""
    starts = pretraining[pretraining["run"].isin(runs["start_from"])]
    return pd.concat([runs, starts], ignore_index=True) if len(starts) else runs


def _starts(runs: pd.DataFrame, pretraining: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return each label's finished pre-training runs, one a seed: that of the fine-tuning that starts from it."""
    done = pretraining[pretraining["status"] == "finished"].drop(columns="seed")
    links = runs[["optimizer", "seed", "start_from"]].dropna().drop_duplicates().rename(columns={"start_from": "run"})
    return {
        str(label): links.loc[links["optimizer"] == label, ["seed", "run"]].merge(done, on="run")
        for label in runs["optimizer"].unique()
    }


def write_overview(
    results: Results,
    folder: Path,
    name: str,
    title: str,
    *,
    paper: str,
    metric: str,
    score: str,
    unit: str = "",
    about: str,
) -> list[Path]:
    """Write a row per optimizer: its score, the cost of its pre-training, and the paper's row. Return the files.

    Args:
        results: the results of this machine.
        folder: the folder to write to.
        name: the table's name.
        title: the table's title.
        paper: the name of the paper's file; the experiment is ``bert_<paper>``.
        metric: that of which a run's last value is its score; a seed's score is the mean over the data sets, if it has
            one in each.
        score: its name in the titles of columns, and in lower case the paper's column.
        unit: the end of these titles; `` (%)`` shows 100 times the metric.
        about: the last sentence of the caption, with ``{0}`` for the number of data sets and ``{1}`` for their names.

    Raises:
        NoDataError: there are no fine-tuning runs.
    """
    runs = results.some_runs(f"bert_{paper}")
    last = (100 if unit else 1) * last_values(results.metrics(f"bert_{paper}"), metric)
    tasks = list(runs["dataset"].dropna().unique())
    by_label = {
        str(label): averages([scores(rows[rows["dataset"] == task], last) for task in tasks])
        for label, rows in runs.groupby("optimizer", sort=False)
    }
    source = pretraining_experiment(results, runs)
    pretraining, times = results.runs(source), StepTimes(results.probe("step_time"))
    starts = _starts(runs, pretraining)
    cost, rows = costs(starts, times), []
    for label in starts:
        cells = score_cells(f"bert_{paper}.csv", label, runs, last, REFERENCE)
        data = cells.pop("data") + cost[label]["data"]
        cells[f"{score} here{unit}"] = shown(by_label[label])
        cells[f"{score} minus LAMB's here"] = difference(by_label, label)
        rows.append(cells | cost[label] | {"data": data})
    problems = dict.fromkeys(times.problem(*Training.of(one, {}).labels) for one in starts.values() if len(one))
    untested = [f"Not tested: {problem}" for problem in problems if problem]
    notes = [SCORE_NOTE, COST_NOTE, *untested, PAPER_NOTE, about.format(len(tasks), ", ".join(tasks))]
    shown_runs, absent = with_pretraining(runs, pretraining), [source] if pretraining.empty else []
    titles = {
        "optimizer": "optimizer in the paper",
        score.lower(): f"{score} in the paper{unit}",
        "iterations": "iterations in the paper",
        "time_h": "time in the paper (h)",
        "speedup": "speedup over LAMB in the paper",
    }
    text = caption(results, shown_runs, notes=notes, absent=absent)
    return write_table(join_paper(rows, pretraining, paper, titles), folder, name, title=title, caption=text)
