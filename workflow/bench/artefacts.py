"""Figures and tables found by file name, and what each is made from.

A module of ``workflow.bench.figures`` or ``workflow.bench.tables`` is an artefact, one of ``workflow.bench.probes``
measures for them.  It names its inputs as literals, read here without importing it, so that planning needs no
matplotlib:
``EXPERIMENTS`` (tidy CSVs), ``PROBES`` (``probes/<name>.csv``), ``PUBLISHED`` (``workflow/paper/<name>.csv``).
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workflow.bench.plan import Plan

Kind = Literal["figures", "tables", "probes"]
BENCH = Path(__file__).resolve().parent
_INPUTS = ("EXPERIMENTS", "PROBES", "PUBLISHED")


@dataclass(frozen=True)
class Artefact:
    """One figure or table: its file name without a suffix, and what its module names as its inputs."""

    kind: Kind
    name: str
    experiments: tuple[str, ...] = ()
    """Experiments whose tidy tables it reads; ``*`` means all of the tier."""
    probes: tuple[str, ...] = ()
    published: tuple[str, ...] = ()

    @property
    def module(self) -> Path:
        """The file that makes it."""
        return BENCH / self.kind / f"{self.name}.py"


def available(kind: Kind) -> tuple[str, ...]:
    """Names of the artefacts of a kind, by file name."""
    return tuple(sorted(path.stem for path in (BENCH / kind).glob("*.py") if not path.stem.startswith("_")))


def describe(kind: Kind, name: str) -> Artefact:
    """The artefact ``name``, its inputs read from its file.  Raises ValueError where a list is no literal."""
    file = Artefact(kind, name).module
    found: dict[str, tuple[str, ...]] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if isinstance(target, ast.Name) and target.id in _INPUTS:
            try:
                found[target.id.lower()] = tuple(ast.literal_eval(node.value))
            except ValueError:
                raise ValueError(f"{file.name}: {target.id} must be a literal tuple of names.") from None
    return Artefact(kind, name, **found)


def made_from(plan: Plan, kind: Kind) -> list[Artefact]:
    """The artefacts of a kind that a plan has something for."""
    return [artefact for name in available(kind) if _has_input(artefact := describe(kind, name), plan)]


def measured_by(plan: Plan) -> list[Artefact]:
    """The probes of a plan: those that measure experiments' workloads only where it has one of them."""
    probes = [describe("probes", name) for name in available("probes")]
    return [probe for probe in probes if not probe.experiments or _experiments(probe, plan)]


def inputs(artefact: Artefact, plan: Plan) -> dict[str, list[str]]:
    """The files that an artefact is made from: measured, published, and the code that draws it."""
    results = plan.results.as_posix()
    tables = [
        f"{results}/{experiment}{suffix}"
        for experiment in _experiments(artefact, plan)
        for suffix in (".csv", ".runs.csv")
    ]
    return {
        "measured": tables + [f"{results}/probes/{probe}.csv" for probe in _probes(artefact, plan)],
        "published": [_relative(BENCH.parent / "paper" / f"{name}.csv") for name in artefact.published],
        "code": [_relative(file) for file in sources(artefact.module)],
    }


def workloads_of(artefact: Artefact, plan: Plan) -> list[str]:
    """The workloads, with their parameters, of the experiments that an artefact names."""
    jobs = [job for name in _experiments(artefact, plan) for job in plan.experiments[name].jobs.values()]
    return sorted({json.dumps(run.spec["workload"], sort_keys=True) for job in jobs for run in job.runs})


def _experiments(artefact: Artefact, plan: Plan) -> list[str]:
    wanted = plan.experiments if artefact.experiments == ("*",) else artefact.experiments
    return [experiment for experiment in wanted if experiment in plan.experiments]


def _probes(artefact: Artefact, plan: Plan) -> list[str]:
    """A probe that measures experiments' workloads needs one of them in the plan."""
    probes = [describe("probes", name) for name in artefact.probes]
    return [probe.name for probe in probes if not probe.experiments or _experiments(probe, plan)]


def _has_input(artefact: Artefact, plan: Plan) -> bool:
    return bool(_experiments(artefact, plan) or _probes(artefact, plan))


def _relative(file: Path) -> str:
    """A file of the repository as seen from the working directory, where it lies inside: so plans read well."""
    return str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)


def sources(module: Path) -> list[Path]:
    """``module`` and the bench's files that it imports, directly or not."""
    found: list[Path] = []
    waiting = [module]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.append(file)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("workflow.bench"):
                parts = (node.module or "").split(".")[2:]
                names = [[*parts, alias.name] for alias in node.names] + [parts]
                candidates = (BENCH.joinpath(*name).with_suffix(".py") for name in names if name)
                waiting += [candidate for candidate in candidates if candidate.is_file()]
    return sorted(found)
