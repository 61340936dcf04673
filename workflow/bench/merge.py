"""``python -m workflow.bench.merge FOLDER``: check another machine's results and copy the small part of them.

FOLDER is that machine's ``results/<hardware>/<tier>``, or a copy that this command made. Copied to results/reference
are the tidy tables, the probes, the tables as CSV and Markdown, a few figures as PNG, the specs of all runs in one
specs.json, and what every job cost, in costs.csv. Run folders and weights are not copied.

The results are refused, and nothing is changed, if a file or folder among them is a link, a text has control
characters, a table's columns differ from today's, a run's id is not the hash of its spec, a run is not planned by the
configuration here or has another target, or another PyTorch or other code made them (``--other-versions`` accepts the
last).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from workflow.bench.plan import REFERENCE, Plan
from workflow.bench.plan.artefacts import available, describe
from workflow.bench.plan.rounds import FILE as ROUNDS
from workflow.bench.plan.runs import Spec
from workflow.bench.results.archive import SUFFIX
from workflow.bench.results.costs import FILE as COSTS
from workflow.bench.results.costs import logged_costs, text_of
from workflow.bench.results.verification import (
    fault,
    read_specs,
    refuse_links_in,
    verify_experiment,
    verify_probe,
    verify_text,
    version_differences,
)
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import CONFIG, shown_path
from workflow.bench.support.files import sync_folder, write_atomically, write_json
from workflow.bench.support.names import name_rule
from workflow.bench.support.reading import read_bytes

FIGURES: Final = (
    "fig04_inversion_frequency",
    "fig05_rank1_error",
    "fig13_update_rules",
    "fig14_cost_scaling",
    "fig17_families_appendix",
    "fig17_field",
    "fig17_ratios_appendix",
    "fig18_factors",
    "fig20_target_sweep",
    "fig21_ladder",
    "fig22_batch_size",
    "fig23_width",
)
"""The figures that are copied. The others can be drawn again from the tables."""


class Accepted(NamedTuple):
    """Another machine's results that passed all checks."""

    files: Mapping[str, bytes]
    """The contents to copy, by path relative to the folder."""
    specs: Mapping[str, Spec]
    machines: Mapping[str, set[str]]
    """The machines that trained an experiment's runs."""
    notes: Sequence[str]
    """Remarks for the user that do not block the merge."""


def merge(folder: Path, into: Path = REFERENCE, config_dir: Path = CONFIG, *, other_versions: bool = False) -> Path:
    """Check ``folder``, copy the part to keep to ``into/<hardware>/<tier>``, and return that folder.

    Replaces the whole target folder or leaves it as it was. Prints the notes.

    Raises:
        ConfigError: the results are refused, or the configuration here is faulty or lacks the tier.
        OSError: a file cannot be read or written, or is a link.
    """
    # The names of both go into the reference, and the link may be part of what another user handed over.
    for given in (folder, folder.parent):
        if given.is_symlink():
            raise fault(given, f"is a link, to {given.readlink()}; give the folder itself")
    source = folder.resolve()
    hardware, tier = source.parent.name, source.name
    if not source.is_dir():
        raise fault(folder, "not a folder; give results/<hardware>/<tier> of another machine")
    if source.is_relative_to(into.resolve()):
        raise fault(folder, f"already in {shown_path(into)}")
    if rule := name_rule("hardware", hardware):
        raise fault(folder, f"the name of its parent, the machine, {rule}")
    refuse_links_in(source)
    # The plan has the seeds of the rounds that are recorded in the folder.
    plan = Plan.load(config_dir, tier=tier, hardware=hardware, results=str(source.parents[1]))
    accepted = check(source, plan, other_versions=other_versions)
    for note in accepted.notes:
        print(f"note: {note}")
    target = into / hardware / tier
    _replace(target, accepted)
    return target


def check(folder: Path, plan: Plan, *, other_versions: bool = False) -> Accepted:
    """Return the part of ``folder`` to keep; ``plan`` is that of the folder's tier and hardware.

    Raises:
        ConfigError: the first fault of the results.
    """
    tables = sorted(folder.glob("*.runs.csv"))
    probes = sorted((folder / "probes").glob("*.csv"))
    if not tables and not probes:
        raise fault(folder, "has neither <experiment>.runs.csv nor probes; run make timing there")
    specs = read_specs(folder)
    runs = [row for file in tables for row in verify_experiment(file, specs, plan)]
    measured = {file.stem: verify_probe(file, plan) for file in probes}
    differences = version_differences(runs, measured, plan)
    if differences and not other_versions:
        raise fault(folder, f"{'; '.join(differences)}; --other-versions accepts it")
    # All is read before anything is written, so that one bad file leaves the reference as it was.
    contents = {}
    for file in (*tables, *probes, *_others(folder, tables)):
        contents[file.relative_to(folder).as_posix()] = content = read_bytes(file, within=folder)
        if file.suffix != ".png":
            verify_text(file, content)
    costs = list(logged_costs(plan))
    if any(cost.core_seconds or cost.seconds_alone for cost in costs):
        contents[COSTS] = text_of(costs).encode()
    done = {row["run"] for row in runs if row["status"] != "missing"}
    notes, machines = [], {}
    for name in dict.fromkeys(row["experiment"] for row in runs):
        machines[name] = {row["hardware"] for row in runs if row["experiment"] == name}
        planned = [run for job in plan.experiments[name].jobs.values() for run in job.run_ids]
        if missing := sum(run not in done for run in planned):
            notes.append(f"{name}: {missing} of the runs that are planned here are missing")
    listed = {row["run"] for row in runs}
    kept_specs = {run: spec for run, spec in sorted(specs.items()) if run in listed}
    return Accepted(contents, kept_specs, machines, [*notes, *differences])


def _others(folder: Path, tables: Sequence[Path]) -> list[Path]:
    """Return the files to copy besides the tables of runs and the probes."""
    evaluations = [file.with_name(file.name.replace(".runs.csv", ".csv")) for file in tables]
    made = [
        folder / "tables" / file
        for name in available("tables")
        for file in (f"{name}.csv", f"{name}.md", *describe("tables", name).further)
    ]
    pictures = [folder / "figures" / f"{name}.png" for name in FIGURES]
    found = [file for file in (*made, *pictures, folder / ROUNDS, folder / COSTS) if file.is_file()]
    return [*evaluations, *found]


def _replace(target: Path, accepted: Accepted) -> None:
    """Replace the folder ``target``: write the new one next to it, then rename.

    Archives that `keep` wrote stay. A table of evaluations is left out if the reference has the archives of all
    machines that trained the experiment's runs.
    """
    reference, tier = target.parents[1], target.name
    archived = {
        f"{experiment}.csv"
        for experiment, machines in accepted.machines.items()
        if all((reference / machine / tier / f"{experiment}{SUFFIX}").is_file() for machine in machines)
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    # The name starts with a dot so that no glob for a tier finds it.
    workspace = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    new, old = workspace / "new", workspace / "old"
    try:
        for name, content in accepted.files.items():
            if name not in archived:
                write_atomically(new / name, content)
        for archive in target.glob(f"*{SUFFIX}"):
            write_atomically(new / archive.name, read_bytes(archive, within=target))
        write_json(new / "specs.json", accepted.specs)
        # Two renames, so that a reader finds the old folder or the new one, and no mixture.
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(new, target)
        except BaseException:
            if old.exists():
                os.replace(old, target)
            raise
        sync_folder(target.parent)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check another machine's results and copy their small part to results/reference."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.merge", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="results/<hardware>/<tier> of the other machine")
    parser.add_argument("--into", type=Path, default=REFERENCE, help="where to copy (default: results/reference)")
    parser.add_argument("--other-versions", action="store_true", help="accept results of another PyTorch or other code")
    parser.add_argument("--config-dir", type=Path, default=CONFIG, help="the configuration folder")

    def work(options: argparse.Namespace) -> None:
        target = merge(options.folder, options.into, options.config_dir, other_versions=options.other_versions)
        print(shown_path(target))
        if options.into == REFERENCE:
            print(
                "docs/reproduction.md and docs/artifact.md rest on it: python -m workflow.bench.summarize updates them"
            )

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
