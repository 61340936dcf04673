"""Claims about the iterations and the training time to a base's final quality on images: C06, C07 and C19.

A part is a ratio of two labels. It is judged where the base has its final quality; the mean over the targets of its
whole sweep and the last target stand beside it, and the overhead of a step from which on the ratio of times turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from workflow.bench.analysis.final_quality import Views, break_even, final_limit
from workflow.bench.analysis.step_times import StepTimes, Training
from workflow.bench.analysis.study_ratios import without_each_study
from workflow.bench.analysis.target_sweep import FINAL, NoSweepError, SweptRatio, TargetSweep, target_sweep
from workflow.bench.analysis.wording import capital, integer_ranges
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
from workflow.bench.results.sources import Sources, from_rows

SGD: Final = "sgd"
"""The optimizer whose steps set the targets."""
SPEEDUPS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "C06": ("resnet50_imagenet", ("sgd",)),
    "C07": ("resnet50_imagenet", ("kaisa",)),
    "C19": ("alexnet_cifar100", ("sgd", "hylo", "kaisa")),
}
"""By claim, the experiment and the rivals whose time is compared with MKOR's."""
MOST_UNREACHED: Final = 0.1
"""The largest share of pairs with a run that missed its target of which one can say that they do not differ.

Such a run counts as too short, which moves the ratio toward 1: never toward a difference, but toward none.
"""


def sweep_of(trained: Trained, base: str, labels: Sequence[str]) -> TargetSweep | str:
    """Return the sweep over an experiment's targets, or a sentence on why some labels cannot be compared by one."""
    if lacks := trained.lacking(base, *labels):
        return lacks
    try:
        sweep = target_sweep(trained.runs, trained.metrics, base)
        sweep.at(FINAL)  # which the claims are judged at
        return sweep
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


def robust_part(
    name: str,
    ratio: SweptRatio,
    condition: Condition,
    sweep: TargetSweep,
    above: str,
    below: str,
    times: StepTimes | None = None,
) -> Part:
    """Return the part that a ratio decides, with the cases in which one tuning study less would change it.

    The interval keeps its length on logarithmic axes and moves with the mean: with a study less a t interval is longer,
    whatever that study was like.

    sweep: what the ratio of the two labels is of, the target at final quality or runs of several lengths.
    """
    part, whole = part_of(name, ratio, condition), ratio.estimate
    if whole is None or part.verdict not in ("confirmed", "refuted"):
        return part
    rests = (rest.ratio(above, below, times).estimate for rest in without_each_study(sweep, above, below))
    moved = [whole.scaled(rest.value / whole.value) for rest in rests if rest is not None]
    changed = sum(condition.judge(one) != part.verdict for one in moved)
    return replace(part, narrowly=f"{changed} of {len(moved)}" if changed else "")


def narrow(parts: Iterable[Part]) -> str:
    """Return a sentence on the parts whose verdict hangs on single tuning studies; empty without any."""
    cases = ", ".join(f"{part.name} in {part.narrowly}" for part in parts if part.narrowly)
    return f"Without one tuning study the mean would lie where the verdict is another: {cases} cases." if cases else ""


def inert_studies(trained: Trained, label: str) -> str:
    """Return a sentence on the tuning studies in which a label is `Trained.inert`; empty if it is in none or in all."""
    runs = trained.of_labels(label).dropna(subset="study")
    by_study = [replace(trained, runs=of_study).inert(label) for _, of_study in runs.groupby("study")]
    inert = sum(map(bool, by_study))
    return f"{label} is inert in {inert} of {len(by_study)} tuning studies." if 0 < inert < len(by_study) else ""


def update_periods(trained: Trained, labels: Iterable[str]) -> str:
    """Return the steps between labels' updates: ``kaisa 10 and 50, mkor_h 10``; empty without any.

    How often a rival updates its factors decides what its step costs: the reader has to know it.
    """
    by_label = []
    for label in labels:
        for given in trained.of_labels(label)["hyperparameters"].head(1):
            names = ("factor_update_period", "inverse_update_period", "update_period")
            found = dict.fromkeys(str(given[name]) for name in names if given.get(name) is not None)
            by_label += [f"{label} {' and '.join(found)}"] if found else []
    return ", ".join(by_label)


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
    """Return a sentence on the tuning studies to which the seeds belong; empty if nothing was tuned."""
    studies = max(ratio.studies for ratio in ratios)
    if studies == 1:
        return "Intervals are over seeds of one tuning study, without the spread between studies."
    return f"Intervals are those of the means of {studies} tuning studies." if studies else ""


def side_by_side(name: str, sweep: TargetSweep, in_steps: Views, in_time: Views | None = None) -> str:
    """Return a sentence with a ratio at final quality, over all targets and at the last, in iterations and in time."""

    def listed(views: Views) -> str:
        return ", ".join(with_interval(ratio.estimate) if ratio.estimate else "none" for ratio in views)

    seconds = f"; seconds {listed(in_time)}" if in_time else ""
    where = f"at final quality, in the mean of {len(sweep.targets)} targets and at the last target"
    return f"The ratio {name} {where}: iterations {listed(in_steps)}{seconds}."


def disagreement(name: str, views: Views, condition: Condition) -> str:
    """Return a clause if the mean over all targets has another verdict than final quality; else nothing."""
    final, mean = (part_of(name, ratio, condition).verdict for ratio in (views.final, views.mean))
    return "" if final == mean else f"{name} is {mean} in the mean of all targets"


def overhead(label: str, rival: str, sweep: TargetSweep, times: StepTimes) -> str:
    """Return a sentence on what a label's step may cost; empty if neither it nor its rival reached final quality."""
    found = break_even(sweep.at(FINAL), times, label, rival)
    return f"{label} takes less time if its step costs, in multiples of {rival}'s, {found}." if found else ""


def decide_speedup(trained: Trained, times: StepTimes, conditions: Sequence[Condition], *rivals: str) -> Decision:
    """Decide C06, C07 or C19: each rival's training seconds to SGD's final quality over MKOR's.

    Seconds are iterations times the time of a step. The claim needs every rival to be slower. A second condition, that
    of C07, is about MKOR's iterations over the rival's.

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
    in_steps = {rival: Views.of(sweep, rival, mkor) for rival in rivals}
    data = trained.sources(*labels)
    # Iterations need no clock: they are stated even where the machine could not time the steps.
    if problem := untimed(times, *(sweep.training(label) for label in (mkor, *rivals))):
        return not_tested(problem, _beside(sweep, times, mkor, in_steps), data)
    time, *more = conditions
    in_time = {rival: Views.of(sweep, rival, mkor, times) for rival in rivals}
    final = sweep.at(FINAL)
    judged: dict[str, tuple[Views, Condition]] = {}
    parts = []
    for rival in rivals:
        name = f"time {rival}/{mkor}" if more else f"{rival}/{mkor}"
        judged[name] = in_time[rival], time
        part = robust_part(name, in_time[rival].final, time, final, rival, mkor, times)
        parts.append(trained.unless_inert(rival, part))
    for condition, rival in product(more, rivals):
        name = f"iterations {mkor}/{rival}"
        views = Views.of(sweep, mkor, rival)
        judged[name] = views, condition
        parts.append(trained.unless_inert(rival, robust_part(name, views.final, condition, final, mkor, rival)))
    name, (views, condition) = next(iter(judged.items()))
    verdicts = part_verdicts(parts) if len(parts) > 1 else reason(name, views.final, condition)
    disagreements = (disagreement(name, *of_one) for name, of_one in judged.items())
    used = statistics_used(parts)
    return Decision(
        tuple(parts),
        f"Training seconds to {final_limit(sweep)}: {'; '.join(filter(None, (verdicts, *disagreements)))}.",
        sentences(
            f"{capital(used)}." if used else "",
            over_studies(*(views.final for views in in_time.values())),
            _beside(sweep, times, mkor, in_steps, in_time),
            *(counts(f"{rival}/{mkor}", views.final) for rival, views in in_time.items()),
            f"Steps between updates: {periods}." if (periods := update_periods(trained, (*rivals, mkor))) else "",
            *(inert_studies(trained, rival) for rival in rivals),
            narrow(parts),
            left_out(trained.of_labels(*labels)),
        ),
        seeds=integer_ranges(seed for views in in_time.values() for seed in views.final.seeds),
        data=data + times_of(trained.name, mkor, *rivals),
        # Published ratios are of times; of iterations the paper gives epochs.
        published_of=tuple(name for name, (_, condition) in judged.items() if condition is time),
    )


def _beside(
    sweep: TargetSweep,
    times: StepTimes,
    mkor: str,
    in_steps: Mapping[str, Views],
    in_time: Mapping[str, Views] | None = None,
) -> str:
    """Return sentences on all views of every rival's ratio over MKOR, and on the overhead that MKOR may have."""
    texts = [f"{capital(sweep.describe())}.", sweep.remarks()]
    for rival, views in in_steps.items():
        texts += [
            side_by_side(f"{rival}/{mkor}", sweep, views, in_time[rival] if in_time else None),
            overhead(mkor, rival, sweep, times),
        ]
    return sentences(*texts)
