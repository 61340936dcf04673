"""Training curves of a results folder, as the site draws them: of each experiment, data set, metric and optimizer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from workflow.bench.analysis.curves import curve
from workflow.bench.analysis.styles import data_title, in_order, style_of
from workflow.bench.plan.targets import Target
from workflow.bench.results.columns import BROKEN_DOWN, ENDED
from workflow.bench.results.tables import Results
from workflow.bench.site.prose import experiment_name

_SPLITS: Final = ("validation", "train")
_NO_MEASURE: Final = "update_rms"
"""Of a run's steps, and of no split."""
_VARIED: Final = {"lr": "rate", "inverse_update_period": "period"}
_SPREAD: Final = 5
"""A loss of which the largest value is so many times the smallest has a logarithmic axis, as in figures."""


class ExperimentCurves(NamedTuple):
    """The curves of an experiment, by what was trained."""

    experiment: str
    name: str
    panels: tuple[dict[str, Any], ...]
    """Each with ``name, runs, steps, measures``. A measure has ``name, logarithmic, goals, curves``; a curve has ``id,
    name, color, dash, runs, broken`` and the columns ``step, seconds, value, low, high``, in which a number that is
    missing or infinite is None."""
    optimizers: list[str]
    """The identifiers of its optimizers, in the order of all legends."""


def curves_of(results: Results) -> list[ExperimentCurves]:
    """Return the curves of all experiments that have evaluations, the paper's figures' experiments first by name.

    Raises:
        NoDataError: a table is damaged.
    """
    found = []
    for experiment in results.experiments():
        runs, metrics = results.runs(experiment), results.metrics(experiment)
        metrics = metrics[metrics["split"].isin(_SPLITS) & (metrics["metric"] != _NO_MEASURE)]
        metrics = metrics[metrics["status"].isin(ENDED) & metrics["value"].notna()]
        if panels := tuple(_panels(runs, metrics)):
            ids = (curve["id"] for panel in panels for of in panel["measures"] for curve in of["curves"])
            found.append(ExperimentCurves(experiment, experiment_name(experiment), panels, in_order(ids)))
    return found


def _panels(runs: pd.DataFrame, metrics: pd.DataFrame) -> Iterator[dict[str, Any]]:
    runs = runs[runs["run"].isin(metrics["run"])].copy()
    for column in ("workload_parameters", "hyperparameters"):  # results of earlier versions may lack them
        runs[column] = runs[column].map(lambda given: given or {})
    trained = runs["workload"] + runs["workload_parameters"].map(lambda given: json.dumps(given, sort_keys=True))
    of_panels = [of_panel for _, of_panel in runs.groupby(trained, sort=False)]
    for of_panel, name in zip(of_panels, _panel_names(of_panels), strict=True):
        rows = metrics.merge(_series(of_panel), on="run")
        yield {
            "name": name,
            "runs": len(of_panel),
            "steps": int(of_panel["steps"].max()),
            "measures": [
                _measure(split, metric, of_measure, of_panel["target"].dropna())
                for (split, metric), of_measure in _by_measure(rows)
            ],
        }


def _panel_names(of_panels: Sequence[pd.DataFrame]) -> list[str]:
    """Return what was trained on which data, as figures name it; where two are alike, with the sizes that differ."""
    titles = [data_title(runs) for runs in of_panels]
    sizes = [runs["workload_parameters"].iloc[0] for runs in of_panels]
    names = []
    for title, given in zip(titles, sizes, strict=True):
        alike = [other for other, its in zip(sizes, titles, strict=True) if its == title]
        differing = [key for key in given if any(other.get(key) != given[key] for other in alike)]
        names.append(", ".join([title, *(f"{key.replace('_', ' ')} {given[key]}" for key in differing)]))
    return names


def _by_measure(rows: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    """Return the rows of each split and metric: held-out data first, and of a split the loss last trained on."""
    groups = [((str(split), str(metric)), of) for (split, metric), of in rows.groupby(["split", "metric"])]
    return sorted(groups, key=lambda group: (_SPLITS.index(group[0][0]), group[0][1] != "loss", group[0][1]))


def _series(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the curve that each run belongs to: its label, and what varies among the label's runs of one seed.

    Tuned values vary from study to study, and so from seed to seed: their runs are one curve.
    """
    found = []
    for label, of_label in runs.groupby("optimizer"):
        columns = zip(of_label["run"], of_label["hyperparameters"], of_label["steps"], strict=True)
        given: dict[str, dict[str, Any]] = {run: {**values, "steps": steps} for run, values, steps in columns}
        varied: set[str] = set()
        for _, of_seed in of_label.groupby("seed"):
            first, *others = (given[run] for run in of_seed["run"])
            varied |= {key for key in first if any(other.get(key) != first[key] for other in others)}
        for run, its in given.items():
            found.append((run, label, ", ".join(_variant(key, its.get(key)) for key in sorted(varied))))
    return pd.DataFrame(found, columns=["run", "label", "varied"])


def _measure(split: str, metric: str, rows: pd.DataFrame, targets: Iterable[Target]) -> dict[str, Any]:
    finished = rows.loc[~rows["status"].isin(BROKEN_DOWN), "value"].astype(float)
    is_loss = metric.endswith("loss")
    logarithmic = bool(is_loss and len(finished) and finished.min() > 0 and finished.max() > _SPREAD * finished.min())
    curves = []
    for label in in_order(rows["label"]):
        of_label = rows[rows["label"] == label]
        variants = list(dict.fromkeys(of_label["varied"]))
        for place, varied in enumerate(variants):
            of_curve = of_label[of_label["varied"] == varied]
            found = curve(of_curve, worst=math.inf if is_loss else -math.inf, logarithmic=logarithmic)
            curves.append(_curve(label, varied, of_curve, found) | {"color": _tint(label, place / len(variants))})
    name = f"{split} {metric.replace('_', ' ')}"
    goals = sorted({target.limit for target in targets if (target.split, target.metric) == (split, metric)})
    return {"name": name, "logarithmic": logarithmic, "goals": goals, "curves": curves}


def _curve(label: str, varied: str, rows: pd.DataFrame, found: pd.DataFrame) -> dict[str, Any]:
    look = style_of(label)
    return {
        "id": label,
        "name": f"{look.name}, {varied}" if varied else look.name,
        "dash": [] if look.line == "-" else list(look.line[1]),
        "runs": rows["run"].nunique(),
        "broken": rows.loc[rows["status"].isin(BROKEN_DOWN), "run"].nunique(),
        "step": [int(step) for step in found["step"]],
        "seconds": _rounded(found["train_seconds"]),
        **{name: _rounded(found[name]) for name in ("value", "low", "high")},
    }


def _variant(key: str, value: object) -> str:
    name = _VARIED.get(key, key.replace("_", " "))
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def _tint(label: str, lightness: float) -> str:
    """Return a label's color, mixed with so much white; variants of one optimizer have the same hue."""
    parts = (int(style_of(label).color[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * 0.8 * lightness):02X}" for part in parts)


def _rounded(column: pd.Series) -> list[float | None]:
    """Return numbers with four digits, more than a screen shows; None for what JSON has no number for."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in column.astype(float)]
