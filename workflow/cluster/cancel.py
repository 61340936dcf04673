"""Deletes the jobs of chains that the profile's cancel script has marked as cancelled."""

from __future__ import annotations

import sys
import time

from workflow.cluster import pbs
from workflow.cluster.chains import held, load

_TRIES = 5
_PAUSE_SECONDS = 10


def main(arguments: list[str] | None = None) -> int:
    """Delete the present jobs of the chains named; return 1 where the scheduler did not take that."""
    waiting = []
    for name in sys.argv[1:] if arguments is None else arguments:
        with held(name):
            chain = load(name)
        # Called again meanwhile, Snakemake may have begun the chain anew: its mark is gone then.
        if chain is not None and chain.is_cancelled and chain.state != "done":
            # A slice whose submission is not confirmed may be at the scheduler all the same.
            job = chain.last.job or (_find(chain.job_name()) if chain.last.tried else None)
            waiting += [job] if job else []
    for attempt in range(_TRIES):
        waiting = [job for job in waiting if not pbs.delete(job)]
        if not waiting:
            return 0
        if attempt < _TRIES - 1:
            time.sleep(_PAUSE_SECONDS)
    return 1


def _find(name: str) -> str | None:
    try:
        return pbs.find(name)
    except pbs.Refused:
        return None


if __name__ == "__main__":
    sys.exit(main())
