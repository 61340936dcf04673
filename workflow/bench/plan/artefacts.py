"""Figures, tables and probes by file name, and the inputs of each.

Each module of ``workflow.bench.figures`` and ``workflow.bench.tables`` makes one artefact, and each module of
``workflow.bench.probes`` makes one CSV of measurements for them. A module names its inputs in constants: literals, or
names of literals that it imports. They are read without importing the module, so that planning needs no matplotlib:

- ``EXPERIMENTS``: experiments whose tidy CSVs it reads; ``("*",)`` means all of the tier.
- ``PROBES``: names of ``probes/<name>.csv``.
- ``PUBLISHED``: names of ``workflow/paper/<name>.csv``.
- ``FILES``: other files of the repository that a probe reads.
- ``FURTHER``: files that a table writes beside its own.
- ``TRIALS = True``: it reads the trials of tuning (`Plan.trials`), and is made where there are any.
- ``COMPARES = True``: it also reads these files from other machines' folders (`Plan.other_machines`).
- ``CORES`` (a number, or ``"all"``), ``USES_GPU`` and ``TIMING`` state what a probe needs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workflow.bench.plan import Plan
from workflow.bench.support.config import ROOT, checked_stem, shown_path
from workflow.bench.support.source_code import reachable, read_literals

Kind = Literal["figures", "tables", "probes"]
BENCH = Path(__file__).resolve().parents[1]
_NAMES = ("EXPERIMENTS", "PROBES", "PUBLISHED", "FILES", "FURTHER")
_FACTS = ("TRIALS", "COMPARES", "CORES", "USES_GPU", "TIMING")


@dataclass(frozen=True)
class Artefact:
    """One figure, table or probe, and the inputs that its module names."""

    kind: Kind
    name: str
    """The name of its module, and of its file without suffix."""
    experiments: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()
    published: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Other files of the repository that it reads, relative to its root."""
    further: tuple[str, ...] = ()
    """Files that a table writes beside its own, in the same folder."""
    trials: bool = False
    """Whether it shows the trials of tuning."""
    compares: bool = False
    """Whether it also shows other machines' results."""
    cores: int | Literal["all"] = 1
    """Cores that a probe needs for itself, so that other jobs neither disturb its times nor are disturbed."""
    uses_gpu: bool = True
    """Whether a probe computes on the tier's GPU, if it has one."""
    timing: bool = False
    """Whether a probe measures the machine (time, memory, bytes), for ``make timing``."""

    @property
    def module(self) -> Path:
        """The file of its module."""
        return BENCH / self.kind / f"{self.name}.py"


def available(kind: Kind) -> tuple[str, ...]:
    """Return the names of all artefacts of a kind, sorted.

    Raises:
        ConfigError: the name of a file is not that of a Python module.
    """
    # A module whose name begins with an underscore helps others, and makes nothing itself.
    return tuple(sorted(checked_stem(path, "module") for path in (BENCH / kind).glob("[!_]*.py")))


def describe(kind: Kind, name: str) -> Artefact:
    """Return an artefact, with the inputs and facts that its module names.

    Raises:
        ValueError: one of the constants is not a literal.
    """
    constants = read_literals(Artefact(kind, name).module, (*_NAMES, *_FACTS))
    # The names of the constants are those of the fields, in capitals.
    fields: dict[str, Any] = {key.lower(): value if key in _FACTS else tuple(value) for key, value in constants.items()}
    return Artefact(kind, name, **fields)


def planned_artefacts(plan: Plan, kind: Kind) -> list[Artefact]:
    """Return the artefacts of a kind that have an input in the plan, or need none.

    A probe of all experiments, as ``step_time`` is, is no input of its own to an artefact that shows some of them.
    """
    return [artefact for name in available(kind) if _has_input(artefact := describe(kind, name), plan)]


def planned_probes(plan: Plan) -> list[Artefact]:
    """Return the probes of a plan; a probe that measures experiments' workloads needs one of them in the plan."""
    probes = [describe("probes", name) for name in available("probes")]
    return [probe for probe in probes if not probe.experiments or _experiments(probe, plan)]


def inputs(artefact: Artefact, plan: Plan) -> dict[str, list[str]]:
    """Return the files that an artefact is made from, by kind: measured, trials, compared, published and code."""
    results = plan.results.as_posix()
    names = _experiments(artefact, plan)
    # Of an experiment both tables: the evaluations, and one row a run.
    tables = [f"{results}/{experiment}{suffix}" for experiment in names for suffix in (".csv", ".runs.csv")]
    # Other machines' files are those that exist: no rule makes missing ones.
    patterns = [f"{name}.runs.csv" for name in artefact.experiments] + [
        f"probes/{name}.csv" for name in artefact.probes
    ]
    folders = map(Path, compared(artefact, plan))
    title = description(artefact) if artefact.kind == "figures" else ""  # its first words are the figure's title
    return {
        "measured": tables + [f"{results}/probes/{probe}.csv" for probe in _probes(artefact, plan)],
        "trials": trials(artefact, plan),
        "compared": [str(file) for folder in folders for each in patterns for file in sorted(folder.glob(each))],
        "published": [shown_path(BENCH.parent / "paper" / f"{name}.csv") for name in artefact.published],
        "code": [shown_path(file) for file in sources(artefact.module)] + ([title] if title else []),
    }


def files_of(probe: Artefact) -> list[str]:
    """Return the files of the repository that a probe reads; it is made again when one of them changes."""
    return [shown_path(ROOT / file) for file in probe.files]


def description(artefact: Artefact) -> str:
    """Return the file of an artefact's description, ``workflow/report/<name>.rst``; an empty text if there is none."""
    file = BENCH.parent / "report" / f"{artefact.name}.rst"
    return shown_path(file) if file.is_file() else ""


def workloads_of(artefact: Artefact, plan: Plan) -> list[str]:
    """Return the workloads, as JSON with their parameters, of the experiments that an artefact names."""
    jobs = [job for name in _experiments(artefact, plan) for job in plan.experiments[name].jobs.values()]
    return sorted({json.dumps(run.spec["workload"], sort_keys=True) for job in jobs for run in job.runs})


def _experiments(artefact: Artefact, plan: Plan) -> list[str]:
    # Those that wait for tuned values are left out, as the plan's notes say: one of them must not hold up all claims.
    wanted = plan.experiments if artefact.experiments == ("*",) else artefact.experiments
    return [experiment for experiment in wanted if experiment in plan.experiments]


def _probes(artefact: Artefact, plan: Plan) -> list[str]:
    probes = [describe("probes", name) for name in artefact.probes]
    return [probe.name for probe in probes if not probe.experiments or _experiments(probe, plan)]


def _has_input(artefact: Artefact, plan: Plan) -> bool:
    # What shows trials is made wherever there are some, whatever else is planned.
    if artefact.trials:
        return bool(plan.trials)
    if _experiments(artefact, plan) or not (artefact.experiments or artefact.probes):
        return True
    probes = _probes(artefact, plan)
    return any(not artefact.experiments or describe("probes", name).experiments != ("*",) for name in probes)


def trials(artefact: Artefact, plan: Plan) -> list[str]:
    """Return the tables of trials that an artefact shows."""
    return [shown_path(file) for file in plan.trials] if artefact.trials else []


def compared(artefact: Artefact, plan: Plan) -> list[str]:
    """Return other machines' folders whose results an artefact also shows."""
    return [shown_path(folder) for folder in plan.other_machines] if artefact.compares else []


def sources(module: Path) -> list[Path]:
    """Return ``module`` and the bench's files that it imports, directly or not."""
    return reachable([module], ["workflow/bench"])
