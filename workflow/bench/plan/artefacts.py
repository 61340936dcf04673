"""Figures and tables found by file name, and what each is made from.

A module of ``workflow.bench.figures`` or ``workflow.bench.tables`` is an artefact, one of ``workflow.bench.probes``
measures for them.  It names its inputs as literals, read here without importing it, so that planning needs no
matplotlib:
``EXPERIMENTS`` (tidy CSVs), ``PROBES`` (``probes/<name>.csv``), ``PUBLISHED`` (``workflow/paper/<name>.csv``).
``COMPARES = True`` adds what other machines' folders hold of these (`Plan.compared`).

A probe states its needs as literals in the same way: ``CORES`` (a number, or ``"all"``), ``USES_GPU``, ``TIMING``.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workflow.bench.plan import Plan
from workflow.bench.support.source_code import reachable

Kind = Literal["figures", "tables", "probes"]
BENCH = Path(__file__).resolve().parents[1]
_INPUTS = ("EXPERIMENTS", "PROBES", "PUBLISHED")
_FACTS = ("COMPARES", "CORES", "USES_GPU", "TIMING")


@dataclass(frozen=True)
class Artefact:
    """One figure or table: its file name without a suffix, and what its module names as its inputs."""

    kind: Kind
    name: str
    experiments: tuple[str, ...] = ()
    """Experiments whose tidy tables it reads; ``*`` means all of the tier."""
    probes: tuple[str, ...] = ()
    published: tuple[str, ...] = ()
    compares: bool = False
    """Whether it shows other machines' results beside this one's."""
    cores: int | Literal["all"] = 1
    """Cores that a probe needs for itself, so that other jobs neither disturb its times nor are disturbed."""
    uses_gpu: bool = True
    """Whether a probe computes on the tier's GPU, if it has one."""
    timing: bool = False
    """Whether a probe measures the machine (time, memory, bytes), for ``make timing``."""

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
    found: dict[str, Any] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if not isinstance(target, ast.Name) or target.id not in (*_INPUTS, *_FACTS):
            continue
        try:
            value = ast.literal_eval(node.value)
        except ValueError:
            raise ValueError(f"{file.name}: {target.id} must be a literal.") from None
        found[target.id.lower()] = value if target.id in _FACTS else tuple(value)
    return Artefact(kind, name, **found)


def made_from(plan: Plan, kind: Kind) -> list[Artefact]:
    """The artefacts of a kind that a plan has something for, or that show nothing measured."""
    return [artefact for name in available(kind) if _has_input(artefact := describe(kind, name), plan)]


def measured_by(plan: Plan) -> list[Artefact]:
    """The probes of a plan: those that measure experiments' workloads only where it has one of them."""
    probes = [describe("probes", name) for name in available("probes")]
    return [probe for probe in probes if not probe.experiments or _experiments(probe, plan)]


def inputs(artefact: Artefact, plan: Plan) -> dict[str, list[str]]:
    """The files that an artefact is made from: measured here and elsewhere, published, and the code that draws it."""
    results = plan.results.as_posix()
    tables = [
        f"{results}/{experiment}{suffix}"
        for experiment in _experiments(artefact, plan)
        for suffix in (".csv", ".runs.csv")
    ]
    return {
        "measured": tables + [f"{results}/probes/{probe}.csv" for probe in _probes(artefact, plan)],
        "compared": _compared_files(artefact, plan),
        "published": [_relative(BENCH.parent / "paper" / f"{name}.csv") for name in artefact.published],
        "code": [_relative(file) for file in sources(artefact.module)],
    }


def description(artefact: Artefact) -> str:
    """The file with what the report says of an artefact, whatever the run: ``workflow/report/<name>.rst``."""
    return _relative(BENCH.parent / "report" / f"{artefact.name}.rst")


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
    if not artefact.experiments and not artefact.probes:
        return True
    return bool(_experiments(artefact, plan) or _probes(artefact, plan))


def compared(artefact: Artefact, plan: Plan) -> list[str]:
    """Other machines' folders that an artefact shows beside this one's."""
    return [_relative(folder) for folder in plan.compared] if artefact.compares else []


def _compared_files(artefact: Artefact, plan: Plan) -> list[str]:
    """What these folders hold of an artefact's inputs, as much as there is: nothing here makes it."""
    tables = [f"{name}.runs.csv" for name in artefact.experiments]
    patterns = tables + [f"probes/{name}.csv" for name in artefact.probes]
    folders = map(Path, compared(artefact, plan))
    return [str(file) for folder in folders for pattern in patterns for file in sorted(folder.glob(pattern))]


def _relative(file: Path) -> str:
    """A file of the repository as seen from the working directory, where it lies inside: so plans read well."""
    return str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)


def sources(module: Path) -> list[Path]:
    """Return ``module`` and the bench's files that it imports, directly or not."""
    return reachable([module], ["workflow/bench"])
