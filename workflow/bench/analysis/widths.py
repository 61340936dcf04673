"""Speedups over AdamW over the width of a model, and the prediction of the largest width from the others.

docs/experiments/width.md states the rules in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from statistics import fmean
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
HELD_OUT: Final = 256
"""The width whose speedups the smaller ones predict."""
CLOSE: Final = 1.5
"""The prediction holds within this factor."""
MOST_MISSED: Final = 0.1
"""The largest share of its targets that a label's runs at a width may miss. A run counts with its budget there."""

Where = Literal["at the final quality", "over the sweep"]
PLACES: Final[Sequence[Where]] = ("at the final quality", "over the sweep")


@dataclass(frozen=True)
class Extrapolated:
    """The speedup at `HELD_OUT`: predicted by a line through the smaller widths, and measured."""

    predicted: Estimate
    measured: Estimate | None
    """None before it has runs."""
    ratio: Estimate | None
    """The measured speedup over the predicted one, paired by study; None without a measured one."""

    @property
    def decision(self) -> Decision:
        """What the runs say, by the rules that were declared before them."""
        if self.ratio is None:
            return "not tested"
        if not self.ratio.has_interval:
            return "open"
        if not self.ratio.contains(1):
            return "fails"
        return "holds" if self.ratio.low >= 1 / CLOSE and self.ratio.high <= CLOSE else "open"


@dataclass(frozen=True)
class Widths:
    """The sweeps of one workload by width, the smallest first."""

    runs: pd.DataFrame
    sweeps: Mapping[int, TargetSweep]
    left_out: Sequence[str]
    """Why widths have no sweep, a clause each."""

    @property
    def labels(self) -> list[str]:
        """The labels other than the base, in the order of the runs."""
        return [label for label in dict.fromkeys(self.runs["optimizer"].astype(str)) if label != BASE]

    def _at(self, where: Where) -> Iterator[tuple[int, TargetSweep]]:
        """Yield the widths with their targets at a place."""
        for width, sweep in self.sweeps.items():
            # AdamW's final quality may be no better than the trivial predictor: then that target was dropped.
            with suppress(NoSweepError):
                yield width, sweep.at(FINAL) if where == "at the final quality" else sweep

    @cached_property
    def logs(self) -> Mapping[tuple[str, Where], Mapping[int, Mapping[int, float]]]:
        """The logarithms of a label's speedup at a place, by width and study; a width without runs to compare lacks."""
        return {
            (label, where): {
                width: ratios
                for width, sweep in self._at(where)
                if label in sweep.courses and (ratios := log_ratios(sweep, BASE, label))
            }
            for label, where in product(self.labels, PLACES)
        }

    def missed(self, label: str, where: Where) -> dict[int, float]:
        """Return by width the share of a label's runs and targets at a place in which the run missed the target."""
        return {
            width: fmean(math.isinf(step) for steps in sweep.courses[label].crossings.values() for step in steps)
            for width, sweep in self._at(where)
            if label in sweep.courses
        }

    def speedups(self, label: str, where: Where) -> dict[int, Estimate]:
        """Return a label's speedup by width."""
        return {width: mean_ratio([*ratios.values()]) for width, ratios in self.logs[label, where].items()}

    def is_censored(self, label: str, where: Where) -> bool:
        """Return whether a label misses more targets than `MOST_MISSED` at some width: budgets would be compared."""
        return max(self.missed(label, where).values(), default=0.0) > MOST_MISSED

    def slope(self, label: str, where: Where) -> Estimate | None:
        """Return the slope of the logarithm of a label's speedup over that of the width.

        None without all widths, and for a label that `is_censored`.
        """
        logs = self.logs[label, where]
        return slope(logs) if logs.keys() == self.sweeps.keys() and not self.is_censored(label, where) else None

    def extrapolated(self, label: str, where: Where) -> Extrapolated | None:
        """Return the prediction of `HELD_OUT`.

        None without two smaller widths, all with runs to compare, and for a label that `is_censored`.
        """
        logs = self.logs[label, where]
        smaller = [width for width in self.sweeps if width < HELD_OUT]
        if len(smaller) < 2 or not logs.keys() >= set(smaller) or self.is_censored(label, where):
            return None
        studies = sorted(set.intersection(*(set(of_width) for of_width in logs.values())))
        if not studies:
            return None
        values = np.array([[logs[width][study] for study in studies] for width in smaller])
        # One line a study: [2, studies], the slopes above the intercepts.
        lines = np.polyfit(np.log(smaller), values, 1)
        predicted = lines[0] * math.log(HELD_OUT) + lines[1]
        if HELD_OUT not in logs:
            return Extrapolated(mean_ratio(predicted), None, None)
        measured = np.array([logs[HELD_OUT][study] for study in studies])
        return Extrapolated(mean_ratio(predicted), mean_ratio(measured), mean_ratio(measured - predicted))


def widths(results: Results) -> Widths:
    """Return the experiment's runs and the sweep of each width.

    Raises:
        NoDataError: there is no run of the experiment, or no width with a sweep.
    """
    runs, metrics = results.some_runs(EXPERIMENT), results.metrics(EXPERIMENT)
    runs = runs[runs["status"].isin(ENDED)]
    size = runs["workload_parameters"].map(lambda given: int(given["hidden_size"]))
    sweeps: dict[int, TargetSweep] = {}
    left_out: list[str] = []
    for width, rows in runs.groupby(size):
        try:
            sweeps[int(str(width))] = target_sweep(rows, metrics[metrics["run"].isin(rows["run"])], BASE)
        except NoSweepError as problem:
            left_out.append(f"width {width} {problem}")
    if not sweeps:
        raise nothing_to_compare(results, EXPERIMENT, left_out)
    return Widths(runs, sweeps, left_out)


def sentences(found: Widths, name: Callable[[str], str]) -> list[str]:
    """Return what the runs say of the prediction, a sentence at the final quality and one over the sweep.

    name: returns the name of an optimizer.
    """
    said = []
    for where in PLACES:
        if sum(width < HELD_OUT for width in found.sweeps) < 2:
            continue
        clauses = [f"{name(label)} {_clause(found.extrapolated(label, where))}" for label in found.labels]
        short = [
            f"{name(label)} {', '.join(f'{100 * share:.0f} % at {width}' for width, share in shares.items() if share)}"
            for label in found.labels
            if any((shares := found.missed(label, where)).values())
        ]
        missed = f". Missed of its targets: {'; '.join(short)}" if short else ""
        said.append(
            f"Declared before the runs: at width {HELD_OUT} the speedup {where} is what a line through the smaller "
            f"widths has there: {', '.join(clauses)}{missed}"
        )
    without = [f"Not shown: {'; '.join(found.left_out)}"] if found.left_out else []
    return [*(said or ["The prediction is not tested: it needs two widths below the held-out one"]), *without]


def _clause(one: Extrapolated | None) -> str:
    if one is None:
        return "not tested"
    measured = estimated(one.measured) or "not measured yet"
    return f"{one.decision} ({measured}, predicted {estimated(one.predicted)})"
