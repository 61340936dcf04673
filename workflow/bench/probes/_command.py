"""The command line that the probes of a tier share: choose a plan, measure on its device, write the rows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.probes._rows import write_rows
from workflow.bench.support.config import ConfigError


def run(name: str, measure: Callable[[Plan], Iterable[NamedTuple]], arguments: Sequence[str] | None = None) -> int:
    """Measure what the chosen plan's tier asks for and write it as CSV; return the exit status.

    name: the probe's module. The process computes with the tier's number of threads.
    """
    parser = argparse.ArgumentParser(prog=f"python -m workflow.bench.probes.{name}")
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    add_arguments(parser)
    given = parser.parse_args(arguments)
    try:
        plan = load_from(given)
        if plan.tier.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"tier = '{plan.tier.name}': its probes need a GPU, and PyTorch finds none here")
        torch.set_num_threads(plan.tier.threads)
        write_rows(given.out, measure(plan))
    except (ConfigError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0
