"""The pipeline on a miniature plan: what it makes, what it repeats after a change, and how it refuses bad input."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from tests.support.fork_server import snakemake
from tests.support.synthetic import numerics
from tests.support.synthetic_claims import half_precision
from tests.support.synthetic_probes import write_probe, write_probes
from workflow.bench.analysis.captions import from_rst
from workflow.bench.support.config import ROOT

RESULTS = "my results; $(touch x)"
"""A folder that every shell command has to quote."""
R = Path(RESULTS, "test-machine", "embedded")
CALL = ("--snakefile", str(ROOT / "Snakefile"))
SETTINGS = ("config_dir=config", "hardware=test-machine", f"results={RESULTS}")

UPDATE_RULES = (ROOT / ".test" / "config" / "experiments" / "update_rules.yaml").read_text()


def _snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the repository's Snakefile in ``folder``, on the configuration there; settings are ``key=value``."""
    options, settings = ([word for word in arguments if ("=" in word) == is_set] for is_set in (False, True))
    return snakemake(folder, *CALL, "--cores", "2", *options, "--config", *SETTINGS, *settings)


def _planned(said: str) -> Counter[str]:
    """Return the number of jobs of each rule in a dry run; those that train count together."""
    table = said.split("Job stats:")[-1].split("total")[0] if "Job stats:" in said else ""
    planned: Counter[str] = Counter()
    for rule, count in re.findall(r"^([\w-]+) +(\d+)$", table, re.MULTILINE):
        planned["train" if rule.startswith("train-") else rule] += int(count)
    return planned


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """A folder with the small configuration of the repository."""
    shutil.copytree(ROOT / ".test" / "config", tmp_path / "config")
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the miniature pipeline has run once, with synthetic probes."""
    folder = tmp_path_factory.mktemp("pipeline")
    shutil.copytree(ROOT / ".test" / "config", folder / "config")
    write_probes(folder / R)
    write_probe(folder / R, "half_precision", half_precision())
    write_probe(folder / R, "numerics", numerics())
    done = _snakemake(folder, "artefacts")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of `finished`."""
    return shutil.copytree(finished, tmp_path / "copy", copy_function=shutil.copy2)


def _edit(folder: Path, old: str, new: str) -> None:
    file = folder / "config" / "experiments" / "update_rules.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_the_pipeline_makes_every_artefact(finished):
    """And nothing beside them; which files there are of each artefact, the miniature of all experiments tells."""
    for file in ("figures/fig13_update_rules.pdf", R / "tables/table6_settings.csv", R / "report.html"):
        assert (finished / file).stat().st_size > 0, file
    runs = pd.read_csv(finished / R / "update_rules.runs.csv")
    assert list(runs["status"]) == ["finished"] * 4
    assert {path.name for path in finished.iterdir()} == {".snakemake", "config", "figures", RESULTS}


def test_snakemake_s_report_holds_every_artefact_and_its_caption(finished):
    page = (finished / R / "snakemake-report.html").read_text()
    for name in ("fig13_update_rules.png", "claims.html", "table6_settings.html"):
        assert name in page
    assert "as printed in the paper" in page
    assert "numbers; test-machine; seeds 0-1 (mean, 95 % t interval). MKOR" in page
    loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page)
    assert loaded == [], "the report must open offline"


HOSTILE = """\
.. include:: {0}/private

.. raw:: html

   <script>alert('html')</script>

.. csv-table::
   :file: {0}/private

.. raw:: html
   :file: {0}/private

.. role:: own(raw)
   :format: html

:own:`<script>alert('role')</script>` {{{{ 'x7' * 9 }}}} The end.
"""
"""A caption as somebody might hand it over; what this project writes has no markup."""


def test_docutils_inserts_no_file_and_no_html_that_a_caption_asks_for(folder):
    (folder / "private").write_text("a private key")
    (folder / R / "figures" / "fig13_update_rules.rst").write_text(HOSTILE.format(folder))
    done = _snakemake(folder, str(R / "figures" / "fig13_update_rules.png"), "--report", "report.html")
    assert done.returncode == 0, done.stderr
    page = (folder / "report.html").read_text()
    assert "The end." in page
    for unwanted in ("a private key", "<script>alert", "\\u003cscript\\u003ealert", "x7" * 9):
        assert unwanted not in page, unwanted
    assert "directive disabled" in page


def test_a_caption_with_markup_and_a_figure_that_is_a_link_are_not_published(folder):
    """Snakemake's own directives insert files. In place of the folder of partial results, a file: it is not drawn."""
    (folder / RESULTS / "partial").touch()
    (folder / "private").write_text("a private key")
    report, name = R / "snakemake-report.html", "fig13_update_rules"
    (folder / report).unlink()
    caption = folder / R / "figures" / f"{name}.rst"
    text = caption.read_text()
    caption.write_text(f".. embeddedimage:: {folder}/private\n")
    assert _snakemake(folder, str(report)).returncode == 1
    said = (folder / R / "logs" / "snakemake_report.log").read_text()
    assert said == f"{R}/figures/{name}.rst: damaged: not a caption of this code; delete it and run again\n"
    assert not (folder / report).exists()
    caption.write_text(text)

    figure, published = (folder / place / "figures" / f"{name}.png" for place in (R, ""))
    figure.unlink()
    figure.symlink_to(folder / "private")
    published.unlink()
    assert _snakemake(folder, f"figures/{name}.png").returncode == 1
    assert f"{name}.png: is a link" in (folder / R / "logs" / "publish" / f"{name}.log").read_text()
    assert not published.exists()


def test_a_second_call_does_nothing(finished):
    again = _snakemake(finished, "--dry-run", "artefacts")
    assert "Nothing to be done" in again.stdout + again.stderr


@pytest.mark.parametrize(
    ("deleted", "planned"),
    [
        ("figures/fig13_update_rules.png", {"publish": 1}),
        (R / "figures" / "fig13_update_rules.pdf", {"fig13_update_rules": 1, "publish": 1}),
        (R / "tables" / "time_to_target.md", {"time_to_target": 1}),
        (R / "report.html", {"site": 1}),
        (R / "snakemake-report.html", {"snakemake_report": 1}),
    ],
)
def test_a_deleted_artefact_is_all_that_is_made_again(folder, deleted, planned):
    (folder / deleted).unlink()
    assert _planned(_snakemake(folder, "--dry-run", "artefacts").stdout) == {**planned, "artefacts": 1}


def test_a_picture_drawn_again_is_the_same(folder):
    """The report that contains it need not be made again."""
    figure = folder / R / "figures" / "fig13_update_rules.png"
    before = figure.read_bytes()
    figure.unlink()
    done = _snakemake(folder, str(R / "figures" / "fig13_update_rules.png"))
    assert done.returncode == 0, done.stderr
    assert figure.read_bytes() == before


def test_a_changed_source_makes_the_report_anew_with_its_figure(folder):
    """Another measurement of the bytes sent."""
    table = folder / R / "probes" / "communication.csv"
    table.write_text(table.read_text().rstrip().rpartition("\n")[0] + "\n")
    planned = _planned(_snakemake(folder, "--dry-run", "artefacts").stdout)
    assert planned["fig15_communication"] == planned["site"] == planned["publish"] == 1
    assert planned["fig13_update_rules"] == planned["train"] == 0


def test_a_changed_hyperparameter_plans_its_job_and_trains_its_runs_only(folder):
    before = {path.name: (path / "run.json").stat().st_mtime_ns for path in (folder / R / "runs").iterdir()}
    _edit(folder, "lr: 0.5, inverse_update_period: 2", "lr: 0.4, inverse_update_period: 2")
    planned = _planned(_snakemake(folder, "--dry-run", "artefacts").stdout)
    assert planned == {
        "train": 1,
        "aggregate": 1,
        "aa_test": 1,
        "fig13_update_rules": 1,
        "fig16_hardware": 1,
        "fig20_profiles_appendix": 1,
        "fig20_steps_appendix": 1,
        "fig20_target_sweep": 1,
        "hardware": 1,
        "table6_settings": 1,
        "time_to_target": 1,
        "publish": 5,
        "report_sources": 1,
        "site": 1,
        "snakemake_report": 1,
        "artefacts": 1,
    }
    done = _snakemake(folder, str(R / "update_rules.csv"))
    assert done.returncode == 0, done.stderr
    after = {path.name: (path / "run.json").stat().st_mtime_ns for path in (folder / R / "runs").iterdir()}
    assert len(after) == len(before) + 2
    assert {name: after[name] for name in before} == before
    table = pd.read_csv(folder / R / "update_rules.csv")
    assert set(table.loc[table["optimizer"] == "mkor", "run"]) == set(after) - set(before)


def test_a_new_target_aggregates_anew_and_trains_nothing(folder):
    _edit(folder, "seeds: [0, 1]", "seeds: [0, 1]\n      target: {split: validation, metric: loss, below: 0.17}")
    planned = _planned(_snakemake(folder, "--dry-run", "artefacts").stdout)
    assert planned["train"] == 0
    assert planned["aggregate"] == 1


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("evaluate_every: 3", "evalute_every: 3", ["update_rules.yaml", "evalute_every", "did you mean 'evaluate_"]),
        ("lr: 0.5}", "lr: -0.5}", ["update_rules.yaml", "lr", "-0.5", "greater than 0"]),
        ("name: mkor,", "name: mkro,", ["update_rules.yaml", "mkro", "did you mean 'mkor'"]),
        ("seeds: [0, 1]", "seeds: [0, 1.5]", ["update_rules.yaml", "seeds[1]", "1.5", "integer"]),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(configured, old, new, says):
    _edit(configured, old, new)
    refused = _snakemake(configured)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1, refused.stderr
    for word in says:
        assert word in refused.stderr
    assert not (configured / RESULTS).exists()


@pytest.mark.parametrize("setting", ["teir=embedded", "tier=embeded", "hardware=My Machine"])
def test_a_bad_setting_on_the_command_line_is_one_line(configured, setting):
    refused = _snakemake(configured, setting)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
    assert setting.split("=")[0] in refused.stderr


FAILING = """\
    - workload: {name: autoencoder, batch_size: 64}
      steps: 6
      evaluate_every: 3
      micro_batch_size: 32
      seeds: [0, 1]
      optimizers:
        - {name: soap, hyperparameters: {lr: 0.01}}
"""
ENDLESS = (
    FAILING.replace("steps: 6", "steps: 1000000").replace("      micro_batch_size: 32\n", "").replace("soap", "adamw")
)
PARTIAL = Path(RESULTS, "partial", "test-machine", "embedded")


def _caption(folder: Path) -> str:
    """Return the caption of Figure 13 in a folder's partial results."""
    return from_rst((folder / PARTIAL / "figures" / "fig13_update_rules.rst").read_text())


def test_a_failing_job_leaves_every_figure_that_has_data_and_is_run_again(configured):
    """SOAP cannot train on micro-batches, and fails at its start."""
    file = configured / "config" / "experiments" / "update_rules.yaml"
    file.write_text(UPDATE_RULES + FAILING)
    failed = _snakemake(
        configured, "--keep-going", "figures/fig13_update_rules.png", str(R / "tables/time_to_target.csv")
    )
    assert failed.returncode == 1
    assert "of partial results in " in failed.stderr
    assert not (configured / "figures" / "fig13_update_rules.png").exists()
    assert (configured / PARTIAL / "figures" / "fig13_update_rules.png").stat().st_size > 0
    assert "Failed: Autoencoder SOAP seed 0 [ConfigError: autoencoder soap " in _caption(configured)
    assert "Missing: Autoencoder SOAP seed 1." in _caption(configured)
    runs = pd.read_csv(configured / PARTIAL / "update_rules.runs.csv").groupby("optimizer")["status"].agg(set)
    assert dict(runs) == {"sgd": {"finished"}, "mkor": {"finished"}, "soap": {"failed", "missing"}}
    again = _planned(_snakemake(configured, "--dry-run", "figures/fig13_update_rules.png").stdout)
    assert again == {"train": 1, "aggregate": 1, "fig13_update_rules": 1, "publish": 1}
    # After the correction it continues, and the partial results are deleted at the end.
    file.write_text(UPDATE_RULES)
    done = _snakemake(configured, "figures/fig13_update_rules.png")
    assert done.returncode == 0, done.stderr


def test_ctrl_c_leaves_the_figures_and_the_next_call_goes_on(configured):
    done = _snakemake(configured, str(R / "update_rules" / "sgd.csv"), str(R / "update_rules" / "mkor.csv"))
    assert done.returncode == 0, done.stderr
    (configured / "config" / "experiments" / "update_rules.yaml").write_text(UPDATE_RULES + ENDLESS)
    begun = {path.name for path in (configured / R / "runs").iterdir()}
    target = "figures/fig13_update_rules.png"
    command = [sys.executable, "-m", "snakemake", *CALL, "--cores", "1", target, "--config", *SETTINGS]
    with (configured / "said").open("w") as said:
        process = subprocess.Popen(
            command,
            cwd=configured,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + 120
            while not any(file.parent.name not in begun for file in (configured / R).glob("runs/*/metrics.csv")):
                assert process.poll() is None, (configured / "said").read_text()
                assert time.monotonic() < until, "no evaluation in two minutes"
                time.sleep(0.2)
            # A terminal sends the signal to every process in the foreground.
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(180) == 1
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert "Interrupted: Autoencoder AdamW seed 0." in _caption(configured)
    assert "Missing: Autoencoder AdamW seed 1." in _caption(configured)
    assert (configured / PARTIAL / "figures" / "fig13_update_rules.png").stat().st_size > 0
    again = _snakemake(configured, "--dry-run", target)
    assert again.returncode == 0, again.stderr
    assert _planned(again.stdout) == {"train": 1, "aggregate": 1, "fig13_update_rules": 1, "publish": 1}


def test_one_figure_is_a_target_of_its_own():
    """``snakemake figures/fig04...`` plans what this figure needs and nothing else."""
    dry = _snakemake(ROOT, "--dry-run", "--forceall", "figures/fig04_inversion_frequency.pdf")
    assert dry.returncode == 0, dry.stderr
    # Four jobs for the 144 runs of the autoencoder, one for BERT's six, and the pre-training run that BERT starts from.
    assert _planned(dry.stdout) == {
        "train": 6,
        "aggregate": 2,
        "iteration_time": 1,
        "fig04_inversion_frequency": 1,
        "publish": 1,
    }
    assert "experiment=update_rules" not in dry.stdout
    # The probe that needs all cores, then what another job starts from, then the experiment with more steps.
    first = dict(re.findall(r"^rule ([\w-]+):.*?priority: (\d+)$", dry.stdout, re.MULTILINE | re.DOTALL))
    del first["fig04_inversion_frequency"], first["publish"]
    ordered = sorted(first, key=lambda rule: -int(first[rule]))
    assert [re.sub(r"(?<=train-autoencoder_inversion)-\w+", "", rule) for rule in ordered] == [
        "iteration_time",
        "train-bert_phase1-adamw",
        "aggregate",
        *4 * ["train-autoencoder_inversion"],
        "train-bert_inversion-kaisa",
    ]
