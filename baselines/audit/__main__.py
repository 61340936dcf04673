"""Audit an optimizer: ``python -m baselines.audit package.module:Class``.

It exits with 0 if no property failed, with 1 if one did, and with 2 if there is nothing to audit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

import torch

from baselines.audit import BadSubject, Subject, properties
from baselines.audit.facts import facts
from baselines.audit.report import FORMATS, Audit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m baselines.audit", description=__doc__.splitlines()[0])
    parser.add_argument("subject", help="package.module:Class, or the file name of one of the harness's optimizers")
    parser.add_argument("--hyperparameters", type=Path, metavar="FILE", help="a JSON or YAML file of arguments")
    parser.add_argument("--format", choices=FORMATS, default="text")
    parser.add_argument("--quick", action="store_true", help="leave out what starts processes or compiles")
    chosen = parser.parse_args(arguments)
    sys.path.insert(0, "")  # a class of the folder that the command is called in
    try:
        given = {} if chosen.hyperparameters is None else read(chosen.hyperparameters)
        audit = audit_of(Subject(chosen.subject, given), slow=not chosen.quick)
    except BadSubject as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(FORMATS[chosen.format](audit), end="")
    return int(audit.has_failed)


def audit_of(subject: Subject, *, slow: bool = True) -> Audit:
    """Return an optimizer's verdicts and facts."""
    verdicts = [(prop, prop.verdict(subject)) for prop in properties(slow=slow)]
    return Audit(subject, version_of(subject), verdicts, list(facts(subject)))


def version_of(subject: Subject) -> str:
    """Return the names and versions of torch and of the package that the optimizer comes from."""
    package = subject.target.partition(":")[0].partition(".")[0]
    names = packages_distributions().get(package, [package]) if subject.kind != "harness" else ["mkor-harness"]
    known = {"torch": str(torch.__version__)}
    for name in names:
        try:
            known.setdefault(name, version(name))
        except PackageNotFoundError:
            continue
    return ", ".join(f"{name} {number}" for name, number in known.items())


def read(path: Path) -> dict[str, Any]:
    """Return the hyperparameters of a JSON file, or of a YAML file if PyYAML is installed.

    Raises:
        BadSubject: the file cannot be read, or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix in (".yaml", ".yml"):
            import yaml

            found = yaml.safe_load(text)
        else:
            found = json.loads(text)
    except ModuleNotFoundError as error:
        raise BadSubject(f"{path}: reading YAML needs the package pyyaml; JSON needs none.") from error
    except (OSError, ValueError) as error:
        raise BadSubject(f"{path} cannot be read: {str(error).partition(chr(10))[0]}") from error
    except yaml.YAMLError as error:
        raise BadSubject(f"{path} is no YAML: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(found, dict):
        raise BadSubject(f"{path} must hold a mapping of hyperparameters, not {type(found).__name__}.")
    # JSON and YAML have no tuples.
    return {str(key): tuple(value) if isinstance(value, list) else value for key, value in found.items()}


if __name__ == "__main__":
    sys.exit(main())
