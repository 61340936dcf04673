"""Pre-trainings that count in full, because the target is one of the fine-tuning that starts from them.

So the paper counts: a pre-training takes all of its steps if the fine-tuning reaches the F1. A run that ended without
reaching the target counts as infinitely long. Runs that are skipped, interrupted, failed or missing are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from workflow.bench.analysis.estimates import Estimate, paired_ratio
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.time_to_target import budgets, of_any_length, too_short
from workflow.bench.analysis.training_time import Training, mean_seconds, time_ratio
from workflow.bench.analysis.wording import integer_ranges, number
from workflow.bench.claims.decision import left_out, sentences, statistics_used
from workflow.bench.claims.swept import times_of, untimed
from workflow.bench.results.columns import ENDED
from workflow.bench.results.sources import Sources, from_runs


def iterations_to_f1(pretraining: pd.DataFrame, squad: pd.DataFrame, label: str) -> dict[int, float]:
    """Return a label's iterations of pre-training by seed, infinity if no fine-tuning from it reached its target.

    Of several pre-trainings with different numbers of steps, the shortest that gets there counts.

    Args:
        pretraining: rows of ``bert_pretraining.runs.csv``.
        squad: rows of ``bert_squad.runs.csv``.
        label: the label of the pre-training's optimizer.
    """
    tuned = squad[squad["target"].notna() & squad["status"].isin(ENDED)].set_index("start_from")["steps_to_target"]
    took: dict[int, float] = {}
    for run in of_any_length(pretraining, label).to_dict("records"):
        if run["status"] == "finished" and run["run"] not in tuned.index:
            continue  # without its fine-tuning, the pre-training's score is unknown
        reached = run["status"] == "finished" and not math.isnan(float(tuned[run["run"]]))
        if reached or run["status"] in ENDED:
            value = float(run["steps_done"]) if reached else math.inf
            took[int(run["seed"])] = min(value, took.get(int(run["seed"]), math.inf))
    return took


@dataclass(frozen=True)
class FullComparison:
    """Two labels' iterations or seconds of pre-training, ``above`` over ``below``, paired by seed."""

    pretraining: pd.DataFrame
    """Rows of ``bert_pretraining.runs.csv``."""
    squad: pd.DataFrame
    """Rows of ``bert_squad.runs.csv``."""
    above: str
    below: str
    times: StepTimes | None = None
    """The times of steps, which make seconds of iterations; None compares iterations."""

    @cached_property
    def iterations(self) -> Mapping[str, Mapping[int, float]]:
        """Iterations by label and seed."""
        return {label: iterations_to_f1(self.pretraining, self.squad, label) for label in (self.above, self.below)}

    @cached_property
    def took(self) -> Mapping[str, Mapping[int, float]]:
        """Iterations or seconds by label and seed."""
        return {label: self._measured(label, steps) for label, steps in self.iterations.items()}

    def _measured(self, label: str, steps: Mapping[int, float]) -> Mapping[int, float]:
        """Return iterations in the unit of the comparison."""
        return steps if self.times is None else mean_seconds(self.times, self._training(label).taking(steps))

    def _training(self, label: str) -> Training:
        return Training.of(self.runs[label], self.iterations[label])

    @property
    def problem(self) -> str:
        """A sentence on why the two cannot be compared; empty if they can."""
        for label, took in self.iterations.items():
            if not took:
                return f"No fine-tuning in bert_squad from a pre-training of {label} has ended."
        return "" if self.times is None else untimed(self.times, *map(self._training, (self.above, self.below)))

    @property
    def ratio(self) -> Estimate | None:
        """The ratio, ``above`` over ``below``; None if no pair reached the target."""
        if self.times is None:
            return paired_ratio(self.took[self.above], self.took[self.below])
        return time_ratio(self.times, self._training(self.above), self._training(self.below))

    @cached_property
    def ended_early(self) -> str:
        """Sentences on runs that were too short to be compared; empty without any."""
        spent = {label: self._measured(label, budgets(runs)) for label, runs in self.runs.items()}
        reports = []
        for label, rival in ((self.above, self.below), (self.below, self.above)):
            if seeds := too_short(self.took[label], self.took[rival], spent[label]):
                reports.append(f"{label} ended before {rival} reached the target, with seed {integer_ranges(seeds)}.")
        return " ".join(reports)

    @cached_property
    def runs(self) -> Mapping[str, pd.DataFrame]:
        """Every label's pre-trainings, whatever their number of steps."""
        return {label: of_any_length(self.pretraining, label) for label in (self.above, self.below)}

    @property
    def seeds(self) -> list[int]:
        """The seeds that both labels have."""
        return sorted(self.took[self.above].keys() & self.took[self.below].keys())

    @property
    def is_tied(self) -> bool:
        """Whether both take equally many iterations in every seed."""
        equal = all(self.took[self.above][seed] == self.took[self.below][seed] for seed in self.seeds)
        return self.times is None and equal

    @property
    def data(self) -> Sources:
        """The runs compared."""
        used = pd.concat(self.runs.values())
        data = from_runs("bert_pretraining.runs.csv", used)
        data += from_runs("bert_squad.runs.csv", self.squad[self.squad["start_from"].isin(used["run"])])
        return data if self.times is None else data + times_of("bert_pretraining", self.above, self.below)

    @property
    def details(self) -> str:
        """Each label's iterations or seconds by seed, and remarks on the runs."""
        took = "; ".join(f"{label} {_by_seed(self.took[label], self.seeds)}" for label in (self.above, self.below))
        used = f" ({statistics_used([self.ratio])})" if self.ratio else ""
        lengths = (_only_length(label, rows) for label, rows in self.runs.items())
        return sentences(f"{took}{used}.", self.ended_early, *lengths, left_out(pd.concat(self.runs.values())))


def _by_seed(took: Mapping[int, float], seeds: Iterable[int]) -> str:
    return ", ".join(number(took[seed]) for seed in seeds)


def _only_length(label: str, runs: pd.DataFrame) -> str:
    """Return a sentence if all of a label's finished pre-trainings have the same number of steps, else nothing.

    Such a label takes all of its steps even if fewer would have reached the target.
    """
    lengths = runs.loc[runs["status"] == "finished", "steps_done"].unique()
    if len(lengths) != 1:
        return ""
    return f"{label} was trained for {lengths[0]:g} steps only, as in the paper; fewer might suffice."
