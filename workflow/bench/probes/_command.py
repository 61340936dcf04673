"""The command line that all probes share: choose a plan, measure on its device, write the rows as CSV."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from workflow.bench.plan import add_arguments, load_from
from workflow.bench.probes._optimizers import BASE, check_labels
from workflow.bench.probes._rows import write_rows
from workflow.bench.support.command_line import refuse_unwritable, run_command
from workflow.bench.support.config import ConfigError
from workflow.bench.support.cost_line import print_cost


def run(
    name: str,
    measure: Callable[..., Iterable[NamedTuple]],
    arguments: Sequence[str] | None = None,
    *,
    uses_gpu: bool = True,
    optimizers: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> int:
    """Measure on the chosen plan's tier and write the rows as CSV; return the exit status.

    Args:
        name: the probe's module.
        measure: called as ``measure(plan)``, or as ``measure(plan, labels)`` if the probe has ``optimizers``.
        arguments: the command line; ``sys.argv`` by default.
        uses_gpu: whether the probe computes on the tier's device. A probe that does not runs on any machine.
        columns: the columns of the rows, of a probe that may have none to write.
        optimizers: labels that are measured by default. The option ``--optimizers`` replaces them.
    """
    parser = argparse.ArgumentParser(prog=f"python -m workflow.bench.probes.{name}")
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    add_arguments(parser)
    if optimizers:
        parser.add_argument(
            "--optimizers",
            nargs="+",
            metavar="LABEL",
            default=list(optimizers),
            help=f"'{BASE}' for each model's first-order optimizer, names of files in baselines/, or variants "
            f"(default: {' '.join(optimizers)})",
        )

    def work(options: argparse.Namespace) -> None:
        refuse_unwritable("--out", options.out)
        plan = load_from(options)
        labels = (check_labels(options.optimizers),) if optimizers else ()
        if uses_gpu and plan.tier.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"tier = '{plan.tier.name}': its probes need a GPU, but PyTorch finds none")
        torch.set_num_threads(plan.tier.threads)
        write_rows(options.out, measure(plan, *labels), columns)
        print_cost()

    return run_command(parser, work, arguments)
