"""The files by which others find, cite and check the project are those that its sources make, in their formats."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from baselines import available
from workflow.bench import describe
from workflow.bench.plan import Plan
from workflow.bench.plan.artefacts import planned_artefacts
from workflow.bench.results.rows import read_csv
from workflow.bench.support.config import ROOT, ConfigError

SCHEMAS = ROOT / "tests" / "support" / "schemas"
FILES = {"codemeta": "codemeta.json", "zenodo": ".zenodo.json", "codecheck": "codecheck.yml"}
PAPER = (ROOT / "paper.md").read_text(encoding="utf-8")
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
INVENTED = re.compile(
    r"orcid\.org|\d{4}-\d{4}-\d{4}-\d{3}[\dX]|@[\w-]+\.\w|zenodo\.\d|github\.com|gitlab\.com", re.IGNORECASE
)


def content(name: str) -> dict[str, Any]:
    text = (ROOT / FILES[name]).read_text(encoding="utf-8")
    return json.loads(text) if FILES[name].endswith("json") else yaml.safe_load(text)


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(yaml.safe_load((SCHEMAS / f"{name}.yaml").read_text()))


def test_the_files_are_current(tmp_path):
    """Run `python -m workflow.bench.describe` after a change of CITATION.cff, pyproject.toml or the artefacts."""
    assert describe.main([f"--out-dir={tmp_path}"]) == 0
    made = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert set(made) == {*FILES.values(), "paper.bib", "paper.md"}
    assert made == {name: (ROOT / name).read_text(encoding="utf-8") for name in made}


@pytest.mark.parametrize("name", FILES)
def test_a_file_meets_its_schema_and_a_damaged_one_does_not(name):
    whole, schema = content(name), validator(name)
    schema.check_schema(schema.schema)
    assert [error.message for error in schema.iter_errors(whole)] == []
    for key in schema.schema["required"]:
        assert not schema.is_valid({other: value for other, value in whole.items() if other != key})
    assert not schema.is_valid({**whole, "misspelled": 1})


@pytest.mark.parametrize("name", [*FILES.values(), "paper.bib", "paper.md"])
def test_no_file_has_an_identifier_or_address_that_the_sources_lack(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert INVENTED.findall(text) == []
    known = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert all(doi in known for doi in re.findall(r"10\.\d{4,}/[\w./-]+\w", text))


def test_the_manifest_is_what_a_run_makes():
    """Truth: the outputs of the rules that draw, for the plan that the file's own command runs."""
    (hardware,) = re.findall(r"hardware=(\w+)", (ROOT / "codecheck.yml").read_text())
    plan = Plan.load(tier="embedded", hardware=hardware, results="results")
    named = {entry["file"] for entry in content("codecheck")["manifest"]}
    assert named == {
        *(f"figures/{figure.name}.pdf" for figure in planned_artefacts(plan, "figures")),
        *(f"results/{hardware}/embedded/tables/{table.name}.csv" for table in planned_artefacts(plan, "tables")),
    }
    (reference,) = (ROOT / "results" / "reference").glob("*/embedded/figures")
    kept = {file.stem for file in (*reference.glob("*.png"), *(reference.parent / "tables").glob("*.csv"))}
    assert kept & {Path(file).stem for file in named}


def test_the_paper_cites_every_reference_and_nothing_else():
    keys = [describe.key_of(reference) for reference in CITATION["references"]]
    assert len(set(keys)) == len(keys)
    assert set(re.findall(r"@([a-z]+\d{4})\b", PAPER)) == set(keys)
    entries = re.findall(r"^@\w+\{(\w+),$", (ROOT / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE)
    assert entries == keys


def test_the_paper_has_its_sections_in_two_pages():
    """The sections and the length that JOSS asks for: 750 to 1,750 words."""
    body = PAPER.split("---\n", 2)[2]
    sections = re.findall(r"^# (.+)$", body, re.MULTILINE)
    assert sections == [
        *("Summary", "Statement of need", "State of the field", "Software design"),
        *("Research impact statement", "AI usage disclosure", "References"),
    ]
    assert 750 <= len(body.split()) <= 1200


def test_the_numbers_of_the_paper_are_those_of_the_project():
    claims = read_csv(ROOT / "workflow" / "paper" / "claims.csv")
    (published,) = (row["published"] for row in claims if row["id"] == "C01")
    assert f"each of {len(claims)} claims" in " ".join(PAPER.split())
    assert f"MKOR, and {len(available()) - 1} other optimizers" in " ".join(PAPER.split())
    assert f"up to {published} times as fast as LAMB" in PAPER
    properties = re.search(r"(\d+) such properties", (ROOT / "docs" / "audit.md").read_text())[1]
    assert f"An audit of {properties} properties" in PAPER


def test_what_does_not_fit_is_refused_by_its_file(tmp_path, monkeypatch):
    for name in ("CITATION.cff", "pyproject.toml", "paper.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "paper.md").write_text("no header")
    with pytest.raises(ConfigError, match=r"paper\.md: must begin with a header"):
        describe.descriptions(tmp_path)
    monkeypatch.setattr(describe, "__version__", "9.9")
    with pytest.raises(ConfigError, match=r"CITATION\.cff: version = .*: must be that of the code, 9\.9"):
        describe.descriptions(tmp_path)
