"""The life of a chain: a slice is submitted, watched, and followed by the next until the work is done."""

from __future__ import annotations

import os
import time
from typing import Final

from workflow.bench.training.stop_signals import EXIT_RESUMABLE
from workflow.cluster import pbs
from workflow.cluster.chains import NOTHING, Chain

#: A refused submission is tried again after so many seconds.
_PAUSE: Final = float(os.environ.get("MKOR_SUBMIT_PAUSE", "60"))
#: How often a submission is tried that is refused for an unknown reason.
_TRIES: Final = 5
#: A job that the scheduler does not know is given up after so many questions in a row.
_MISSES: Final = 5
#: So many slices in a row that bring nothing forward end a chain.
_STALLS: Final = 2


def advance(chain: Chain) -> list[str]:
    """Bring a chain up to what the scheduler says, save it, and return what a user should hear.

    Afterwards ``chain.state`` is ``open`` while there is more to wait for, else ``done`` or ``failed``.
    """
    if chain.state != "open":
        return []
    if chain.is_cancelled:
        return _fail(chain, "it was cancelled")
    said = _submit(chain) if chain.last.job is None else _watch(chain)
    chain.save()
    return said


def _submit(chain: Chain) -> list[str]:
    """Submit the last slice, unless it was refused a moment ago."""
    part = chain.last
    if 0 <= time.time() - part.tried < _PAUSE:
        return []
    try:
        # A slice that was tried before may have been taken without our being told: the answer was lost, or this
        # program was killed while it waited for it.
        known = pbs.find(chain.job_name()) if part.tried else None
        part.tried = time.time()
        chain.save()
        part.job = known or pbs.submit(_arguments(chain))
    except pbs.Refused as problem:
        part.refusals += problem.when == "unknown"
        if problem.when == "never" or part.refusals >= _TRIES:
            return _fail(chain, f"the scheduler refuses it: {problem}")
        return [f"{chain.id}: not taken yet, will be tried again: {problem}"]
    part.submitted = time.time()
    size = f"{chain.nodes} nodes, {pbs.walltime(chain.minutes)}, queue {chain.queue}"
    return [f"{chain.id}: slice {part.number} is job {part.job} ({size}); output: {chain.output_of(part.number)}"]


def _arguments(chain: Chain) -> list[str]:
    """Return what qsub is given for the last slice."""
    number = chain.last.number
    folder = chain.folder.absolute()
    return [
        *("-N", chain.job_name(), "-q", chain.queue, *chain.options),
        *("-l", f"walltime={pbs.walltime(chain.minutes)}", "-r", "y", "-j", "oe", "-o", str(folder / f"{number}.log")),
        *("-v", f"MKOR_CHAIN={folder},MKOR_SLICE={number}"),
        chain.script,
    ]


def _watch(chain: Chain) -> list[str]:
    """Look at the last slice's job, and decide what follows where it has ended."""
    part = chain.last
    assert part.job is not None
    code = chain.exit_code()
    if code == 0:
        return _ended(chain, code, "")
    # Of a job that failed, the scheduler knows whether it was killed, and why.
    job = pbs.state(part.job)
    part.misses = part.misses + 1 if job.kind == "unknown" else 0
    if job.kind == "unknown":
        if code is not None:  # the history is short, and the job told its code itself
            return _ended(chain, code, "")
        if part.misses < _MISSES:
            return []
        pbs.delete(part.job)
        return _fail(chain, f"job {part.job} has vanished: the scheduler knows it no more ({job.comment})")
    if job.kind == "held":
        pbs.delete(part.job)
        return _fail(chain, f"job {part.job} was put on hold, and is deleted now: {job.comment}")
    if job.kind != "ended":
        return []
    if job.exit_status is None:
        return _fail(chain, f"job {part.job} was deleted before it began: {job.comment or 'no comment'}")
    if job.out_of_time:
        return _ended(chain, EXIT_RESUMABLE, job.comment)
    if not 0 <= job.exit_status <= 128:  # whoever deletes a job wants no next one, even if it saved its work
        why = f"Exit_status {job.exit_status}, {job.comment or 'no comment'}"
        return _fail(chain, f"job {part.job} was killed, and not for its time limit: {why}")
    code = chain.exit_code()  # it may have come meanwhile
    return _ended(chain, job.exit_status if code is None else code, job.comment)


def _ended(chain: Chain, code: int, comment: str) -> list[str]:
    """Say what follows a slice that ended with ``code``."""
    part = chain.last
    if code == 0:
        chain.state = "done"
        return []
    if code != EXIT_RESUMABLE:
        return _fail(chain, f"job {part.job} failed with exit code {code}{f' ({comment})' if comment else ''}")
    chain.stalls = 0 if _moved(chain) else chain.stalls + 1
    if chain.stalls >= _STALLS:
        return _fail(chain, f"{chain.stalls} slices in a row brought nothing forward; give it more minutes")
    chain.begin_slice()
    chain.save()
    return [f"{chain.id}: slice {part.number} saved its work and ended", *_submit(chain)]


def _moved(chain: Chain) -> bool:
    """Tell whether a run went on in the last slice.

    Where the slice wrote a record, its steps and status tell; a slice that was killed may have left no more than a
    newer checkpoint.
    """
    for run, now in chain.progress().items():
        before = chain.last.before.get(run, NOTHING)
        if now["recorded"] == before["recorded"]:
            if now["saved"] != before["saved"]:
                return True
        elif now["steps"] > before["steps"] or now["status"] not in (before["status"], "interrupted"):
            return True
    return False


def _fail(chain: Chain, reason: str) -> list[str]:
    chain.state, chain.reason = "failed", reason
    last = chain.output_of(chain.last.number)
    chain.save()
    return [f"{chain.id}: {reason}" + (f"; see {last}" if last.exists() else "")]
