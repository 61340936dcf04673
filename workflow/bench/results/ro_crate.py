"""The metadata of a Workflow Run RO-Crate: who ran which command, from which files, to which files, with what software.

The commands, times, inputs and outputs of the jobs are those that Snakemake recorded.

It follows RO-Crate 1.1, Workflow RO-Crate 1.0, and the Process, Workflow and Provenance Run Crate profiles 0.5
(https://www.researchobject.org/workflow-run-crate): the workflow is a tool of tools, every job that Snakemake recorded
is a run of one tool, and a step of the workflow stands for each rule.
"""

from __future__ import annotations

import binascii
import hashlib
import mimetypes
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from workflow.bench.support.cost_line import Cost
from workflow.bench.support.errors import DamagedFileError
from workflow.bench.support.reading import read_json

Entity = dict[str, Any]

METADATA: Final = "ro-crate-metadata.json"
WORKFLOW: Final = "workflow/Snakefile"
README: Final = "README.md"
_LICENSE: Final = "https://spdx.org/licenses/MIT"
_WORKFLOW_CRATE: Final = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
_PROVENANCE: Final = "https://w3id.org/ro/wfrun/provenance/0.5"
_PROFILES: Final[Mapping[str, tuple[str, str]]] = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    _PROVENANCE: ("Provenance Run Crate", "0.5"),
    _WORKFLOW_CRATE: ("Workflow RO-Crate", "1.0"),
}
_CONTEXT: Final = ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"]
_COMPLETED: Final = "http://schema.org/CompletedActionStatus"
_LANGUAGE: Final = "https://w3id.org/workflowhub/workflow-ro-crate#snakemake"
_RUN, _AGENT, _ENGINE = "#run", "#agent", "#snakemake-run"
_ENCODINGS: Final = {".py": "text/x-python", ".md": "text/markdown", ".smk": "text/plain", ".yaml": "application/yaml"}
_URLS: Final = {"Python": "https://www.python.org", "snakemake": "https://snakemake.github.io"}
_USED: Final = {
    "core_seconds": ("https://en.wikipedia.org/wiki/CPU_time", "https://qudt.org/vocab/unit/SEC"),
    "peak_mb": ("https://en.wikipedia.org/wiki/Resident_set_size", "https://qudt.org/vocab/unit/MegaBYTE"),
}
"""For each field of a cost, what it is and its unit."""


RECORDS: Final = Path(".snakemake", "metadata")
"""Where Snakemake keeps a record for each output file, whose name is the output's path in base64. It writes them for
itself and has no public way to read them, so records of an unknown version are left out."""
_VERSION: Final = 6
"""The ``record_format_version`` of Snakemake 9."""


class JobRecord(NamedTuple):
    """One job of the pipeline that has ended. Paths are as Snakemake saw them, from its working folder."""

    rule: str
    command: str
    started: datetime
    ended: datetime
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    logs: tuple[str, ...]
    tool: str = ""
    """In a crate, the file that the command runs, or that holds the command."""
    cost: Cost | None = None
    """In a crate, what the job's log says."""


def job_records(folder: Path, place: Path = Path()) -> list[JobRecord]:
    """Return the jobs that made files of ``folder``, by start and first output.

    folder: the results' folder, as Snakemake was given it.
    place: the working folder of Snakemake.

    Raises:
        UnreadableError: a record cannot be read.
    """
    jobs: dict[tuple[Any, ...], JobRecord] = {}
    for output, record in _records(place / RECORDS):
        if Path(output).is_relative_to(folder):
            # Every output of a job has a record of its own.
            key = tuple(record[name] for name in ("rule", "shellcmd", "starttime", "endtime"))
            others = jobs[key].outputs if key in jobs else ()
            jobs[key] = JobRecord(
                record["rule"],
                " ".join(record["shellcmd"].split()),
                datetime.fromtimestamp(record["starttime"], UTC),
                datetime.fromtimestamp(record["endtime"], UTC),
                tuple(record.get("input") or ()),
                tuple(sorted((*others, output))),
                tuple(record.get("log") or ()),
            )
    return sorted(jobs.values(), key=lambda job: (job.started, job.outputs))


def _records(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the outputs of complete jobs, and their records."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        # A long name is split into folders, whose names begin with "@".
        encoded = "".join(part.removeprefix("@") for part in file.relative_to(folder).parts)
        try:
            output = urlsafe_b64decode(encoded).decode()
            record = read_json(file)
        except (binascii.Error, UnicodeDecodeError, DamagedFileError):
            continue
        if isinstance(record, dict) and record.get("record_format_version") == _VERSION and _is_complete(record):
            yield output, record


def _is_complete(record: Mapping[str, Any]) -> bool:
    named = isinstance(record.get("rule"), str) and isinstance(record.get("shellcmd"), str)
    timed = all(isinstance(record.get(name), int | float) for name in ("starttime", "endtime"))
    return named and timed and not record.get("incomplete")


@dataclass(frozen=True)
class Crate:
    """The content of a crate."""

    name: str
    description: str
    published: datetime
    files: Mapping[str, bytes]
    """The contents by path in the crate; `WORKFLOW` is one of them."""
    inputs: Sequence[str]
    """Files that the workflow reads: configuration, published numbers."""
    outputs: Sequence[str]
    """Files that the workflow made."""
    jobs: Sequence[JobRecord]
    """With paths of the crate; files that are not in it are left out."""
    version: str
    """The workflow's version, with the commit."""
    packages: Mapping[str, str]
    """The versions of the software that the results were made with, Python and Snakemake among it."""
    agent: str | None
    """The name of the person who ran it."""


def metadata(crate: Crate) -> Entity:
    """Return the content of ``ro-crate-metadata.json``."""
    # Without jobs a crate says nothing of the workflow's tools, which the last of the run profiles demands.
    profiles = [url for url in _PROFILES if crate.jobs or url != _PROVENANCE]
    graph = [
        _entity(
            METADATA,
            "CreativeWork",
            about=_refer(["./"]),
            conformsTo=_refer(["https://w3id.org/ro/crate/1.1", _WORKFLOW_CRATE]),
        ),
        _entity(
            "./",
            "Dataset",
            name=crate.name,
            description=crate.description,
            datePublished=_time(crate.published),
            license=_refer([_LICENSE]),
            conformsTo=_refer(profiles),
            hasPart=_refer(crate.files),
            mainEntity=_refer([WORKFLOW]),
            mentions=_refer([_RUN, *(f"#job/{number}" for number, _ in enumerate(crate.jobs))]),
            author=_agent(crate),
        ),
        *(_entity(url, "CreativeWork", name=_PROFILES[url][0], version=_PROFILES[url][1]) for url in profiles),
        _entity(
            _LICENSE,
            "CreativeWork",
            name="MIT License",
            description="Permits use, change and distribution, with the copyright notice",
            url="https://opensource.org/license/mit",
        ),
        *_software(crate),
        *_files(crate),
        *_workflow_run(crate),
        *_jobs(crate),
    ]
    return {"@context": _CONTEXT, "@graph": graph}


def _entity(key: str, kind: str | list[str], /, **values: Any) -> Entity:
    """Return an entity of a type with those of its properties that have a value."""
    return {"@id": key, "@type": kind, **{name: value for name, value in values.items() if value}}


def _refer(ids: Iterable[str]) -> Entity | list[Entity]:
    """Return references to entities; a single one is no list."""
    found = [{"@id": name} for name in ids]
    return found[0] if len(found) == 1 else found


def _agent(crate: Crate) -> Entity | list[Entity]:
    return _refer([_AGENT] if crate.agent else [])


def _time(time: datetime) -> str:
    return time.isoformat(timespec="seconds")


def _package_id(name: str) -> str:
    return _URLS.get(name, f"pkg:pypi/{name}")


def _software(crate: Crate) -> Iterator[Entity]:
    yield _entity(
        _LANGUAGE,
        "ComputerLanguage",
        name="Snakemake",
        identifier=_refer(["https://doi.org/10.1093/bioinformatics/bts480"]),
        url=_refer(["https://snakemake.github.io"]),
        version=crate.packages.get("snakemake"),
    )
    for name, version in crate.packages.items():
        url = _package_id(name)
        yield _entity(url, "SoftwareApplication", name=name, softwareVersion=version, url=url)
    if crate.agent:
        yield _entity(_AGENT, "Person", name=crate.agent)


def _files(crate: Crate) -> Iterator[Entity]:
    """Yield the files, the workflow and the tools of its jobs among them."""
    tools = list(dict.fromkeys(job.tool for job in crate.jobs))
    # The workflow and the tools of jobs are files that are software as well.
    for path, content in crate.files.items():
        suffix = "." + path.rpartition(".")[2]
        about: Entity = {
            "name": path.rpartition("/")[2],
            "encodingFormat": _ENCODINGS.get(suffix) or mimetypes.guess_type(path)[0] or "text/plain",
            "contentSize": str(len(content)),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        kind: str | list[str] = "File"
        if path == WORKFLOW:
            kind = ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"]
            about |= {
                "name": "The MKOR harness: train, measure, draw, decide",
                "description": "Trains MKOR and its rivals, and makes every figure, table and claim of the paper",
                "programmingLanguage": _refer([_LANGUAGE]),
                "version": crate.version,
                "license": _refer([_LICENSE]),
                "url": "https://snakemake.readthedocs.io",
                "softwareRequirements": _refer(map(_package_id, crate.packages)),
                "hasPart": _refer(tools),
                "step": _refer(dict.fromkeys(f"#step/{job.rule}" for job in crate.jobs)),
            }
        elif path in tools:
            kind = ["File", "SoftwareSourceCode"]
            about["version"] = crate.version
        elif path == README:
            about["about"] = _refer(["./"])
        yield _entity(path, kind, **about)


def _workflow_run(crate: Crate) -> Iterator[Entity]:
    when = {}
    if crate.jobs:
        when = {
            "startTime": _time(min(job.started for job in crate.jobs)),
            "endTime": _time(max(job.ended for job in crate.jobs)),
        }
    yield _entity(
        _RUN,
        "CreateAction",
        name=crate.name,
        description=crate.description,
        instrument=_refer([WORKFLOW]),
        object=_refer(crate.inputs),
        result=_refer(crate.outputs),
        actionStatus=_COMPLETED,
        **when,
        agent=_agent(crate),
    )
    if crate.jobs:
        yield _entity(
            _ENGINE,
            "OrganizeAction",
            name="Run of Snakemake",
            instrument=_refer([_package_id("snakemake")]),
            object=_refer(f"#control/{number}" for number, _ in enumerate(crate.jobs)),
            result=_refer([_RUN]),
            **when,
            agent=_agent(crate),
        )


def _jobs(crate: Crate) -> Iterator[Entity]:
    """Yield the steps of the workflow, and for each job its run, the control of it, and what it used."""
    for position, (rule, tool) in enumerate({job.rule: job.tool for job in crate.jobs}.items()):
        example = _refer([tool])
        yield _entity(f"#step/{rule}", "HowToStep", name=rule, position=str(position), workExample=example)
    for number, job in enumerate(crate.jobs):
        used = []
        for name, (kind, unit) in _USED.items():
            if (value := getattr(job.cost, name, None)) is not None:
                about = {"name": name, "propertyID": kind, "value": f"{value:g}", "unitCode": unit}
                used.append(_entity(f"#used/{number}/{name}", "PropertyValue", **about))
        yield _entity(
            f"#job/{number}",
            "CreateAction",
            name=f"{job.rule}: {', '.join(path.rpartition('/')[2] for path in job.outputs[:1])}",
            description=job.command,
            instrument=_refer([job.tool]),
            object=_refer(job.inputs),
            result=_refer(job.outputs),
            startTime=_time(job.started),
            endTime=_time(job.ended),
            actionStatus=_COMPLETED,
            agent=_agent(crate),
            resourceUsage=_refer(value["@id"] for value in used),
        )
        yield _entity(
            f"#control/{number}",
            "ControlAction",
            name=f"Start of job {number}",
            instrument=_refer([f"#step/{job.rule}"]),
            object=_refer([f"#job/{number}"]),
        )
        yield from used
