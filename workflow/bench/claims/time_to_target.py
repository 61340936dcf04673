"""Claims about the training time to an experiment's targets: C06, C07 and C19."""

from __future__ import annotations

from collections.abc import Sequence

from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.wording import capital, integer_ranges
from workflow.bench.claims.decision import (
    Decision,
    decided,
    left_out,
    mkor_of,
    not_tested,
    part_verdicts,
    sentences,
    statistics_used,
)
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


def decide_speedup(
    trained: Trained, times: StepTimes, conditions: Sequence[Condition], *, base: str, rivals: Sequence[str]
) -> Decision:
    """Decide C06, C07 or C19: each rival's training seconds to a target over MKOR's, over the targets of a sweep.

    Seconds are iterations times the time of a step. The claim needs every rival to be slower. A second condition, that
    of C07, is about MKOR's iterations over the rival's; other claims state the iterations in the details.

    Args:
        trained: the experiment's results.
        times: the times of steps.
        conditions: the claim's thresholds.
        base: the optimizer whose gain the targets divide.
        rivals: the labels that MKOR is compared with.
    """
    mkor = mkor_of(trained.runs)
    sweep = sweep_of(trained, base, (mkor, *rivals))
    if isinstance(sweep, str):
        return not_tested(sweep)
    labels = tuple(dict.fromkeys((base, mkor, *rivals)))
    steps = {f"{rival}/{mkor}": sweep.steps_ratio(rival, mkor) for rival in rivals}
    in_steps = "; ".join(filter(None, (stated(name, ratio) for name, ratio in steps.items())))
    iterations = f"The ratios of iterations, above 1 if MKOR needs fewer: {in_steps}." if in_steps else ""
    data = trained.sources(*labels)
    if problem := untimed(times, *(sweep.training(label) for label in (mkor, *rivals))):
        return not_tested(problem, iterations, data)
    time, *more = conditions
    ratios = {f"{rival}/{mkor}": sweep.time_ratio(times, rival, mkor) for rival in rivals}
    judged = [(name, ratio, time) for name, ratio in ratios.items()]
    if more:
        judged = [(f"time {name}", ratio, time) for name, ratio, time in judged]
        judged += [(f"iterations {mkor}/{rival}", sweep.steps_ratio(mkor, rival), more[0]) for rival in rivals]
    parts = [part_of(*of_part) for of_part in judged]
    used = trained.of_labels(*labels)
    estimates = [part.estimate for part in parts if part.estimate is not None]
    outcome = part_verdicts(parts) if len(parts) > 1 else reason(*judged[0])
    return decided(
        parts,
        f"Training seconds to {sweep.describe()}: {outcome}.",
        sentences(
            f"{capital(statistics_used(estimates))}." if estimates else "",
            over_studies(*ratios.values()),
            "" if more else iterations,
            *(counts(name, ratio) for name, ratio in ratios.items()),
            left_out(used),
        ),
        seeds=integer_ranges(seed for ratio in ratios.values() for seed in ratio.seeds),
        data=data + times_of(trained.name, mkor, *rivals),
        published_of=tuple(name for name, _, condition in judged if condition is time),
    )
