"""Write docs/search_spaces.md: what each optimizer's tuning searches, and which chosen values lie at an end of it."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from workflow.bench.plan import Plan
from workflow.bench.plan.runs import TunedOptimizer
from workflow.bench.plan.tiers import read_tiers
from workflow.bench.plan.tuned_values import current_record, read_records
from workflow.bench.plan.tuning import end_of
from workflow.bench.support.command_line import refuse_unwritable, run_command
from workflow.bench.support.config import CONFIG, ROOT
from workflow.bench.support.files import write_atomically

PAGE: Final = ROOT / "docs" / "search_spaces.md"
_COMMAND: Final = "python -m workflow.bench.list_searches"
_START: Final = f"""\
# Search spaces

What the tuning of each experiment searches: the hyperparameters, their number, and trials x independent studies. The
last column has the chosen values that lie at an end of their space, and in how many studies: within 10 % of a range's
length, on its own scale, or the first or last number of a list. A 0 is an end of what there is, not of the space. A
flat hyperparameter is chosen there in one study of five by chance; where half of the studies choose one end, the space
is moved, or the experiment's page says why it stays. "not tuned yet": config/tuned has no values of these trials.
`{_COMMAND}` writes this page; a test checks that it is current.
"""


@dataclass(frozen=True)
class Search:
    """The tuning of one optimizer on one workload of an experiment, at one tier."""

    experiment: str
    optimizer: TunedOptimizer
    ends: Mapping[tuple[str, str], int] | None
    """The number of studies that chose an end, by hyperparameter and end (``low`` or ``high``); None: not tuned yet."""

    @property
    def label(self) -> str:
        """The optimizer's label."""
        return self.optimizer.label

    @property
    def size(self) -> tuple[int, ...]:
        """The number of trials in each study."""
        return tuple(map(len, self.optimizer.studies))


def searches(plan: Plan, config: Path = CONFIG) -> list[Search]:
    """Return the tuning of all optimizers of a plan; config: its folder, which has the tuned values."""
    found = []
    for experiment in plan.experiments.values():
        records = read_records(config / "tuned" / plan.tier.name / f"{experiment.name}.yaml")
        for optimizer in experiment.tuned_optimizers:
            # Other trials are those of an earlier space, whose ends are no longer these.
            record = current_record(records, optimizer)
            ends = _ends(optimizer, record["studies"]) if record else None
            found.append(Search(experiment.name, optimizer, ends))
    return found


def _ends(optimizer: TunedOptimizer, studies: Sequence[Mapping[str, Mapping[str, object]]]) -> Counter[tuple[str, str]]:
    chosen = [study["hyperparameters"] for study in studies]
    return Counter(
        (name, end)
        for name, interval in optimizer.space.items()
        for values in chosen
        if (end := end_of(interval, values[name]))
    )


def page(by_tier: Mapping[str, Sequence[Search]]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from _START.splitlines()
    for tier, found in by_tier.items():
        yield from ("", f"## {tier}", "")
        yield "| experiment | workload | optimizer | dimensions | searched | trials | chosen at an end |"
        yield "|---|---|---|---|---|---|---|"
        for one in found:
            space, studies = one.optimizer.space, len(one.size)
            size = f"{' or '.join(map(str, sorted(set(one.size))))} x {studies}"
            ends = ", ".join(f"`{name}` {end} {count} of {studies}" for (name, end), count in (one.ends or {}).items())
            cells = (one.experiment, one.optimizer.workload["name"], f"`{one.label}`", str(len(space)))
            searched = ", ".join(f"`{name}`" for name in space)
            yield f"| {' | '.join((*cells, searched, size, 'not tuned yet' if one.ends is None else ends))} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page of the search spaces of all tiers."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description=main.__doc__)
    parser.add_argument("--out", type=Path, default=PAGE, help="where to write (default: docs/search_spaces.md)")

    def work(options: argparse.Namespace) -> None:
        refuse_unwritable("--out", options.out)
        # `auto` would save this machine's name in a results folder; trials are the same on every machine.
        plans = {
            tier: Plan.load(for_tuning=True, tier=tier, hardware="unnamed") for tier in read_tiers(CONFIG / "tiers")
        }
        tuned = {tier: found for tier, plan in plans.items() if (found := searches(plan))}
        write_atomically(options.out, "\n".join([*page(tuned), ""]))

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
