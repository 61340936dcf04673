"""Tells Snakemake how a chain of jobs is doing, and submits its next slice where one is due."""

from __future__ import annotations

import sys

from workflow.cluster import slices
from workflow.cluster.chains import LEDGER, held, load

_WORDS = {"open": "running", "done": "success", "failed": "failed"}


def main(arguments: list[str] | None = None) -> int:
    """Print ``running``, ``success`` or ``failed``, and on stderr what a user should hear.

    Ends with code 0 always: Snakemake gives up a whole workflow, and leaves its jobs behind, on any other.
    """
    name = (sys.argv[1:] if arguments is None else arguments)[0]
    try:
        print(_WORDS[_state(name)])
    except OSError as problem:  # a full disk or a lost file system: the job may well be fine
        print(f"{name}: cannot be looked at now: {problem}", file=sys.stderr)
        print(_WORDS["open"])
    return 0


def _state(name: str) -> str:
    if not (LEDGER / name).is_dir():
        print(f"{name}: there is no folder {LEDGER / name} any more; its jobs cannot be followed", file=sys.stderr)
        return "failed"
    with held(name):
        chain = load(name)
        if chain is None:
            print(f"{name}: {LEDGER / name / 'chain.json'} is gone or damaged", file=sys.stderr)
            return "failed"
        for line in slices.advance(chain):
            print(line, file=sys.stderr)
        return chain.state


if __name__ == "__main__":
    sys.exit(main())
