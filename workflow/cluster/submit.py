"""Submits the script of a Snakemake job as the first slice of a chain, or finds the chain that already makes it."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any, Final

from workflow.cluster import pbs, slices
from workflow.cluster.chains import Chain, held, id_of, load

#: The variable that names the allocation to be charged.
ACCOUNT: Final = "MKOR_ACCOUNT"
#: What the job's shell gets of the submitting one's variables, which the scheduler does not hand on.
HANDED_ON: Final = "MKOR_"


class SubmitError(Exception):
    """A job cannot be submitted; the message says why, and what would do."""


def main(arguments: list[str] | None = None) -> int:
    """Submit a job script of Snakemake's and print the id of its chain, which Snakemake asks about from then on."""
    parser = argparse.ArgumentParser(prog="python -m workflow.cluster.submit", description=main.__doc__)
    parser.add_argument("--script", type=Path, required=True, help="the profile's job script")
    parser.add_argument("--select", default="", help="what every chunk of nodes is asked for, as in system=polaris")
    parser.add_argument("--option", action="append", default=[], help="another resource, as in place=scatter")
    parser.add_argument("job", type=Path, help="the script that Snakemake wrote")
    given = parser.parse_args(arguments)
    try:
        chain, said = submit(given.job, given.script, given.select, given.option)
    except (SubmitError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    for line in said:
        print(line, file=sys.stderr)
    if chain.state == "failed":
        return 1
    print(chain.id)
    return 0


def account() -> str:
    """Return the allocation to be charged.  Raises `SubmitError` where none is named."""
    named = os.environ.get(ACCOUNT, "").strip()
    if not named:
        raise SubmitError(f"{ACCOUNT} is not set: export {ACCOUNT}=<the allocation that the jobs are charged to>")
    return named


def submit(job: Path, script: Path, select: str, options: list[str]) -> tuple[Chain, list[str]]:
    """Return the chain for a job script of Snakemake's, new or still open, and what a user should hear.

    Raises `SubmitError` where no account is named, or the job does not say what it needs.
    """
    text = job.read_text(encoding="utf-8")
    about = _properties(job, text)
    charged = account()
    if "," in str(Path.cwd()):
        raise SubmitError(f"{Path.cwd()}: qsub cannot hand on a folder with a comma in its name; work in another")
    environment = {name: value for name, value in os.environ.items() if name.startswith(HANDED_ON)}
    outputs = about["output"] or []
    name = id_of(about["rule"], about.get("wildcards", {}), outputs)
    with held(name):
        chain = load(name)
        # An orderly end with its outputs gone is work to be done anew; every other open chain is taken up.
        lost = chain is not None and chain.exit_code() == 0 and not all(Path(file).exists() for file in outputs)
        if chain is not None and chain.state == "open" and not chain.is_cancelled and not lost:
            chain.write_scripts(text, environment)
            return chain, [f"{name}: goes on with job {chain.last.job or 'to be submitted'}, submitted before"]
        if chain is not None and chain.is_cancelled and chain.last.job:
            pbs.delete(chain.last.job)  # the script that cancels may not have come to it yet
        needs = about["resources"]
        chain = Chain(
            id=name,
            outputs=outputs,
            runs=_run_folders(about),
            nodes=needs["nodes"],
            minutes=needs["minutes"],
            queue=needs["queue"],
            options=_options(charged, needs["nodes"], select, options),
            script=str(script.absolute()),
            mark=secrets.token_hex(2),
            slices=chain.slices[-1:] if chain else [],  # so that numbers, and with them logs, go on
        )
        (chain.folder / "cancelled").unlink(missing_ok=True)
        chain.write_scripts(text, environment)
        chain.begin_slice()
        return chain, slices.advance(chain)


def _properties(job: Path, text: str) -> dict[str, Any]:
    """Return what Snakemake says of a job in its script.  Raises `SubmitError`."""
    lines = [line for line in text.splitlines() if line.startswith("# properties = ")]
    if not lines:
        raise SubmitError(f"{job}: no script of Snakemake's: it has no line '# properties = '")
    about: dict[str, Any] = json.loads(lines[0].partition(" = ")[2])
    if about["type"] != "single":
        raise SubmitError("groups of jobs cannot be submitted by this profile: call Snakemake without --groups")
    missing = [name for name in ("nodes", "minutes", "queue") if name not in about["resources"]]
    if missing:
        raise SubmitError(
            f"rule {about['rule']}: needs the resources {', '.join(missing)} to be submitted, or localrule"
        )
    return about


def _options(account: str, nodes: int, select: str, options: list[str]) -> list[str]:
    chunk = f"select={nodes}:{select}" if select else f"select={nodes}"
    return ["-A", account, *(part for option in (chunk, *options) for part in ("-l", option))]


def _run_folders(about: dict[str, Any]) -> list[str]:
    """Return the folders of a training job's runs; its output is ``<results>/<experiment>/<label>.csv``."""
    results = Path(about["output"][0]).parents[1]
    return [str(results / "runs" / run) for run in about.get("params", {}).get("runs", [])]


if __name__ == "__main__":
    sys.exit(main())
