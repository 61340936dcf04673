"""Claims about the iterations and the training time to LAMB's final quality: C01, C02 and C03.

With LAMB as base the paper trains BERT-Large, each optimizer for its own number of steps, with its own decay. Two
workloads are parts of these claims: the pre-training of BERT, and an autoencoder, which carries them where a BERT of
the tier's size separates no method from LAMB. Where a workload has runs of several lengths, the shortest length that
reaches what LAMB's own reach is judged, as in the paper; else the steps of runs of one length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pandas as pd

from workflow.bench.analysis.estimates import paired_difference, studies_of
from workflow.bench.analysis.final_quality import Views, final_limit
from workflow.bench.analysis.horizons import horizon_sweep
from workflow.bench.analysis.step_times import StepTimes, Training, steps_or_seconds, time_ratio
from workflow.bench.analysis.target_sweep import FINAL, NoSweepError, SweptRatio, TargetSweep, percent
from workflow.bench.analysis.time_to_target import budgets, of_any_length, too_short
from workflow.bench.analysis.wording import capital, in_words, integer_ranges, named_seeds, number
from workflow.bench.claims.decision import (
    Condition,
    Decision,
    Part,
    Trained,
    left_out,
    mkor_of,
    not_tested,
    position,
    sentences,
    statistics_used,
    with_interval,
)
from workflow.bench.claims.finetuning import averages_of
from workflow.bench.claims.time_to_target import (
    counts,
    disagreement,
    narrow,
    over_studies,
    overhead,
    part_of,
    reason,
    robust_part,
    side_by_side,
    sweep_of,
    times_of,
    untimed,
    update_periods,
)
from workflow.bench.results.columns import ENDED
from workflow.bench.results.sources import NO_SOURCES, from_runs
from workflow.bench.results.tables import Results

LAMB: Final = "lamb"
"""The optimizer whose steps set the targets."""
HYBRID: Final = "mkor_h"
RIVALS: Final = {"C01": LAMB, "C02": "kaisa"}
"""The labels whose time is compared with that of `HYBRID`, by claim."""
WORKLOADS: Final = {"bert_pretraining": "BERT", "autoencoder_lamb": "autoencoder"}
"""The names of a claim's parts, by experiment."""
HORIZONS: Final = {"bert_pretraining": "bert_horizons", "autoencoder_lamb": "autoencoder_horizons"}
"""The experiments that train the same for several numbers of steps, by experiment."""


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
    horizons: Mapping[str, Trained]
    """Those of `HORIZONS` that have results, by the experiment that they belong to."""

    @classmethod
    def of(cls, results: Results) -> Evidence:
        """Read the experiments and the times of steps."""
        bert, autoencoder, squad = (Trained.of(results, name) for name in (*WORKLOADS, "bert_squad"))
        horizons = {name: Trained.of(results, longer) for name, longer in HORIZONS.items()}
        trained = {name: one for name, one in horizons.items() if not one.runs.empty}
        return cls(bert, autoencoder, squad, StepTimes(results.probe("step_time")), trained)

    @property
    def in_full(self) -> bool:
        """Whether a pre-training counts in full, because only the fine-tuning that starts from it has a target."""
        return not self.bert.has_target and not self.bert.runs.empty and self.squad.has_target

    @property
    def sweeps(self) -> tuple[Trained, ...]:
        """The experiments whose own target makes a sweep."""
        return tuple(trained for trained in (self.bert, self.autoencoder) if trained.has_target)


def _untested(name: str, why: str) -> Decision:
    return Decision((Part(name, "not tested", ""),), why)


def _swept(
    trained: Trained,
    own: Trained | None,
    times: StepTimes | None,
    above: str,
    below: str,
    condition: Condition,
) -> Decision:
    """Compare two labels at LAMB's final quality, in seconds or, without times, in steps.

    own: the experiment in which they train for several numbers of steps, which decides if there is one.
    """
    # The base sets the targets, so that its runs are sources even where it is not compared.
    name, pair, labels = WORKLOADS[trained.name], f"{above}/{below}", tuple(dict.fromkeys((LAMB, above, below)))
    sweep = sweep_of(trained, LAMB, (above, below))
    if isinstance(sweep, str):
        return _untested(name, sweep)
    if times and (problem := untimed(times, sweep.training(above), sweep.training(below))):
        return _untested(name, problem)
    # The rival stands above in a ratio of seconds, below in one of iterations.
    if inert := trained.inert(above if times else below):
        return _untested(name, inert)
    in_steps = Views.of(sweep, above, below)
    in_time = Views.of(sweep, above, below, times) if times else None
    views = in_time or in_steps
    ratio, where, other, data = views.final, final_limit(sweep), disagreement(pair, views, condition), NO_SOURCES
    lengths, own_lengths = own_sweep(trained, own, above, below) if own else (None, "")
    if own and lengths:
        ratio = lengths.ratio(above, below, times)
        where = f"{LAMB}'s final quality by runs of several lengths"
        other = _differs(pair, ratio, views, condition)
        data = own.sources(*labels)
    used = f" ({statistics_used([ratio.estimate])})" if ratio.estimate else ""
    details = sentences(
        f"{capital(name)}: {sweep.describe()}{used}.",
        sweep.remarks(),
        own_lengths,
        over_studies(ratio),
        counts(pair, ratio),
        side_by_side(pair, sweep, in_steps, in_time),
        overhead(below, above, lengths or sweep, times) if times else "",
        left_out(trained.of_labels(*labels)),
    )
    data += trained.sources(*labels) + (times_of(trained.name, above, below) if times else NO_SOURCES)
    why = "; ".join(filter(None, (f"to {where}, {reason(pair, ratio, condition)}", other)))
    part = robust_part(name, ratio, condition, lengths or sweep.at(FINAL), above, below, times)
    return Decision((part,), why, sentences(details, narrow([part])), integer_ranges(ratio.seeds), data=data)


def _differs(pair: str, ratio: SweptRatio, views: Views, condition: Condition) -> str:
    """Return a clause if runs of one length have another verdict than those of several; else nothing."""
    judged = part_of(pair, ratio, condition).verdict
    verdicts = [part_of(pair, one, condition).verdict for one in (views.final, views.mean)]
    if verdicts == [judged, judged]:
        return ""
    return f"in runs of one length it is {verdicts[0]} at final quality and {verdicts[1]} in the mean of all targets"


def own_sweep(trained: Trained, own: Trained, above: str, below: str) -> tuple[TargetSweep | None, str]:
    """Return the sweep over the lengths of runs, None if there is none of two labels, and a sentence on it.

    trained: the runs of one length; own: those of several.
    """
    labels = tuple(dict.fromkeys((LAMB, above, below)))
    # The paper's claims on lengths are about MKOR and MKOR-H; other labels have runs of one length only.
    if not {above, below} <= set(own.runs["optimizer"]):
        return None, ""
    if lacks := own.lacking(*labels):
        return None, lacks
    goal = trained.runs["target"].dropna().iloc[0]
    try:
        sweep = horizon_sweep(own.runs, own.metrics, goal, LAMB, trained.name)
    except NoSweepError as problem:
        return None, f"{own.name} {problem}."
    first, *others = (_arrivals(sweep, label, own.runs["steps"].min()) for label in labels)
    reached = ", ".join([first.replace(")", " with the shortest)"), *others])
    quality = f"{sweep.goal.split} {sweep.goal.metric} of {sweep.goal.limit:.3g}"
    described = (
        f"Runs of {integer_ranges(own.runs['steps'])} steps, each with its own decay ({own.name}), to what {LAMB}'s "
        f"end at with {percent([FINAL])} of the longest length, a {quality}; seeds that reach it at some length: "
        f"{reached}. Values are those tuned for the longest length, from which the faster one is further."
    )
    return sweep, sentences(described, left_out(own.of_labels(*labels)))


def _arrivals(sweep: TargetSweep, label: str, shortest: float) -> str:
    """Return how many of a label's seeds reach the target at some length, and with the shortest: ``mkor 16 of 16 (1)``.

    With fewer steps than the shortest length they might have reached it, too.
    """
    crossings = [steps for (steps,) in sweep.courses[label].crossings.values()]
    reached, early = sum(map(math.isfinite, crossings)), sum(steps <= shortest for steps in crossings)
    return f"{label} {reached} of {len(crossings)} ({early})"


def iterations_to_f1(runs: pd.DataFrame, squad: pd.DataFrame) -> dict[int, float]:
    """Return a label's iterations of pre-training by seed, infinity if no fine-tuning from it reached its target.

    So the paper counts: a pre-training takes all of its steps if the fine-tuning reaches the F1. Of several
    pre-trainings with different numbers of steps, the shortest that gets there counts.

    Args:
        runs: the label's rows of ``bert_pretraining.runs.csv``.
        squad: rows of ``bert_squad.runs.csv``.
    """
    tuned = squad[squad["target"].notna() & squad["status"].isin(ENDED)].set_index("start_from")["steps_to_target"]
    took: dict[int, float] = {}
    for run in runs.to_dict("records"):
        if run["status"] == "finished" and run["run"] not in tuned.index:
            continue  # without its fine-tuning, the pre-training's score is unknown
        reached = run["status"] == "finished" and not math.isnan(float(tuned[run["run"]]))
        if reached or run["status"] in ENDED:
            # MKOR pre-trains for 1,500 and for 600 steps, each with its own decay: the shortest that suffices counts.
            value = float(run["steps_done"]) if reached else math.inf
            took[int(run["seed"])] = min(value, took.get(int(run["seed"]), math.inf))
    return took


def _in_full(evidence: Evidence, times: StepTimes | None, above: str, below: str, condition: Condition) -> Decision:
    """Compare two labels by the pre-trainings whose fine-tuning reaches the F1, in seconds or, without times, steps."""
    name, pair = WORKLOADS[evidence.bert.name], f"{above}/{below}"
    if lacks := evidence.bert.lacking(above, below):
        return _untested(name, lacks)
    runs = {label: of_any_length(evidence.bert.runs, label) for label in (above, below)}
    steps = {label: iterations_to_f1(rows, evidence.squad.runs) for label, rows in runs.items()}
    if unended := [label for label, by_seed in steps.items() if not by_seed]:
        return _untested(name, f"No fine-tuning in bert_squad from a pre-training of {unended[0]} has ended.")
    trainings = {label: Training.of(rows, steps[label]) for label, rows in runs.items()}
    if times and (problem := untimed(times, *trainings.values())):
        return _untested(name, problem)
    took = {label: steps_or_seconds(times, training) for label, training in trainings.items()}
    spent = {label: steps_or_seconds(times, one.taking(budgets(runs[label]))) for label, one in trainings.items()}
    ratio = time_ratio(times, trainings[above], trainings[below])
    ended_early = " ".join(
        f"{label} ended before {rival} reached the target, with {named_seeds(seeds)}."
        for label, rival in ((above, below), (below, above))
        if (seeds := too_short(took[label], took[rival], spent[label]))
    )
    seeds = sorted(took[above].keys() & took[below].keys())
    if ratio is None:
        part, why = Part(name, "inconclusive", "no target reached"), f"of {pair} neither reached the F1"
    else:
        part, why = Part.judged(name, ratio, condition), f"the ratio {pair} {position(ratio, condition)}"
        if not times and all(took[above][seed] == took[below][seed] for seed in seeds):
            # Schedules of equal length tie by design, and say nothing of which optimizer needs fewer steps.
            part, why = replace(part, verdict="inconclusive"), f"{pair} tie in every seed"
        elif ended_early:
            # With more steps the short run might have reached the target first: nobody knows which is faster.
            part, why = replace(part, verdict="inconclusive"), f"of {pair} a run was too short to be compared"
    compared = pd.concat(runs.values())
    fine_tuned = evidence.squad.runs[evidence.squad.runs["start_from"].isin(compared["run"])]
    by_label = (f"{label} {', '.join(number(took[label][seed]) for seed in seeds)}" for label in runs)
    used = f" ({statistics_used([ratio])})" if ratio else ""
    return Decision(
        (part,),
        why,
        sentences(
            f"{'; '.join(by_label)}{used}.", ended_early, *map(_only_length, runs, runs.values()), left_out(compared)
        ),
        integer_ranges(seeds),
        data=from_runs("bert_pretraining.runs.csv", compared)
        + from_runs("bert_squad.runs.csv", fine_tuned)
        + (times_of("bert_pretraining", above, below) if times else NO_SOURCES),
    )


def _only_length(label: str, runs: pd.DataFrame) -> str:
    """Return a sentence if all of a label's finished pre-trainings have the same number of steps, else nothing.

    Such a label takes all of its steps even if fewer would have reached the target.
    """
    lengths = runs.loc[runs["status"] == "finished", "steps_done"].unique()
    if len(lengths) != 1:
        return ""
    return f"{label} was trained for {lengths[0]:g} steps only, as in the paper; fewer might suffice."


def _decide(evidence: Evidence, times: StepTimes | None, above: str, below: str, condition: Condition) -> Decision:
    """Decide by the ratio of two labels' seconds or, without times, iterations, in every experiment with a target."""
    carried = [_in_full(evidence, times, above, below, condition)] if evidence.in_full else []
    carried += [
        _swept(trained, evidence.horizons.get(trained.name), times, above, below, condition)
        for trained in evidence.sweeps
    ]
    tested = {one.parts[0].name: one for one in carried if one.verdict != "not tested"}
    if not tested:
        experiments = (evidence.bert, evidence.autoencoder)
        absent = (f"{one.name} {'has no results' if one.runs.empty else 'sets no target'}." for one in experiments)
        return not_tested(" ".join(one.why for one in carried) or " ".join(absent))
    # A part that was not tested stays one: without it the claim is open, unless another part refutes it.
    why = "; ".join(f"{one.parts[0].name}: {one.why.rstrip('.')}" for one in carried)
    names = [evidence.bert.name, evidence.squad.name] if evidence.in_full else []
    names += [trained.name for trained in evidence.sweeps]
    names += [own.name for own in evidence.horizons.values() if not {above, below} - set(own.runs["optimizer"])]
    carriers = f"Carried by {in_words(names)}; the paper's number is of BERT-Large."
    return Decision(
        tuple(one.parts[0] for one in carried),
        f"{'Training seconds' if times else 'Iterations'}; {why}.",
        sentences(*(one.details for one in tested.values()), carriers),
        "; ".join(f"{name} {one.seeds}" if len(tested) > 1 else one.seeds for name, one in tested.items()),
        data=sum((one.data for one in tested.values()), NO_SOURCES),
    )


def decide_hybrid_time(evidence: Evidence, conditions: Sequence[Condition], rival: str) -> Decision:
    """Decide C01 (rival ``lamb``) or C02 (``kaisa``): the rival's training seconds to a target over MKOR-H's.

    Seconds are iterations times the time of a step; after MKOR-H's switch, that of its base.
    """
    decision = _decide(evidence, evidence.times, rival, HYBRID, conditions[0])
    used = (*([evidence.bert] if evidence.in_full else []), *evidence.sweeps)
    named = ((WORKLOADS[trained.name], update_periods(trained, (rival, HYBRID))) for trained in used)
    periods = "; ".join(f"{workload} {found}" for workload, found in named if found)
    decision = decision.with_details(f"Steps between updates: {periods}." if periods else "")
    # The F1 decides where the pre-training counts in full; where it has its own target, the F1 stands beside.
    if evidence.in_full or not evidence.bert.has_target:
        return decision
    # The pre-training was judged by its own loss: whether the fine-tuning agrees stands beside it.
    squad = evidence.squad
    fine_tuned = squad.runs[squad.runs["start_from"].isin(evidence.bert.runs["run"])]
    tuned = replace(squad, runs=fine_tuned)
    studies = studies_of(*map(tuned.of_labels, (HYBRID, rival)))
    difference = paired_difference(averages_of(tuned, HYBRID), averages_of(tuned, rival), studies)
    after = f"After fine-tuning, MKOR-H's F1 minus {rival}'s is {with_interval(difference)}." if difference else ""
    return decision.with_details(after, from_runs("bert_squad.runs.csv", tuned.of_labels(HYBRID, rival)))


def decide_iterations_to_target(evidence: Evidence, conditions: Sequence[Condition]) -> Decision:
    """Decide C03: iterations to a target, MKOR's over LAMB's; the other update rule's are given in the details."""
    judged = mkor_of(evidence.bert.runs)
    # The paper's text and its released code differ: both rules are shown, and one is judged.
    other = "mkor" if judged == "mkor_released" else "mkor_released"
    of_other = _decide(replace(evidence, horizons={}), None, other, LAMB, conditions[0])
    ratios = "; ".join(f"{name} {with_interval(ratio)}" for name, ratio in of_other.estimates.items())
    decision = _decide(evidence, None, judged, LAMB, conditions[0])
    where = ", in runs of one length" if evidence.horizons else ""
    return decision.with_details(f"{other} over {LAMB}{where}: {ratios}." if ratios else "", of_other.data)
