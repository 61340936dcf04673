"""What the tables of fine-tuning share: cells of scores, the pre-training behind them, and the paper's rows beside.

In the experiments of fine-tuning the method is the same for all; a label is the optimizer of the pre-training whose
checkpoint a run starts from (its column ``start_from``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.common_steps import by_seed
from workflow.bench.analysis.estimates import Estimate, estimate, paired_difference, paired_ratio
from workflow.bench.analysis.paper_names import paper_name
from workflow.bench.analysis.time_to_target import of_any_length
from workflow.bench.analysis.wording import number
from workflow.bench.results.sources import NO_SOURCES, Sources, from_rows, from_runs
from workflow.bench.results.tables import Results, published
from workflow.bench.tables._files import write_table

PRETRAINING: Final = "bert_pretraining"
#: What the others are compared with, as in the paper.
REFERENCE: Final = "lamb"
SCORE_DIGITS: Final = 4
BROKE_DOWN: Final = "broke down"

NOTES: Final = (
    "An optimizer here is that of the pre-training, whose checkpoint a run starts from; what fine-tunes is the same "
    "for all. Scores are of a run's last evaluation, and compare with the paper's only where the task is the same. A "
    "run that broke down counts as the worst: then the median stands there, without an interval below six seeds",
    "Iterations and time (training seconds, without evaluation) are the pre-training's after phase 1. A factor above "
    "1, paired by seed, is in the optimizer's favour; it does not say that the scores are equal: the difference to "
    "LAMB's stands beside it",
    "The paper's MKOR stands beside every update rule of ours: an optimizer's longest pre-training beside the paper's "
    "longest, a shorter one beside that of as many iterations. An empty left side: this tier has no such run",
)


def traced_scores(file: str, runs: pd.DataFrame, last: pd.Series, *labels: str) -> Sources:
    """Where some labels' scores come from: of their runs, those that have a last value (`finetuning.last_values`)."""
    known = runs[runs["run"].isin(last.index)]
    return from_runs(file, pd.concat([known[known["optimizer"] == label] for label in labels]))


def shown(values: Mapping[int, float] | Estimate | None, digits: int = 3) -> str:
    """Values over seeds, or an estimate, as a cell: with an interval where there is one, empty without values."""
    if not values:
        return ""
    found = values if isinstance(values, Estimate) else estimate(list(values.values()))
    if math.isinf(found.value):
        return BROKE_DOWN
    # A median's interval may reach down to the runs that broke down.
    low = BROKE_DOWN if math.isinf(found.low) else number(found.low, digits)
    interval = f" [{low}, {number(found.high, digits)}]" if found.has_interval else ""
    return f"{number(found.value, digits)}{interval}"


def finished(runs: pd.DataFrame) -> str:
    """How many of the planned runs finished."""
    return f"{int((runs['status'] == 'finished').sum())} of {len(runs)}"


def pretraining_of(runs: pd.DataFrame, pretraining: pd.DataFrame) -> pd.DataFrame:
    """The finished pre-training runs that ``runs`` start from, one a seed, with the seeds of ``runs``."""
    starts = runs[["seed", "start_from"]].dropna().drop_duplicates()
    done = pretraining.loc[pretraining["status"] == "finished", ["run", "steps_done", "train_seconds"]]
    return starts.merge(done, left_on="start_from", right_on="run").drop(columns="start_from")


def costs(runs: pd.DataFrame, pretraining: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """By label, iterations, seconds and speed of the pre-training behind its runs, and where they come from."""
    starts = {str(label): pretraining_of(rows, pretraining) for label, rows in runs.groupby("optimizer", sort=False)}
    seconds = {label: by_seed(rows, "train_seconds") for label, rows in starts.items()}
    cells = {}
    for label, rows in starts.items():
        faster = paired_ratio(seconds.get(REFERENCE, {}), seconds[label]) if label != REFERENCE else None
        cells[label] = {
            "iterations here": ", ".join(f"{steps:g}" for steps in sorted(rows["steps_done"].unique())),
            "time here (s)": shown(seconds[label]),
            "times as fast as LAMB here": shown(faster),
            "data": from_runs(f"{PRETRAINING}.runs.csv", pd.concat([rows, starts.get(REFERENCE, rows)])),
        }
    return cells


def difference(values: Mapping[str, Mapping[int, float]], label: str) -> str:
    """One label's values minus the reference's, paired by seed; empty for the reference, or without a pair.

    Seeds with a run that broke down have no difference, and are counted.
    """
    if label == REFERENCE:
        return ""
    own, reference = values[label], values.get(REFERENCE, {})
    shared = own.keys() & reference.keys()
    broken = sum(math.isinf(own[seed]) or math.isinf(reference[seed]) for seed in shared)
    remark = f"{broken} of {len(shared)} seeds {BROKE_DOWN}" if broken else ""
    return "; ".join(filter(None, [shown(paired_difference(own, reference)), remark]))


def counterpart(label: str, paper: pd.DataFrame, pretraining: pd.DataFrame) -> Any:
    """Return the index of the paper's row that is compared with a label, or None if the paper has no such run.

    An optimizer's longest pre-training is compared with the paper's longest, a shorter one with the paper's run of as
    many iterations.

    Args:
        label: The pre-training's label.
        paper: The paper's rows, with the columns ``optimizer`` and ``iterations``.
        pretraining: Rows of ``bert_pretraining.runs.csv``.
    """
    rows = paper[paper["optimizer"] == paper_name(label)]
    iterations = rows["iterations"].astype(int)
    steps = pretraining.loc[pretraining["optimizer"] == label, "steps"].max()
    is_shorter = steps < of_any_length(pretraining, label)["steps"].max()
    same_length = rows[iterations == (steps if is_shorter else iterations.max())]
    return None if same_length.empty else same_length.index[0]


def beside(
    rows: list[dict[str, Any]],
    pretraining: pd.DataFrame,
    paper: str,
    columns: Mapping[str, str],
    here: Sequence[str],
) -> pd.DataFrame:
    """Return our rows, each with the row of the paper that it is compared with; the paper's other rows come last.

    Args:
        rows: Our rows, each with a label under ``optimizer here``.
        pretraining: Rows of ``bert_pretraining.runs.csv``.
        paper: The paper's numbers, ``workflow/paper/<paper>.csv``.
        columns: The paper's columns and their titles in the table.
        here: Our columns, in their order.
    """
    theirs = published(paper, as_text=True)
    matched = [counterpart(row["optimizer here"], theirs, pretraining) for row in rows]
    left = [{"optimizer here": ""} for index in theirs.index if index not in matched]
    matched += [index for index in theirs.index if index not in matched]
    table = []
    for row, index in zip([*rows, *left], matched, strict=True):
        cells = {} if index is None else {title: theirs.loc[index, column] for column, title in columns.items()}
        source = (
            NO_SOURCES
            if index is None
            else from_rows(
                f"workflow/paper/{paper}.csv",
                optimizer=theirs.loc[index, "optimizer"],
                iterations=theirs.loc[index, "iterations"],
            )
        )
        table.append({**row, **cells, "data": row.get("data", NO_SOURCES) + source})
    return pd.DataFrame(table, columns=[*here, *columns.values(), "data"])


def shown_runs(runs: pd.DataFrame, pretraining: pd.DataFrame) -> pd.DataFrame:
    """What the caption speaks of: the fine-tuning runs and the pre-training runs that they start from."""
    starts = pretraining[pretraining["run"].isin(runs["start_from"])]
    frames = [frame for frame in (runs, starts) if not frame.empty]
    return pd.concat(frames, ignore_index=True) if frames else runs


def write_overview(
    results: Results,
    folder: Path,
    name: str,
    *,
    experiment: str,
    last: pd.Series,
    values: Mapping[str, Mapping[int, float]],
    score: tuple[str, str],
    paper: tuple[str, str, str],
    title: str,
    note: str,
) -> list[Path]:
    """Write a table with one row a label: its score, what its pre-training took, and the paper's row beside.

    Args:
        results: where the runs are.
        folder: where the table goes.
        name: the table's.
        experiment: of the fine-tuning.
        last: each run's score, as `finetuning.last_values` gives it.
        values: the score by label and seed.
        score: titles of the score's column, and of its difference to the reference's.
        paper: name of the paper's file, its column of the score, and that one's title.
        title: the table's.
        note: a last sentence of the caption.
    """
    runs, pretraining = results.runs(experiment), results.runs(PRETRAINING)
    found = costs(runs, pretraining)
    rows = []
    for label, own in runs.groupby("optimizer", sort=False):
        scored = traced_scores(f"{experiment}.csv", runs, last, *dict.fromkeys([str(label), REFERENCE]))
        cells = {
            "optimizer here": label,
            "runs finished": finished(own),
            score[0]: shown(values[str(label)], SCORE_DIGITS),
            score[1]: difference(values, str(label)),
        }
        rows.append(cells | found[str(label)] | {"data": scored + found[str(label)]["data"]})
    file, column, column_title = paper
    theirs = {
        "optimizer": "optimizer in the paper",
        column: column_title,
        "iterations": "iterations in the paper",
        "time_h": "time in the paper (h)",
        "speedup": "speedup over LAMB in the paper",
    }
    here = ("optimizer here", "runs finished", *score, "iterations here", "time here (s)", "times as fast as LAMB here")
    return write_table(
        beside(rows, pretraining, file, theirs, here),
        folder,
        name,
        title=title,
        caption=caption(
            results,
            shown_runs(runs, pretraining),
            notes=[*NOTES, note],
            absent=[PRETRAINING] if pretraining.empty else [],
        ),
    )
