"""The command that makes one figure or table: ``python -m workflow.bench.figures NAME``, ``... tables NAME``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from workflow.bench.artefacts import Kind, available, describe
from workflow.bench.results import NoDataError, Results


def make(kind: Kind, name: str, results: Results, folder: Path) -> list[Path]:
    """Make one artefact in ``folder``, and return its files.

    A figure of experiments whose runs were all skipped, since their data are absent, says so and is no failure.
    Raises `NoDataError` where there is nothing else to make it from, `OSError`.
    """
    module = import_module(f"workflow.bench.{kind}.{name}")
    try:
        made: list[Path] = module.make(results, folder)
    except NoDataError:
        runs = results.skipped(describe(kind, name).experiments)
        if kind != "figures" or runs is None:
            raise
        from workflow.bench.figures._blank import draw

        made = draw(results, folder, name, runs)
    return made


def main(kind: Kind, arguments: list[str] | None = None) -> int:
    """Make one artefact of a kind; 1 and one line where there is nothing to make it from."""
    parser = argparse.ArgumentParser(
        prog=f"python -m workflow.bench.{kind}", description=f"Make one of the {kind} from the results' CSVs."
    )
    parser.add_argument("name", choices=available(kind), metavar="NAME", help=", ".join(available(kind)))
    parser.add_argument(
        "--results",
        type=Path,
        required=True,
        help="folder of one machine and tier: results/<hardware>/<tier>",
    )
    parser.add_argument("--out-dir", type=Path, help=f"where to write, by default <results>/{kind}")
    parser.add_argument("--tier-title", help="what the caption says of the tier")
    parser.add_argument(
        "--compare",
        type=Path,
        nargs="*",
        default=[],
        metavar="FOLDER",
        help="other machines' folders <hardware>/<tier>, for what compares hardware",
    )
    options = parser.parse_args(arguments)
    results = Results(options.results, options.tier_title, tuple(options.compare))
    folder = options.out_dir or options.results / kind
    try:
        for path in make(kind, options.name, results, folder):
            print(path)
    except (NoDataError, OSError) as error:
        print(f"{options.name}: {error}", file=sys.stderr)
        return 1
    return 0
