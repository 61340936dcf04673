"""Write the first page of Snakemake's report, which says what was run, where, and with which code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from workflow.bench.analysis.captions import as_rst, from_rst
from workflow.bench.results.verification import refuse_links_in
from workflow.bench.site.content import Content
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ROOT, shown_path
from workflow.bench.support.errors import DamagedFileError
from workflow.bench.support.files import write_atomically
from workflow.bench.support.reading import read_text


def front_page(results: Path, tier_title: str) -> str:
    """Return the page of a folder ``results/<hardware>/<tier>`` as reStructuredText."""
    introduction = (ROOT / "workflow" / "report" / "workflow.rst").read_text(encoding="utf-8")
    fields = "".join(f":{name}: {as_rst(fact)}" for name, fact in Content(results, tier_title).facts.items())
    return f"{introduction}\n.. class:: front\n\n{fields}"


def refuse_markup(results: Path) -> None:
    """Raise `DamagedFileError` on the first caption that is not one line of text as `as_rst` writes it.

    Snakemake has directives of its own that insert files, which no setting of docutils turns off.
    """
    for file in sorted(file for kind in ("figures", "tables") for file in (results / kind).glob("*.rst")):
        text = read_text(file)
        if as_rst(from_rst(text)) != text:
            raise DamagedFileError(f"{shown_path(file)}: damaged: not a caption of this code; delete it and run again")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write report/front.rst, the beginning of Snakemake's report."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.snakemake_report", description=main.__doc__)
    parser.add_argument("--results", type=Path, required=True, help="folder of one machine and tier")
    parser.add_argument("--tier-title", required=True, help="the tier's name on the page")

    def work(options: argparse.Namespace) -> None:
        refuse_links_in(options.results)  # the report holds its figures and tables
        refuse_markup(options.results)
        file = options.results / "report" / "front.rst"
        write_atomically(file, front_page(options.results, options.tier_title))
        print(shown_path(file))

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
