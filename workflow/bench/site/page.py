"""The site's page, rendered from its content."""

from __future__ import annotations

import base64
import io
import re
from itertools import chain
from pathlib import Path
from typing import Final

from markupsafe import Markup, escape
from PIL import Image

from workflow.bench.analysis.descriptions import REPORT
from workflow.bench.claims.decision import MEANINGS
from workflow.bench.results.rows import read_csv
from workflow.bench.results.tables import Results
from workflow.bench.site import machines
from workflow.bench.site.content import CLAIMS, Content, Shown, describe, run_row
from workflow.bench.site.curves import curves_of
from workflow.bench.site.findings import FIRST, findings
from workflow.bench.site.glossary import read_glossary
from workflow.bench.site.grids import grid
from workflow.bench.site.kept import Kept
from workflow.bench.site.leaders import FIELD, leaders
from workflow.bench.site.library import packed
from workflow.bench.site.prose import experiment_name, inline, named
from workflow.bench.support.config import shown_path
from workflow.bench.support.errors import DamagedFileError
from workflow.bench.support.reading import read_bytes, read_text
from workflow.bench.support.templates import render

SITE: Final = REPORT / "site"
_MENU: Final = ("summary", "claims", "curves", "figures", "tables", "machines", "runs", "glossary", "about")
_SECTION: Final = re.compile(r'<section class="page" id="(?!glossary").*?</section>', re.DOTALL)
"""A page of the site; pages are not inside each other, and the glossary needs no links to itself."""
_NAMED: Final = re.compile(r"\bC\d\d\b|<code>\w+</code>")
"""Claims, figures and tables in the text of a finding."""
_RUN_GROUPS: Final = 2
"""Runs are grouped by experiment and workload."""
_COLORS: Final = 256
"""Of a figure in the page, which is then a quarter as large as its file, and looks the same."""


def page(content: Content) -> str:
    """Return the site as one HTML page, which loads nothing and links files beside it.

    Raises:
        DamagedFileError, NoDataError: a figure or a table is damaged.
    """

    def embedded(shown: Shown) -> str:
        return light(content.results / "figures" / f"{shown.name}.png")

    def is_file(name: str) -> bool:
        return (content.results / name).is_file()

    def data_files(shown: Shown) -> list[str]:
        return sorted(filter(is_file, shown.reads({row["experiment"] for row in content.runs})))

    about, glossary = describe(CLAIMS), read_glossary()
    file = content.results / "tables" / "hardware.csv"
    curves = curves_of(Results(content.results))
    field = content.results / "tables" / f"{FIELD}.csv"
    html = render(
        "site/page.html.j2",
        content=content,
        findings=_findings(content),
        strongest=FIRST,
        leaders=leaders(read_csv(field)) if field.is_file() else {},
        curves=curves,
        richest=max(reversed(curves), key=lambda of: len(of.optimizers), default=None),
        curve_data={of.experiment: of.panels for of in curves},
        library=packed() if curves else "",
        glossary=glossary,
        tables=[table for table in content.shown["tables"] if table.name != CLAIMS],
        times=grid(machines.side_by_side(read_csv(file))) if file.is_file() else None,
        runs=grid([*map(run_row, content.runs)], most_leading=_RUN_GROUPS),
        runs_of_claims={
            claim.id: sorted({run for source in claim.sources for run in source.runs}) for claim in content.claims
        },
        difference=_difference(content),
        meanings=MEANINGS,
        claims_text=Markup(" ").join(about.paragraphs),
        menu=[(name, name.capitalize()) for name in _MENU],
        is_paper=content.results.resolve().name == "paper",
        embedded=embedded,
        is_file=is_file,
        data_files=data_files,
        inline=inline,
        named=named,
        experiment_name=experiment_name,
        # As they are: all are this project's own.
        style=Markup(read_text(SITE / "style.css")),
        script=Markup(read_text(SITE / "script.js")),
        curves_script=Markup(read_text(SITE / "curves.js")),
    )
    return _SECTION.sub(lambda section: glossary.linked(section[0]), html)


def light(picture: Path) -> str:
    """Return a figure as WebP with few colors, in base64.

    Raises:
        DamagedFileError: the file is no picture.
    """
    try:
        with Image.open(io.BytesIO(read_bytes(picture))) as image:
            colors = image.convert("RGB").quantize(_COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
        raise DamagedFileError(f"{shown_path(picture)}: damaged: {problem}; delete it and run again") from None
    stored = io.BytesIO()
    colors.convert("RGB").save(stored, "WEBP", lossless=True, quality=90)
    return base64.b64encode(stored.getvalue()).decode()


def _findings(content: Content) -> list[tuple[str, Markup]]:
    """Return the headline and the text of each finding that the results support, with links to what it names."""
    found, _ = findings(Kept(content.results, content.results.parent / "field"))
    pages = {claim.id: (f"claim/{claim.id}", claim.id) for claim in content.claims}
    for shown in chain.from_iterable(content.shown.values()):
        pages[f"<code>{shown.name}</code>"] = (shown.page, shown.number)

    def link(match: re.Match[str]) -> str:
        address, text = pages.get(match[0], ("", match[0]))
        return f'<a href="#{address}">{escape(text)}</a>' if address else match[0]

    return [(headline, Markup(_NAMED.sub(link, str(inline(text))))) for headline, text in found.items()]


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
