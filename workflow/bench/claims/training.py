"""Claims about what trainings reach, and when: C01 to C07, C09, C18, C19 and C25.

Targets are those of the experiments' files.  A run that ended without reaching its target counts as infinitely long;
one that is skipped, interrupted, failed or missing says nothing and is left out.  MKOR is the exact rule (label
``mkor``), but at the paper tier the ``released`` one, which made the published numbers (`mkor_of`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import pandas as pd

from workflow.bench.analysis.common_steps import by_seed, last_common_values
from workflow.bench.analysis.estimates import Estimate, paired_difference, paired_ratio
from workflow.bench.analysis.finetuning_scores import averages, last_values, scores
from workflow.bench.analysis.lr_outcomes import converging_rates, outcomes
from workflow.bench.analysis.time_to_target import of_any_length, to_target, too_short
from workflow.bench.analysis.wording import number, spans
from workflow.bench.claims.decision import (
    Decision,
    Part,
    capital,
    decided,
    how,
    lacking,
    not_tested,
    sentences,
    shown,
    side,
    span,
    unended,
    verdicts,
)
from workflow.bench.claims.verdicts import Condition, Verdict, agreement, all_of
from workflow.bench.results.columns import ENDED
from workflow.bench.results.sources import NO_SOURCES, Sources, from_runs
from workflow.bench.results.tables import NoDataError

Quantity = Literal["steps", "seconds"]
_IN_WORDS: Final[Mapping[Quantity, str]] = {"steps": "Iterations", "seconds": "Training seconds"}


def mkor_of(runs: pd.DataFrame) -> str:
    """The label of the MKOR that a claim is judged by: the released rule's at the paper tier, the exact one's else."""
    released = (runs["tier"] == "paper") & (runs["optimizer"] == "mkor_released")
    return "mkor_released" if released.any() else "mkor"


def _goal(runs: pd.DataFrame) -> str:
    """The target of an experiment's runs in words."""
    target = runs["target"].dropna().iloc[0]
    return f"a {target.split} {target.metric} of {target.limit:g}"


def _by_seed(took: Mapping[int, float], seeds: Iterable[int]) -> str:
    return ", ".join(number(took[seed]) for seed in seeds)


def _too_short(runs: Mapping[str, pd.DataFrame], took: Mapping[str, Mapping[int, float]], quantity: Quantity) -> str:
    """Which of two labels' runs were too short (`statistics.too_short`), in a sentence; empty where none was."""
    found = []
    one, two = took
    for label, other in ((one, two), (two, one)):
        if seeds := too_short(runs[label], took[label], took[other], quantity):
            found.append(f"{label} ended before {other} reached the target, with seed {spans(seeds)}.")
    return " ".join(found)


def pretraining_to_target(
    pretraining: pd.DataFrame, squad: pd.DataFrame, label: str, quantity: Quantity
) -> dict[int, float]:
    """What pre-training takes to its target by seed: iterations or training seconds, infinite where not reached.

    Where ``bert_pretraining`` sets a target, to that.  Else as the paper has it: a pre-training counts in full where
    the fine-tuning from its end reaches the target of ``bert_squad``, and of several budgets the shortest that does.
    Both frames hold rows of ``<experiment>.runs.csv``.
    """
    if pretraining["target"].notna().any():
        return to_target(pretraining[pretraining["optimizer"] == label], quantity)
    column = "steps_done" if quantity == "steps" else "train_seconds"
    tuned = squad[squad["target"].notna() & squad["status"].isin(ENDED)].set_index("start_from")["steps_to_target"]
    took: dict[int, float] = {}
    for run in of_any_length(pretraining, label).to_dict("records"):
        if run["status"] == "finished" and run["run"] not in tuned.index:
            continue  # nobody knows how good it is
        reached = run["status"] == "finished" and not math.isnan(float(tuned[run["run"]]))
        if reached or run["status"] in ENDED:
            value = float(run[column]) if reached else math.inf
            took[int(run["seed"])] = min(value, took.get(int(run["seed"]), math.inf))
    return took


def _pretraining_target(pretraining: pd.DataFrame, squad: pd.DataFrame) -> str:
    """What pre-trainings are compared at, in words; empty where neither experiment sets a target."""
    if pretraining["target"].notna().any():
        return f"{_goal(pretraining)} in pre-training"
    return f"{_goal(squad)} after fine-tuning" if squad["target"].notna().any() else ""


def _one_length(label: str, runs: pd.DataFrame) -> str:
    """That a label's pre-trainings, which count in full, have one length only, in a sentence; empty where they do not.

    runs: the label's with all their budgets of steps.
    """
    lengths = runs.loc[runs["status"] == "finished", "steps_done"].unique()
    if len(lengths) != 1:
        return ""
    return f"{label} was trained for {lengths[0]:g} steps alone, as in the paper: fewer might do."


def _pretraining_ratio(
    pretraining: pd.DataFrame,
    squad: pd.DataFrame,
    condition: Condition,
    *,
    above: str,
    below: str,
    quantity: Quantity,
) -> Decision:
    """The ratio of what two labels take to the target, ``above`` over ``below``, paired by seed."""
    if lacks := lacking(pretraining, "bert_pretraining", (above, below)):
        return not_tested(lacks)
    goal = _pretraining_target(pretraining, squad)
    if not goal:
        return not_tested("Neither bert_pretraining nor bert_squad sets a target here.")
    took = {label: pretraining_to_target(pretraining, squad, label, quantity) for label in (above, below)}
    for label, found in took.items():
        if not found:
            return not_tested(f"No fine-tuning in bert_squad from a pre-training of {label} has ended.")
    seeds = sorted(took[above].keys() & took[below].keys())
    families = {label: of_any_length(pretraining, label) for label in (above, below)}
    used = pd.concat(families.values())
    data, whole = from_runs("bert_pretraining.runs.csv", used), ""
    if pretraining["target"].isna().all():
        whole = sentences(*(_one_length(label, runs) for label, runs in families.items()))
        data += from_runs("bert_squad.runs.csv", squad[squad["start_from"].isin(used["run"])])
    ratio = paired_ratio(took[above], took[below])
    if ratio is None:
        return Decision(
            "inconclusive",
            f"Neither {above} nor {below} reached {goal} within the steps of a run.",
            seeds=spans(seeds),
            data=data,
        )
    # Iterations are known to the next evaluation only: a tie in every seed may hide either order.
    tied = quantity == "steps" and all(took[above][seed] == took[below][seed] for seed in seeds)
    short = _too_short(families, took, quantity)
    why = f"{_IN_WORDS[quantity]} to {goal}, {above}'s over {below}'s: "
    if tied:
        why += "they tie in every seed, as finely as the runs are evaluated."
    elif short:
        why += "a run was too short to be compared."
    else:
        why += f"the ratio {side(ratio, condition)}."
    details = sentences(
        f"{above} {_by_seed(took[above], seeds)}; {below} {_by_seed(took[below], seeds)} ({how([ratio])}).",
        short,
        whole,
        unended(used),
    )
    return Decision(
        "inconclusive" if tied or short else condition.judge(ratio),
        why,
        details=details,
        measured=number(ratio.value),
        interval=span(ratio),
        seeds=spans(seeds),
        data=data,
    )


def _further(decision: Decision, sentence: str, source: Sources = NO_SOURCES) -> Decision:
    """A decision that was tested, with one more sentence and where that comes from."""
    if decision.verdict == "not tested" or not sentence:
        return decision
    return replace(decision, details=sentences(decision.details, sentence), data=decision.data + source)


def decide_hybrid_time(
    pretraining: pd.DataFrame,
    squad: pd.DataFrame,
    metrics: pd.DataFrame,
    conditions: Sequence[Condition],
    *,
    rival: str,
) -> Decision:
    """C01 (rival ``lamb``) and C02 (``kaisa``): the rival's training seconds over MKOR-H's.

    To which target, `pretraining_to_target` says.  pretraining, squad: rows of ``bert_pretraining.runs.csv`` and
    ``bert_squad.runs.csv``; metrics: of ``bert_squad.csv``, whose scores stand beside a target that is a loss.
    """
    decision = _pretraining_ratio(pretraining, squad, conditions[0], above=rival, below="mkor_h", quantity="seconds")
    if pretraining["target"].isna().all():
        return decision
    after = paired_difference(*(_averages(metrics, squad, label).by_seed for label in ("mkor_h", rival)))
    score = f"After fine-tuning from them, MKOR-H's F1 minus {rival}'s is {shown(after)}." if after else ""
    stands_in = "The paper compares the time to LAMB's SQuAD F1, for which the loss stands in here."
    fine_tuned = squad[squad["optimizer"].isin(("mkor_h", rival))]
    return _further(_further(decision, stands_in), score, from_runs("bert_squad.runs.csv", fine_tuned))


def decide_iterations_to_target(
    pretraining: pd.DataFrame, squad: pd.DataFrame, conditions: Sequence[Condition]
) -> Decision:
    """C03: iterations to the target, MKOR's over LAMB's; to which target, `pretraining_to_target` says."""
    judged = mkor_of(pretraining)
    decision = _pretraining_ratio(pretraining, squad, conditions[0], above=judged, below="lamb", quantity="steps")
    other = "mkor" if judged == "mkor_released" else "mkor_released"
    beside = _pretraining_ratio(pretraining, squad, conditions[0], above=other, below="lamb", quantity="steps")
    also = f"{other} over lamb: {beside.measured} {beside.interval}." if beside.measured else ""
    paper = "The paper's number is of SQuAD F1 after pre-training BERT-Large."
    source = from_runs("bert_pretraining.runs.csv", of_any_length(pretraining, other))
    return _further(_further(decision, also, source), paper)


@dataclass(frozen=True)
class _Averages:
    """One label's average score over all tasks."""

    by_seed: Mapping[int, float]
    """Of the seeds that ended every task; minus infinity where a run broke down."""
    broken: int
    """Runs that broke down: a comparison without them would flatter the label."""


def _averages(metrics: pd.DataFrame, runs: pd.DataFrame, label: str) -> _Averages:
    own = runs[runs["optimizer"] == label]
    last = last_values(metrics, "score")
    by_task = [scores(own[own["dataset"] == task], last) for task in runs["dataset"].unique()]
    broken = sum(math.isinf(value) for task in by_task for value in task.values())
    return _Averages(averages(by_task), broken)


def _score(value: float) -> str:
    """An average score in words; one of a seed with a run that broke down is minus infinity."""
    return "broke down" if math.isinf(value) else number(value, 4)


def _average_difference(
    metrics: pd.DataFrame, runs: pd.DataFrame, condition: Condition, contender: str, reference: str
) -> Decision:
    """The contender's average over the fine-tuning tasks minus the reference's, paired by seed."""
    if lacks := lacking(runs, "bert_glue", (contender, reference)):
        return not_tested(lacks)
    found = {label: _averages(metrics, runs, label) for label in (contender, reference)}
    difference = paired_difference(found[contender].by_seed, found[reference].by_seed)
    tasks = sorted(runs["dataset"].astype(str).unique())
    used = runs[runs["optimizer"].isin((contender, reference))]
    if difference is None:
        return not_tested(f"No seed finished all of {', '.join(tasks)} from both {contender} and {reference}.")
    seeds = sorted(found[contender].by_seed.keys() & found[reference].by_seed.keys())
    listed = {label: ", ".join(_score(own.by_seed[seed]) for seed in seeds) for label, own in found.items()}
    means = "; ".join(f"{label} {scores_of}" for label, scores_of in listed.items())
    broken = sum(own.broken for own in found.values())
    average = f"The average score over {len(tasks)} tasks after fine-tuning, {contender}'s minus {reference}'s,"
    return Decision(
        # Leaving out the seeds that failed would make the label that failed look good.
        "inconclusive" if broken else condition.judge(difference),
        f"{average} lacks {broken} of their runs, which broke down."
        if broken
        else f"{average} {side(difference, condition)}.",
        details=sentences(
            f"Tasks: {', '.join(tasks)}; by the optimizer of pre-training ({how([difference])}): {means}.",
            unended(used),
        ),
        measured=number(difference.value),
        interval=span(difference),
        seeds=spans(seeds),
        data=from_runs("bert_glue.runs.csv", used),
    )


def decide_glue_average(
    metrics: pd.DataFrame, runs: pd.DataFrame, conditions: Sequence[Condition], *, contender: str
) -> Decision:
    """C04 (contender ``mkor``) and C05 (``kaisa``): the average over the tasks, minus LAMB's.

    metrics, runs: ``bert_glue.csv`` and ``bert_glue.runs.csv``.
    """
    label = mkor_of(runs) if contender == "mkor" else contender
    return _average_difference(metrics, runs, conditions[0], label, "lamb")


def decide_switch(
    metrics: pd.DataFrame, runs: pd.DataFrame, pretraining: pd.DataFrame, conditions: Sequence[Condition]
) -> Decision:
    """C25: MKOR-H's average over the tasks minus that of MKOR with the same rule and budget of pre-training.

    Over the seeds in which MKOR-H switched, since without its switch it is MKOR.
    """
    if lacks := lacking(pretraining, "bert_pretraining", ("mkor_h",)):
        return not_tested(lacks)
    hybrid = pretraining[(pretraining["optimizer"] == "mkor_h") & pretraining["status"].isin(ENDED)]
    switched = hybrid[hybrid["switch_step"].notna()]
    budget = spans(hybrid["steps"])
    if switched.empty:
        return not_tested(f"MKOR-H switched to its base in none of {len(hybrid)} runs of {budget} steps.")
    alike = (
        (pretraining["method"] == "mkor")
        & pretraining["update_rule"].isin(hybrid["update_rule"])
        & pretraining["steps"].isin(hybrid["steps"])
    )
    partners = pretraining.loc[alike, "optimizer"].unique()
    if len(partners) == 0:
        return not_tested("bert_pretraining has no MKOR with the rule and the steps of MKOR-H.")
    counted = runs[runs["seed"].isin(switched["seed"])]
    decision = _average_difference(metrics, counted, conditions[0], "mkor_h", str(partners[0]))
    steps = spans(switched["switch_step"])
    where = (
        f"MKOR-H switched in {len(switched)} of {len(hybrid)} runs, at step {steps} of {budget}, which are compared."
    )
    return _further(decision, where, from_runs("bert_pretraining.runs.csv", hybrid))


def decide_speedup(
    experiment: str, runs: pd.DataFrame, conditions: Sequence[Condition], *, rivals: Sequence[str]
) -> Decision:
    """C06, C07, C19: each rival's training seconds to the target over MKOR's; the claim needs every rival to be slower.

    The same ratio of iterations stands beside it.
    """
    mkor = mkor_of(runs)
    if lacks := lacking(runs, experiment, (mkor, *rivals)):
        return not_tested(lacks)
    if runs["target"].dropna().empty:
        return not_tested(f"{experiment} sets no target.")
    took = {label: to_target(runs[runs["optimizer"] == label], "seconds") for label in (mkor, *rivals)}
    steps = {label: to_target(runs[runs["optimizer"] == label], "steps") for label in (mkor, *rivals)}
    parts, estimates, iterations, short = [], [], [], []
    for rival in rivals:
        ratio, of_steps = paired_ratio(took[rival], took[mkor]), paired_ratio(steps[rival], steps[mkor])
        if ratio is None or of_steps is None:
            parts.append(Part(f"{rival}/{mkor}", "inconclusive", "neither reached the target"))
            continue
        pair = {label: took[label] for label in (mkor, rival)}
        early = _too_short({label: runs[runs["optimizer"] == label] for label in pair}, pair, "seconds")
        verdict = "inconclusive" if early else conditions[0].judge(ratio)
        parts.append(Part(f"{rival}/{mkor}", verdict, number(ratio.value), span(ratio)))
        short.append(early)
        estimates.append(ratio)
        iterations.append(f"{rival}/{mkor} {shown(of_steps)}")
    used = runs[runs["optimizer"].isin(took)]
    unreached = {label: sum(map(math.isinf, found.values())) for label, found in took.items()}
    censored = ", ".join(f"{count} of {len(took[label])} of {label}" for label, count in unreached.items() if count)
    if len(rivals) == len(estimates) == 1 and not any(short):
        found = f"the ratio {rivals[0]}/{mkor} {side(estimates[0], conditions[0])}"
    else:
        found = verdicts(parts)
    return decided(
        parts,
        all_of,
        f"Training seconds to {_goal(used)}: {found}.",
        sentences(
            f"{capital(how(estimates))}." if estimates else "",
            f"The verdict is on time alone; the same of iterations, above 1 where MKOR needs fewer: "
            f"{'; '.join(iterations)}."
            if iterations
            else "",
            f"Never there within their steps: {censored}." if censored else "",
            *short,
            unended(used),
        ),
        seeds=spans(seed for found in took.values() for seed in found),
        data=from_runs(f"{experiment}.runs.csv", used),
    )


CLIPS: Final = {"kaisa": "KAISA with clip", "kaisa_no_clip": "KAISA without clip"}
"""KAISA with its kl_clip, which makes a step smaller where the rate is larger, and without."""


def decide_sensitivity(runs: pd.DataFrame) -> Decision:
    """C18: learning rates at which MKOR converges minus those of its best rival, paired by seed.

    The claim sets no number: MKOR's count is the largest where that difference lies above 0.  It is judged against
    KAISA with its clip and against KAISA without, and needs both to agree.  `lr_outcomes` says what
    counts as converged; seeds count where every rate has ended.
    """
    others = ("hylo", "sgd")
    mkor = mkor_of(runs)
    if lacks := lacking(runs, "resnet_cifar10_lr", (mkor, *CLIPS, *others)):
        return not_tested(lacks)
    ended = outcomes(runs)
    counts = converging_rates(ended)
    incomplete = [label for label in (mkor, *CLIPS, *others) if label not in counts]
    if incomplete:
        return not_tested(f"No seed of {', '.join(incomplete)} has ended at every learning rate.")
    parts, estimates, largest = [], [], []
    for clip, name in CLIPS.items():
        rivals = [counts[label] for label in (clip, *others)]
        best = {seed: max(rival[seed] for rival in rivals) for seed in set.intersection(*map(set, rivals))}
        difference = paired_difference(counts[mkor], best)
        if difference is None:
            return not_tested(f"{mkor} and its rivals share no seed that has ended at every learning rate.")
        estimates.append(difference)
        parts.append(Part(name, Condition("", ">", 0).judge(difference), number(difference.value), span(difference)))
        shared = counts[mkor].keys() & best.keys()
        largest.append(f"{sum(counts[mkor][seed] > best[seed] for seed in shared)} of {len(shared)} seeds")
    rates = ended["lr"].nunique()
    listed = {label: ", ".join(str(counts[label][seed]) for seed in sorted(counts[label])) for label in counts}
    outcome = "; ".join(f"{label} {text}" for label, text in listed.items())
    where = []
    for label in listed:
        converged = ended[(ended["optimizer"] == label) & (ended["outcome"] == "converged")]
        found = converged["lr"].value_counts()
        each = ", ".join(f"{found[lr]} at {lr:g}" for lr in sorted(found.index, reverse=True))
        where.append(f"{label} {each or 'none'}")
    return decided(
        parts,
        agreement,
        f"Of {rates} learning rates, how many MKOR converges at minus the best rival's: {verdicts(parts)}.",
        sentences(
            f"{capital(how(estimates))}; MKOR's count is the larger in {' and '.join(largest)}.",
            f"Rates that reach {_goal(ended)}, by seed: {outcome}.",
            f"By rate: {'; '.join(where)}.",
            unended(runs),
        ),
        seeds=spans(counts[mkor]),
        data=from_runs("resnet_cifar10_lr.runs.csv", ended),
    )


@dataclass(frozen=True)
class _Contrast:
    """One optimizer's loss at a rare update period minus that at a frequent one, on one workload."""

    name: str
    workload: str
    difference: Estimate
    verdict: Verdict
    seeds: frozenset[int]
    unfinished: int
    data: Sources


def _contrast(experiment: str, rows: pd.DataFrame, condition: Condition, rare: int, often: int) -> _Contrast | None:
    """The contrast of one optimizer's rows, or None where one of the periods has no finished run to pair."""
    try:
        last, step = last_common_values(rows)
    except NoDataError:
        return None
    by_period = {period: by_seed(at) for period, at in last.groupby("inverse_update_period")}
    if set(by_period) != {rare, often}:
        return None
    difference = paired_difference(by_period[rare], by_period[often])
    if difference is None:
        return None
    workload = str(last["workload"].iloc[0])
    unfinished = int(np.isinf(last["value"].astype(float)).sum())
    return _Contrast(
        name=f"{workload} {last['optimizer'].iloc[0]} after {step:g}",
        workload=workload,
        difference=difference,
        # Leaving out the runs that failed would make the period at which they failed look good.
        verdict="inconclusive" if unfinished else condition.judge(difference),
        seeds=frozenset(by_period[rare].keys() & by_period[often].keys()),
        unfinished=unfinished,
        data=from_runs(f"{experiment}.csv", last),
    )


def decide_period_loss(
    metrics: Mapping[str, pd.DataFrame], conditions: Sequence[Condition], *, rare: int = 100, often: int = 10
) -> Decision:
    """C09: test loss at period ``rare`` minus that at ``often``, at equal iterations, paired by seed.

    ``metrics`` holds ``{experiment: rows of <experiment>.csv}``; every workload and optimizer is a contrast of
    its own, and the claim needs them to agree.
    """
    contrasts: list[_Contrast] = []
    for experiment, rows in metrics.items():
        losses = rows[
            (((rows["split"] == "validation") & (rows["metric"] == "loss")) | rows["split"].isna())
            & rows["inverse_update_period"].isin((rare, often))
            & rows["status"].isin(ENDED)
        ]
        found = (
            _contrast(experiment, of_label, conditions[0], rare, often) for _, of_label in losses.groupby("optimizer")
        )
        contrasts += [contrast for contrast in found if contrast is not None]
    if not contrasts:
        return not_tested(
            f"No finished pair of periods {often} and {rare} in {' or '.join(metrics) or 'any experiment'}."
        )
    each = "; ".join(f"{contrast.name} {contrast.verdict}" for contrast in contrasts)
    failed = ", ".join(f"{contrast.unfinished} of {contrast.name}" for contrast in contrasts if contrast.unfinished)
    seeds = {
        contrast.workload: frozenset[int]().union(*(c.seeds for c in contrasts if c.workload == contrast.workload))
        for contrast in contrasts
    }
    return Decision(
        agreement([contrast.verdict for contrast in contrasts]),
        f"Test loss at period {rare} minus that at {often}, each at its last iteration: {each}.",
        details=sentences(
            f"{capital(how(contrast.difference for contrast in contrasts))}.",
            f"Runs that did not finish: {failed}." if failed else "",
        ),
        measured="; ".join(f"{contrast.name}: {number(contrast.difference.value)}" for contrast in contrasts),
        interval="; ".join(f"{contrast.name}: {span(contrast.difference)}" for contrast in contrasts),
        seeds="; ".join(f"{workload} {spans(of_workload)}" for workload, of_workload in seeds.items()),
        data=sum((contrast.data for contrast in contrasts), NO_SOURCES),
    )
