"""Every experiment of the repository, made small, from nothing to the report, but for probes that nothing shows."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.experiments import make_folder
from workflow.bench.artefacts import available
from workflow.bench.config import CONFIG, ROOT
from workflow.bench.experiments import label_of
from workflow.bench.hyperparameters import TUNED

RESULTS = Path("results/test/embedded")
BERT = {"batch_size": 8, "layers": 1, "hidden_size": 8, "heads": 1, "vocabulary_size": 256, "sequence_length": 16}
SMALL: dict[str, dict[str, Any]] = {
    "alexnet": {"channels": 2, "hidden": 8},
    "autoencoder": {"hidden": [8, 4, 8]},
    "bert_classification": BERT,
    "bert_pretraining": {**BERT, "validation_pairs": 16},
    "bert_span": BERT,
    "resnet20": {"width": 2, "image_size": 8},
}
#: Two optimizers stand for all where each job starts with importing transformers, which costs seconds.
KEPT = {
    **{("bert_glue", index): ("lamb", "mkor") for index in range(3)},
    **{(name, 0): ("lamb", "mkor") for name in ("bert_pretraining", "bert_squad")},
    **{(name, 0): ("sgd", "mkor") for name in ("alexnet_cifar100", "bert_base_squad", "bert_imdb")},
    **{(name, 0): ("sgd", "mkor") for name in ("resnet50_imagenet", "resnet_cifar10_lr")},
    ("update_rules", 1): ("lamb", "mkor_published"),
}


def small(experiment: str, index: int, block: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment's block with few steps of small models."""
    kept = KEPT.get((experiment, index))
    optimizers = [
        {
            **{key: value for key, value in entry.items() if key != "space"},
            "hyperparameters": {
                name: 0.01 if value == TUNED else value for name, value in entry["hyperparameters"].items()
            },
        }
        for entry in block["optimizers"]
        if kept is None or label_of(entry) in kept
    ]
    return {
        **{key: value for key, value in block.items() if key not in ("tuning", "schedule")},
        "workload": {**block["workload"], **SMALL[block["workload"]["name"]]},
        "seeds": block["seeds"][:2],
        "steps": 4,
        "evaluate_every": 2,
        "optimizers": optimizers,
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the pipeline has run."""
    folder = tmp_path_factory.mktemp("miniature")
    make_folder(folder / "config")
    for file in (CONFIG / "experiments").glob("*.yaml"):
        content = yaml.safe_load(file.read_text())
        blocks = enumerate(content["tiers"]["embedded"])
        content["tiers"] = {"embedded": [small(file.stem, index, block) for index, block in blocks]}
        (folder / "config" / "experiments" / file.name).write_text(yaml.safe_dump(content))
    called = subprocess.run(
        [
            *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "2"),
            *("artefacts", "--config", "config_dir=config", "hardware=test"),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    logs = "".join(f"{log}:\n{log.read_text()}" for log in (folder / RESULTS / "logs").rglob("*.log"))
    assert called.returncode == 0, f"{logs[-6000:]}\n{called.stderr[-3000:]}"
    return folder


def rows(file: Path) -> list[dict[str, str]]:
    """Return a CSV file's rows."""
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_every_artefact_is_made(finished):
    figures = [f"{name}.{kind}" for name in available("figures") for kind in ("pdf", "png")]
    tables = [f"{name}.{kind}" for name in available("tables") for kind in ("csv", "md", "html")]
    made = [*(f"figures/{file}" for file in figures), *(f"tables/{file}" for file in tables), "report.html"]
    sizes = {file: (finished / RESULTS / file).stat().st_size for file in made}
    assert min(sizes.values()) > 200, sizes
    copies = {file.name: file.read_bytes() for file in (finished / "figures").iterdir()}
    assert copies == {file: (finished / RESULTS / "figures" / file).read_bytes() for file in figures}


def test_every_run_finished_and_stands_in_its_experiment_s_table(finished):
    tables = [rows(table) for table in (finished / RESULTS).glob("*.runs.csv")]
    assert len(tables) == len(list((CONFIG / "experiments").glob("*.yaml")))
    statuses = {row["run"]: row["status"] for table in tables for row in table}
    assert set(statuses) == {folder.name for folder in (finished / RESULTS / "runs").iterdir()}
    assert set(statuses.values()) == {"finished"}


def test_the_probes_measured_what_the_experiments_train(finished):
    times = rows(finished / RESULTS / "probes" / "iteration_time.csv")
    assert {row["workload"] for row in times} == {"autoencoder", "wide_autoencoder", "bert_pretraining"}
    assert {row["hardware"] for row in times} == {"test"}
    assert {row["check"] for row in rows(finished / RESULTS / "probes" / "numerics.csv")} == {"C20", "C21", "C23"}


def test_claims_are_decided_where_these_runs_can_decide_them(finished):
    """Mathematics does not depend on how long anything was trained; the other verdicts may be any."""
    claims = {row["id"]: row["verdict"] for row in rows(finished / RESULTS / "tables" / "claims.csv")}
    assert list(claims) == [row["id"] for row in rows(ROOT / "workflow" / "paper" / "claims.csv")]
    decided = {claim for claim, verdict in claims.items() if verdict != "not tested"}
    assert decided >= {"C08", "C09", "C20", "C21", "C23"}
    assert claims["C21"] == "refuted"
