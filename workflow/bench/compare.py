"""``python -m workflow.bench.compare [FOLDER ...]``: compare this machine with others, from the files they have now.

It prints the step times of the first-order and second-order optimizers, what a step may cost for the claims on time to
hold, and the claims of the paper whose verdict is another here. It writes the figure and the table of all times, and
the verdicts of all machines.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from workflow.bench.analysis.estimates import looks
from workflow.bench.analysis.machines import Machine, gather
from workflow.bench.analysis.wording import number
from workflow.bench.claims.overheads import overheads
from workflow.bench.make_artefact import make
from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.artefacts import Kind
from workflow.bench.results.rows import read_verdicts, write_csv
from workflow.bench.results.tables import NoDataError, Results
from workflow.bench.results.verification import refuse_links_in
from workflow.bench.support.command_line import FAILURES, aligned, run_command, show
from workflow.bench.support.config import ConfigError, cut, shown_path, shown_value

ARTEFACTS: Final[tuple[tuple[Kind, str], ...]] = (("figures", "fig16_hardware"), ("tables", "hardware"))
VERDICTS: Final = "verdicts.csv"
_BROKEN_AT: Final = 72
"""The characters of a claim that a line shows."""


def compare(plan: Plan, folder: Path) -> Iterator[str]:
    """Make the figure and the tables that compare machines in ``folder``, and yield what to print.

    Raises:
        NoDataError: no machine has results to compare.
        ConfigError: a table of claims is damaged.
        OSError: a file cannot be read or written.
    """
    results = Results(plan.results, plan.tier.title, plan.compared, look=plan.rounds.look, looks=plan.tier.looks)
    machines, notes = gather(results)
    files = [path for kind, name in ARTEFACTS for path in make(kind, name, results, folder)]
    yield f"{plan.tier.name} tier: {', '.join(machine.name for machine in machines)}"
    yield from (f"note: {note}" for note in notes)
    yield ""
    yield from _step_times(machines)
    yield ""
    with looks(results.looks):
        yield from _overheads(machines)
    yield ""
    verdicts = {machine.name: read_verdicts(machine.results.root) for machine in machines}
    texts = {name: row["claim"] for by_id in verdicts.values() for name, row in by_id.items()}
    claims = [
        {"id": name, "claim": text}
        | {machine: by_id[name]["verdict"] if name in by_id else "" for machine, by_id in verdicts.items()}
        for name, text in sorted(texts.items())
    ]
    write_csv(folder / VERDICTS, ("id", "claim", *verdicts), claims)
    yield from _verdict_lines(plan.hardware, [machine for machine, by_id in verdicts.items() if by_id], claims)
    yield ""
    kept = [file for file in files if file.suffix in (".pdf", ".csv")]
    yield f"in {shown_path(folder)}: {', '.join(file.name for file in (*kept, folder / VERDICTS))}"


def _step_times(machines: Sequence[Machine]) -> Iterator[str]:
    """Yield the step time of each model's first-order optimizer on each machine, and the others as multiples of it."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for machine in machines:
        times: dict[str, dict[str, float]] = {}
        for step in machine.step_times():
            if step.probe == "step_breakdown":
                times.setdefault(step.workload, {})[step.optimizer] = step.took.value
        for workload, by_optimizer in times.items():
            (base, took), *others = by_optimizer.items()
            multiples = ", ".join(f"{name} {number(other / took)}" for name, other in others)
            rows.setdefault(workload, []).append((workload, machine.name, base, number(took), multiples))
    if rows:
        listed = [row for of_workload in rows.values() for row in of_workload]
        heads = ("step of", "machine", "optimizer", "ms", "others, as multiples")
        yield from aligned([heads, *listed], names=len(heads), indent="")
    else:
        yield "step times: none; make timing measures them"


def _overheads(machines: Sequence[Machine]) -> Iterator[str]:
    """Yield for each claim on time what a step may cost, in multiples of the rival's, and what it costs by machine."""
    found = list(overheads({machine.name: machine.results for machine in machines}))
    if not found:
        yield "break-even overheads: none; no machine has runs to final quality and their evaluations"
        return
    yield "a step may cost, in multiples of the rival's, and costs on each machine:"
    heads = ("claim", "experiment", "step of", "rival", "needs", *(machine.name for machine in machines))
    rows = [
        (
            *(one.claim, one.experiment, one.label, one.rival, next(iter(one.by_machine.values())).needs),
            *(one.by_machine[machine.name].here for machine in machines),
        )
        for one in found
    ]
    yield from aligned([heads, *rows], names=len(heads), indent="")


def _verdict_lines(here: str, judged: Sequence[str], claims: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield for each other machine how many verdicts agree with those here, and the claims where they do not.

    judged: the machines that have verdicts.
    """
    others = [machine for machine in judged if machine != here]
    if here not in judged:
        yield "claims: no verdicts of this machine yet; make reproduce makes them"
        return
    if not others:
        yield "claims: no other machine has verdicts"
    for machine in others:
        shared = [row for row in claims if row[here] and row[machine]]
        equal = sum(row[here] == row[machine] for row in shared)
        yield f"claims: {equal} of {len(shared)} verdicts are those of {machine}"
    differing = [row for row in claims if any(row[machine] not in (row[here], "") for machine in others)]
    if differing:
        shown = [
            (row["id"], *(row[machine] for machine in (here, *others)), cut(row["claim"], _BROKEN_AT))
            for row in differing
        ]
        heads = ("claim", "here", *others, "")
        yield from aligned([heads, *shown], names=len(heads), indent="")


def _given(folders: Sequence[str], plan: Plan) -> tuple[Path, ...]:
    """Return the folders that were typed, and after them those that are compared anyway, each once.

    Raises:
        ConfigError: one does not exist, is of another tier, or is this machine's own.
        UnreadableError: a typed one holds a link.
    """
    # By where folders really are: one may be typed, in config.yaml and in results/reference.
    found: dict[Path, Path] = {}
    for text in folders:
        folder, given = Path(text), f"folder = {shown_value(text)}"
        if not folder.is_dir() or folder.resolve().name != plan.tier.name:
            must = f"must be an existing folder results/<hardware>/{plan.tier.name}, of the tier to compare"
            raise ConfigError(f"{given}: {must} (--tier, or make's TIER, chooses another tier)")
        if folder.resolve() == plan.results.resolve():
            raise ConfigError(f"{given}: is this machine's own; name another, or run without folders")
        refuse_links_in(folder)
        found.setdefault(folder.resolve(), folder)
    for folder in plan.compared:
        found.setdefault(folder.resolve(), folder)
    return tuple(found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare this machine with those of the given folders, config.yaml and results/reference, all at one tier."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.compare", description=main.__doc__)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="results/<hardware>/<tier> of another machine")
    parser.add_argument("--out-dir", type=Path, help="where to write (default: compare/ in this machine's folder)")
    add_arguments(parser)

    def work(options: argparse.Namespace) -> None:
        plan = load_from(options)
        plan = dataclasses.replace(plan, compared=_given(options.folders, plan))
        show(list(compare(plan, options.out_dir or plan.results / "compare")))

    return run_command(parser, work, arguments, failures=(*FAILURES, NoDataError))


if __name__ == "__main__":
    sys.exit(main())
