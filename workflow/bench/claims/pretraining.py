"""Claims about the iterations and the time of training with LAMB as base optimizer: C01 to C03.

The paper trains BERT-Large. Each of two experiments whose runs have a target is a part of a claim: the pre-training of
BERT, and an autoencoder, which carries the claims where a BERT of the tier's size separates no method from LAMB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from workflow.bench.analysis.estimates import paired_difference
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.wording import capital, integer_ranges
from workflow.bench.claims.decision import (
    Decision,
    Part,
    decided,
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
from workflow.bench.claims.full_pretraining import FullComparison
from workflow.bench.claims.swept import (
    Trained,
    counts,
    over_studies,
    part_of,
    reason,
    stated,
    sweep_of,
    times_of,
    untimed,
)
from workflow.bench.claims.verdicts import Condition
from workflow.bench.results.sources import NO_SOURCES, Sources, from_runs

BASE: Final = "lamb"
WORKLOADS: Final = {"bert_pretraining": "BERT", "autoencoder_lamb": "autoencoder"}
"""The names of a claim's parts, by experiment."""


@dataclass(frozen=True)
class Evidence:
    """The results that carry these claims."""

    bert: Trained
    """The pre-training, ``bert_pretraining``."""
    autoencoder: Trained
    """``autoencoder_lamb``."""
    squad: Trained
    """The fine-tuning that starts from the pre-training, ``bert_squad``."""
    times: StepTimes

    @property
    def in_full(self) -> bool:
        """Whether a pre-training counts in full, because only the fine-tuning that starts from it has a target."""
        return not self.bert.has_target and not self.bert.runs.empty and self.squad.has_target

    @property
    def sweeps(self) -> tuple[Trained, ...]:
        """The experiments whose own target makes a sweep."""
        return tuple(trained for trained in (self.bert, self.autoencoder) if trained.has_target)

    @property
    def carriers(self) -> str:
        """A sentence on what the verdict rests on."""
        names = [self.bert.name, self.squad.name] if self.in_full else []
        names += [trained.name for trained in self.sweeps]
        return f"Carried by {' and '.join(names)}; the paper's number is of BERT-Large."

    @property
    def absent(self) -> str:
        """A sentence on why nothing carries a claim."""
        experiments = (self.bert, self.autoencoder)
        return " ".join(
            f"{one.name} {'has no results' if one.runs.empty else 'sets no target'}." for one in experiments
        )


@dataclass(frozen=True)
class _Carried:
    """What one experiment says of a claim."""

    part: Part
    reason: str
    """A clause, or for an experiment that was not tested a sentence."""
    details: str = ""
    seeds: tuple[int, ...] = ()
    data: Sources = NO_SOURCES


def _untested(name: str, why: str) -> _Carried:
    return _Carried(Part(name, "not tested", ""), why)


def _swept(trained: Trained, times: StepTimes | None, above: str, below: str, condition: Condition) -> _Carried:
    """Compare two labels over an experiment's targets, in seconds or, without times, in steps."""
    name = WORKLOADS[trained.name]
    sweep = sweep_of(trained, BASE, (above, below))
    if isinstance(sweep, str):
        return _untested(name, sweep)
    if times and (problem := untimed(times, sweep.training(above), sweep.training(below))):
        return _untested(name, problem)
    ratio = sweep.time_ratio(times, above, below) if times else sweep.steps_ratio(above, below)
    pair = f"{above}/{below}"
    labels = tuple(dict.fromkeys((BASE, above, below)))
    details = sentences(
        f"{capital(name)}: {sweep.describe()} ({statistics_used([ratio.estimate])})." if ratio.estimate else "",
        over_studies(ratio),
        counts(pair, ratio),
        f"The ratio of iterations is {stated(pair, sweep.steps_ratio(above, below))}." if times else "",
        left_out(trained.of_labels(*labels)),
    )
    data = trained.sources(*labels) + (times_of(trained.name, above, below) if times else NO_SOURCES)
    return _Carried(part_of(name, ratio, condition), reason(pair, ratio, condition), details, ratio.seeds, data)


def _in_full(evidence: Evidence, times: StepTimes | None, above: str, below: str, condition: Condition) -> _Carried:
    """Compare two labels by the pre-trainings whose fine-tuning reaches the F1."""
    name = WORKLOADS[evidence.bert.name]
    if lacks := lacking(evidence.bert.runs, evidence.bert.name, (above, below)):
        return _untested(name, lacks)
    comparison = FullComparison(evidence.bert.runs, evidence.squad.runs, above, below, times)
    if comparison.problem:
        return _untested(name, comparison.problem)
    ratio, pair, seeds = comparison.ratio, f"{above}/{below}", tuple(comparison.seeds)
    if ratio is None:
        part, why = Part(name, "inconclusive", "no target reached"), f"of {pair} neither reached the F1"
    elif comparison.is_tied or comparison.ended_early:
        part = replace(Part.judged(name, ratio, condition), verdict="inconclusive")
        why = f"{pair} tie in every seed" if comparison.is_tied else f"of {pair} a run was too short to be compared"
    else:
        part, why = Part.judged(name, ratio, condition), f"the ratio {pair} {position(ratio, condition)}"
    return _Carried(part, why, comparison.details, seeds, comparison.data)


def _decide(evidence: Evidence, times: StepTimes | None, above: str, below: str, condition: Condition) -> Decision:
    """Decide by the ratio of two labels' seconds or, without times, iterations, in every experiment with a target."""
    carried = [_in_full(evidence, times, above, below, condition)] if evidence.in_full else []
    carried += [_swept(trained, times, above, below, condition) for trained in evidence.sweeps]
    tested = [one for one in carried if one.part.verdict != "not tested"]
    if not tested:
        return not_tested(" ".join(one.reason for one in carried) or evidence.absent)
    quantity = "Training seconds" if times else "Iterations"
    why = "; ".join(f"{one.part.name}: {one.reason.rstrip('.')}" for one in carried)
    return decided(
        [one.part for one in carried],
        f"{quantity} to a target; {why}.",
        sentences(*(one.details for one in tested), evidence.carriers),
        seeds=_seeds(tested),
        data=sum((one.data for one in tested), NO_SOURCES),
    )


def _seeds(tested: Sequence[_Carried]) -> str:
    """Return the seeds of each part: ``0-7``, or ``BERT 0-2; autoencoder 0-7`` of several."""
    if len(tested) == 1:
        return integer_ranges(tested[0].seeds)
    return "; ".join(f"{one.part.name} {integer_ranges(one.seeds)}" for one in tested)


def decide_hybrid_time(evidence: Evidence, conditions: Sequence[Condition], *, rival: str) -> Decision:
    """Decide C01 (rival ``lamb``) or C02 (``kaisa``): the rival's training seconds to a target over MKOR-H's.

    Seconds are iterations times the time of a step; after MKOR-H's switch, that of its base.
    """
    decision = _decide(evidence, evidence.times, rival, "mkor_h", conditions[0])
    periods = "; ".join(filter(None, (_periods(trained, (rival, "mkor_h")) for trained in _used(evidence))))
    decision = with_details(decision, f"Steps between updates: {periods}." if periods else "")
    if evidence.in_full or not evidence.bert.has_target:
        return decision
    squad = evidence.squad
    fine_tuned = squad.runs[squad.runs["start_from"].isin(evidence.bert.runs["run"])]
    by_label = (averages_of(squad.metrics, fine_tuned, label).by_seed for label in ("mkor_h", rival))
    difference = paired_difference(*by_label)
    after = f"After fine-tuning, MKOR-H's F1 minus {rival}'s is {with_interval(difference)}." if difference else ""
    return with_details(
        decision, after, from_runs("bert_squad.runs.csv", fine_tuned[fine_tuned["optimizer"].isin(("mkor_h", rival))])
    )


def _used(evidence: Evidence) -> Iterable[Trained]:
    return ((evidence.bert,) if evidence.in_full else ()) + evidence.sweeps


def _periods(trained: Trained, labels: Sequence[str]) -> str:
    """Return the periods of an experiment's labels: ``autoencoder kaisa 10 and 50, mkor_h 10``; empty without any."""
    by_label = []
    for label in labels:
        for given in trained.of_labels(label)["hyperparameters"].head(1):
            names = ("factor_update_period", "inverse_update_period", "update_period")
            periods = dict.fromkeys(str(given[name]) for name in names if given.get(name) is not None)
            by_label += [f"{label} {' and '.join(periods)}"] if periods else []
    return f"{WORKLOADS[trained.name]} {', '.join(by_label)}" if by_label else ""


def decide_iterations_to_target(evidence: Evidence, conditions: Sequence[Condition]) -> Decision:
    """Decide C03: iterations to a target, MKOR's over LAMB's; the other update rule's are given in the details."""
    judged = mkor_of(evidence.bert.runs)
    decision = _decide(evidence, None, judged, BASE, conditions[0])
    other = "mkor" if judged == "mkor_released" else "mkor_released"
    of_other = _decide(evidence, None, other, BASE, conditions[0])
    ratios = "; ".join(f"{name} {with_interval(ratio)}" for name, ratio in of_other.estimates.items())
    return with_details(decision, f"{other} over {BASE}: {ratios}." if ratios else "", of_other.data)
