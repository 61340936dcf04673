"""Iterations and training time to each experiment's target, runs that never reached it, and speedups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import pandas as pd

from workflow.bench.analysis.captions import caption
from workflow.bench.analysis.time_to_target import (
    Configuration,
    by_configuration,
    reaching,
    speedup,
    to_target,
    too_short,
)
from workflow.bench.analysis.wording import number
from workflow.bench.results.columns import ENDED
from workflow.bench.results.sources import from_runs
from workflow.bench.results.tables import NoDataError, Results
from workflow.bench.tables._files import estimated, write_table

EXPERIMENTS = ("*",)

RIVAL: Final = "kaisa"
"""Optimizers are compared with their base, and with this one."""
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
"""Columns with the same values in all runs that are compared with each other."""
_QUANTITIES: Final[tuple[Literal["steps", "seconds"], ...]] = ("steps", "seconds")


def _reference(configurations: Mapping[Configuration, pd.DataFrame], label: str, rate: float) -> pd.DataFrame | None:
    """Return a label's runs at a learning rate, or those of its only configuration.

    None if the label has no runs, or several configurations to choose from.
    """
    of_label = [
        (configuration.hyperparameters.get("lr"), runs)
        for configuration, runs in configurations.items()
        if configuration.optimizer == label
    ]
    at_rate = [runs for lr, runs in of_label if lr == rate] or [runs for _, runs in of_label]
    return at_rate[0] if len(at_rate) == 1 else None


def _faster(runs: pd.DataFrame, reference: pd.DataFrame | None, quantity: Literal["steps", "seconds"]) -> str:
    """Return the cell with a reference's time or steps over that of ``runs``; empty without a reference."""
    if reference is None or reference is runs:
        return ""
    theirs, ours = to_target(reference, quantity), to_target(runs, quantity)
    # A ratio without these seeds would favor the side that did not reach the target, so no ratio is given.
    if short := [*too_short(reference, theirs, ours, quantity), *too_short(runs, ours, theirs, quantity)]:
        return f"{len(short)} of {len(theirs.keys() & ours.keys())} too short to tell"
    compared = speedup(theirs, ours)
    ratio = estimated(compared.ratio).replace(number(math.inf), "∞") if compared.ratio else ""
    undecided = f"{compared.undecided} undecided" if compared.undecided else ""
    return "; ".join(filter(None, [ratio, undecided]))


def _rows(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield one row for each configuration of runs that share experiment, workload, data and target."""
    configurations = by_configuration(runs)
    for configuration, rows in configurations.items():
        iterations, seconds = (reaching(to_target(rows, quantity)) for quantity in _QUANTITIES)
        if iterations is None or seconds is None:
            continue
        rate, base_label = configuration.hyperparameters.get("lr", math.nan), configuration.hyperparameters.get("base")
        base, rival = (_reference(configurations, label, rate) for label in (str(base_label), RIVAL))
        compared = pd.concat([rows, *(other for other in (base, rival) if other is not None)])
        compared = compared[compared["status"].isin(ENDED)]
        values = (
            configuration.experiment,
            configuration.workload,
            configuration.dataset,
            configuration.target.describe(),
            configuration.optimizer,
            number(rate),
            configuration.period,
            iterations.took.n,
            iterations.reached,
            estimated(iterations.took),
            estimated(seconds.took),
            base_label,
            _faster(rows, base, "steps"),
            _faster(rows, base, "seconds"),
            _faster(rows, rival, "steps"),
            _faster(rows, rival, "seconds"),
            from_runs(f"{configuration.experiment}.runs.csv", compared),
        )
        yield dict(zip(COLUMNS, values, strict=True))


def make(results: Results, folder: Path) -> list[Path]:
    """Write one row per configuration of an optimizer, in every experiment with a target and a run that has ended.

    Raises:
        NoDataError: no experiment has run.
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
        "A run that ended without reaching its target counts as infinitely long: it is part of the median, which is "
        "'not reached' if most runs never reach the target. Below six seeds the cell is a mean with a t interval, or a "
        "median without an interval if a run never reached the target",
        "A factor above 1, paired by seed, favors the optimizer. It is ∞ if the other side diverged, or took longer "
        "without reaching the target; seeds on which neither side reaches it are undecided and left out. Too short to "
        "tell: a run ended without reaching the target before the other side reached it, so that it is unknown which "
        "is faster. A target is reached where the metric, smoothed by the monotone curve nearest to it, crosses it "
        "between two evaluations",
    ]
    return write_table(
        table,
        folder,
        "time_to_target",
        title="Iterations and training time to each experiment's target",
        caption=caption(results, aimed, notes=notes),
    )
