"""What a step of MKOR may cost in the claims on time, and what it costs on each machine.

Iterations carry over to another machine, and milliseconds do not. So a machine that timed steps alone can be held
against the iterations of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from workflow.bench.analysis.final_quality import BreakEven, break_even
from workflow.bench.analysis.step_times import StepTimes
from workflow.bench.analysis.target_sweep import FINAL, TargetSweep
from workflow.bench.claims import over_lamb
from workflow.bench.claims.decision import Trained, mkor_of
from workflow.bench.claims.time_to_target import SGD, SPEEDUPS, sweep_of
from workflow.bench.results.tables import Results


class Overhead(NamedTuple):
    """One pair of labels of a claim on time."""

    claim: str
    experiment: str
    label: str
    rival: str
    by_machine: Mapping[str, BreakEven]
    """By machine, what a step of the label may cost in multiples of its rival's, and what it costs there."""


def overheads(machines: Mapping[str, Results]) -> Iterator[Overhead]:
    """Yield the pairs whose runs some machine has, in the order of the claims.

    machines: results by machine's name; of several with runs the first counts.
    """
    times = {name: StepTimes(results.probe("step_time")) for name, results in machines.items()}
    pairs: list[tuple[str, str, str | None, str]] = [
        (claim, experiment, over_lamb.HYBRID, rival)
        for claim, rival in over_lamb.RIVALS.items()
        for experiment in over_lamb.WORKLOADS
    ]
    pairs += [(claim, experiment, None, rival) for claim, (experiment, rivals) in SPEEDUPS.items() for rival in rivals]
    evidence = {
        experiment: [_read(results, experiment) for results in machines.values()]
        for experiment in dict.fromkeys(experiment for _, experiment, *_ in pairs)
    }
    for claim, experiment, hybrid, rival in pairs:
        for trained, own in evidence[experiment]:
            label = hybrid or mkor_of(trained.runs)
            sweep = _judged(trained, own, label, rival)
            # Without runs, or without evaluations: committed references of large tiers keep records in their place.
            if sweep is not None:
                found = {machine: break_even(sweep, timed, label, rival) for machine, timed in times.items()}
                # Iterations are the same on all machines: either each has a limit, or none.
                if by_machine := {machine: limit for machine, limit in found.items() if limit}:
                    yield Overhead(claim, experiment, label, rival, by_machine)
                break


def _read(results: Results, experiment: str) -> tuple[Trained, Trained | None]:
    own = over_lamb.HORIZONS.get(experiment)
    return Trained.of(results, experiment), Trained.of(results, own) if own else None


def _judged(trained: Trained, own: Trained | None, label: str, rival: str) -> TargetSweep | None:
    """Return the sweep whose only target the claim is judged at; None if there is none."""
    base = SGD if trained.name not in over_lamb.WORKLOADS else over_lamb.LAMB
    sweep = sweep_of(trained, base, (label, rival))
    if isinstance(sweep, str):
        return None
    lengths, _ = over_lamb.own_sweep(trained, own, rival, label) if own else (None, "")
    return lengths or sweep.at(FINAL)
