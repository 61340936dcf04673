"""Every shell command of the workflow takes each text of a user as one argument."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from jinja2 import Environment
from snakemake.report import publish_parts

from tests.support.experiments import block, make_folder, optimizer, write
from tests.support.shells import TEXTS, TRIED, Ran, examples, planned_jobs, recorded, run_recorded
from tests.support.tally import count
from workflow.bench.snakemake_report import front_page
from workflow.bench.support.config import ROOT
from workflow.bench.support.names import folder_rule

RULES = [ROOT / "workflow" / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]
PLAIN = "PLAIN"
"""A text without characters that a shell could interpret, in the place of the others."""


def test_every_value_in_a_shell_command_of_a_rule_is_quoted():
    """A launch command consists of several words, and `Cluster.launch` quotes each; the Snakefile quotes the setup."""
    commands = [
        text
        for file in RULES
        for text in re.findall(r"shell(?:\(|:\n)(.*?)(?:\)\n|\n\n|\Z)", file.read_text(), re.DOTALL)
    ]
    assert len(commands) == 11
    assert not any(re.search(r"""\bf["']""", command) for command in commands)
    values = {value for command in commands for value in re.findall(r"\{[^}]*\}", command)}
    unquoted = {value for value in values if not value.endswith(":q}")}
    assert unquoted == {"{resources.launch}", "{resources.setup}", "{SETUP}"}


def test_every_command_finds_the_bench_by_its_setup():
    """Without it a command depends on the working directory, and on what it is called from."""
    commands = [line for file in RULES for line in file.read_text().splitlines() if re.search(r"\bpython -m \w", line)]
    assert len(commands) > 6
    assert [line for line in commands if not re.search(r"\{(resources\.setup|SETUP)\}.*python -m", line)] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration of two experiments."""
    made = tmp_path_factory.mktemp("shell")
    config = make_folder(made / "config")
    write(config, "one", block(optimizer("sgd"), optimizer("mkor", base="sgd")))
    return made


def run(folder: Path, results: str) -> Ran:
    """Return what the shell commands of all jobs do."""
    jobs = planned_jobs(folder, config_dir="config", hardware="test", results=results)
    return run_recorded(jobs, folder / "place")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Ran:
    """What the commands do for a plain text."""
    return run(folder, PLAIN)


@examples(one_in=25)
@given(TEXTS.filter(lambda text: folder_rule(text) is None and len(text) < 120))
@example("my results; $(touch x)")
def test_a_results_folder_is_one_argument_of_every_command(folder: Path, plain: Ran, text: str):
    count(TRIED)
    assert run(folder, text) == plain.replaced(PLAIN, text)


def test_a_file_of_figures_that_is_no_module_is_refused_in_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "x;touch y.py").touch()
    monkeypatch.setattr("workflow.bench.plan.artefacts.BENCH", tmp_path)
    with pytest.raises(SystemExit, match=r"figures/x;touch y\.py: its name, \"x;touch y\", must consist of letters"):
        planned_jobs(folder, config_dir="config", hardware="test")


MADE = {
    "compare": ["python", "-m", "workflow.bench.compare", "WORDS", "--tier=TEXT"],
    "tune": ["python", "-m", "workflow.bench.tune", "WORDS", "--label", "WORDS", "--tier=TEXT", "--jobs=TEXT"],
    "crate": ["python", "-m", "workflow.bench.crate", "--tier=TEXT"],
    "timing": ["python", "-m", "workflow.bench.timing", "--cores", "TEXT", "--tier=TEXT", "--wait=TEXT", "--anyway"],
    "test-mutations": ["python", "-m", "tests.mutation", "WORDS", "--sample", "TEXT", "--workers", "TEXT"],
}
"""The commands of make's targets, where variables of a user stand for words or for one text."""
VARIABLES = ("FOLDERS", "TIER", "EXPERIMENT", "CORES", "WORKERS", "LABEL", "JOBS", "MODULE", "SAMPLE", "WAIT", "ANYWAY")


@examples(one_in=20)
@given(TEXTS.filter(lambda text: "\0" not in text and "\udc80" not in text and os.fsencode(text).split()))
@example("$(shell touch x) $$(touch x)")
@example("it's\ntouch x #")
def test_variables_of_make_are_words_of_one_command(folder: Path, text: str):
    (folder / ".venv").mkdir(exist_ok=True)
    for name in (".venv/installed", "requirements.lock"):
        (folder / name).touch()
    count(TRIED)
    for target, command in MADE.items():
        given = [f"{name}={text}" for name in VARIABLES]
        called = subprocess.run(
            ["make", "--dry-run", f"--file={ROOT}/Makefile", "--old-file=.venv/installed", target, *given],
            cwd=folder,
            capture_output=True,
            check=True,
        )
        line = next(line for line in os.fsdecode(called.stdout).split("\n") if line.startswith(".venv/bin/"))
        parts = [os.fsdecode(word) for word in os.fsencode(text).split()]
        words = [word for part in command for word in (parts if part == "WORDS" else [part])]
        expected = [word.replace("TEXT", " ".join(parts)) for word in words]
        assert recorded([line.removeprefix(".venv/bin/")], folder) == [expected]
    assert not (folder / "x").exists()


def test_make_does_not_expand_what_it_is_given_for_the_environment_of_commands(tmp_path: Path):
    given = [f"{name}=$(shell touch {tmp_path}/{name})" for name in VARIABLES]
    subprocess.run(["make", f"--file={ROOT}/Makefile", "help", *given], cwd=ROOT, capture_output=True, check=True)
    assert list(tmp_path.iterdir()) == []


def test_a_title_with_braces_stays_text_in_commands_and_in_the_report(folder: Path, tmp_path: Path):
    """Snakemake reads braces of a command as wildcards, and those of the front page as a Jinja template."""
    title = "{x} {{ 7*7 }} {% endraw %}{{ 7*7 }} {# it's #} $(touch x)"
    config = Path(shutil.copytree(folder / "config", tmp_path / "config"))
    tier = yaml.safe_load((config / "tiers" / "embedded.yaml").read_text())
    (config / "tiers" / "embedded.yaml").write_text(yaml.safe_dump({**tier, "title": title}))
    jobs = planned_jobs(tmp_path, config_dir="config", hardware="test")
    (ran,) = run_recorded([job for job in jobs if job.name.startswith("fig01")], tmp_path / "place").commands
    assert f"--tier-title={title}" in ran
    page = publish_parts(Environment().from_string(front_page(tmp_path, title)).render(), writer="html")["html_body"]
    assert f">{title}<" in html.unescape(page)
    assert "system-message" not in page
