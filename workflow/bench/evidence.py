"""Lead a tier through its rounds of seeds: run the pipeline, look at the verdicts, add seeds where claims are open.

A look is one table of claims. After it, every experiment that feeds an undecided claim gets one more round of seeds,
and so do the experiments whose runs those start from. It ends when no claim can be decided by more seeds, or after the
tier's last look; then every figure and table is made. ``rounds.yaml`` in the results folder holds the state, so an
interrupted call goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from workflow.bench.adopt import adopt
from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.pipeline import run_pipeline
from workflow.bench.plan.rounds import Rounds, write_rounds
from workflow.bench.results.rows import read_csv
from workflow.bench.results.sources import files_in
from workflow.bench.support.command_line import run_command

TIER: Final = "evidence"


def undecided(claims: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return the claims that are inconclusive, from the rows of tables/claims.csv, each with its experiments.

    Those are the experiments whose runs it was judged by; none if probes alone feed it. The column ``data`` names the
    files behind a verdict: those of experiments, of runs or evaluations, are in no folder.
    """
    return {
        row["id"]: sorted(
            {file.removesuffix(".csv").removesuffix(".runs") for file in files_in(row["data"]) if "/" not in file}
        )
        for row in claims
        if row["verdict"] == "inconclusive"
    }


def next_rounds(plan: Plan, claims: Mapping[str, Sequence[str]]) -> Rounds | None:
    """Return the rounds of the next look; None if more seeds can or may decide none of the `undecided` claims."""
    rounds = plan.rounds
    if rounds.look >= plan.tier.looks:
        return None
    wanted: dict[str, int] = {}
    for name in {name for experiments in claims.values() for name in experiments if name in plan.experiments}:
        if rounds.of(name) < plan.experiments[name].most_rounds:
            _want(plan, wanted, name, rounds.of(name) + 1)
    return Rounds(rounds.look + 1, {**rounds.experiments, **wanted}) if wanted else None


def _want(plan: Plan, wanted: dict[str, int], name: str, number: int) -> None:
    """Give an experiment a number of rounds, and at least as many to those whose runs it starts from, seed by seed."""
    wanted[name] = max(number, wanted.get(name, 0), plan.rounds.of(name))
    for source in {experiment for job in plan.experiments[name].jobs.values() for experiment, _ in job.upstream}:
        if plan.experiments[source].most_rounds > 1:
            _want(plan, wanted, source, min(number, plan.experiments[source].most_rounds))


def lead(options: argparse.Namespace) -> int:
    """Run the tier to its end, round by round; return the exit status."""
    while True:
        # Loaded anew in each round, which has more seeds.
        plan = load_from(options)
        for remark in adopt(plan):
            print(remark)
        table = plan.results / "tables" / "claims.csv"
        if status := run_pipeline(plan, options, [str(table)] if plan.tier.looks > 1 else []):
            return status
        claims = undecided(read_csv(table))
        following = next_rounds(plan, claims)
        print(*_shown(plan, claims, following), sep="\n", flush=True)
        if following is None:
            return run_pipeline(plan, options, [])
        write_rounds(plan.results, following)


def _shown(plan: Plan, claims: Mapping[str, Sequence[str]], following: Rounds | None) -> Iterator[str]:
    """Yield the table of a look: its undecided claims, the experiments that feed them, and their rounds."""
    yield f"look {plan.rounds.look} of at most {plan.tier.looks}: {len(claims)} claims undecided"
    for claim, experiments in claims.items():
        fed = [f"{name} (round {plan.rounds.of(name)})" for name in experiments]
        yield f"  {claim}  {', '.join(fed) or 'fed by probes alone: more seeds cannot decide it'}"
    if following is None:
        yield "no further seeds"
        return
    for name, number in sorted(following.experiments.items()):
        if number > plan.rounds.of(name):
            yield f"  {name}: round {number} of {plan.experiments[name].most_rounds} next"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the evidence tier: adopt committed runs, train the others, and add seeds until the claims are decided."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.evidence", description=main.__doc__)
    parser.add_argument("--cores", default="all", help="cores that Snakemake may use (default: all)")
    add_arguments(parser)
    parser.set_defaults(tier=TIER)
    return run_command(parser, lead, arguments)


if __name__ == "__main__":
    sys.exit(main())
