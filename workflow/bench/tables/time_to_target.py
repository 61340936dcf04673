"""Iterations and training time to each experiment's target, runs that never get there counted, and speedups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.time_to_target import Setting, by_setting, reaching, speedup, to_target, too_short
from workflow.bench.analysis.wording import number
from workflow.bench.results.columns import ENDED
from workflow.bench.results.sources import from_runs
from workflow.bench.results.tables import NoDataError, Results
from workflow.bench.tables._files import estimated, write_table

EXPERIMENTS = ("*",)

#: What optimizers are compared with, beside their base.
RIVAL: Final = "kaisa"
COLUMNS: Final = (
    "experiment",
    "workload",
    "dataset",
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
    "data",
)
_SHARED: Final = ["experiment", "workload", "dataset", "target"]
"""Columns in which runs agree that are compared with each other."""
_QUANTITIES: Final[tuple[Literal["steps", "seconds"], ...]] = ("steps", "seconds")


def _reference(settings: Mapping[Setting, pd.DataFrame], label: str, rate: float) -> pd.DataFrame | None:
    """Return a label's runs at a learning rate, or those of its only setting; None without runs or with a choice."""
    own = [
        (setting.hyperparameters.get("lr"), runs) for setting, runs in settings.items() if setting.optimizer == label
    ]
    at_rate = [runs for lr, runs in own if lr == rate] or [runs for _, runs in own]
    return at_rate[0] if len(at_rate) == 1 else None


def _faster(runs: pd.DataFrame, reference: pd.DataFrame | None, quantity: Literal["steps", "seconds"]) -> str:
    """How many times less ``runs`` took than a reference."""
    if reference is None or reference is runs:
        return ""
    theirs, ours = to_target(reference, quantity), to_target(runs, quantity)
    # Without these seeds the side that is not there would look better than it is, so that there is no ratio.
    if short := [*too_short(reference, theirs, ours, quantity), *too_short(runs, ours, theirs, quantity)]:
        return f"{len(short)} of {len(theirs.keys() & ours.keys())} too short to tell"
    found = speedup(theirs, ours)
    ratio = estimated(found.ratio).replace(number(math.inf), "∞") if found.ratio else ""
    undecided = f"{found.undecided} undecided" if found.undecided else ""
    return "; ".join(filter(None, [ratio, undecided]))


def _rows(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield one row for each setting of runs that share experiment, workload, data and target."""
    settings = by_setting(runs)
    for setting, rows in settings.items():
        found = {quantity: reaching(to_target(rows, quantity)) for quantity in _QUANTITIES}
        iterations, seconds = found["steps"], found["seconds"]
        if iterations is None or seconds is None:
            continue
        rate, base_label = setting.hyperparameters.get("lr", math.nan), setting.hyperparameters.get("base")
        base, rival = (_reference(settings, label, rate) for label in (str(base_label), RIVAL))
        compared = pd.concat([rows, *(other for other in (base, rival) if other is not None)])
        compared = compared[compared["status"].isin(ENDED)]
        values = (
            setting.experiment,
            setting.workload,
            setting.dataset,
            setting.target.describe(),
            setting.optimizer,
            number(rate),
            setting.period,
            iterations.took.n,
            iterations.reached,
            estimated(iterations.took),
            estimated(seconds.took),
            base_label,
            _faster(rows, base, "steps"),
            _faster(rows, base, "seconds"),
            _faster(rows, rival, "steps"),
            _faster(rows, rival, "seconds"),
            from_runs(f"{setting.experiment}.runs.csv", compared),
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
    rows = [row for _, shared in aimed.groupby(_SHARED, sort=False) for row in _rows(shared)]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table["inverse update period"] = table["inverse update period"].astype("Int64")
    notes = [
        "A run that ended without reaching its target counts as infinitely long: it is in the median, and where most "
        "runs never get there, 'not reached' is the median. Below six seeds a mean with a t interval, and no interval "
        "where a run is censored",
        "A factor above 1 is in the optimizer's favour, paired by seed, and ∞ where the other side diverged, or took "
        "longer without getting there; seeds on which neither gets there are undecided and left out of it. Too short "
        "to tell: a run ended, short of the target, before the other side was there, so that nobody knows which is "
        "faster. Targets are seen at evaluations only",
    ]
    return write_table(
        table,
        folder,
        "time_to_target",
        title="Iterations and training time to each experiment's target",
        caption=caption(results, aimed, notes=notes),
    )
