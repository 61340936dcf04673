"""Claims about the iterations and the training time to targets: C06, C07 and C19 on images, C01 to C03 with LAMB.

A part is a ratio of two labels over the targets of a sweep. With LAMB as base the paper trains BERT-Large. Each of two
experiments whose runs have a target is a part of those claims: the pre-training of BERT, and an autoencoder, which
carries them where a BERT of the tier's size separates no method from LAMB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pandas as pd

from workflow.bench.analysis.estimates import paired_difference, paired_ratio
from workflow.bench.analysis.step_times import StepTimes, Training, mean_seconds, time_ratio
from workflow.bench.analysis.time_to_target import (
    NoSweepError,
    SweptRatio,
    TargetSweep,
    budgets,
    of_any_length,
    target_sweep,
    too_short,
)
from workflow.bench.analysis.wording import capital, integer_ranges, number
from workflow.bench.claims.decision import (
    Condition,
    Decision,
    Part,
    Trained,
    left_out,
    mkor_of,
    not_tested,
    part_verdicts,
    position,
    sentences,
    statistics_used,
    with_interval,
)
from workflow.bench.claims.finetuning import averages_of
from workflow.bench.results.columns import ENDED
from workflow.bench.results.sources import NO_SOURCES, Sources, from_rows, from_runs
from workflow.bench.results.tables import Results

SGD: Final = "sgd"
LAMB: Final = "lamb"
"""The optimizers whose gain divides into targets: of the claims on images, and of those with LAMB as base."""
MOST_UNREACHED: Final = 0.1
"""The largest share of pairs with a run that missed its target of which one can say that they do not differ.

Such a run counts as too short, which moves the ratio toward 1: never toward a difference, but toward none.
"""


def sweep_of(trained: Trained, base: str, labels: Sequence[str]) -> TargetSweep | str:
    """Return the sweep over an experiment's targets, or a sentence on why some labels cannot be compared by one."""
    if lacks := trained.lacking(base, *labels):
        return lacks
    try:
        return target_sweep(trained.runs, trained.metrics, base)
    except NoSweepError as problem:
        return f"{trained.name} {problem}."


def untimed(times: StepTimes, *trainings: Training) -> str:
    """Return a sentence on why the seconds of some trainings cannot be compared; empty if they can."""
    problem = times.problem(*(label for training in trainings for label in training.labels))
    # A file's name, with which the other sentences begin, keeps its small letter.
    return f"{capital(problem) if problem.startswith('the ') else problem}." if problem else ""


def times_of(experiment: str, *labels: str) -> Sources:
    """Return the rows of the probe ``step_time`` with the step times of some labels as a source."""
    return from_rows("probes/step_time.csv", experiment=experiment, optimizer=", ".join(labels))


def part_of(name: str, ratio: SweptRatio, condition: Condition) -> Part:
    """Return the part that a ratio over a sweep decides."""
    if ratio.estimate is None:
        return Part(name, "inconclusive", "no target reached")
    part = Part.judged(name, ratio.estimate, condition)
    is_censored = ratio.unreached > MOST_UNREACHED * ratio.pairs
    # A tie in every seed is no evidence of equality: no run may have been long enough to tell the labels apart.
    if ratio.is_tied or (part.verdict == "no difference" and is_censored):
        return replace(part, verdict="inconclusive")
    return part


def reason(name: str, ratio: SweptRatio, condition: Condition) -> str:
    """Return a clause on why a ratio over a sweep gives its verdict."""
    if ratio.estimate is None:
        return f"of {name} neither reached a target"
    if ratio.is_tied:
        return f"{name} tie in every seed"
    return f"the ratio {name} {position(ratio.estimate, condition)}"


def counts(name: str, ratio: SweptRatio) -> str:
    """Return a sentence on the pairs of runs behind a ratio that are not two crossings; empty if all are."""
    remarks = []
    if ratio.unreached:
        remarks.append(f"one of the two runs missed the target in {ratio.unreached} and counts with its budget")
    if ratio.left_out:
        remarks.append(f"{ratio.left_out} left out, where neither reached the target or it was met at the start")
    return f"Of {ratio.pairs + ratio.left_out} pairs of {name}, {'; '.join(remarks)}." if remarks else ""


def over_studies(*ratios: SweptRatio) -> str:
    """Return a sentence on the tuning studies to which the seeds belong; empty without several."""
    studies = max(ratio.studies for ratio in ratios)
    return f"Intervals are those of the means of {studies} tuning studies." if studies > 1 else ""


def stated(name: str, ratio: SweptRatio) -> str:
    """Return a ratio with its interval: ``sgd/mkor 1.4 [1.2, 1.6]``; empty if no pair reached a target."""
    return f"{name} {with_interval(ratio.estimate)}" if ratio.estimate else ""


def decide_speedup(trained: Trained, times: StepTimes, conditions: Sequence[Condition], *rivals: str) -> Decision:
    """Decide C06, C07 or C19: each rival's training seconds to a target over MKOR's, over the targets of a sweep.

    Seconds are iterations times the time of a step. The claim needs every rival to be slower. A second condition, that
    of C07, is about MKOR's iterations over the rival's; other claims state the iterations in the details.

    Args:
        trained: the experiment's results.
        times: the times of steps.
        conditions: the claim's thresholds.
        rivals: the labels that MKOR is compared with.
    """
    mkor = mkor_of(trained.runs)
    sweep = sweep_of(trained, SGD, (mkor, *rivals))
    if isinstance(sweep, str):
        return not_tested(sweep)
    labels = tuple(dict.fromkeys((SGD, mkor, *rivals)))
    in_steps = "; ".join(filter(None, (stated(f"{one}/{mkor}", sweep.steps_ratio(one, mkor)) for one in rivals)))
    # Iterations carry over to other machines, seconds of a small model do not.
    iterations = f"The ratios of iterations, above 1 if MKOR needs fewer: {in_steps}." if in_steps else ""
    data = trained.sources(*labels)
    # Iterations need no clock: they are stated even where the machine could not time the steps.
    if problem := untimed(times, *(sweep.training(label) for label in (mkor, *rivals))):
        return not_tested(problem, iterations, data)
    time, *more = conditions
    ratios = {f"{rival}/{mkor}": sweep.time_ratio(times, rival, mkor) for rival in rivals}
    judged = [(f"time {name}" if more else name, ratio, time) for name, ratio in ratios.items()]
    if more:
        judged += [(f"iterations {mkor}/{rival}", sweep.steps_ratio(mkor, rival), more[0]) for rival in rivals]
    compared = zip(rivals * len(conditions), judged, strict=True)
    parts = [trained.unless_inert(rival, part_of(*of_part)) for rival, of_part in compared]
    used = statistics_used(parts)
    return Decision(
        tuple(parts),
        f"Training seconds to {sweep.describe()}: {part_verdicts(parts) if len(parts) > 1 else reason(*judged[0])}.",
        sentences(
            f"{capital(used)}." if used else "",
            over_studies(*ratios.values()),
            "" if more else iterations,
            *(counts(name, ratio) for name, ratio in ratios.items()),
            left_out(trained.of_labels(*labels)),
        ),
        seeds=integer_ranges(seed for ratio in ratios.values() for seed in ratio.seeds),
        data=data + times_of(trained.name, mkor, *rivals),
        # Published ratios are of times; of iterations the paper gives epochs.
        published_of=tuple(name for name, _, condition in judged if condition is time),
    )


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

    @classmethod
    def of(cls, results: Results) -> Evidence:
        """Read the experiments and the times of steps."""
        bert, autoencoder, squad = (Trained.of(results, name) for name in (*WORKLOADS, "bert_squad"))
        return cls(bert, autoencoder, squad, StepTimes(results.probe("step_time")))

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


def _swept(trained: Trained, times: StepTimes | None, above: str, below: str, condition: Condition) -> Decision:
    """Compare two labels over an experiment's targets, in seconds or, without times, in steps."""
    name = WORKLOADS[trained.name]
    sweep = sweep_of(trained, LAMB, (above, below))
    if isinstance(sweep, str):
        return _untested(name, sweep)
    if times and (problem := untimed(times, sweep.training(above), sweep.training(below))):
        return _untested(name, problem)
    # The rival stands above in a ratio of seconds, below in one of iterations.
    if inert := trained.inert(above if times else below):
        return _untested(name, inert)
    ratio = sweep.time_ratio(times, above, below) if times else sweep.steps_ratio(above, below)
    pair = f"{above}/{below}"
    # The base sets the targets, so that its runs are sources even where it is not compared.
    labels = tuple(dict.fromkeys((LAMB, above, below)))
    details = sentences(
        f"{capital(name)}: {sweep.describe()} ({statistics_used([ratio.estimate])})." if ratio.estimate else "",
        over_studies(ratio),
        counts(pair, ratio),
        f"The ratio of iterations is {stated(pair, sweep.steps_ratio(above, below))}." if times else "",
        left_out(trained.of_labels(*labels)),
    )
    data = trained.sources(*labels) + (times_of(trained.name, above, below) if times else NO_SOURCES)
    part = part_of(name, ratio, condition)
    return Decision((part,), reason(pair, ratio, condition), details, integer_ranges(ratio.seeds), data=data)


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
    took = {label: _measured(training, times) for label, training in trainings.items()}
    spent = {label: _measured(one.taking(budgets(runs[label])), times) for label, one in trainings.items()}
    ratio = time_ratio(times, *trainings.values()) if times else paired_ratio(*took.values())
    ended_early = " ".join(
        f"{label} ended before {rival} reached the target, with seed {integer_ranges(seeds)}."
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


def _measured(training: Training, times: StepTimes | None) -> Mapping[int, float]:
    """Return the seconds of a training by seed or, without times, its steps."""
    return mean_seconds(times, training) if times else training.steps


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
    carried += [_swept(trained, times, above, below, condition) for trained in evidence.sweeps]
    tested = {one.parts[0].name: one for one in carried if one.verdict != "not tested"}
    if not tested:
        experiments = (evidence.bert, evidence.autoencoder)
        absent = (f"{one.name} {'has no results' if one.runs.empty else 'sets no target'}." for one in experiments)
        return not_tested(" ".join(one.why for one in carried) or " ".join(absent))
    # A part that was not tested stays one: without it the claim is open, unless another part refutes it.
    why = "; ".join(f"{one.parts[0].name}: {one.why.rstrip('.')}" for one in carried)
    names = [evidence.bert.name, evidence.squad.name] if evidence.in_full else []
    names += [trained.name for trained in evidence.sweeps]
    carriers = f"Carried by {' and '.join(names)}; the paper's number is of BERT-Large."
    return Decision(
        tuple(one.parts[0] for one in carried),
        f"{'Training seconds' if times else 'Iterations'} to a target; {why}.",
        sentences(*(one.details for one in tested.values()), carriers),
        "; ".join(f"{name} {one.seeds}" if len(tested) > 1 else one.seeds for name, one in tested.items()),
        data=sum((one.data for one in tested.values()), NO_SOURCES),
    )


def decide_hybrid_time(evidence: Evidence, conditions: Sequence[Condition], rival: str) -> Decision:
    """Decide C01 (rival ``lamb``) or C02 (``kaisa``): the rival's training seconds to a target over MKOR-H's.

    Seconds are iterations times the time of a step; after MKOR-H's switch, that of its base.
    """
    decision = _decide(evidence, evidence.times, rival, "mkor_h", conditions[0])
    used = (*([evidence.bert] if evidence.in_full else []), *evidence.sweeps)
    # How often a rival updates its factors decides what its step costs: the reader has to know it.
    periods = "; ".join(filter(None, (_periods(trained, (rival, "mkor_h")) for trained in used)))
    decision = decision.with_details(f"Steps between updates: {periods}." if periods else "")
    # The F1 decides where the pre-training counts in full; where it has its own target, the F1 stands beside.
    if evidence.in_full or not evidence.bert.has_target:
        return decision
    # The pre-training was judged by its own loss: whether the fine-tuning agrees stands beside it.
    squad = evidence.squad
    fine_tuned = squad.runs[squad.runs["start_from"].isin(evidence.bert.runs["run"])]
    tuned = replace(squad, runs=fine_tuned)
    difference = paired_difference(*(averages_of(tuned, label).by_seed for label in ("mkor_h", rival)))
    after = f"After fine-tuning, MKOR-H's F1 minus {rival}'s is {with_interval(difference)}." if difference else ""
    return decision.with_details(after, from_runs("bert_squad.runs.csv", tuned.of_labels("mkor_h", rival)))


def _periods(trained: Trained, labels: Iterable[str]) -> str:
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
    # The paper's text and its released code differ: both rules are shown, and one is judged.
    other = "mkor" if judged == "mkor_released" else "mkor_released"
    of_other = _decide(evidence, None, other, LAMB, conditions[0])
    ratios = "; ".join(f"{name} {with_interval(ratio)}" for name, ratio in of_other.estimates.items())
    decision = _decide(evidence, None, judged, LAMB, conditions[0])
    return decision.with_details(f"{other} over {LAMB}: {ratios}." if ratios else "", of_other.data)
