"""Write the site of a results folder, report.html, from the files of its figures and tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from workflow.bench.results.tables import NoDataError
from workflow.bench.results.verification import refuse_links_in
from workflow.bench.site.content import Content
from workflow.bench.site.machines import gather
from workflow.bench.site.page import page
from workflow.bench.support.command_line import FAILURES, run_command
from workflow.bench.support.config import shown_path
from workflow.bench.support.files import write_atomically


def main(arguments: Sequence[str] | None = None) -> int:
    """Write report.html, one page that opens offline: claims, figures, tables, machines and runs."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.report", description=main.__doc__)
    parser.add_argument("--results", type=Path, required=True, help="folder of one machine and tier")
    parser.add_argument("--tier-title", required=True, help="the tier's name on the page")
    parser.add_argument(
        "--compare", type=Path, nargs="*", default=[], metavar="FOLDER", help="folders of other machines at the tier"
    )

    def work(options: argparse.Namespace) -> None:
        refuse_links_in(options.results)  # the page holds its figures
        content = Content(options.results, options.tier_title, gather(options.results, options.compare))
        file = options.results / "report.html"
        write_atomically(file, page(content))
        print(shown_path(file))

    return run_command(parser, work, arguments, failures=(*FAILURES, NoDataError))


if __name__ == "__main__":
    sys.exit(main())
