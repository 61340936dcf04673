"""The files by which a project is cited, built and contributed to agree with the code and the Makefile."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from mkor_core import __version__
from workflow.bench.support.config import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()


def read(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text())


def test_citation_and_changelog_have_the_version_and_no_address():
    """The repository has no public address yet, so none is made up."""
    citation = read("CITATION.cff")
    assert citation["version"] == __version__
    assert re.search(rf"^## {re.escape(__version__)} \(", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert not {"url", "repository", "repository-code", "doi"} & citation.keys()


def test_hosted_tests_run_what_developers_run():
    steps = read(".github/workflows/test.yml")["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_hooks_are_checks_of_make_test_with_its_tools():
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    recipe = MAKEFILE.split("\ntest: ")[1].split("\ntest-all: ")[0].replace("$(BIN)", ".venv/bin")
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].removesuffix(" --force-exclude") in recipe
    assert len(repository["hooks"]) == 4


def test_the_image_installs_what_make_installs():
    recipe = (ROOT / "Containerfile").read_text()
    assert "make .venv/installed" in recipe
    assert "INSTALLED := .venv/installed" in MAKEFILE
    assert re.search(r"^torch==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    for name in re.search(r"^COPY (.+) \./$", recipe, re.MULTILINE)[1].split():
        assert (ROOT / name).is_file()


def test_the_makefile_names_files_that_exist():
    named = re.findall(r"(?<![\w.-])[\w./]+/\w+\.py\b", MAKEFILE)
    assert "mkor_core/maths/knee.py" in named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_help_lists_every_target_in_a_group_and_in_lines_that_fit():
    """Truth: the targets that the Makefile declares; two are parts of `make test`."""
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (declared,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    listed = re.findall(r"^  make ([a-z-]+) ", said, re.MULTILINE)
    assert sorted(listed) == sorted(set(declared.split()) - {"test-types", "test-all"})
    assert max(map(len, said.splitlines())) <= 120
    groups = re.split(r"\n\n(?=[A-Z][^\n]*:\n)", said)
    assert len(groups) > 4
    assert groups[0].split()[:2] == ["make", "help"]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_targets_of_make_that_a_page_names_exist(page):
    """Links are the matter of `docs/test_examples.py`."""
    targets = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))
    assert set(re.findall(r"(?:`|^)(?:\w+=\S+ )?make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE)) <= targets
