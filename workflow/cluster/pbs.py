"""PBS Pro through its commands: qsub, qstat, qdel, qselect."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

_ANSWER_SECONDS: Final = 60
"""Time limit of a command: longer than a busy server takes to answer. Without one, commands can hang forever."""

_TRANSIENT: Final = re.compile(
    r"would exceed|limit|cannot connect|connection|timed? ?out|shutting down|communication|temporarily|busy|no route",
    re.IGNORECASE,
)
"""Matches refusals that end by themselves: the server is away or overloaded, or a limit is reached for now."""
_PERMANENT: Final = re.compile(
    r"unknown queue|account|allocation|project|unauthorized|not authorized|illegal|unknown resource|invalid"
    r"|bad uid|violates queue|not enough free nodes|usage:|command not found|No such file",
    re.IGNORECASE,
)
"""Matches refusals that waiting does not change."""

_ALIVE_STATES: Final = "QRETWSMBX"
"""PBS's letters for jobs that wait, run, or are about to end by themselves."""

_CODE_TIMED_OUT: Final = 124
_CODE_NOT_FOUND: Final = 127
_STATUS_WALLTIME_EXCEEDED: Final = -29


class Refused(Exception):
    """The scheduler refused a job; the message is the scheduler's own."""

    def __init__(self, message: str, when: Literal["later", "never", "unknown"]) -> None:
        super().__init__(message)
        self.when = when
        """When trying again can help; ``unknown`` if the message is not recognized."""


@dataclass(frozen=True)
class JobState:
    """The scheduler's information on a job."""

    kind: Literal["alive", "held", "ended", "unknown", "no answer"]
    exit_status: int | None = None
    """Exit status of an ended job, below 0 or above 128 if it was killed; None if it never began."""
    out_of_time: bool = False
    """Whether it ran up to its time limit."""
    comment: str = ""


def submit(arguments: Sequence[str]) -> str:
    """Submit a job and return its id.

    Raises:
        Refused: the scheduler did not accept the job, or gave no answer.
    """
    code, output, errors = _call("qsub", *arguments)
    job = output.strip().splitlines()[-1].strip() if output.strip() else ""
    if code == 0 and job:
        return job
    message = " ".join((errors or output or f"qsub ended with code {code} and no message").split())
    if code == 0 or _PERMANENT.search(message) is None:
        raise Refused(message, "later" if code == _CODE_TIMED_OUT or _TRANSIENT.search(message) else "unknown")
    # "would exceed project's limit": the limit frees up as other jobs end, although the message names the project.
    raise Refused(message, "later" if "would exceed" in message else "never")


def find(name: str) -> str | None:
    """Return the id of the latest job with this name, waiting, running or recently ended; None if none is known.

    Raises:
        Refused: the server gave no answer.
    """
    code, output, errors = _call("qselect", "-x", "-N", name)
    if code != 0:
        raise Refused(" ".join(errors.split()) or f"qselect ended with code {code}", "later")
    jobs = output.split()
    return jobs[-1] if jobs else None


def state(job: str) -> JobState:
    """Return a job's state; that of an ended job comes from the server's history."""
    code, output, errors = _call("qstat", "-x", "-f", job)
    if code != 0:
        unknown = re.search(r"unknown job|has finished", errors, re.IGNORECASE)
        return JobState("unknown" if unknown else "no answer", comment=" ".join(errors.split()))
    joined = output.replace("\n\t", "")  # qstat wraps long lines after a tab
    attributes = {match[1]: match[2].strip() for match in re.finditer(r"^    (\S+) = (.*)$", joined, re.MULTILINE)}
    letter, comment = attributes.get("job_state", ""), attributes.get("comment", "")
    if letter == "H":
        return JobState("held", comment=comment or f"hold type {attributes.get('Hold_Types', 'unknown')}")
    if letter == "F":
        exit_status = int(attributes["Exit_status"]) if "Exit_status" in attributes else None
        used, allowed = (_seconds(attributes.get(f"{kind}.walltime")) for kind in ("resources_used", "Resource_List"))
        # PBS checks the limit only every few seconds, so a job may end slightly before or after it.
        at_limit = used is not None and allowed is not None and used >= 0.98 * allowed - 5
        return JobState("ended", exit_status, exit_status == _STATUS_WALLTIME_EXCEEDED or at_limit, comment)
    return JobState("alive" if letter and letter in _ALIVE_STATES else "no answer", comment=comment)


def delete(job: str) -> bool:
    """Delete a job; return whether the server accepted the request or no longer knows the job."""
    code, _, errors = _call("qdel", job)
    return code == 0 or re.search(r"unknown job|has finished", errors, re.IGNORECASE) is not None


def walltime(minutes: int) -> str:
    """Return minutes in PBS's format, ``HH:MM:SS``."""
    return f"{minutes // 60:02}:{minutes % 60:02}:00"


def _call(*command: str) -> tuple[int, str, str]:
    """Return exit code, output and error output of a command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return _CODE_TIMED_OUT, "", f"{command[0]}: no answer in {_ANSWER_SECONDS} s"
    except OSError as problem:
        return _CODE_NOT_FOUND, "", f"{command[0]}: command not found: {problem.strerror}"
    return done.returncode, done.stdout, done.stderr


def _seconds(walltime: str | None) -> int | None:
    """Return the seconds in ``HH:MM:SS``."""
    if not walltime:
        return None
    hours, minutes, seconds = map(int, walltime.split(":"))
    return 3600 * hours + 60 * minutes + seconds
