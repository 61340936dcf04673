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
from workflow.bench.analysis.estimates import estimate, median_minimum, studies_of, units_over_studies
from workflow.bench.analysis.finetuning_scores import averages, last_values, pretraining_experiment, scores
from workflow.bench.analysis.step_times import NOT_TESTED, StepTimes, Training, mean_seconds, time_ratio
from workflow.bench.analysis.time_to_target import of_any_length
from workflow.bench.analysis.wording import estimated, number, paper_name
from workflow.bench.results.sources import NO_SOURCES, from_rows, from_runs
from workflow.bench.results.tables import Results, published
from workflow.bench.tables._files import write_table

REFERENCE: Final = "lamb"
"""The optimizer that the others are compared with, as in the paper."""
BROKE_DOWN: Final = "broke down"

SCORE_NOTE: Final = (
    "The optimizer of a row is that of the pre-training whose checkpoint a run starts from; fine-tuning is the same "
    "for all. Scores are those of a run's last evaluation, and can be compared with the paper's only if the task is "
    "the same. A run that broke down counts as the worst; the cell is then a median. Intervals are over the tuning "
    "studies of pre-training, or over seeds where there is only one study; where they are too few for a median's, the "
    "values stand in parentheses"
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

    file: the CSV file of the runs; runs: all planned ones; last: the score of each (`finetuning_scores.last_values`);
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


def shown(values: Mapping[int, float], studies: Mapping[int, float], digits: int = 4) -> str:
    """Return the cell of values by seed: their estimate with its interval; empty without values.

    Those of too few seeds or studies for a median stand in parentheses: an interval around their mean may reach below
    0, or above 100 %, where no score is. studies: as in `over_studies`.
    """

    def text(value: float) -> str:
        return BROKE_DOWN if math.isinf(value) else number(value, digits)

    units = units_over_studies(values, studies)
    if not len(units):
        return ""
    found = estimate(units)
    if 1 < len(units) < median_minimum():
        return f"{text(found.value)} ({', '.join(map(text, units))})"
    # A median's interval may reach to the runs that broke down, a difference's to those of the reference.
    has_interval = found.has_interval and math.isfinite(found.value)
    return text(found.value) + (f" [{text(found.low)}, {text(found.high)}]" if has_interval else "")


def cost_cells(label: str, starts: Mapping[str, pd.DataFrame], times: StepTimes) -> dict[str, Any]:
    """Return a row's cells on the pre-training behind its runs: iterations, seconds, speed and sources.

    starts: the finished pre-training runs of each label.
    """
    rows, seconds, faster = starts[label], "", ""
    training, reference = (
        Training.of(of_label, by_seed(of_label, "steps_done")) if len(of_label) else None
        for of_label in (rows, starts.get(REFERENCE, rows[:0]))
    )
    if training is not None:
        problem = times.problem(*training.labels)
        seconds = NOT_TESTED if problem else shown(mean_seconds(times, training), studies_of(rows), 3)
    if training is not None and reference is not None and label != REFERENCE:
        problem = times.problem(*reference.labels, *training.labels)
        faster = NOT_TESTED if problem else estimated(time_ratio(times, reference, training))
    # The factor is computed from the reference's runs, too.
    both = pd.concat([rows, starts.get(REFERENCE, rows)])
    by_experiment = (from_runs(f"{name}.runs.csv", of_name) for name, of_name in both.groupby("experiment"))
    return {
        "iterations here": ", ".join(f"{steps:g}" for steps in sorted(rows["steps_done"].unique())),
        "time here (s)": seconds,
        "times as fast as LAMB here": faster,
        "data": sum(by_experiment, NO_SOURCES),
    }


def difference(values: Mapping[str, Mapping[int, float]], label: str, studies: Mapping[int, float]) -> str:
    """Return the cell of a label's scores minus the reference's, paired by seed.

    It is empty for the reference and without a pair. A run that broke down counts as the worst; such seeds are counted.
    """
    if label == REFERENCE:
        return ""
    own, reference = values[label], values.get(REFERENCE, {})
    both = sorted(own.keys() & reference.keys())
    broken = sum(math.isinf(own[seed]) or math.isinf(reference[seed]) for seed in both)
    remark = f"{broken} of {len(both)} seeds {BROKE_DOWN}" if broken else ""
    # A seed on which both broke down has NaN, which is left out: it tells neither from the other.
    differences = {seed: own[seed] - reference[seed] for seed in both}
    return "; ".join(filter(None, [shown(differences, studies, 3), remark]))


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


def caption_of(results: Results, runs: pd.DataFrame, source: str, notes: Sequence[str]) -> str:
    """Return the caption of fine-tuning runs and of those of the experiment ``source`` that they start from."""
    pretraining = results.runs(source)
    starts = pretraining[pretraining["run"].isin(runs["start_from"])]
    every = pd.concat([runs, starts], ignore_index=True) if len(starts) else runs
    return caption(results, every, notes=notes, absent=[source] if pretraining.empty else [])


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
    starts, rows = _starts(runs, pretraining), []
    for label in starts:
        cells, cost = score_cells(f"bert_{paper}.csv", label, runs, last, REFERENCE), cost_cells(label, starts, times)
        data = cells.pop("data") + cost.pop("data")
        studies = studies_of(*(runs[runs["optimizer"] == one] for one in (label, REFERENCE)))
        cells[f"{score} here{unit}"] = shown(by_label[label], studies)
        cells[f"{score} minus LAMB's here"] = difference(by_label, label, studies)
        rows.append(cells | cost | {"data": data})
    problems = dict.fromkeys(times.problem(*Training.of(one, {}).labels) for one in starts.values() if len(one))
    untested = [f"Not tested: {problem}" for problem in problems if problem]
    notes = [SCORE_NOTE, COST_NOTE, *untested, PAPER_NOTE, about.format(len(tasks), ", ".join(tasks))]
    titles = {
        "optimizer": "optimizer in the paper",
        score.lower(): f"{score} in the paper{unit}",
        "iterations": "iterations in the paper",
        "time_h": "time in the paper (h)",
        "speedup": "speedup over LAMB in the paper",
    }
    table, text = join_paper(rows, pretraining, paper, titles), caption_of(results, runs, source, notes)
    return write_table(table, folder, name, title=title, caption=text)
