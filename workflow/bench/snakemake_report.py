"""Write the first page of Snakemake's report, which says what was run, where, and with which code."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from workflow.bench.site.facts import facts, runs_of
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ROOT, shown_path
from workflow.bench.support.files import write_atomically
from workflow.bench.support.templates import render

_INTRODUCTION: Final = ROOT / "workflow" / "report" / "workflow.rst"

_BRACES: Final = str.maketrans({"{": "&#123;", "}": "&#125;"})
"""Braces as HTML entities."""


def front_page(results: Path, tier_title: str) -> str:
    """Return the page of a folder ``results/<hardware>/<tier>`` as reStructuredText."""
    shown = facts(results, tier_title, runs_of(results))
    # Snakemake renders the page with Jinja as well. Without braces it finds no template in titles.
    block = textwrap.indent(render("front.html.j2", facts=shown).translate(_BRACES), "   ")
    return f"{_INTRODUCTION.read_text(encoding='utf-8')}\n.. raw:: html\n\n{block}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write report/front.rst, the beginning of Snakemake's report."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.snakemake_report", description=main.__doc__)
    parser.add_argument("--results", type=Path, required=True, help="folder of one machine and tier")
    parser.add_argument("--tier-title", required=True, help="the tier's name on the page")

    def work(options: argparse.Namespace) -> None:
        file = options.results / "report" / "front.rst"
        write_atomically(file, front_page(options.results, options.tier_title))
        print(shown_path(file))

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
