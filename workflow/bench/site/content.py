"""What the site shows, read from the files of a results folder: claims, figures, tables, machines and runs.

The description of a figure or table, ``workflow/report/<name>.rst``, begins with a title in bold, and two sentences on
what is shown and how to read it. Further paragraphs are for those who want to know more.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Final, get_args

from markupsafe import Markup

from workflow.bench.analysis.captions import from_rst
from workflow.bench.analysis.descriptions import Described, described
from workflow.bench.analysis.wording import integer_ranges
from workflow.bench.claims.decision import Verdict
from workflow.bench.plan import artefacts
from workflow.bench.plan.artefacts import Artefact, Kind, available
from workflow.bench.results.costs import ARTEFACTS
from workflow.bench.results.rows import read_csv
from workflow.bench.results.sources import NamedRows, files_in, read_sources
from workflow.bench.site.grids import RunGrid, grid
from workflow.bench.site.machines import MachineEntry
from workflow.bench.site.pictures import Line, lines
from workflow.bench.site.prose import inline
from workflow.bench.support.reading import read_text

CLAIMS: Final = "claims"
"""The table that the site shows as its first page, and not among the tables."""
_NUMBERED: Final = re.compile(r"(fig|table)0*(\d+)")


def describe(name: str) -> Described:
    """Return the description of a figure or table, with paragraphs in HTML.

    Raises:
        ConfigError: it does not begin with a title in bold.
    """
    text = described(name)
    if text is None:
        return Described(name, (Markup(),))
    title = re.sub(r"\((Figure|Table) (\d+)(, appendix)?\)", "(\\1\u00a0\\2\\3)", text.title)
    return Described(title, tuple(map(inline, text.paragraphs)))


@dataclass(frozen=True)
class Shown:
    """A figure or a table with its texts."""

    artefact: Artefact
    description: Described
    caption: str

    @property
    def name(self) -> str:
        """The name of its files, without suffix."""
        return self.artefact.name

    @property
    def kind(self) -> Kind:
        """``figures`` or ``tables``."""
        return self.artefact.kind

    @property
    def number(self) -> str:
        """What the paper or this project calls it, such as ``Figure 4``; its title if it has no number."""
        match = _NUMBERED.match(self.name)
        if match is None:
            return self.description.title
        appendix = ", appendix" if self.name.endswith("_appendix") else ""
        return f"{'Figure' if match[1] == 'fig' else 'Table'} {match[2]}{appendix}"

    @property
    def page(self) -> str:
        """The id of its page in the site."""
        return f"{'figure' if self.kind == 'figures' else 'table'}/{self.name}"

    def reads(self, experiments: Iterable[str]) -> set[str]:
        """Return the files that it is made from, relative to the results; ``experiments`` are those of the results."""
        named = experiments if self.artefact.experiments == ("*",) else self.artefact.experiments
        tables = {f"{experiment}{suffix}" for experiment in named for suffix in (".csv", ".runs.csv")}
        return tables | {f"probes/{probe}.csv" for probe in self.artefact.probes}


@dataclass(frozen=True)
class Claim:
    """A claim with its row of ``claims.csv``, its picture, and what its numbers come from."""

    row: Mapping[str, str]
    lines: tuple[Line, ...]
    shown_in: tuple[Shown, ...]
    """The figures and tables of the same data, the closest first."""
    sources: tuple[NamedRows, ...]
    reference: str
    """The verdict in the committed reference; empty if it has none."""

    @property
    def id(self) -> str:
        """Such as ``C01``."""
        return self.row["id"]

    @property
    def differs(self) -> bool:
        """Whether this machine's verdict is not that of the committed reference."""
        return bool(self.reference) and self.reference != self.row["verdict"]


@dataclass(frozen=True)
class Content:
    """A results folder, and the folders of other machines at the same tier."""

    results: Path
    tier_title: str
    machines: tuple[MachineEntry, ...] = ()
    """The machines with verdicts, this one first."""

    @cached_property
    def runs(self) -> list[dict[str, str]]:
        """The rows of all ``<experiment>.runs.csv``."""
        return [row for file in sorted(self.results.glob("*.runs.csv")) for row in read_csv(file)]

    @cached_property
    def facts(self) -> dict[str, str]:
        """The tier, the hardware, the commits, the runs by status, and the seeds."""
        by_id = {row["run"]: row for row in self.runs}  # experiments may share a run
        statuses = Counter(row["status"].replace("_", " ") for row in by_id.values())
        commits = sorted({row["git_commit"][:9] for row in by_id.values() if row["git_commit"]})
        return {
            "Tier": self.tier_title,
            "Hardware": self.results.resolve().parent.name,
            "Commit": ", ".join(commits) or "no run",
            "Runs": ", ".join(f"{number} {status}" for status, number in statuses.most_common()) or "none",
            "Seeds": integer_ranges(int(row["seed"]) for row in by_id.values()) or "none",
        }

    @cached_property
    def shown(self) -> dict[Kind, list[Shown]]:
        """The figures and tables that were made, by kind; those with a number come first."""
        made: dict[Kind, list[Shown]] = {kind: [] for kind in ARTEFACTS}
        for kind in ARTEFACTS:
            for name in sorted(available(kind), key=lambda name: not _NUMBERED.match(name)):
                if self._is_made(kind, name):
                    file = self.results / kind / f"{name}.rst"
                    caption = from_rst(read_text(file)) if file.is_file() else ""  # a kept reference has no captions
                    made[kind].append(Shown(artefacts.describe(kind, name), describe(name), caption))
        return made

    @cached_property
    def claims(self) -> list[Claim]:
        """All claims, in the paper's order."""
        if not self._is_made("tables", CLAIMS):
            return []
        rows = read_csv(self.results / "tables" / "claims.csv")
        parts = read_csv(self.results / "tables" / "claim_parts.csv")
        reference = next((machine.claims for machine in self.machines if machine.is_reference), {})
        return [
            Claim(
                row,
                tuple(lines(part for part in parts if part["id"] == row["id"])),
                self._shown_in(files_in(row["data"])),
                read_sources(row["data"]),
                reference[row["id"]]["verdict"] if row["id"] in reference else "",
            )
            for row in rows
        ]

    @property
    def verdicts(self) -> dict[str, int]:
        """The number of claims by verdict, without verdicts that no claim has."""
        counts = Counter(claim.row["verdict"] for claim in self.claims)
        return {verdict: counts[verdict] for verdict in get_args(Verdict) if counts[verdict]}

    def table(self, shown: Shown) -> RunGrid:
        """Return a table's rows."""
        return grid(read_csv(self.results / "tables" / f"{shown.name}.csv"))

    def figures_of(self, experiment: str) -> list[Shown]:
        """Return the figures that name an experiment as their source."""
        return [shown for shown in self.shown["figures"] if experiment in shown.artefact.experiments]

    def claims_of(self, shown: Shown) -> list[Claim]:
        """Return the claims whose data a figure or table shows."""
        return [claim for claim in self.claims if shown in claim.shown_in]

    def _is_made(self, kind: Kind, name: str) -> bool:
        suffix = "png" if kind == "figures" else "csv"
        return (self.results / kind / f"{name}.{suffix}").is_file()

    def _shown_in(self, files: set[str]) -> tuple[Shown, ...]:
        """Return the figures and tables that read one of these files; those that read little else come first."""
        experiments = {row["experiment"] for row in self.runs}
        shares: dict[Shown, float] = {}
        for shown in chain.from_iterable(self.shown.values()):
            read = shown.reads(experiments)
            if files & read and shown.name != CLAIMS:
                # Of two that read a file the one that reads little else is closer: it shows these data, and not all.
                shares[shown] = len(files & read) / len(files | read)
        return tuple(sorted(shares, key=lambda shown: (-shares[shown], shown.kind, shown.name)))


def run_row(row: Mapping[str, str]) -> dict[str, str]:
    """Return what identifies a run, and what came of it, from its row of ``<experiment>.runs.csv``."""
    rate = json.loads(row["hyperparameters"] or "{}").get("lr")
    seconds = {key: f"{float(row[key]):.3g}" if row[key] else "" for key in ("seconds_to_target", "train_seconds")}
    return {
        **{key: row[key] for key in ("experiment", "workload", "optimizer")},
        "period": row["inverse_update_period"].removesuffix(".0"),
        "seed": row["seed"],
        "rate": "" if rate is None else f"{rate:g}",
        "status": row["status"].replace("_", " "),
        "steps": row["steps_done"],
        "steps to target": row["steps_to_target"],
        "seconds to target": seconds["seconds_to_target"],
        "training seconds": seconds["train_seconds"],
        "run": row["run"],
    }
