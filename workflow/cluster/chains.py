"""The ledger: a folder for every chain of jobs that makes the outputs of one Snakemake job.

A training run may be longer than a queue allows, so a chain has several jobs, its slices, one after the other. It is
identified by its outputs, so that a Snakemake that was killed and restarted finds the jobs that it had submitted. Its
folder ``.snakemake/cluster/<chain>`` contains

- ``chain.json``, the `Chain` and its slices;
- ``job.sh``, Snakemake's script, and ``environment``, the variables that the job's shell gets;
- ``<slice>.log``, the output of every slice, and ``<slice>.exit``, its exit code, once it has ended;
- ``cancelled``, if the profile's cancel script was called.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from workflow.bench.support.files import locked, write_atomically, write_json

LEDGER: Final = Path(".snakemake") / "cluster"
"""Relative to the working directory, like everything that Snakemake itself keeps."""

Progress = dict[str, dict[str, Any]]
"""How far runs have come, by folder: ``steps`` and ``status`` of the record, and the times in nanoseconds at which
record (``recorded``) and checkpoint (``saved``) were written."""

NO_PROGRESS: Final[dict[str, Any]] = {"steps": 0, "status": None, "recorded": 0, "saved": 0}
"""The progress of a run that has written nothing yet."""


@dataclass
class Slice:
    """One job of a chain."""

    number: int
    job: str | None = None
    """The scheduler's id; None until the scheduler is known to have accepted the job."""
    submitted: float = 0.0
    """Seconds since 1970, by the submitting host's clock."""
    refusals: int = 0
    """How often the scheduler refused it for an unrecognized reason."""
    tried: float = 0.0
    """Time of the last attempt to submit it, in seconds since 1970; 0 before the first."""
    misses: int = 0
    """How often in a row the scheduler reported that it knows no such job."""
    before: Progress = field(default_factory=dict)
    """Progress of the runs when it was submitted."""


@dataclass
class Chain:
    """The jobs, one after the other, that make the outputs of one Snakemake job."""

    id: str
    outputs: list[str]
    runs: list[str]
    """Folders of the training runs that it advances; empty if the job does not train."""
    nodes: int
    minutes: int
    queue: str
    options: list[str]
    """Options of every submission besides nodes, minutes and queue."""
    script: str
    """The profile's job script."""
    mark: str
    """Distinguishes the names of its jobs from those of an earlier chain for the same outputs."""
    state: str = "open"
    """``open``, ``done``, or ``failed``."""
    reason: str = ""
    stalls: int = 0
    """Number of slices in a row without progress."""
    slices: list[Slice] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The chain's folder, relative to the working directory."""
        return LEDGER / self.id

    @property
    def last(self) -> Slice:
        """The slice that is waiting or running, or that ran last."""
        return self.slices[-1]

    @property
    def is_cancelled(self) -> bool:
        """Whether the profile's cancel script was called for it."""
        return (self.folder / "cancelled").exists()

    def job_name(self) -> str:
        """Return the last slice's name at the scheduler, which is unique and has at most 15 characters."""
        return f"m{self.id[-6:]}{self.mark}-{self.last.number}"

    def output_of(self, number: int) -> Path:
        """Return the file that a slice's output goes to."""
        return self.folder / f"{number}.log"

    def exit_code(self) -> int | None:
        """Return the exit code of the last slice; None if it has not ended, or was killed before it could write it."""
        try:
            return int((self.folder / f"{self.last.number}.exit").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def save(self) -> None:
        """Write ``chain.json`` atomically."""
        write_json(self.folder / "chain.json", asdict(self))

    def write_scripts(self, job: str, environment: Mapping[str, str]) -> None:
        """Write Snakemake's script, and the variables for the job's shell."""
        write_atomically(self.folder / "job.sh", job)
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(environment.items()))
        write_atomically(self.folder / "environment", exports)

    def begin_slice(self) -> None:
        """Append a slice that is yet to be submitted."""
        number = self.slices[-1].number + 1 if self.slices else 1
        self.slices.append(Slice(number, before=self.progress()))

    def progress(self) -> Progress:
        """Return the current progress of every run."""
        return {run: _progress_of(Path(run)) for run in self.runs}


def _progress_of(run: Path) -> dict[str, Any]:
    # Needed only when a slice begins or ends: reading records takes YAML and JSON Schema, whose import would slow down
    # the status of every job in every minute.
    from workflow.bench.support.errors import DamagedFileError
    from workflow.bench.training.record import RunFolder, read_record

    folder = RunFolder(run)
    progress = dict(NO_PROGRESS)
    # A skipped or failed run has a record without steps. Like a damaged one, it counts as not begun.
    with suppress(OSError, DamagedFileError):
        summary = read_record(folder, run.name).summary
        if "steps_done" in summary:
            recorded = folder.summary.stat().st_mtime_ns
            progress |= {"steps": summary["steps_done"], "status": summary["status"], "recorded": recorded}
    times = [file.stat().st_mtime_ns for file in run.glob(f"{folder.checkpoint.stem}*") if file.is_file()]
    return {**progress, "saved": max(times, default=0)}


def load(chain_id: str) -> Chain | None:
    """Return a chain by its id; None if it does not exist or its file is damaged."""
    try:
        content = json.loads((LEDGER / chain_id / "chain.json").read_text(encoding="utf-8"))
        slices = [Slice(**each) for each in content.pop("slices")]
        return Chain(**content, slices=slices)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def id_of(rule: str, wildcards: Mapping[str, str], outputs: list[str]) -> str:
    """Return the id of the chain that makes ``outputs``: readable, and the same each time."""
    digest = hashlib.sha256("\n".join(sorted(str(Path(file).absolute()) for file in outputs)).encode()).hexdigest()
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join([rule, *wildcards.values()]))
    return f"{name[:60]}-{digest[:8]}"


@contextmanager
def held(chain_id: str) -> Iterator[None]:
    """Keep other scripts away from a chain."""
    with locked(LEDGER / chain_id / "lock"):
        yield
