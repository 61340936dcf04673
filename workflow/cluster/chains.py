"""The ledger: a folder for every chain of jobs that makes one Snakemake job's outputs.

A chain is known by its outputs, so that a coordinator that was killed and started again finds what it had submitted.
Its folder ``.snakemake/cluster/<chain>`` holds ``chain.json``, Snakemake's script ``job.sh``, ``environment`` (what the
submitting shell hands on), and of every slice its output ``<slice>.log`` and, once it has ended, ``<slice>.exit``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from workflow.bench.support.files import locked, write_atomically, write_json

#: Relative to the working directory, as is everything that Snakemake itself keeps.
LEDGER: Final = Path(".snakemake") / "cluster"
Progress = dict[str, dict[str, Any]]
#: How far a run is that has left nothing yet.
NOTHING: Final[dict[str, Any]] = {"steps": 0, "status": None, "recorded": 0, "saved": 0}


@dataclass
class Slice:
    """One job of a chain."""

    number: int
    job: str | None = None
    """The scheduler's id; None as long as the scheduler has not taken it, as far as is known."""
    submitted: float = 0.0
    """Seconds since 1970, by the submitting host's clock."""
    refusals: int = 0
    """How often the scheduler refused it for a reason that this program does not know."""
    tried: float = 0.0
    misses: int = 0
    """How often in a row the scheduler said that it knows no such job."""
    before: Progress = field(default_factory=dict)
    """How far the runs were when it was submitted."""


@dataclass
class Chain:
    """The jobs, one after the other, that make the outputs of one Snakemake job."""

    id: str
    outputs: list[str]
    runs: list[str]
    """Folders of the training runs that it advances; empty where the job is none of training."""
    nodes: int
    minutes: int
    queue: str
    options: list[str]
    """What every submission is given beside nodes, minutes and queue."""
    script: str
    """The profile's job script."""
    mark: str
    """Tells its jobs' names from those of an earlier chain for the same outputs."""
    state: str = "open"
    """``open``, ``done``, or ``failed``."""
    reason: str = ""
    stalls: int = 0
    """Slices in a row that brought nothing forward."""
    slices: list[Slice] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The chain's folder, relative to the working directory."""
        return LEDGER / self.id

    @property
    def last(self) -> Slice:
        """The slice that runs, waits, or ran last."""
        return self.slices[-1]

    @property
    def is_cancelled(self) -> bool:
        """Whether the profile's cancel script was called for it."""
        return (self.folder / "cancelled").exists()

    def job_name(self) -> str:
        """Return the last slice's name at the scheduler: at most 15 characters, and no other job's."""
        return f"m{self.id[-6:]}{self.mark}-{self.last.number}"

    def output_of(self, number: int) -> Path:
        """Return the file that takes a slice's output."""
        return self.folder / f"{number}.log"

    def exit_code(self) -> int | None:
        """Return the code that the last slice ended with; None where it did not get to say one."""
        try:
            return int((self.folder / f"{self.last.number}.exit").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def save(self) -> None:
        """Write ``chain.json``, whole or not at all."""
        write_json(self.folder / "chain.json", asdict(self))

    def write_scripts(self, job: str, environment: Mapping[str, str]) -> None:
        """Write Snakemake's script, and the variables that the job's shell is to have."""
        write_atomically(self.folder / "job.sh", job)
        exports = "".join(f"export {name}={_quoted(value)}\n" for name, value in sorted(environment.items()))
        write_atomically(self.folder / "environment", exports)

    def begin_slice(self) -> None:
        """Append a slice that is still to be submitted."""
        number = self.slices[-1].number + 1 if self.slices else 1
        self.slices.append(Slice(number, before=self.progress()))

    def progress(self) -> Progress:
        """Return how far every run is: its record's steps and status, and when record and checkpoint were written."""
        found: Progress = {}
        for run in map(Path, self.runs):
            far = dict(NOTHING)
            try:
                record = json.loads((run / "run.json").read_text(encoding="utf-8"))
                far |= {"steps": record["steps_done"], "status": record["status"]}
                far["recorded"] = (run / "run.json").stat().st_mtime_ns
            except (OSError, ValueError, KeyError, TypeError):
                far |= NOTHING  # absent, or damaged: the run counts as not begun, as it does for training
            times = [file.stat().st_mtime_ns for file in run.glob("checkpoint*") if file.is_file()]
            found[str(run)] = {**far, "saved": max(times, default=0)}
        return found


def load(chain: str) -> Chain | None:
    """Return a chain by its id, None where there is none, or its file is damaged."""
    try:
        content = json.loads((LEDGER / chain / "chain.json").read_text(encoding="utf-8"))
        slices = [Slice(**part) for part in content.pop("slices")]
        return Chain(**content, slices=slices)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def id_of(rule: str, wildcards: Mapping[str, str], outputs: list[str]) -> str:
    """Return the id of the chain that makes ``outputs``: readable, and the same at every start."""
    digest = hashlib.sha256("\n".join(sorted(str(Path(file).absolute()) for file in outputs)).encode()).hexdigest()
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join([rule, *wildcards.values()]))
    return f"{name[:60]}-{digest[:8]}"


@contextmanager
def held(chain: str) -> Iterator[None]:
    """Keep other scripts from the chain meanwhile."""
    with locked(LEDGER / chain / "lock"):
        yield


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"
