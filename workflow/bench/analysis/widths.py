"""Speedups over AdamW over the width of a model, and the prediction of the largest width from the others.

docs/experiments/width.md states the rules in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Final, Literal

import numpy as np
import pandas as pd

from workflow.bench.analysis.batch_sizes import slope
from workflow.bench.analysis.estimates import Estimate, mean_ratio
from workflow.bench.analysis.ladder import Decision
from workflow.bench.analysis.study_ratios import log_ratios, nothing_to_compare
from workflow.bench.analysis.target_sweep import FINAL, NoSweepError, TargetSweep, target_sweep
from workflow.bench.analysis.wording import estimated
from workflow.bench.results.columns import ENDED
from workflow.bench.results.tables import Results

EXPERIMENT: Final = "width"
BASE: Final = "adamw"
CLOSE: Final = 1.5
"""The prediction holds within this factor."""

Where = Literal["at the final quality", "over the sweep"]
PLACES: Final[Sequence[Where]] = ("at the final quality", "over the sweep")


@dataclass(frozen=True)
class Extrapolated:
    """The speedup at the held-out width: predicted by a line through the smaller widths, and measured."""

    predicted: Estimate
    measured: Estimate
    ratio: Estimate
    """The measured speedup over the predicted one, paired by study."""

    @property
    def decision(self) -> Decision:
        """What the runs say, by the rules that were declared before them."""
        if not self.ratio.has_interval:
            return "open"
        if not self.ratio.low <= 1 <= self.ratio.high:
            return "fails"
        return "holds" if self.ratio.low >= 1 / CLOSE and self.ratio.high <= CLOSE else "open"


@dataclass(frozen=True)
class Widths:
    """The sweeps of one workload by width, the smallest first."""

    runs: pd.DataFrame
    sweeps: Mapping[int, TargetSweep]

    @property
    def labels(self) -> list[str]:
        """The labels other than the base, in the order of the runs."""
        return [label for label in dict.fromkeys(self.runs["optimizer"].astype(str)) if label != BASE]

    @cached_property
    def logs(self) -> Mapping[tuple[str, Where], Mapping[int, Mapping[int, float]]]:
        """The logarithms of a label's speedup at a place, by width and study; a width without runs to compare lacks."""
        found: dict[tuple[str, Where], dict[int, Mapping[int, float]]] = {}
        for label, where in product(self.labels, PLACES):
            of_label = found.setdefault((label, where), {})
            for width, sweep in self.sweeps.items():
                # AdamW's final quality may be no better than the trivial predictor: then that target was dropped.
                with suppress(NoSweepError):
                    at = sweep.at(FINAL) if where == "at the final quality" else sweep
                    if label in at.courses and (ratios := log_ratios(at, BASE, label)):
                        of_label[width] = ratios
        return found

    def speedups(self, label: str, where: Where) -> dict[int, Estimate]:
        """Return a label's speedup by width."""
        return {width: mean_ratio([*ratios.values()]) for width, ratios in self.logs[label, where].items()}

    def slope(self, label: str, where: Where) -> Estimate | None:
        """Return the slope of the logarithm of a label's speedup over that of the width; None without all widths."""
        logs = self.logs[label, where]
        return slope(logs) if logs.keys() == self.sweeps.keys() else None

    def extrapolated(self, label: str, where: Where) -> Extrapolated | None:
        """Return the prediction of the largest width; None without two smaller ones, all with runs to compare."""
        logs = self.logs[label, where]
        *smaller, held_out = self.sweeps
        if len(smaller) < 2 or logs.keys() != self.sweeps.keys():
            return None
        studies = sorted(set.intersection(*(set(of_width) for of_width in logs.values())))
        if not studies:
            return None
        values = np.array([[logs[width][study] for study in studies] for width in smaller])
        # One line a study: [2, studies], the slopes above the intercepts.
        lines = np.polyfit(np.log(smaller), values, 1)
        predicted = lines[0] * math.log(held_out) + lines[1]
        measured = np.array([logs[held_out][study] for study in studies])
        return Extrapolated(mean_ratio(predicted), mean_ratio(measured), mean_ratio(measured - predicted))


def widths(results: Results) -> Widths:
    """Return the experiment's runs and the sweep of each width.

    Raises:
        NoDataError: there is no run of the experiment, or no width with a sweep.
    """
    runs, metrics = results.some_runs(EXPERIMENT), results.metrics(EXPERIMENT)
    runs = runs[runs["status"].isin(ENDED)]
    size = runs["workload_parameters"].map(lambda given: int(given["hidden_size"]))
    sweeps, left_out = {}, []
    for width, rows in runs.groupby(size):
        try:
            sweeps[int(str(width))] = target_sweep(rows, metrics[metrics["run"].isin(rows["run"])], BASE)
        except NoSweepError as problem:
            left_out.append(f"width {width} {problem}")
    if not sweeps:
        raise nothing_to_compare(results, EXPERIMENT, left_out)
    return Widths(runs, sweeps)


def sentences(found: Widths, name: Callable[[str], str]) -> list[str]:
    """Return what the runs say of the prediction, a sentence at the final quality and one over the sweep.

    name: returns the name of an optimizer.
    """
    said = []
    for where in PLACES:
        clauses = [
            f"{name(label)} {one.decision} ({estimated(one.measured)}, predicted {estimated(one.predicted)})"
            for label in found.labels
            if (one := found.extrapolated(label, where)) is not None
        ]
        if clauses:
            said.append(
                f"Declared before the runs: at width {max(found.sweeps)} the speedup {where} is what a line through "
                f"the smaller widths has there: {', '.join(clauses)}"
            )
    return said or ["The prediction is not tested: it needs three widths"]
