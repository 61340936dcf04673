"""The life of a chain: each slice is submitted, watched, and followed by the next, until the work is done.

Snakemake asks for a chain's state once a minute; the next slice is submitted when one is due.

``_submit`` -> ``_watch``, once a minute -> ``_finish`` with the exit code of the job: 0 ends the chain as done,
`EXIT_RESUMABLE` (saved, more to do) begins the next slice, and any other code ends it as failed.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Final

from workflow.bench.training.stop_signals import EXIT_RESUMABLE
from workflow.cluster import pbs
from workflow.cluster.chains import LEDGER, NO_PROGRESS, Chain, held, load

_RETRY_SECONDS: Final = float(os.environ.get("MKOR_SUBMIT_PAUSE", "60"))
"""Seconds until a refused submission is tried again."""
_MOST_REFUSALS: Final = 5
"""Submissions refused for an unknown reason before the chain fails."""
_MOST_MISSES: Final = 5
"""Times in a row that the scheduler may not know a job before the chain fails."""
_MOST_STALLS: Final = 2
"""Slices in a row without progress before the chain fails."""
_SNAKEMAKE_WORDS: Final = {"open": "running", "done": "success", "failed": "failed"}


def advance(chain: Chain) -> list[str]:
    """Bring a chain up to date with the scheduler, save it, and return messages for the user.

    Afterwards ``chain.state`` is ``open`` while there is more to wait for, and then ``done`` or ``failed``.
    """
    if chain.state != "open":
        return []
    if chain.is_cancelled:
        return _fail(chain, "it was cancelled")
    messages = _submit(chain) if chain.last.job is None else _watch(chain)
    chain.save()
    return messages


def _submit(chain: Chain) -> list[str]:
    """Submit the last slice, unless the last attempt was refused a moment ago."""
    part, walltime = chain.last, pbs.walltime(chain.minutes)
    if 0 <= time.time() - part.tried < _RETRY_SECONDS:
        return []
    try:
        # The scheduler may have accepted an earlier attempt without this program knowing: the answer was lost, or the
        # program was killed while it waited for it.
        known = pbs.find(chain.job_name()) if part.tried else None
        part.tried = time.time()
        chain.save()
        folder = chain.folder.absolute()
        part.job = known or pbs.submit(
            [
                *("-N", chain.job_name(), "-q", chain.queue, *chain.options, "-l", f"walltime={walltime}", "-r", "y"),
                *("-j", "oe", "-o", str(folder / f"{part.number}.log")),
                *("-v", f"MKOR_CHAIN={folder},MKOR_SLICE={part.number}", chain.script),
            ]
        )
    except pbs.Refused as problem:
        part.refusals += problem.when == "unknown"
        if problem.when == "never" or part.refusals >= _MOST_REFUSALS:
            return _fail(chain, f"the scheduler refuses it: {problem}")
        return [f"{chain.id}: refused for now, will be tried again: {problem}"]
    part.submitted = time.time()
    size = f"{chain.nodes} nodes, {walltime}, queue {chain.queue}"
    return [f"{chain.id}: slice {part.number} is job {part.job} ({size}); output: {chain.output_of(part.number)}"]


def _watch(chain: Chain) -> list[str]:
    """Check the last slice's job, and decide what follows if it has ended."""
    part = chain.last
    assert part.job is not None
    code = chain.exit_code()
    if code == 0:
        return _finish(chain, code, "")
    # For any other code, only the scheduler knows whether the job was killed, and why.
    job = pbs.state(part.job)
    part.misses = part.misses + 1 if job.kind == "unknown" else 0
    if job.kind == "unknown":
        return _miss(chain, code, job.comment)
    if job.kind == "held":
        pbs.delete(part.job)
        return _fail(chain, f"job {part.job} was put on hold, and has been deleted: {job.comment}")
    if job.kind != "ended":
        return []
    if job.exit_status is None:
        return _fail(chain, f"job {part.job} was deleted before it began: {job.comment or 'no comment'}")
    if job.out_of_time:
        return _finish(chain, EXIT_RESUMABLE, job.comment)
    if not 0 <= job.exit_status <= 128:  # a user who deletes a job wants no next one, even if it saved its work
        why = f"Exit_status {job.exit_status}, {job.comment or 'no comment'}"
        return _fail(chain, f"job {part.job} was killed, but not for its time limit: {why}")
    code = chain.exit_code()  # the file may have appeared since
    return _finish(chain, job.exit_status if code is None else code, job.comment)


def _miss(chain: Chain, code: int | None, comment: str) -> list[str]:
    """Decide what follows if the scheduler does not know the last slice's job."""
    part = chain.last
    assert part.job is not None
    if code is not None:  # the scheduler keeps a short history, and the job left its exit code
        return _finish(chain, code, "")
    if part.misses < _MOST_MISSES:
        return []
    pbs.delete(part.job)
    return _fail(chain, f"job {part.job} has vanished: the scheduler no longer knows it ({comment})")


def _finish(chain: Chain, code: int, comment: str) -> list[str]:
    """Decide what follows a slice that ended with ``code``."""
    part = chain.last
    if code == 0:
        chain.state = "done"
        return []
    if code != EXIT_RESUMABLE:
        return _fail(chain, f"job {part.job} failed with exit code {code}{f' ({comment})' if comment else ''}")
    chain.stalls = 0 if _has_moved(chain) else chain.stalls + 1
    if chain.stalls >= _MOST_STALLS:
        return _fail(chain, f"{chain.stalls} slices in a row made no progress; give it more minutes")
    chain.begin_slice()
    chain.save()
    return [f"{chain.id}: slice {part.number} saved its work and ended", *_submit(chain)]


def _has_moved(chain: Chain) -> bool:
    """Return whether the last slice advanced any run.

    If the slice wrote a record, its steps and status decide. A slice that was killed may have left no more than a newer
    checkpoint.
    """
    for run, now in chain.progress().items():
        before = chain.last.before.get(run, NO_PROGRESS)
        if now["recorded"] == before["recorded"]:
            if now["saved"] != before["saved"]:
                return True
        elif now["steps"] > before["steps"] or now["status"] not in (before["status"], "interrupted"):
            return True
    return False


def _fail(chain: Chain, reason: str) -> list[str]:
    chain.state, chain.reason = "failed", reason
    output = chain.output_of(chain.last.number)
    chain.save()
    return [f"{chain.id}: {reason}" + (f"; see {output}" if output.exists() else "")]


def main(arguments: list[str] | None = None) -> int:
    """Print ``running``, ``success`` or ``failed`` to stdout, and messages for the user to stderr.

    The exit code is always 0: on any other, Snakemake stops the whole workflow and leaves its jobs behind.
    """
    chain_id = (sys.argv[1:] if arguments is None else arguments)[0]
    try:
        print(_SNAKEMAKE_WORDS[_state(chain_id)])
    except OSError as problem:  # a full disk or a lost file system: the job itself may be fine
        print(f"{chain_id}: its state cannot be read now: {problem}", file=sys.stderr)
        print(_SNAKEMAKE_WORDS["open"])
    return 0


def _state(chain_id: str) -> str:
    folder = LEDGER / chain_id
    if not folder.is_dir():
        print(f"{chain_id}: the folder {folder} is gone; its jobs cannot be followed", file=sys.stderr)
        return "failed"
    with held(chain_id):
        chain = load(chain_id)
        if chain is None:
            print(f"{chain_id}: {folder / 'chain.json'} is missing or damaged", file=sys.stderr)
            return "failed"
        for line in advance(chain):
            print(line, file=sys.stderr)
        return chain.state


if __name__ == "__main__":
    sys.exit(main())
