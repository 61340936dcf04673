"""Iterations and training time to each experiment's target, runs that never get there counted, and speedups."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import pandas as pd

from workflow.bench.captions import caption, number
from workflow.bench.results import NoDataError, Results
from workflow.bench.statistics import Estimate, reaching, speedup, to_target
from workflow.bench.tables._files import write_table

EXPERIMENTS = ("*",)

#: What optimizers are compared with, beside their base.
RIVAL: Final = "kaisa"
COLUMNS: Final = (
    "experiment",
    "workload",
    "data",
    "target",
    "optimizer",
    "rate",
    "inverse update period",
    "runs",
    "reached",
    "iterations",
    "training seconds",
    "its base",
    "fewer iterations than its base",
    "less time than its base",
    f"fewer iterations than {RIVAL}",
    f"less time than {RIVAL}",
)
_PLACE: Final = ["experiment", "workload", "dataset", "target"]
_SETTING: Final = ["optimizer", "steps", "hyperparameters"]
_QUANTITIES: Final[tuple[Literal["steps", "seconds"], ...]] = ("steps", "seconds")


def _shown(estimate: Estimate) -> str:
    """A number with its interval, where it has one."""
    interval = f" [{number(estimate.low)}, {number(estimate.high)}]" if estimate.has_interval else ""
    return f"{number(estimate.value)}{interval}"


def _goal(target: str) -> str:
    """A target in words, from its JSON."""
    given = json.loads(target)
    sign, limit = ("≤", given["below"]) if "below" in given else ("≥", given["above"])
    return f"{given['split']} {given['metric']} {sign} {limit}"


def _reference(here: Mapping[tuple[str, float], pd.DataFrame], label: str, rate: float) -> pd.DataFrame | None:
    """The runs of a label at a rate or, where it has but one setting, at that; None where neither is there."""
    if (label, rate) in here:
        return here[label, rate]
    others = [runs for (found, _), runs in here.items() if found == label]
    return others[0] if len(others) == 1 else None


def _faster(runs: pd.DataFrame, reference: pd.DataFrame | None, quantity: Literal["steps", "seconds"]) -> str:
    """How many times less ``runs`` took than a reference."""
    if reference is None or reference is runs:
        return ""
    found = speedup(to_target(reference, quantity), to_target(runs, quantity))
    ratio = _shown(found.ratio).replace(number(math.inf), "∞") if found.ratio else ""
    undecided = f"{found.undecided} undecided" if found.undecided else ""
    return "; ".join(filter(None, [ratio, undecided]))


def _rows(place: tuple[Hashable, ...], runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """One row a setting of an optimizer, of the runs that share experiment, workload, data and target."""
    settings: list[tuple[str, dict[str, Any], pd.DataFrame]] = [
        (str(label), json.loads(str(text)), rows) for (label, _, text), rows in runs.groupby(_SETTING, sort=False)
    ]
    here = {(label, given["lr"]): rows for label, given, rows in settings if "lr" in given}
    for label, given, rows in settings:
        found = {quantity: reaching(to_target(rows, quantity)) for quantity in _QUANTITIES}
        iterations, seconds = found["steps"], found["seconds"]
        if iterations is None or seconds is None:
            continue
        rate = given.get("lr", float("nan"))
        base, rival = (_reference(here, name, rate) for name in (str(given.get("base")), RIVAL))
        values = (
            *place[:3],
            _goal(str(place[3])),
            label,
            number(rate),
            given.get("inverse_update_period"),
            iterations.took.n,
            iterations.reached,
            _shown(iterations.took),
            _shown(seconds.took),
            given.get("base"),
            _faster(rows, base, "steps"),
            _faster(rows, base, "seconds"),
            _faster(rows, rival, "steps"),
            _faster(rows, rival, "seconds"),
        )
        yield dict(zip(COLUMNS, values, strict=True))


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row a setting of an optimizer in every experiment that has a target and a run that has ended.

    Raises NoDataError where no experiment has run.
    """
    frames = [results.runs(experiment) for experiment in results.experiments()]
    if not frames:
        raise NoDataError(f"no *.runs.csv in {results.root}: run an experiment first.")
    runs = pd.concat(frames, ignore_index=True)
    aimed = runs.dropna(subset=["target"])
    rows = [
        row for place, found in aimed.dropna(subset=_PLACE).groupby(_PLACE, sort=False) for row in _rows(place, found)
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table["inverse update period"] = table["inverse update period"].astype("Int64")
    notes = [
        "A run that ended without reaching its target counts as infinitely long: it is in the median, and where most "
        "runs never get there, 'not reached' is the median. Below six seeds a mean with a t interval, and no interval "
        "where a run is censored",
        "A factor above 1 is in the optimizer's favour, paired by seed, and ∞ where the other side never gets "
        "there; seeds on which neither does are undecided and left out of it. Targets are seen at evaluations only",
    ]
    return write_table(
        table,
        folder,
        "time_to_target",
        title="Iterations and training time to each experiment's target",
        caption=caption(results, aimed, notes=notes),
    )
