"""Which claims the seeds of a plan can decide, and what they cost. Imports neither torch nor pandas.

A claim on training compares labels seed by seed. One seed gives no interval, so that no verdict can follow; n of them
give Student's, whose half length is a multiple of the standard deviation between seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from workflow.bench.plan import Plan
from workflow.bench.plan.runs import Run
from workflow.bench.support.command_line import aligned

MOST_UNANNOUNCED: Final = 50.0
"""Node-hours beyond which a claim that cannot be decided gets a line of its own."""
_HALF_LENGTHS: Final = {2: 9.0, 3: 2.5, 4: 1.6, 5: 1.2, 6: 1.0}
"""Half of a 95 % interval of the mean of n values, in their standard deviations; of six or more at most."""


class SeedsNeeded(NamedTuple):
    """What a claim on training compares."""

    experiments: tuple[str, ...]
    labels: tuple[str, ...]
    """``mkor`` is the released rule where the plan has it, as claims are judged."""
    of_seconds: bool = False
    """Whether it needs the times of steps, which the probe ``step_time`` measures in one process."""


_FULL: Final = ("bert_pretraining", "bert_squad")
NEEDS: Final[Mapping[str, SeedsNeeded]] = {
    "C01": SeedsNeeded(_FULL, ("lamb", "mkor_h"), of_seconds=True),
    "C02": SeedsNeeded(_FULL, ("kaisa", "mkor_h"), of_seconds=True),
    "C03": SeedsNeeded(_FULL, ("mkor", "lamb")),
    "C04": SeedsNeeded(("bert_glue",), ("mkor", "lamb")),
    "C05": SeedsNeeded(("bert_glue",), ("kaisa", "lamb")),
    "C06": SeedsNeeded(("resnet50_imagenet",), ("mkor", "sgd"), of_seconds=True),
    "C07": SeedsNeeded(("resnet50_imagenet",), ("mkor", "kaisa"), of_seconds=True),
    "C09": SeedsNeeded(("autoencoder_inversion",), ("mkor_equal_memory", "kaisa_equal_memory")),
    "C18": SeedsNeeded(("resnet_cifar10_lr",), ("mkor", "kaisa", "kaisa_no_clip", "hylo", "sgd")),
    "C19": SeedsNeeded(("alexnet_cifar100",), ("mkor", "sgd", "hylo", "kaisa"), of_seconds=True),
    "C25": SeedsNeeded(("bert_glue",), ("mkor_h", "mkor")),
}
"""The claims on training, by the experiments that carry them at the large tiers; probes decide the others."""


@dataclass(frozen=True)
class ClaimCost:
    """One claim on training, as a plan can decide it."""

    claim: str
    experiments: tuple[str, ...]
    """Those that it compares, and those that they start from."""
    seeds: int
    obstacle: str
    """Why no result of the plan can decide it; empty if the seeds can."""
    node_hours: float
    """Of all its experiments; other claims may share them."""

    @property
    def answer(self) -> str:
        """Whether the seeds can decide it, in words."""
        if self.obstacle:
            return f"no: {self.obstacle}"
        half = _HALF_LENGTHS[min(self.seeds, max(_HALF_LENGTHS))]
        return f"{'hardly' if self.seeds == 2 else 'yes'}: interval of ± {half:g} s.d. between seeds"


def claim_costs(plan: Plan, node_hours: Mapping[str, float]) -> list[ClaimCost]:
    """Return the claims on training whose experiments a plan has; node_hours: those left, by experiment."""
    found = []
    for claim, need in NEEDS.items():
        if not all(name in plan.experiments for name in need.experiments):
            continue
        runs = {(name, label): _runs(plan, name, label) for name in need.experiments for label in need.labels}
        shared = set.intersection(*({run.seed for run in of_label} for of_label in runs.values()))
        accumulated = any(run.accumulation_steps > 1 for of_label in runs.values() for run in of_label)
        obstacle = ""
        if not all(runs.values()):
            obstacle = "a label is missing"
        elif len(shared) < 2:
            obstacle = "one seed has no interval"
        elif need.of_seconds and accumulated:
            obstacle = "its steps are not timed, as micro-batches are accumulated"
        chain = _with_upstream(plan, need.experiments)
        cost = sum(node_hours.get(name, 0.0) for name in chain)
        found.append(ClaimCost(claim, chain, len(shared), obstacle, cost))
    return found


def _runs(plan: Plan, experiment: str, label: str) -> Sequence[Run]:
    jobs = plan.experiments[experiment].jobs
    if label == "mkor" and plan.tier.name == "paper" and "mkor_released" in jobs:
        label = "mkor_released"
    return jobs[label].runs if label in jobs else ()


def _with_upstream(plan: Plan, experiments: Sequence[str]) -> tuple[str, ...]:
    """Return experiments after those that their runs start from, directly or not."""
    found: dict[str, None] = {}
    for name in experiments:
        sources = {source for job in plan.experiments[name].jobs.values() for source, _ in job.upstream}
        found |= dict.fromkeys((*_with_upstream(plan, sorted(sources)), name))
    return tuple(found)


def lines(plan: Plan, node_hours: Mapping[str, float]) -> Iterator[str]:
    """Yield a table of the claims on training, and a line for those that cost much and that nothing can decide."""
    costs = claim_costs(plan, node_hours)
    if not costs:
        return
    yield "claims on training, whether their seeds can decide them, and the node-hours of all that they need, which"
    yield "claims share; the other claims are decided by probes (C24 by one with 64 measured workers)"
    heads = ("claim", "compared in", "its seeds can decide it", "seeds", "node-hours")
    cells = [
        (each.claim, ", ".join(NEEDS[each.claim].experiments), each.answer, f"{each.seeds}", f"{each.node_hours:,.1f}")
        for each in costs
    ]
    yield from aligned([heads, *cells], names=3)
    yield from _announcements(plan, costs, node_hours)


def _announcements(plan: Plan, costs: Sequence[ClaimCost], node_hours: Mapping[str, float]) -> Iterator[str]:
    carried = {name for each in costs for name in each.experiments}
    dear = [each for each in costs if each.obstacle and each.node_hours > MOST_UNANNOUNCED]
    by_need: dict[tuple[str, ...], list[ClaimCost]] = {}
    for each in dear:
        by_need.setdefault(each.experiments, []).append(each)
    for experiments, claims in by_need.items():
        names = ", ".join(each.claim for each in claims)
        hours = f"{claims[0].node_hours:,.0f} node-hours of {', '.join(experiments)}"
        shown = "; ".join(plan.experiments[name].paper for name in NEEDS[claims[0].claim].experiments)
        yield f"NOT DECIDED: {names}: {hours} reproduce {shown} and decide nothing"
    for name, cost in node_hours.items():
        if name not in carried and cost > MOST_UNANNOUNCED:
            yield f"no claim rests on {name}: its {cost:,.0f} node-hours reproduce {plan.experiments[name].paper}"
