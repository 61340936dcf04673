"""Submits the script of a Snakemake job as the first slice of a chain, or finds its chain if it has one."""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import sys
from pathlib import Path
from typing import Any, Final

from workflow.bench.support.names import name_rule, portable_rule
from workflow.cluster import pbs, status
from workflow.cluster.chains import Chain, held, id_of, load

ACCOUNT: Final = "MKOR_ACCOUNT"
"""The environment variable that names the allocation to be charged."""
PASSED_PREFIX: Final = "MKOR_"
"""Variables with this prefix are passed from the submitting shell to the job's; the scheduler passes none."""


class SubmitError(Exception):
    """A job cannot be submitted; the message says why, and what to do."""


def main(arguments: list[str] | None = None) -> int:
    """Submit a job script of Snakemake and print the id of its chain, whose status Snakemake then asks for."""
    parser = argparse.ArgumentParser(prog="python -m workflow.cluster.submit", description=main.__doc__)
    parser.add_argument("--script", type=Path, required=True, help="the profile's job script")
    parser.add_argument("--select", default="", help="resources of every chunk of nodes, such as system=polaris")
    parser.add_argument("--option", action="append", default=[], help="another resource, such as place=scatter")
    parser.add_argument("job", type=Path, help="the script that Snakemake wrote")
    given = parser.parse_args(arguments)
    try:
        chain, messages = submit(given.job, given.script, given.select, given.option)
    except (SubmitError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    for line in messages:
        print(line, file=sys.stderr)
    if chain.state == "failed":
        return 1
    print(chain.id)
    return 0


def account() -> str:
    """Return the allocation to be charged.

    Raises:
        SubmitError: none is named, or the name is not one of an allocation.
    """
    name = os.environ.get(ACCOUNT, "").strip()
    if not name:
        raise SubmitError(f"{ACCOUNT} is not set: export {ACCOUNT}=<the allocation that the jobs are charged to>")
    rule = name_rule("account", name)
    if rule:
        raise SubmitError(f"{ACCOUNT} = {name!r}: {rule}")
    return name


def submit(job: Path, script: Path, select: str, options: list[str]) -> tuple[Chain, list[str]]:
    """Return the chain for a job script of Snakemake, new or still open, and messages for the user.

    Raises:
        SubmitError: no account is named, the job does not state what it needs, or a name cannot be passed on.
    """
    text = job.read_text(encoding="utf-8")
    properties = _properties(job, text)
    charged = account()
    rule = portable_rule(str(Path.cwd()))
    if rule:
        raise SubmitError(f"the working folder, {str(Path.cwd())!r}, {rule}; work in another")
    environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED_PREFIX)}
    for name in environment:
        if not re.fullmatch(r"\w+", name, re.ASCII):
            raise SubmitError(f"the environment variable {name!r} cannot be passed on: a shell does not take its name")
    outputs = properties["output"] or []
    chain_id = id_of(properties["rule"], properties.get("wildcards", {}), outputs)
    with held(chain_id):
        chain = load(chain_id)
        # An open chain is continued, unless it ended well and its outputs were removed: that is work to do anew.
        lost = chain is not None and chain.exit_code() == 0 and not all(Path(file).exists() for file in outputs)
        if chain is not None and chain.state == "open" and not chain.is_cancelled and not lost:
            chain.write_scripts(text, environment)
            return chain, [f"{chain_id}: continues with job {chain.last.job or 'to be submitted'}, submitted before"]
        if chain is not None and chain.is_cancelled and chain.last.job:
            pbs.delete(chain.last.job)  # the cancel script may not have reached it yet
        needs = properties["resources"]
        chunk = f"select={needs['nodes']}:{select}" if select else f"select={needs['nodes']}"
        runs = properties.get("params", {}).get("runs", [])  # its output is <results>/<experiment>/<label>.csv
        chain = Chain(
            id=chain_id,
            outputs=outputs,
            runs=[str(Path(outputs[0]).parents[1] / "runs" / run) for run in runs],
            nodes=needs["nodes"],
            minutes=needs["minutes"],
            queue=needs["queue"],
            options=["-A", charged, *(part for option in (chunk, *options) for part in ("-l", option))],
            script=str(script.absolute()),
            mark=secrets.token_hex(2),
            slices=chain.slices[-1:] if chain else [],  # so that the numbers of slices, and of their logs, continue
        )
        (chain.folder / "cancelled").unlink(missing_ok=True)
        chain.write_scripts(text, environment)
        chain.begin_slice()
        return chain, status.advance(chain)


def _properties(job: Path, text: str) -> dict[str, Any]:
    """Return the properties of a job that Snakemake writes into its script as a comment.

    Raises:
        SubmitError: the script has none, is for a group of jobs, or lacks a resource.
    """
    lines = [line for line in text.splitlines() if line.startswith("# properties = ")]
    if not lines:
        raise SubmitError(f"{job}: not a script of Snakemake: it has no line '# properties = '")
    properties: dict[str, Any] = json.loads(lines[0].partition(" = ")[2])
    if properties["type"] != "single":
        raise SubmitError("groups of jobs cannot be submitted by this profile: call Snakemake without --groups")
    missing = [name for name in ("nodes", "minutes", "queue") if name not in properties["resources"]]
    if missing:
        raise SubmitError(
            f"rule {properties['rule']}: needs the resources {', '.join(missing)} to be submitted, or localrule"
        )
    return properties


if __name__ == "__main__":
    sys.exit(main())
