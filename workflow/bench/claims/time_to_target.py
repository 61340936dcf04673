"""Claims about the training time to an experiment's targets: C06, C07 and C19; and ratios over a sweep as parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.target_sweep import NoSweepError, SweptRatio, TargetSweep, target_sweep
from workflow.bench.analysis.training_time import Training
from workflow.bench.analysis.wording import capital, integer_ranges
from workflow.bench.claims.decision import (
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
from workflow.bench.claims.verdicts import Condition
from workflow.bench.results.sources import Sources, from_rows

BASE: Final = "sgd"
"""The optimizer whose gain divides into the targets of these claims."""
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
    sweep = sweep_of(trained, BASE, (mkor, *rivals))
    if isinstance(sweep, str):
        return not_tested(sweep)
    labels = tuple(dict.fromkeys((BASE, mkor, *rivals)))
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
    parts = [part_of(*of_part) for of_part in judged]
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
