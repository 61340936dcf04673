"""PBS Pro through its commands: qsub, qstat, qdel, qselect."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

#: Longer than a busy server takes to answer; its commands can hang for ever.
_PATIENCE_SECONDS: Final = 60

#: The server is away or overloaded, or a limit is reached that falls with time.
_LATER: Final = re.compile(
    r"would exceed|limit|cannot connect|connection|timed? ?out|shutting down|communication|temporarily|busy|no route",
    re.IGNORECASE,
)
#: What no waiting changes.
_NEVER: Final = re.compile(
    r"unknown queue|account|allocation|project|unauthorized|not authorized|illegal|unknown resource|invalid"
    r"|bad uid|violates queue|not enough free nodes|usage:|command not found|No such file",
    re.IGNORECASE,
)

#: A job's state as a letter, of which these mean that it waits, runs or ends by itself.
_ALIVE: Final = "QRETWSMBX"


class Refused(Exception):
    """The scheduler did not take a job; the message is in its own words."""

    def __init__(self, said: str, when: Literal["later", "never", "unknown"]) -> None:
        super().__init__(said)
        self.when = when
        """Whether trying again can help; ``unknown`` where the words tell nothing."""


@dataclass(frozen=True)
class JobState:
    """What the scheduler says of a job."""

    kind: Literal["alive", "held", "ended", "unknown", "no answer"]
    exit_status: int | None = None
    """Of an ended job; None where it never began.  Below 0 and above 128: killed."""
    out_of_time: bool = False
    """Whether it ran up to its time limit."""
    comment: str = ""


def submit(arguments: Sequence[str]) -> str:
    """Submit a job and return its id.  Raises `Refused`."""
    code, out, said = _call("qsub", *arguments)
    job = out.strip().splitlines()[-1].strip() if out.strip() else ""
    if code == 0 and job:
        return job
    words = " ".join((said or out or f"qsub ended with code {code} and said nothing").split())
    if code == 0 or _NEVER.search(words) is None:
        raise Refused(words, "later" if code == _TIMED_OUT or _LATER.search(words) else "unknown")
    raise Refused(words, "later" if "would exceed" in words else "never")


def find(name: str) -> str | None:
    """Return the id of a job with this name, waiting, running, or ended a while ago; None where there is none.

    Raises `Refused` where the server gives no answer.
    """
    code, out, said = _call("qselect", "-x", "-N", name)
    if code != 0:
        raise Refused(" ".join(said.split()) or f"qselect ended with code {code}", "later")
    found = out.split()
    return found[-1] if found else None


def state(job: str) -> JobState:
    """Return a job's state, from the server's history where it has ended."""
    code, out, said = _call("qstat", "-x", "-f", job)
    if code != 0:
        unknown = re.search(r"unknown job|has finished", said, re.IGNORECASE)
        return JobState("unknown" if unknown else "no answer", comment=" ".join(said.split()))
    about = _attributes(out)
    letter, comment = about.get("job_state", ""), about.get("comment", "")
    if letter == "H":
        return JobState("held", comment=comment or f"hold type {about.get('Hold_Types', 'unknown')}")
    if letter == "F":
        exit_status = int(about["Exit_status"]) if "Exit_status" in about else None
        used, allowed = (_seconds(about.get(f"{kind}.walltime")) for kind in ("resources_used", "Resource_List"))
        # The limit is looked at every few seconds only, so a job may seem to end a little before or after it.
        at_limit = used is not None and allowed is not None and used >= 0.98 * allowed - 5
        return JobState("ended", exit_status, exit_status == _KILLED_FOR_TIME or at_limit, comment)
    return JobState("alive" if letter and letter in _ALIVE else "no answer", comment=comment)


def delete(job: str) -> bool:
    """Delete a job; tell whether the server took the request, or knows no such job any more."""
    code, _, said = _call("qdel", job)
    return code == 0 or re.search(r"unknown job|has finished", said, re.IGNORECASE) is not None


def walltime(minutes: int) -> str:
    """Return minutes as PBS wants them."""
    return f"{minutes // 60:02}:{minutes % 60:02}:00"


_TIMED_OUT: Final = 124
_KILLED_FOR_TIME: Final = -29


def _call(*command: str) -> tuple[int, str, str]:
    """Return exit code, output and error output of a command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return _TIMED_OUT, "", f"{command[0]}: no answer in {_PATIENCE_SECONDS} s"
    except OSError as problem:
        return 127, "", f"{command[0]}: command not found: {problem.strerror}"
    return done.returncode, done.stdout, done.stderr


def _attributes(full: str) -> dict[str, str]:
    """Return the attributes in the output of ``qstat -f``, whose long lines go on after a tab."""
    joined = re.sub(r"\n\t", "", full)
    return {match[1]: match[2].strip() for match in re.finditer(r"^    (\S+) = (.*)$", joined, re.MULTILINE)}


def _seconds(shown: str | None) -> int | None:
    if not shown:
        return None
    total = 0
    for part in shown.split(":"):
        total = 60 * total + int(part)
    return total
