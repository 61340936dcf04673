"""The metadata of a Workflow Run RO-Crate: who ran which command, from which files, to which files, with what software.

It follows RO-Crate 1.1, Workflow RO-Crate 1.0, and the Process, Workflow and Provenance Run Crate profiles 0.5
(https://www.researchobject.org/workflow-run-crate): the workflow is a tool of tools, every job that Snakemake recorded
is a run of one tool, and a step of the workflow stands for each rule.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from workflow.bench.support.cost_line import Cost

Entity = dict[str, Any]

METADATA: Final = "ro-crate-metadata.json"
WORKFLOW: Final = "workflow/Snakefile"
README: Final = "README.md"
_LICENSE: Final = "https://spdx.org/licenses/MIT"
_RUN_CRATE: Final = "https://w3id.org/ro/wfrun"
_WORKFLOW_CRATE: Final = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
_PROFILES: Final[Mapping[str, tuple[str, str]]] = {
    f"{_RUN_CRATE}/process/0.5": ("Process Run Crate", "0.5"),
    f"{_RUN_CRATE}/workflow/0.5": ("Workflow Run Crate", "0.5"),
    f"{_RUN_CRATE}/provenance/0.5": ("Provenance Run Crate", "0.5"),
    _WORKFLOW_CRATE: ("Workflow RO-Crate", "1.0"),
}
_CONTEXT: Final = ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"]
_COMPLETED: Final = "http://schema.org/CompletedActionStatus"
_LANGUAGE: Final = "https://w3id.org/workflowhub/workflow-ro-crate#snakemake"
_ENCODINGS: Final = {".py": "text/x-python", ".md": "text/markdown", ".smk": "text/plain", ".yaml": "application/yaml"}
_USED: Final = {
    "core_seconds": "https://en.wikipedia.org/wiki/CPU_time",
    "peak_mb": "https://en.wikipedia.org/wiki/Resident_set_size",
}
_UNITS: Final = {"core_seconds": "https://qudt.org/vocab/unit/SEC", "peak_mb": "https://qudt.org/vocab/unit/MegaBYTE"}


@dataclass(frozen=True)
class FileInfo:
    """What the metadata say about a file of the crate."""

    size: int
    sha256: str


@dataclass(frozen=True)
class CratedJob:
    """A job of the pipeline, with paths of the crate; files that are not in the crate are left out."""

    rule: str
    command: str
    started: datetime
    ended: datetime
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tool: str
    """The file of the crate that the command runs, or that holds the command."""
    cost: Cost | None


@dataclass(frozen=True)
class Crate:
    """The content of a crate."""

    name: str
    description: str
    published: datetime
    files: Mapping[str, FileInfo]
    """By path in the crate; `WORKFLOW` is one of them."""
    inputs: Sequence[str]
    """Files that the workflow reads: configuration, published numbers."""
    outputs: Sequence[str]
    """Files that the workflow made."""
    jobs: Sequence[CratedJob]
    version: str
    """The workflow's version, with the commit."""
    packages: Mapping[str, str]
    """The versions of the software that the results were made with, Python and Snakemake among it."""
    agent: str | None
    """The name of the person who ran it."""


def metadata(crate: Crate) -> Entity:
    """Return the content of ``ro-crate-metadata.json``."""
    graph = [
        _descriptor(),
        _root(crate),
        *_profiles(crate),
        _workflow(crate),
        *_software(crate),
        *_files(crate),
        *_workflow_run(crate),
        *_jobs(crate),
    ]
    return {"@context": _CONTEXT, "@graph": graph}


def _refer(*ids: str) -> Entity | list[Entity]:
    """Return references to entities; a single one is no list."""
    return {"@id": ids[0]} if len(ids) == 1 else [{"@id": name} for name in ids]


def _referring(name: str, ids: Sequence[str]) -> Entity:
    """Return a property that refers to entities, or nothing if there are none."""
    return {name: _refer(*ids)} if ids else {}


def _descriptor() -> Entity:
    return {
        "@id": METADATA,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": _refer("https://w3id.org/ro/crate/1.1", _WORKFLOW_CRATE),
    }


def _root(crate: Crate) -> Entity:
    return {
        "@id": "./",
        "@type": "Dataset",
        "name": crate.name,
        "description": crate.description,
        "datePublished": crate.published.isoformat(timespec="seconds"),
        "license": {"@id": _LICENSE},
        "conformsTo": _refer(*_profiles_of(crate)),
        "hasPart": _refer(*crate.files),
        "mainEntity": {"@id": WORKFLOW},
        "mentions": _refer(_RUN, *(_job_id(number) for number, _ in enumerate(crate.jobs))),
        **({"author": {"@id": _AGENT}} if crate.agent else {}),
    }


def _profiles_of(crate: Crate) -> list[str]:
    """Return the profiles that a crate follows; without jobs it says nothing of the workflow's tools."""
    return [url for url in _PROFILES if crate.jobs or url != f"{_RUN_CRATE}/provenance/0.5"]


def _profiles(crate: Crate) -> Iterator[Entity]:
    for url in _profiles_of(crate):
        name, version = _PROFILES[url]
        yield {"@id": url, "@type": "CreativeWork", "name": name, "version": version}
    yield {
        "@id": _LICENSE,
        "@type": "CreativeWork",
        "name": "MIT License",
        "description": "Permits use, change and distribution, with the copyright notice",
        "url": "https://opensource.org/license/mit",
    }


def _workflow(crate: Crate) -> Entity:
    tools = list(dict.fromkeys(job.tool for job in crate.jobs))
    return {
        **_file(WORKFLOW, crate.files[WORKFLOW]),
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        "name": "The MKOR harness: train, measure, draw, decide",
        "description": "Trains MKOR and its rivals, and makes every figure, table and claim of the paper",
        "programmingLanguage": {"@id": _LANGUAGE},
        "version": crate.version,
        "license": {"@id": _LICENSE},
        "url": "https://snakemake.readthedocs.io",
        "softwareRequirements": _refer(*(_package_id(name) for name in crate.packages)),
        **_referring("hasPart", tools),
        **_referring("step", _steps(crate)),
    }


def _steps(crate: Crate) -> list[str]:
    return [f"#step/{rule}" for rule in dict.fromkeys(job.rule for job in crate.jobs)]


_URLS: Final = {"Python": "https://www.python.org", "snakemake": "https://snakemake.github.io"}


def _package_id(name: str) -> str:
    return _URLS.get(name, f"pkg:pypi/{name}")


def _software(crate: Crate) -> Iterator[Entity]:
    yield {
        "@id": _LANGUAGE,
        "@type": "ComputerLanguage",
        "name": "Snakemake",
        "identifier": {"@id": "https://doi.org/10.1093/bioinformatics/bts480"},
        "url": {"@id": "https://snakemake.github.io"},
        "version": crate.packages.get("snakemake", ""),
    }
    for name, version in crate.packages.items():
        url = _package_id(name)
        yield {"@id": url, "@type": "SoftwareApplication", "name": name, "softwareVersion": version, "url": url}
    if crate.agent:
        yield {"@id": _AGENT, "@type": "Person", "name": crate.agent}


def _files(crate: Crate) -> Iterator[Entity]:
    tools = {job.tool for job in crate.jobs}
    for path, info in crate.files.items():
        entity = {**_file(path, info), "@type": "File"}
        if path in tools:
            entity |= {"@type": ["File", "SoftwareSourceCode"], "version": crate.version}
        if path == README:
            entity["about"] = {"@id": "./"}
        if path != WORKFLOW:
            yield entity


def _file(path: str, info: FileInfo) -> Entity:
    suffix = "." + path.rpartition(".")[2]
    encoding = _ENCODINGS.get(suffix) or mimetypes.guess_type(path)[0] or "text/plain"
    return {
        "@id": path,
        "name": path.rpartition("/")[2],
        "encodingFormat": encoding,
        "contentSize": str(info.size),
        "sha256": info.sha256,
    }


_RUN: Final = "#run"
_AGENT: Final = "#agent"
_ENGINE: Final = "#snakemake-run"


def _workflow_run(crate: Crate) -> Iterator[Entity]:
    agent = {"agent": {"@id": _AGENT}} if crate.agent else {}
    times = {}
    if crate.jobs:
        times = {
            "startTime": _time(min(job.started for job in crate.jobs)),
            "endTime": _time(max(job.ended for job in crate.jobs)),
        }
    yield {
        "@id": _RUN,
        "@type": "CreateAction",
        "name": crate.name,
        "description": crate.description,
        "instrument": {"@id": WORKFLOW},
        **_referring("object", crate.inputs),
        **_referring("result", crate.outputs),
        "actionStatus": _COMPLETED,
        **times,
        **agent,
    }
    if crate.jobs:
        yield {
            "@id": _ENGINE,
            "@type": "OrganizeAction",
            "name": "Run of Snakemake",
            "instrument": {"@id": _package_id("snakemake")},
            "object": _refer(*(_control_id(number) for number, _ in enumerate(crate.jobs))),
            "result": {"@id": _RUN},
            **times,
            **agent,
        }


def _job_id(number: int) -> str:
    return f"#job/{number}"


def _control_id(number: int) -> str:
    return f"#control/{number}"


def _time(time: datetime) -> str:
    return time.isoformat(timespec="seconds")


def _jobs(crate: Crate) -> Iterator[Entity]:
    """Yield the steps of the workflow, and for each job its run, the control of it, and what it used."""
    tools = {job.rule: job.tool for job in crate.jobs}
    for position, (rule, step) in enumerate(zip(tools, _steps(crate), strict=True)):
        yield {
            "@id": step,
            "@type": "HowToStep",
            "name": rule,
            "position": str(position),
            "workExample": {"@id": tools[rule]},
        }
    for number, job in enumerate(crate.jobs):
        used = [] if job.cost is None else list(_used(number, job.cost))
        yield {
            "@id": _job_id(number),
            "@type": "CreateAction",
            "name": f"{job.rule}: {', '.join(path.rpartition('/')[2] for path in job.outputs[:1])}",
            "description": job.command,
            "instrument": {"@id": job.tool},
            **_referring("object", job.inputs),
            **_referring("result", job.outputs),
            "startTime": _time(job.started),
            "endTime": _time(job.ended),
            "actionStatus": _COMPLETED,
            **({"agent": {"@id": _AGENT}} if crate.agent else {}),
            **_referring("resourceUsage", [value["@id"] for value in used]),
        }
        yield {
            "@id": _control_id(number),
            "@type": "ControlAction",
            "name": f"Start of job {number}",
            "instrument": {"@id": f"#step/{job.rule}"},
            "object": {"@id": _job_id(number)},
        }
        yield from used


def _used(number: int, cost: Cost) -> Iterator[Entity]:
    """Yield the processor time and the peak memory of a job."""
    for name, value in (("core_seconds", cost.core_seconds), ("peak_mb", cost.peak_mb)):
        if value is not None:
            yield {
                "@id": f"#used/{number}/{name}",
                "@type": "PropertyValue",
                "name": name,
                "propertyID": _USED[name],
                "value": f"{value:g}",
                "unitCode": _UNITS[name],
            }
