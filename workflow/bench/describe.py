"""Write the files by which others find, cite and check the project, from CITATION.cff, pyproject.toml and the plan.

codemeta.json (CodeMeta 3.0) and .zenodo.json describe the software, codecheck.yml (CODECHECK's configuration 2.0) lists
what a run makes, paper.bib has the references, and paper.md gets its header; its text is written by hand. What the
sources do not say, such as an ORCID, a DOI or an address, no file says.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from mkor_core import __version__
from workflow.bench.analysis.descriptions import described
from workflow.bench.plan import Plan
from workflow.bench.plan.artefacts import planned_artefacts
from workflow.bench.support.command_line import run_command
from workflow.bench.support.config import ROOT, ConfigError, shown_path
from workflow.bench.support.files import write_atomically

Described = Mapping[str, Any]

CITATION: Final = "CITATION.cff"
PAPER: Final = "paper.md"
_TIER: Final = "embedded"
_HARDWARE: Final = "codecheck"
_ARXIV: Final = "arXiv:"
_CODECHECK: Final = """\
# The outputs to recreate in a CODECHECK: https://codecheck.org.uk/spec/config/2.0/
# Made by `python -m workflow.bench.describe`. One command makes all of them, in the time that docs/artifact.md states:
#   make .venv/installed && .venv/bin/snakemake --cores all --config hardware={hardware}
# Copies to compare with are in results/reference. What a check adds (codechecker, report, summary, certificate) is left
# to it; the authors' ORCIDs and the paper's address are left out until there are any.
"""


def _paper_title(citation: Described) -> str:
    return f"{citation['title']}: {citation['abstract'].rstrip('.')}"


def _names(people: Sequence[Described]) -> list[str]:
    """Return names as ``Family, Given``; the name of a group as it is."""
    return [person.get("name") or f"{person['family-names']}, {person['given-names']}" for person in people]


def _arxiv(reference: Described) -> str | None:
    """Return the number of a reference on arXiv, if it has one."""
    values = [str(identifier["value"]) for identifier in reference.get("identifiers", ())]
    return next((value.removeprefix(_ARXIV) for value in values if value.startswith(_ARXIV)), None)


def _address(reference: Described) -> str | None:
    """Return where a reference can be read: its DOI, its page, or its page on arXiv."""
    number = _arxiv(reference)
    places = (
        f"https://doi.org/{reference['doi']}" if "doi" in reference else None,
        reference.get("url"),
        f"https://arxiv.org/abs/{number}" if number else None,
    )
    return next(filter(None, places), None)


def codemeta(citation: Described, project: Described) -> str:
    """Return codemeta.json."""
    main = citation["references"][0]
    about = {
        "@context": "https://w3id.org/codemeta/3.0",
        "@type": "SoftwareSourceCode",
        "name": citation["title"],
        "description": citation["abstract"],
        "version": citation["version"],
        "license": f"https://spdx.org/licenses/{citation['license']}",
        "author": [{"@type": "Organization", "name": name} for name in _names(citation["authors"])],
        "keywords": project["keywords"],
        "programmingLanguage": "Python",
        "runtimePlatform": f"Python {project['requires-python']}",
        "operatingSystem": "Linux",
        "softwareRequirements": project["dependencies"],
        "readme": "README.md",
        "softwareHelp": "docs",
        "referencePublication": {
            "@type": "ScholarlyArticle",
            "name": main["title"],
            "author": [
                {"@type": "Person", "familyName": person["family-names"], "givenName": person["given-names"]}
                for person in main["authors"]
            ],
            "url": _address(main),
        },
    }
    return f"{json.dumps(about, indent=2, ensure_ascii=False)}\n"


def zenodo(citation: Described, project: Described) -> str:
    """Return .zenodo.json. Zenodo itself takes the version from a release's tag."""
    related = [reference for reference in citation["references"] if _arxiv(reference) or "doi" in reference]
    about = {
        "title": citation["title"],
        "description": citation["abstract"],
        "upload_type": "software",
        "creators": [{"name": name} for name in _names(citation["authors"])],
        "license": citation["license"],
        "keywords": project["keywords"],
        "related_identifiers": [
            {"relation": "cites", "scheme": "doi", "identifier": reference["doi"]}
            if "doi" in reference
            else {"relation": "cites", "scheme": "arxiv", "identifier": f"{_ARXIV}{_arxiv(reference)}"}
            for reference in related
        ],
    }
    return f"{json.dumps(about, indent=2, ensure_ascii=False)}\n"


def codecheck(citation: Described, plan: Plan) -> str:
    """Return codecheck.yml: what an author states, and every figure and table of a plan with its title."""
    made = [
        *((f"figures/{made.name}.pdf", made.name) for made in planned_artefacts(plan, "figures")),
        *(
            (f"{plan.results.as_posix()}/tables/{made.name}.csv", made.name)
            for made in planned_artefacts(plan, "tables")
        ),
    ]
    about = {
        "version": "https://codecheck.org.uk/spec/config/2.0/",
        "paper": {
            "title": _paper_title(citation),
            "authors": [{"name": name} for name in _names(citation["authors"])],
            "reference": f"{PAPER} of this repository",
            "reference-other": [_address(citation["references"][0])],
        },
        "manifest": [
            {"file": file, "comment": text.title if (text := described(name)) else name} for file, name in made
        ],
    }
    body = yaml.safe_dump(about, sort_keys=False, allow_unicode=True, width=120)
    return f"%YAML 1.1\n---\n{_CODECHECK.format(hardware=_HARDWARE)}{body}"


def key_of(reference: Described) -> str:
    """Return the key by which paper.md cites a reference: the first author's name and the year."""
    family = unicodedata.normalize("NFKD", reference["authors"][0]["family-names"])
    return f"{re.sub('[^a-z]', '', family.lower())}{reference['year']}"


def bibliography(citation: Described) -> str:
    """Return paper.bib, with an entry for each reference."""
    entries = []
    for reference in citation["references"]:
        kind = {"article": "article", "conference-paper": "inproceedings"}.get(reference["type"], "misc")
        fields = {
            # A title's capitals are kept.
            "title": f"{{{reference['title']}}}",
            "author": " and ".join(_names(reference["authors"])),
            "year": reference["year"],
            "booktitle": reference.get("collection-title"),
            "journal": reference.get("journal"),
            "volume": reference.get("volume"),
            "pages": reference.get("start"),
            "doi": reference.get("doi"),
            "eprint": _arxiv(reference),
            "archiveprefix": _arxiv(reference) and "arXiv",
            "url": reference.get("url"),
        }
        lines = (f"  {name} = {{{value}}}" for name, value in fields.items() if value is not None)
        entries.append(f"@{kind}{{{key_of(reference)},\n" + ",\n".join(lines) + "\n}\n")
    return "\n".join(entries)


def headed(citation: Described, project: Described, paper: str) -> str:
    """Return paper.md with the header that the sources make, and its text as it is.

    Raises:
        ConfigError: the file has no header between two lines of three hyphens.
    """
    parts = paper.split("---\n", 2)
    if len(parts) != 3 or parts[0]:
        raise ConfigError(f"{PAPER}: must begin with a header between two lines of ---")
    header = {
        "title": _paper_title(citation),
        "tags": ["Python", *project["keywords"]],
        "authors": [{"name": name} for name in _names(citation["authors"])],
        "bibliography": "paper.bib",
    }
    return f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True, width=120)}---\n{parts[2]}"


def descriptions(root: Path = ROOT) -> dict[str, str]:
    """Return the text of every file by its name.

    Raises:
        ConfigError: CITATION.cff has another version than the code, or a file lacks what the others are made from.
    """
    citation = yaml.safe_load((root / CITATION).read_text(encoding="utf-8"))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if citation["version"] != __version__:
        raise ConfigError(f"{CITATION}: version = {citation['version']}: must be that of the code, {__version__}")
    plan = Plan.load(tier=_TIER, hardware=_HARDWARE, results="results")
    return {
        "codemeta.json": codemeta(citation, project),
        ".zenodo.json": zenodo(citation, project),
        "codecheck.yml": codecheck(citation, plan),
        "paper.bib": bibliography(citation),
        PAPER: headed(citation, project, (root / PAPER).read_text(encoding="utf-8")),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write codemeta.json, .zenodo.json, codecheck.yml, paper.bib and the header of paper.md from CITATION.cff."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.describe", description=main.__doc__)
    parser.add_argument("--out-dir", type=Path, default=ROOT, help="where to write (default: the repository)")

    def work(options: argparse.Namespace) -> None:
        for name, text in descriptions().items():
            write_atomically(options.out_dir / name, text)
            print(shown_path(options.out_dir / name))

    return run_command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
