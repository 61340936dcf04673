"""Deletes the jobs of chains that the profile's cancel script has marked as cancelled."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Final

from workflow.cluster import pbs
from workflow.cluster.chains import held, load

_TRIES: Final = 5
_PAUSE_SECONDS: Final = 10


def main(arguments: list[str] | None = None) -> int:
    """Delete the current jobs of the named chains; return 1 if the scheduler did not accept all requests."""
    jobs = []
    for chain_id in sys.argv[1:] if arguments is None else arguments:
        with held(chain_id):
            chain = load(chain_id)
        # If Snakemake was started again meanwhile, it may have begun the chain anew, which removes the mark.
        if chain is not None and chain.is_cancelled and chain.state != "done":
            job = chain.last.job
            if job is None and chain.last.tried:
                # A slice whose submission is not confirmed may have reached the scheduler all the same.
                with suppress(pbs.Refused):
                    job = pbs.find(chain.job_name())
            jobs += [job] if job else []
    for attempt in range(_TRIES):
        jobs = [job for job in jobs if not pbs.delete(job)]
        if not jobs:
            return 0
        if attempt < _TRIES - 1:
            time.sleep(_PAUSE_SECONDS)
    return 1


if __name__ == "__main__":
    sys.exit(main())
