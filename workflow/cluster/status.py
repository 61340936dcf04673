"""Reports the state of a chain of jobs to Snakemake, and submits its next slice when one is due."""

from __future__ import annotations

import sys
from typing import Final

from workflow.cluster import slices
from workflow.cluster.chains import LEDGER, held, load

_SNAKEMAKE_WORDS: Final = {"open": "running", "done": "success", "failed": "failed"}


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
        for line in slices.advance(chain):
            print(line, file=sys.stderr)
        return chain.state


if __name__ == "__main__":
    sys.exit(main())
