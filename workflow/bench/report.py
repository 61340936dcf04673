"""The report's front page: every claim with its verdict, and where each figure and table is.

It reads what the artefacts' rules wrote, and writes reStructuredText for Snakemake's report.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from workflow.bench.plan.artefacts import Kind, available, describe
from workflow.bench.results.rows import read_csv
from workflow.bench.support.config import ROOT, shown_path
from workflow.bench.support.files import write_atomically

_INTRODUCTION: Final = ROOT / "workflow" / "report" / "workflow.rst"
#: What the page shows of the table of claims, and the headings.
_SHOWN: Final = {
    "id": "claim",
    "claim": "what the paper says",
    "published": "published",
    "measured": "measured",
    "verdict": "verdict",
    "why": "why",
}
#: The file of each kind of artefact that the report opens.
_KINDS: Final[Mapping[Kind, str]] = {"figures": "png", "tables": "html"}
_VERDICTS: Final = ("confirmed", "refuted", "inconclusive", "not tested")


def _opens(file: str, text: str) -> str:
    """A link that opens a file of the report, with its caption at the side; the report's own script has no links."""
    action = (
        f"const path = Object.keys(results).find(name => name.endsWith('/{file}')); "
        "if (path) app.setView({navbarMode: 'resultinfo', resultPath: path, "
        f"content: '{'img' if file.endswith('.png') else 'html'}', contentPath: results[path].data_uri}}); "
        "return false;"
    )
    return f'<a href="#{escape(file)}" onclick="{escape(action)}">{escape(text)}</a>'


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(row)}</tr>\n" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>\n"


def _claim(row: Mapping[str, str], links: Iterable[str]) -> list[str]:
    """The cells of one claim: its verdict as a coloured word, and links to what shows its data."""
    verdict = row["verdict"]
    cells = {
        **{column: escape(row[column]) for column in _SHOWN},
        "id": _opens("tables/claims.html", row["id"]),
        "verdict": f'<span class="verdict {verdict.replace(" ", "-")}">{escape(verdict)}</span>',
    }
    return [
        *(f'<td class="{column}">{cell}</td>' for column, cell in cells.items()),
        f"<td>{' '.join(links)}</td>",
    ]


def _links(claims: Sequence[Mapping[str, str]], made: Mapping[Kind, Sequence[str]]) -> dict[str, list[str]]:
    """Links to what shows the data of each claim, by its id: the artefacts that read a file that its row names."""
    reads: dict[str, set[str]] = {}
    for kind, names in made.items():
        for name in set(names) - {"claims"}:
            artefact = describe(kind, name)
            files = {f"{experiment}{suffix}" for experiment in artefact.experiments for suffix in (".csv", ".runs.csv")}
            link = _opens(f"{kind}/{name}.{_KINDS[kind]}", _title(name).partition(":")[0])
            reads[link] = files | {f"probes/{probe}.csv" for probe in artefact.probes}
    named = {row["id"]: {part.partition(":")[0].strip() for part in row["data"].split(";")} for row in claims}
    return {claim: sorted(link for link in reads if reads[link] & files) for claim, files in named.items()}


def _title(artefact: str) -> str:
    """``fig13_update_rules`` as ``fig13: update rules``."""
    first, _, rest = artefact.partition("_")
    numbered = first.rstrip("0123456789") in ("fig", "table") and first[-1].isdigit()
    return f"{first}: {rest.replace('_', ' ')}" if numbered and rest else artefact.replace("_", " ")


def front_page(results: Path, tier_title: str) -> tuple[str, str]:
    """Return the front page of a folder ``results/<hardware>/<tier>`` as reStructuredText, and its counts as YAML."""
    made = {kind: [name for name in available(kind) if (results / kind / f"{name}.rst").is_file()] for kind in _KINDS}
    runs = [row for file in sorted(results.glob("*.runs.csv")) for row in read_csv(file)]
    by_run = {row["run"]: row for row in runs}
    statuses = Counter(row["status"].replace("_", " ") for row in by_run.values())
    commits = sorted({row["git_commit"][:9] for row in runs if row["git_commit"]})
    facts = {
        "Tier": tier_title,
        "Hardware": results.resolve().parent.name,
        "Commit": ", ".join(commits) or "no run",
        "Runs": ", ".join(f"{number} {status}" for status, number in statuses.most_common()) or "none",
        "Seeds": ", ".join(sorted({row["seed"] for row in runs}, key=int)) or "none",
    }
    html = _table(["this run", ""], ([f"<td>{name}</td>", f"<td>{escape(fact)}</td>"] for name, fact in facts.items()))
    if "claims" in made["tables"]:
        claims = read_csv(results / "tables" / "claims.csv")
        verdicts = Counter(row["verdict"] for row in claims)
        said = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in _VERDICTS if verdicts[verdict])
        links = _links(claims, made)
        table = _table([*_SHOWN.values(), "data shown in"], (_claim(row, links[row["id"]]) for row in claims))
        html += f"<h2>Claims</h2>\n<p>{escape(said)}.</p>\n{table}"
    for kind, suffix in _KINDS.items():
        all_of_kind = (_opens(f"{kind}/{name}.{suffix}", _title(name)) for name in made[kind])
        html += f"<h2>{kind.title()}</h2>\n<p>{' &middot; '.join(all_of_kind)}</p>\n"
    # Snakemake reads the page as a Jinja template too: no text of a claim is a part of one.
    block = textwrap.indent(f'<div class="front" id="front">\n{html}</div>', "   ")
    page = f"{_INTRODUCTION.read_text(encoding='utf-8')}\n.. raw:: html\n\n{{% raw %}}\n{block}\n{{% endraw %}}\n"
    counts = {**{kind.title(): len(names) for kind, names in made.items()}, "Runs": len(by_run)}
    return page, "".join(f"{name}: {count}\n" for name, count in counts.items())


def main(arguments: list[str] | None = None) -> int:
    """Write report/front.rst and report/counts.yaml, which Snakemake's report begins with."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.report", description=main.__doc__)
    parser.add_argument("--results", type=Path, required=True, help="folder of one machine and tier")
    parser.add_argument("--tier-title", required=True, help="what the page says of the tier")
    given = parser.parse_args(arguments)
    page, counts = front_page(given.results, given.tier_title)
    for name, content in (("front.rst", page), ("counts.yaml", counts)):
        write_atomically(given.results / "report" / name, content)
        print(shown_path(given.results / "report" / name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
