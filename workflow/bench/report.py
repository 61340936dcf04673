"""Write the front page of the report: every claim with its verdict, and links to every figure and table.

It reads the files of the artefacts, and writes reStructuredText for Snakemake's report.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from workflow.bench.claims.verdicts import Verdict
from workflow.bench.plan.artefacts import Kind, available, describe
from workflow.bench.results.rows import read_csv
from workflow.bench.results.sources import files_in
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ROOT, shown_path
from workflow.bench.support.files import write_atomically
from workflow.bench.support.templates import render

_INTRODUCTION: Final = ROOT / "workflow" / "report" / "workflow.rst"
_SUFFIXES: Final[Mapping[Kind, str]] = {"figures": "png", "tables": "html"}
"""The format of each kind of artefact that the report opens."""

_BRACES: Final = str.maketrans({"{": "&#123;", "}": "&#125;"})
"""Braces as HTML entities."""


@dataclass(frozen=True)
class Shown:
    """An artefact that the report links to."""

    kind: Kind
    name: str

    @property
    def file(self) -> str:
        """The file that the report opens, such as ``figures/fig13_update_rules.png``."""
        return f"{self.kind}/{self.name}.{_SUFFIXES[self.kind]}"

    @property
    def title(self) -> str:
        """The name in words, such as ``fig13: update rules``."""
        first, _, rest = self.name.partition("_")
        is_numbered = first.rstrip("0123456789") in ("fig", "table") and first[-1].isdigit()
        return f"{first}: {rest.replace('_', ' ')}" if is_numbered and rest else self.name.replace("_", " ")

    @property
    def number(self) -> str:
        """The title's first part, such as ``fig13``."""
        return self.title.partition(":")[0]

    def reads(self) -> set[str]:
        """Return the files that it is made from, relative to the results."""
        artefact = describe(self.kind, self.name)
        tables = {f"{experiment}{suffix}" for experiment in artefact.experiments for suffix in (".csv", ".runs.csv")}
        return tables | {f"probes/{probe}.csv" for probe in artefact.probes}


def front_page(results: Path, tier_title: str) -> tuple[str, str]:
    """Return the front page of a folder ``results/<hardware>/<tier>`` as reStructuredText, and its counts as YAML."""
    shown = [
        Shown(kind, name)
        for kind in _SUFFIXES
        for name in available(kind)
        if (results / kind / f"{name}.rst").is_file()
    ]
    by_heading = {kind.title(): [artefact for artefact in shown if artefact.kind == kind] for kind in _SUFFIXES}
    runs = [row for file in sorted(results.glob("*.runs.csv")) for row in read_csv(file)]
    has_claims = Shown("tables", "claims") in shown
    claims = read_csv(results / "tables" / "claims.csv") if has_claims else []
    page = render(
        "front.html.j2",
        facts=_facts(results, tier_title, runs),
        claims=claims,
        verdicts=_counted_verdicts(claims),
        shown_in=_shown_in(claims, shown),
        shown=by_heading,
    )
    # Snakemake renders the page with Jinja as well. Without braces it finds no template in titles and claims.
    block = textwrap.indent(page.translate(_BRACES), "   ")
    introduction = _INTRODUCTION.read_text(encoding="utf-8")
    counts = {heading: len(artefacts) for heading, artefacts in by_heading.items()}
    counts["Runs"] = len({row["run"] for row in runs})
    return (
        f"{introduction}\n.. raw:: html\n\n{block}\n",
        "".join(f"{name}: {count}\n" for name, count in counts.items()),
    )


def _facts(results: Path, tier_title: str, runs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the first table of the page: what was run, where, with which code."""
    by_id = {row["run"]: row for row in runs}  # experiments may share a run
    statuses = Counter(row["status"].replace("_", " ") for row in by_id.values())
    commits = sorted({row["git_commit"][:9] for row in by_id.values() if row["git_commit"]})
    return {
        "Tier": tier_title,
        "Hardware": results.resolve().parent.name,
        "Commit": ", ".join(commits) or "no run",
        "Runs": ", ".join(f"{number} {status}" for status, number in statuses.most_common()) or "none",
        "Seeds": ", ".join(sorted({row["seed"] for row in by_id.values()}, key=int)) or "none",
    }


def _counted_verdicts(claims: Iterable[Mapping[str, str]]) -> str:
    counts = Counter(claim["verdict"] for claim in claims)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict) if counts[verdict])


def _shown_in(claims: Iterable[Mapping[str, str]], shown: Iterable[Shown]) -> dict[str, list[Shown]]:
    """Return for each claim the artefacts that read one of the files its row names as data."""
    reads = {artefact: artefact.reads() for artefact in shown if artefact.name != "claims"}
    named = {claim["id"]: files_in(claim["data"]) for claim in claims}
    return {
        claim: sorted((artefact for artefact in reads if reads[artefact] & files), key=lambda artefact: artefact.file)
        for claim, files in named.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write report/front.rst and report/counts.yaml, the beginning of Snakemake's report."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.report", description=main.__doc__)
    parser.add_argument("--results", type=Path, required=True, help="folder of one machine and tier")
    parser.add_argument("--tier-title", required=True, help="the tier's name on the page")

    def work(options: argparse.Namespace) -> None:
        page, counts = front_page(options.results, options.tier_title)
        for name, content in (("front.rst", page), ("counts.yaml", counts)):
            write_atomically(options.results / "report" / name, content)
            print(shown_path(options.results / "report" / name))

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
