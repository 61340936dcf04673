"""``python -m workflow.bench.compare [FOLDER ...]``: compare this machine with others, from the files they have now."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from workflow.bench.make_artefact import make
from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.artefacts import Kind
from workflow.bench.results.tables import NoDataError, Results
from workflow.bench.support.command_line import FAILURES, run_command
from workflow.bench.support.config import shown_path

ARTEFACTS: Final[tuple[tuple[Kind, str], ...]] = (("figures", "fig16_hardware"), ("tables", "hardware"))


def compare(plan: Plan, folder: Path) -> list[Path]:
    """Make the figure and the table that compare hardware in ``folder``, and return their files.

    Raises:
        NoDataError: no machine has results to compare.
        OSError: a file cannot be written.
    """
    results = Results(plan.results, plan.tier.title, plan.compared, look=plan.rounds.look, looks=plan.tier.looks)
    return [path for kind, name in ARTEFACTS for path in make(kind, name, results, folder)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare this machine with the given folders and results/reference, all at one tier."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.compare", description=main.__doc__)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="results/<hardware>/<tier> of another machine")
    parser.add_argument("--out-dir", type=Path, help="where to write (default: compare/ in this machine's folder)")
    add_arguments(parser)

    def work(options: argparse.Namespace) -> None:
        plan = load_from(options, compare=options.folders)
        for path in compare(plan, options.out_dir or plan.results / "compare"):
            print(shown_path(path))

    return run_command(parser, work, arguments, failures=(*FAILURES, NoDataError))


if __name__ == "__main__":
    sys.exit(main())
