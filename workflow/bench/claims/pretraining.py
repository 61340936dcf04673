"""Claims about the iterations and the time of pre-training to a target: C01 to C03.

A run that ended without reaching the target counts as infinitely long. Runs that are skipped, interrupted, failed or
missing are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from workflow.bench.analysis.estimates import Estimate, paired_difference, paired_ratio
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.time_to_target import budgets, of_any_length, to_target
from workflow.bench.analysis.training_time import Training, mean_seconds, time_ratio
from workflow.bench.analysis.wording import integer_ranges, number
from workflow.bench.claims.decision import (
    Decision,
    interval_of,
    lacking,
    left_out,
    mkor_of,
    not_tested,
    position,
    sentences,
    statistics_used,
    with_details,
    with_interval,
)
from workflow.bench.claims.finetuning import averages_of
from workflow.bench.claims.time_to_target import ended_early, target_of, times_of, untimed
from workflow.bench.claims.verdicts import Condition
from workflow.bench.results.columns import ENDED
from workflow.bench.results.sources import Sources, from_runs


def iterations_of_pretraining(pretraining: pd.DataFrame, squad: pd.DataFrame, label: str) -> dict[int, float]:
    """Return a label's iterations of pre-training to the target by seed, infinity if it was not reached.

    If ``bert_pretraining`` sets a target, that one counts. Otherwise, as in the paper, a pre-training takes all of its
    steps if the fine-tuning that starts from it reaches the target of ``bert_squad``, and of several pre-trainings
    with different numbers of steps the shortest that gets there counts.

    Args:
        pretraining: rows of ``bert_pretraining.runs.csv``.
        squad: rows of ``bert_squad.runs.csv``.
        label: the label of the pre-training's optimizer.
    """
    if pretraining["target"].notna().any():
        return to_target(pretraining[pretraining["optimizer"] == label], "steps")
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


def _target(pretraining: pd.DataFrame, squad: pd.DataFrame) -> str:
    """Return the target at which pre-trainings are compared in words; empty if neither experiment sets one."""
    if pretraining["target"].notna().any():
        return f"{target_of(pretraining)} in pre-training"
    return f"{target_of(squad)} after fine-tuning" if squad["target"].notna().any() else ""


@dataclass(frozen=True)
class _Comparison:
    """Two labels' iterations or seconds of pre-training to the target, ``above`` over ``below``, paired by seed."""

    pretraining: pd.DataFrame
    squad: pd.DataFrame
    above: str
    below: str
    times: StepTimes | None = None
    """The times of steps, which make seconds of iterations; None compares iterations."""

    @cached_property
    def iterations(self) -> Mapping[str, Mapping[int, float]]:
        """Iterations to the target by label and seed."""
        return {
            label: iterations_of_pretraining(self.pretraining, self.squad, label) for label in (self.above, self.below)
        }

    @cached_property
    def took(self) -> Mapping[str, Mapping[int, float]]:
        """Iterations or seconds to the target by label and seed."""
        return {label: self._measured(label, steps) for label, steps in self.iterations.items()}

    def _measured(self, label: str, steps: Mapping[int, float]) -> Mapping[int, float]:
        """Return iterations in the unit of the comparison."""
        return steps if self.times is None else mean_seconds(self.times, self._training(label).taking(steps))

    def _training(self, label: str) -> Training:
        return Training.of(self.runs[label], self.iterations[label])

    @property
    def untimed(self) -> str:
        """A sentence on why the seconds cannot be compared; empty if they can, or if iterations are."""
        return "" if self.times is None else untimed(self.times, *map(self._training, (self.above, self.below)))

    @property
    def ratio(self) -> Estimate | None:
        """The ratio, ``above`` over ``below``; None if no pair reached the target."""
        if self.times is None:
            return paired_ratio(self.took[self.above], self.took[self.below])
        return time_ratio(self.times, self._training(self.above), self._training(self.below))

    @property
    def ended_early(self) -> str:
        """Sentences on runs that were too short to be compared; empty without any."""
        spent = {label: self._measured(label, budgets(runs)) for label, runs in self.runs.items()}
        return ended_early(self.took, spent)

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
    def counts_in_full(self) -> bool:
        """Whether the target is one of fine-tuning, so that a pre-training takes all of its steps."""
        return bool(self.pretraining["target"].isna().all())

    @property
    def data(self) -> Sources:
        """The runs compared."""
        used = pd.concat(self.runs.values())
        data = from_runs("bert_pretraining.runs.csv", used)
        if self.counts_in_full:
            data += from_runs("bert_squad.runs.csv", self.squad[self.squad["start_from"].isin(used["run"])])
        return data if self.times is None else data + times_of("bert_pretraining", self.above, self.below)

    def details(self, ratio: Estimate, early: str) -> str:
        """Return each label's iterations or seconds by seed, and remarks on the runs."""
        took = "; ".join(f"{label} {_by_seed(self.took[label], self.seeds)}" for label in (self.above, self.below))
        lengths = (_only_length(label, rows) for label, rows in self.runs.items()) if self.counts_in_full else ()
        return sentences(
            f"{took} ({statistics_used([ratio])}).", early, *lengths, left_out(pd.concat(self.runs.values()))
        )


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


def _decide_ratio(comparison: _Comparison, condition: Condition) -> Decision:
    """Decide by the ratio of two labels' iterations or seconds to the target."""
    above, below = comparison.above, comparison.below
    if lacks := lacking(comparison.pretraining, "bert_pretraining", (above, below)):
        return not_tested(lacks)
    target = _target(comparison.pretraining, comparison.squad)
    if not target:
        return not_tested("Neither bert_pretraining nor bert_squad sets a target at this tier.")
    for label, took in comparison.iterations.items():
        if not took:
            return not_tested(f"No fine-tuning in bert_squad from a pre-training of {label} has ended.")
    if comparison.untimed:
        return not_tested(comparison.untimed)
    ratio = comparison.ratio
    seeds = integer_ranges(comparison.seeds)
    if ratio is None:
        why = f"Neither {above} nor {below} reached {target} within the steps of a run."
        return Decision("inconclusive", why, seeds=seeds, data=comparison.data)
    early = comparison.ended_early
    is_open = comparison.is_tied or bool(early)
    return Decision(
        "inconclusive" if is_open else condition.judge(ratio),
        f"{'Iterations' if comparison.times is None else 'Training seconds'} to {target}, {above}'s over {below}'s: "
        f"{_reason(comparison, ratio, condition, early)}.",
        details=comparison.details(ratio, early),
        measured=number(ratio.value),
        interval=interval_of(ratio),
        seeds=seeds,
        data=comparison.data,
        estimates={"": ratio},
    )


def _reason(comparison: _Comparison, ratio: Estimate, condition: Condition, early: str) -> str:
    if comparison.is_tied:
        return "they tie in every seed"
    return "a run was too short to be compared" if early else f"the ratio {position(ratio, condition)}"


def decide_hybrid_time(
    pretraining: pd.DataFrame,
    squad: pd.DataFrame,
    metrics: pd.DataFrame,
    times: StepTimes,
    conditions: Sequence[Condition],
    *,
    rival: str,
) -> Decision:
    """Decide C01 (rival ``lamb``) or C02 (``kaisa``): the rival's training seconds to the target over MKOR-H's.

    Seconds are iterations times the time of a step; after MKOR-H's switch, that of its base.

    Args:
        pretraining: rows of ``bert_pretraining.runs.csv``.
        squad: rows of ``bert_squad.runs.csv``.
        metrics: rows of ``bert_squad.csv``; its scores are added to the details if the target is a loss.
        times: the times of steps.
        conditions: the claim's thresholds.
        rival: the label of the optimizer that MKOR-H is compared with.
    """
    comparison = _Comparison(pretraining, squad, above=rival, below="mkor_h", times=times)
    decision = _decide_ratio(comparison, conditions[0])
    if comparison.counts_in_full:
        return decision
    difference = paired_difference(*(averages_of(metrics, squad, label).by_seed for label in ("mkor_h", rival)))
    after = f"After fine-tuning, MKOR-H's F1 minus {rival}'s is {with_interval(difference)}." if difference else ""
    proxy = "The paper compares the time to LAMB's SQuAD F1; this tier uses the pre-training loss instead."
    fine_tuned = squad[squad["optimizer"].isin(("mkor_h", rival))]
    return with_details(with_details(decision, proxy), after, from_runs("bert_squad.runs.csv", fine_tuned))


def decide_iterations_to_target(
    pretraining: pd.DataFrame, squad: pd.DataFrame, conditions: Sequence[Condition]
) -> Decision:
    """Decide C03: iterations to the target, MKOR's over LAMB's.

    Args:
        pretraining: rows of ``bert_pretraining.runs.csv``.
        squad: rows of ``bert_squad.runs.csv``.
        conditions: the claim's thresholds.
    """
    judged = mkor_of(pretraining)
    decision = _decide_ratio(_Comparison(pretraining, squad, judged, "lamb"), conditions[0])
    other = "mkor" if judged == "mkor_released" else "mkor_released"
    of_other = _decide_ratio(_Comparison(pretraining, squad, other, "lamb"), conditions[0])
    ratio = f"{other} over lamb: {of_other.measured} {of_other.interval}." if of_other.measured else ""
    decision = with_details(decision, ratio, from_runs("bert_pretraining.runs.csv", of_any_length(pretraining, other)))
    return with_details(decision, "The paper's number is for SQuAD F1 after pre-training BERT-Large.")
