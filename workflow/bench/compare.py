"""``python -m workflow.bench.compare [FOLDER ...]``: this machine beside others, from what their folders hold now."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from workflow.bench.plan import Plan, add_arguments, load_from
from workflow.bench.plan.artefacts import Kind
from workflow.bench.results.tables import NoDataError, Results
from workflow.bench.support.config import ConfigError, shown_path

ARTEFACTS: Final[tuple[tuple[Kind, str], ...]] = (("figures", "fig16_hardware"), ("tables", "hardware"))


def compare(plan: Plan, folder: Path) -> list[Path]:
    """Make the figure and the table of hardware in ``folder``, and return their files; nothing is measured for it.

    Raises `NoDataError` where no machine has anything to compare, `OSError`.
    """
    results = Results(plan.results, plan.tier.title, plan.compared)
    made = [import_module(f"workflow.bench.{kind}.{name}").make(results, folder) for kind, name in ARTEFACTS]
    return [path for files in made for path in files]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare machines: the folders given, results/reference/*, and this machine's own, each at one tier."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.compare", description=main.__doc__)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="another machine's results/<hardware>/<tier>")
    parser.add_argument("--out-dir", type=Path, help="where to write, by default compare/ in this machine's folder")
    add_arguments(parser)
    given = parser.parse_args(arguments)
    try:
        plan = load_from(given, compare=given.folders)
        for path in compare(plan, given.out_dir or plan.results / "compare"):
            print(shown_path(path))
    except (ConfigError, NoDataError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
