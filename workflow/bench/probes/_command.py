"""The command line that all probes share: choose a plan, measure on its device, write the rows as CSV.

A file of rows also has the version of the code that measured them.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch

from baselines import available
from workflow.bench.plan import add_arguments, load_from
from workflow.bench.probes._models import BASE, VARIANTS
from workflow.bench.support import provenance
from workflow.bench.support.command_line import refuse_unwritable, run_command
from workflow.bench.support.config import ConfigError, did_you_mean
from workflow.bench.support.cost_line import print_cost
from workflow.bench.support.files import write_atomically
from workflow.bench.support.source_code import probe_fingerprint


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
    about = inspect.getdoc(inspect.getmodule(measure)) or ""
    parser = argparse.ArgumentParser(prog=f"python -m workflow.bench.probes.{name}", description=about.split("\n\n")[0])
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
        known = {BASE, *VARIANTS, *available()}
        labels = (options.optimizers,) if optimizers else ()
        for label in options.optimizers if optimizers else ():
            if label not in known:
                raise ConfigError(f"optimizer = '{label}': unknown; {did_you_mean(label, known)}")
        if uses_gpu and plan.tier.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"tier = '{plan.tier.name}': its probes need a GPU, but PyTorch finds none")
        # All measurements of a tier have the same threads, whatever OMP_NUM_THREADS says here.
        torch.set_num_threads(plan.tier.threads)
        write_rows(options.out, measure(plan, *labels), f"{__package__}.{name}", columns)
        print_cost()

    return run_command(parser, work, arguments)


def write_rows(out: Path, rows: Iterable[NamedTuple], module: str, columns: Sequence[str] = ()) -> None:
    """Write rows of one type atomically, as a `table_of` them."""
    write_atomically(out, table_of(rows, module, columns).to_csv(index=False))


def table_of(rows: Iterable[NamedTuple], module: str, columns: Sequence[str] = ()) -> pd.DataFrame:
    """Return rows of one type as a table, with the columns ``code_fingerprint`` and ``git_commit``.

    Args:
        rows: measured while they are read, if they are a generator.
        module: the dotted name of the module that measures them.
        columns: theirs, in case there is no row.
    """
    # Before the first row is measured: a file edited meanwhile is not the one that measures.
    code, (commit, _) = probe_fingerprint(module), provenance.git_state()
    return pd.DataFrame(rows, columns=list(columns) or None).assign(code_fingerprint=code, git_commit=commit)
