"""Rounds of seeds: a tier with several looks adds seeds where claims are still open.

The file ``rounds.yaml`` of a results folder says which look at the results it is, and how many rounds of seeds each
experiment has. Without it, it is the first look, and every experiment has one round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from workflow.bench.plan.tiers import Tier
from workflow.bench.support.config import check, dump, error, read_mapping, schema
from workflow.bench.support.files import write_atomically

FILE: Final = "rounds.yaml"


@dataclass(frozen=True)
class Rounds:
    """The number of this look at the results, and the rounds of seeds that experiments have by now."""

    look: int = 1
    experiments: Mapping[str, int] = field(default_factory=dict)
    """By name; experiments that are not listed have one round."""

    def of(self, experiment: str) -> int:
        """Return the number of rounds of an experiment."""
        return self.experiments.get(experiment, 1)


def read_rounds(results: Path, tier: Tier) -> Rounds:
    """Return the rounds of a results folder ``<results>/<hardware>/<tier>``.

    Raises:
        ConfigError: the file is damaged, or states more looks or rounds than the tier has.
    """
    file = results / FILE
    # A tier with one look has no rounds, whatever file somebody has copied into its folder.
    if tier.looks == 1 or not file.exists():
        return Rounds()
    content = read_mapping(file)
    check(content, schema("rounds"), file)
    rounds = Rounds(content["look"], content["experiments"])
    for key, value in (
        (("look",), rounds.look),
        *((("experiments", name), n) for name, n in rounds.experiments.items()),
    ):
        if value > tier.looks:
            raise error(file, key, value, f"must be at most {tier.looks}, the looks of tier '{tier.name}'")
    return rounds


def write_rounds(results: Path, rounds: Rounds) -> None:
    """Write the rounds of a results folder, atomically."""
    header = (
        "# Written by python -m workflow.bench.evidence: the look at the results, and experiments' rounds of seeds.\n"
    )
    content = {"look": rounds.look, "experiments": dict(sorted(rounds.experiments.items()))}
    write_atomically(results / FILE, header, dump(content))


def seeds_of(block: Mapping[str, Any], rounds: int) -> list[int]:
    """Return the seeds of a block after some rounds: its ``seeds``, then consecutive ones for each further round."""
    seeds: list[int] = list(block["seeds"])
    more = block.get("rounds")
    if more is not None:
        # After the largest, so that a further round leaves the runs of the earlier ones as they are.
        first = max(seeds) + 1
        seeds += range(first, first + more["seeds"] * (min(rounds, more["most"]) - 1))
    return seeds


def most_rounds(blocks: Sequence[Mapping[str, Any]]) -> int:
    """Return the most rounds of an experiment's blocks."""
    return max((block["rounds"]["most"] for block in blocks if "rounds" in block), default=1)
