"""The pipeline on a miniature plan: what it makes, what it plans anew after a change, and how it refuses bad input."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from tests.synthetic import iteration_times, numerics

ROOT = Path(__file__).resolve().parents[1]
R = Path("results/test-machine/embedded")

UPDATE_RULES = """\
title: The update rules, in miniature
paper: ours (Figure 13)
tiers:
  embedded:
    - workload: {name: autoencoder, batch_size: 64}
      steps: 6
      evaluate_every: 3
      seeds: [0, 1]
      optimizers:
        - {name: sgd, hyperparameters: {lr: 0.5}}
        - {name: mkor, hyperparameters: {base: sgd, lr: 0.5, inverse_update_period: 2}}
"""


def _snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the repository's Snakefile in ``folder``, on the configuration there; settings are ``key=value``."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "2"]
    settings = ["config_dir=config", "hardware=test-machine", *(word for word in arguments if "=" in word)]
    options = [word for word in arguments if "=" not in word]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*command, *options, "--config", *settings],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _planned(said: str) -> Counter[str]:
    """How many jobs of each rule a dry run would do."""
    table = said.split("Job stats:")[-1].split("total")[0] if "Job stats:" in said else ""
    return Counter({rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)})


def _configure(folder: Path) -> Path:
    """A configuration of one small experiment in ``folder``."""
    (folder / "config" / "experiments").mkdir(parents=True)
    shutil.copytree(ROOT / "config" / "tiers", folder / "config" / "tiers")
    shutil.copy(ROOT / "config" / "config.yaml", folder / "config")
    (folder / "config" / "experiments" / "update_rules.yaml").write_text(UPDATE_RULES)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the whole miniature pipeline has run once, on made-up probes."""
    folder = _configure(tmp_path_factory.mktemp("pipeline"))
    (folder / R / "probes").mkdir(parents=True)
    iteration_times().to_csv(folder / R / "probes" / "iteration_time.csv", index=False)
    numerics().to_csv(folder / R / "probes" / "numerics.csv", index=False)
    done = _snakemake(folder, "artefacts")
    assert done.returncode == 0, done.stderr
    return folder


def _edit(folder: Path, old: str, new: str) -> None:
    file = folder / "config" / "experiments" / "update_rules.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_the_pipeline_makes_every_artefact(finished):
    for file in (
        "figures/fig13_update_rules.pdf",
        "figures/fig13_update_rules.png",
        R / "tables/claims.csv",
        R / "tables/claims.md",
        R / "tables/table6_settings.csv",
        R / "update_rules.csv",
        R / "update_rules.runs.csv",
        R / "report.html",
    ):
        assert (finished / file).stat().st_size > 0, file
    runs = pd.read_csv(finished / R / "update_rules.runs.csv")
    assert len(runs) == 4
    assert set(runs["status"]) == {"finished"}
    assert {path.name for path in (finished / R / "runs").iterdir()} == set(runs["run"])


def test_the_report_holds_every_artefact_and_its_caption(finished):
    page = (finished / R / "report.html").read_text()
    for name in ("fig13_update_rules.png", "claims.html", "table6_settings.html"):
        assert name in page
    assert "The update rule of MKOR as printed in the paper" in page
    assert "test-machine" in page
    loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page)
    assert loaded == [], "the report must open offline"


def test_a_second_call_does_nothing(finished):
    again = _snakemake(finished, "--dry-run", "artefacts")
    assert "Nothing to be done" in again.stdout + again.stderr


def test_a_deleted_figure_is_all_that_is_made_again(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "copy", copy_function=shutil.copy2)
    (folder / "figures" / "fig13_update_rules.png").unlink()
    assert _planned(_snakemake(folder, "--dry-run", "artefacts").stdout) == {"publish": 1, "artefacts": 1}


def test_a_changed_hyperparameter_plans_its_job_and_trains_its_runs_only(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "copy", copy_function=shutil.copy2)
    before = {path.name: (path / "run.json").stat().st_mtime_ns for path in (folder / R / "runs").iterdir()}
    _edit(folder, "lr: 0.5, inverse_update_period: 2", "lr: 0.4, inverse_update_period: 2")
    planned = _planned(_snakemake(folder, "--dry-run", "artefacts").stdout)
    assert planned == {
        "train": 1,
        "aggregate": 1,
        "fig13_update_rules": 1,
        "table6_settings": 1,
        "time_to_target": 1,
        "publish": 2,
        "html_report": 1,
        "artefacts": 1,
    }
    done = _snakemake(folder, str(R / "update_rules.csv"))
    assert done.returncode == 0, done.stderr
    after = {path.name: (path / "run.json").stat().st_mtime_ns for path in (folder / R / "runs").iterdir()}
    assert len(after) == len(before) + 2
    assert {name: after[name] for name in before} == before
    table = pd.read_csv(folder / R / "update_rules.csv")
    assert set(table.loc[table["optimizer"] == "mkor", "run"]) == set(after) - set(before)


def test_a_new_target_aggregates_anew_and_trains_nothing(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "copy", copy_function=shutil.copy2)
    _edit(folder, "seeds: [0, 1]", "seeds: [0, 1]\n      target: {split: validation, metric: loss, below: 0.17}")
    planned = _planned(_snakemake(folder, "--dry-run", "artefacts").stdout)
    assert planned["train"] == 0
    assert planned["aggregate"] == 1


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "evaluate_every: 3",
            "evalute_every: 3",
            ["update_rules.yaml", "evalute_every", "did you mean 'evaluate_every'"],
        ),
        ("lr: 0.5}", "lr: -0.5}", ["update_rules.yaml", "lr", "-0.5", "greater than 0"]),
        ("name: mkor,", "name: mkro,", ["update_rules.yaml", "mkro", "did you mean 'mkor'"]),
        ("seeds: [0, 1]", "seeds: [0, 1.5]", ["update_rules.yaml", "seeds[1]", "1.5", "integer"]),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(tmp_path, old, new, says):
    folder = _configure(tmp_path)
    _edit(folder, old, new)
    refused = _snakemake(folder)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1, refused.stderr
    for word in says:
        assert word in refused.stderr
    assert not (folder / "results").exists()


@pytest.mark.parametrize("setting", ["teir=embedded", "tier=embeded", "hardware=My Machine"])
def test_a_bad_setting_on_the_command_line_is_one_line(tmp_path, setting):
    folder = _configure(tmp_path)
    refused = _snakemake(folder, setting)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
    assert setting.split("=")[0] in refused.stderr


def test_one_figure_is_a_target_of_its_own():
    """``snakemake figures/fig04...`` plans what this figure needs and nothing else."""
    dry = _snakemake(ROOT, "--dry-run", "--forceall", "figures/fig04_inversion_frequency.pdf")
    assert dry.returncode == 0, dry.stderr
    # Two optimizers on each of two workloads, and the pre-training run that BERT starts from.
    assert _planned(dry.stdout) == {
        "train": 5,
        "aggregate": 2,
        "iteration_time": 1,
        "fig04_inversion_frequency": 1,
        "publish": 1,
    }
    assert "experiment=update_rules" not in dry.stdout


def test_the_workflow_is_lint_free():
    lint = _snakemake(ROOT, "--lint")
    assert lint.returncode == 0, lint.stderr
