"""All experiments of the repository with small models and few steps, from training to the report."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.support import synthetic, synthetic_claims, synthetic_probes, synthetic_tables
from tests.support.experiments import load, make_folder
from tests.support.fork_server import commands_fork, snakemake
from tests.support.shared import folder_of_run
from tests.support.synthetic_probes import write_probe
from workflow.bench.plan.experiment_files import label_of
from workflow.bench.plan.hyperparameters import TUNED
from workflow.bench.support.config import CONFIG, ROOT
from workflow.bench.support.files import locked

MADE_UP = {
    "communication": synthetic_probes.communication,
    "cost_scaling": synthetic_probes.cost_scaling,
    "factors": synthetic_probes.factors,
    "half_precision": synthetic_claims.half_precision,
    "iteration_time": synthetic.iteration_times,
    "memory": synthetic_tables.memory,
    "projection": synthetic_probes.projection,
    "rank1_error": synthetic_probes.rank1_error,
    "scaling": synthetic_probes.scaling,
    "sharding": synthetic_probes.sharding,
    "spectra": synthetic_probes.spectra,
    "step_breakdown": synthetic_probes.step_breakdown,
}
"""Rows of the probes that take long; the others measure. Each probe's command is tested in tests/bench/probes."""
RESULTS = Path("results/test/embedded")
SAID = "said.txt"
"""What the pipeline printed."""
BERT = {"batch_size": 8, "layers": 1, "hidden_size": 8, "heads": 1, "vocabulary_size": 256, "sequence_length": 16}
SMALL: dict[str, dict[str, Any]] = {
    "alexnet": {"channels": 2, "hidden": 8},
    "autoencoder": {"hidden": [8, 4, 8]},
    "bert_classification": BERT,
    "bert_krona": {**BERT, "outer_size": 4},
    "bert_pretraining": {**BERT, "validation_pairs": 16},
    "bert_span": BERT,
    "kronecker_rnn": {"hidden_size": 8, "outer_size": 4, "vocabulary_size": 256, "sequence_length": 16},
    "language_model": {"layers": 1, "hidden_size": 8, "vocabulary_size": 256, "sequence_length": 16},
    "resnet20": {"width": 2, "image_size": 8},
}
KEPT = {
    **{("bert_glue", index): ("lamb", "mkor") for index in range(3)},
    **{(name, 0): ("lamb", "mkor") for name in ("bert_pretraining", "bert_squad")},
    **{(name, 0): ("sgd", "mkor") for name in ("alexnet_cifar100", "bert_base_squad", "bert_imdb")},
    **{(name, 0): ("sgd", "mkor") for name in ("resnet50_imagenet", "resnet_cifar10_lr")},
    **{("factor_variants", index): ("sgd", "mkor") for index in range(2)},
    ("update_rules", 0): ("sgd", "mkor", "mkor_published"),
    ("update_rules", 1): ("lamb", "mkor_published"),
}
"""Blocks in which two optimizers stand for all, since each job imports transformers, which takes seconds."""


def small(experiment: str, index: int, block: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment's block with small models and few steps."""
    kept = KEPT.get((experiment, index))
    optimizers = [
        {
            **{key: value for key, value in entry.items() if key != "space"},
            "hyperparameters": {
                name: 0.01 if value == TUNED else value
                for name, value in entry["hyperparameters"].items()
                if value != TUNED or name == "lr"  # the others have defaults
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


def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the pipeline has run; it runs once for all tests of all processes."""
    folder = folder_of_run(tmp_path_factory)
    with locked(folder / "miniature.lock"):
        if not (folder / "miniature" / "called").exists():
            _call(folder / "miniature")
            (folder / "miniature" / "called").touch()
    return folder / "miniature"


def _labels(config: Path) -> pd.DataFrame:
    """Return what a table of runs says of every label of a plan."""
    planned = [(job, run) for job in load(config).jobs for run in job.runs]
    about = [(job.experiment, run.spec["workload"]["name"], job.label, run.hyperparameters) for job, run in planned]
    return pd.DataFrame(about, columns=["experiment", "workload", "optimizer", "hyperparameters"])


def _call(folder: Path) -> None:
    """Run the pipeline in a new folder, with synthetic rows of the probes in `MADE_UP`."""
    make_folder(folder / "config")
    for file in (CONFIG / "experiments").glob("*.yaml"):
        content = yaml.safe_load(file.read_text())
        if "embedded" not in content["tiers"]:
            continue
        blocks = enumerate(content["tiers"]["embedded"])
        content["tiers"] = {"embedded": [small(file.stem, index, block) for index, block in blocks]}
        (folder / "config" / "experiments" / file.name).write_text(yaml.safe_dump(content))
    shutil.copytree(CONFIG / "tuned", folder / "config" / "tuned")
    for name, make in MADE_UP.items():
        write_probe(folder / RESULTS, name, make())
    write_probe(folder / RESULTS, "step_time", synthetic_probes.step_time(_labels(folder / "config")))
    settings = ("--config", "config_dir=config", "hardware=test", "--logger", "progress")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "workflow" / "plugins")])
    environment = {**os.environ, **commands_fork(), "PYTHONPATH": paths}
    arguments = ("--snakefile", str(ROOT / "Snakefile"), "--cores", "2", "artefacts", *settings)
    called = snakemake(folder, *arguments, environment=environment)
    (folder / SAID).write_text(called.stderr)
    logs = "".join(f"{log}:\n{log.read_text()}" for log in (folder / RESULTS / "logs").rglob("*.log"))
    assert called.returncode == 0, f"{logs[-6000:]}\n{called.stderr[-3000:]}"
