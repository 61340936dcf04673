"""The site's page, rendered from its content."""

from __future__ import annotations

import base64
from typing import Final

from markupsafe import Markup

from workflow.bench.analysis.descriptions import REPORT
from workflow.bench.claims.decision import MEANINGS
from workflow.bench.results.rows import read_csv
from workflow.bench.site import machines
from workflow.bench.site.content import CLAIMS, Content, Shown, describe
from workflow.bench.site.grids import grid
from workflow.bench.support.reading import read_bytes, read_text
from workflow.bench.support.templates import render

SITE: Final = REPORT / "site"
_MENU: Final = ("claims", "figures", "tables", "machines", "runs", "about")
_RUN_GROUPS: Final = 2
"""Runs are grouped by experiment and workload."""


def page(content: Content) -> str:
    """Return the site as one HTML page, which loads nothing and links files beside it."""

    def embedded(shown: Shown) -> str:
        return base64.b64encode(read_bytes(content.results / "figures" / f"{shown.name}.png")).decode()

    def is_file(name: str) -> bool:
        return (content.results / name).is_file()

    def data_files(shown: Shown) -> list[str]:
        return sorted(filter(is_file, shown.reads({row["experiment"] for row in content.runs})))

    about = describe(CLAIMS)
    file = content.results / "tables" / "hardware.csv"
    return render(
        "site/page.html.j2",
        content=content,
        tables=[table for table in content.shown["tables"] if table.name != CLAIMS],
        times=grid(machines.side_by_side(read_csv(file))) if file.is_file() else None,
        runs=grid(content.run_table, most_leading=_RUN_GROUPS),
        runs_of_claims={
            claim.id: sorted({run for source in claim.sources for run in source.runs}) for claim in content.claims
        },
        difference=_difference(content),
        meanings=MEANINGS,
        claims_text=Markup(" ").join((about.reading, *about.more)),
        menu=[(name, name.capitalize()) for name in _MENU],
        is_paper=content.results.resolve().name == "paper",
        embedded=embedded,
        is_file=is_file,
        data_files=data_files,
        # As they are: both are this project's own.
        style=Markup(read_text(SITE / "style.css")),
        script=Markup(read_text(SITE / "script.js")),
    )


def _difference(content: Content) -> str:
    """Return a sentence on the verdicts that differ from the reference; empty without one."""
    known = [claim for claim in content.claims if claim.reference]
    if not known:
        return ""
    differing = [claim.id for claim in known if claim.differs]
    name = next(machine.hardware for machine in content.machines if machine.is_reference)
    if not differing:
        return f"All {len(known)} verdicts are those of the reference ({name})."
    differ = "differs" if len(differing) == 1 else "differ"
    return f"{len(differing)} of {len(known)} verdicts {differ} from the reference ({name}): {', '.join(differing)}."
