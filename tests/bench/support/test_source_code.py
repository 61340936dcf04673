"""The fingerprint of a run's code: which edits change it, and for which runs."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workflow.bench.support import source_code
from workflow.bench.support.config import ROOT
from workflow.bench.support.source_code import code_fingerprint, probe_fingerprint, reachable, run_files

METHODS = {"mkor": "sgd", "kaisa": "sgd", "eva": "lamb", "lamb": None, "adamw": None}
"""Methods and their bases."""
WORKLOADS = ("autoencoder", "resnet20", "bert_pretraining")
RUNS = {f"{workload} {method}" for workload, method in itertools.product(WORKLOADS, METHODS)}


def spec(workload: str, method: str, base: str | None) -> dict[str, Any]:
    """The part of a spec that names code."""
    hyperparameters = {"lr": 0.1, **({"base": base} if base else {})}
    return {"workload": {"name": workload}, "optimizer": {"name": method, "hyperparameters": hyperparameters}}


def fingerprints(root: Path) -> dict[str, str]:
    return {
        f"{workload} {method}": code_fingerprint([spec(workload, method, base)], root)
        for workload, (method, base) in itertools.product(WORKLOADS, METHODS.items())
    }


def edited(patch: pytest.MonkeyPatch, file: str) -> None:
    """Let an operator of a file be another one."""
    hashed, changed = source_code._syntax, ROOT / file
    patch.setattr(source_code, "_syntax", lambda each: "changed" if each == changed else hashed(each))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the code that trains and measures."""
    root = tmp_path / "copy"
    for folder in (*source_code._FOLDERS, "workflow/bench/probes", "workflow/bench/analysis"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return root


EDITS: dict[str, set[str]] = {
    "mkor_core/ranks/comm.py": RUNS,
    "workflow/bench/training/loop.py": RUNS,
    "workflow/bench/workloads/autoencoder.py": {run for run in RUNS if run.startswith("autoencoder")},
    "workflow/bench/data/corpus.py": {run for run in RUNS if run.startswith("bert_pretraining")},
    "baselines/kfac/kaisa.py": {run for run in RUNS if run.endswith("kaisa")},
    "baselines/first_order/lamb.py": {run for run in RUNS if run.endswith(("lamb", "eva"))},
    "baselines/parts/groups.py": {run for run in RUNS if run.endswith(("lamb", "eva", "adamw"))},
    "workflow/bench/probes/memory.py": set(),
    "workflow/bench/analysis/fits.py": set(),
}
OF_PROBES: dict[str, set[str]] = {
    "workflow/bench/probes/memory.py": {"benchmarks.gpu"},
    "workflow/bench/analysis/fits.py": {"workflow.bench.probes.iteration_time", "benchmarks.gpu"},
}
"""The probes and benchmarks whose fingerprints an edit changes; that of code which trains changes all."""
MEASURING = ("workflow.bench.probes.cost_scaling", "workflow.bench.probes.iteration_time", "benchmarks.gpu")


@pytest.mark.parametrize("file", EDITS)
def test_an_edit_changes_the_fingerprints_of_the_runs_that_it_can_change(file: str, monkeypatch: pytest.MonkeyPatch):
    """And those of the probes, which may measure every method and workload."""
    before, of_probes = fingerprints(ROOT), {module: probe_fingerprint(module) for module in MEASURING}
    edited(monkeypatch, file)
    after = fingerprints(ROOT)
    assert {run for run in RUNS if after[run] != before[run]} == EDITS[file]
    changed = {module for module in MEASURING if probe_fingerprint(module) != of_probes[module]}
    assert changed == OF_PROBES.get(file, set(MEASURING))


def test_comments_docstrings_and_formatting_are_no_code(tmp_path: Path):
    text = (ROOT / "mkor_core" / "maths" / "linalg.py").read_text()
    texts = {
        "itself": text,
        "comment": f"{text}\n# A comment.\n",
        "docstring": text.replace('    """', '    """Changed. ', 1),
        "formatting": text.replace("def ", "\n\n\ndef ", 1),
        "operator": f"{text}\nHALF = 1 / 2\n",
    }
    found = {}
    for name, content in texts.items():
        (tmp_path / f"{name}.py").write_text(content)
        found[name] = source_code._syntax(tmp_path / f"{name}.py")
    assert [name for name in texts if found[name] != found["itself"]] == ["operator"]


def test_fingerprints_are_the_same_wherever_the_repository_lies_and_those_of_the_code_that_was_loaded(copy: Path):
    for file in ("mkor_core/mkor.py", "baselines/rival.py"):
        assert fingerprints(copy) == fingerprints(ROOT)
        assert probe_fingerprint(MEASURING[0], copy) == probe_fingerprint(MEASURING[0])
        (copy / file).open("a").write("\nHALF = 1 / 2\n")  # a process goes on with the code that it loaded
    source_code._snapshot.cache_clear()
    assert fingerprints(copy) == fingerprints(ROOT)
    assert probe_fingerprint(MEASURING[0], copy) != probe_fingerprint(MEASURING[0])


def test_a_run_depends_on_the_code_of_the_run_that_it_starts_from(monkeypatch: pytest.MonkeyPatch):
    tuned, pretrained = spec("bert_span", "adamw", None), spec("bert_pretraining", "kaisa", "lamb")
    before = code_fingerprint([tuned]), code_fingerprint([tuned, pretrained])
    edited(monkeypatch, "baselines/kfac/kaisa.py")
    assert code_fingerprint([tuned]) == before[0]
    assert code_fingerprint([tuned, pretrained]) != before[1]


TRAINED = ("autoencoder", "bert_pretraining", "bert_classification", "resnet20")
LOADING = f"""
import json, os, sys
from mkor_core import torchvision_operators  # before transformers
import sklearn.datasets, transformers.models.bert.modeling_bert
for name in [name for name in sys.modules if name.partition(".")[0] == "mkor_core"]:
    del sys.modules[name]
for workload in {TRAINED}:
    if os.fork() == 0:
        from workflow.bench import workloads
        from workflow.bench.training import loop
        workloads._class(workload)
        files = [m.__file__ for m in list(sys.modules.values()) if getattr(m, "__file__", None)]
        print(json.dumps({{workload: files}}), flush=True)
        os._exit(0)
    os.wait()
"""
"""Prints what a process that trains a workload has loaded, for each; all are forked from one with the libraries."""


@pytest.fixture(scope="module")
def loaded_by() -> dict[str, set[Path]]:
    """The files that a process has loaded once it can train a workload."""
    done = subprocess.run([sys.executable, "-c", LOADING], cwd=ROOT, check=True, capture_output=True, text=True)
    return {
        name: set(map(Path, files)) for line in done.stdout.splitlines() for name, files in json.loads(line).items()
    }


@pytest.mark.parametrize("workload", TRAINED)
def test_a_fingerprint_covers_what_a_training_process_loads(workload, loaded_by):
    """Truth: the modules that a process has loaded once it can train; packages' own files hold no numbers."""
    loaded = loaded_by[workload]
    folders = [ROOT / name for name in ("mkor_core", "workflow/bench/data", "workflow/bench/workloads")]
    expected = {file for file in loaded for folder in folders if file.is_relative_to(folder)}
    expected |= {file for file in loaded if file.is_relative_to(ROOT / "workflow/bench/training")}
    files = run_files([spec(workload, "mkor", "sgd")])
    assert {file for file in expected if file.name != "__init__.py"} <= files
    assert ROOT / "baselines/first_order/sgd.py" in files
    assert not {file for file in files if {"figures", "tables", "probes", "claims"} & set(file.relative_to(ROOT).parts)}


def test_imports_are_followed_within_the_given_folders(tmp_path: Path):
    package = tmp_path / "package"
    for folder in (package / "inner", tmp_path / "outer"):
        folder.mkdir(parents=True)
    (tmp_path / "start.py").write_text(
        "from package import helper\nfrom package.inner import name, deep\nimport outer.far\n"
    )
    for file, text in {
        "__init__": "",
        "helper": "import os\n",
        "unused": "",
        "inner/__init__": "from package.circle import x\nname = 1\n",
        "inner/deep": "",
        "circle": "import package.inner\n",
    }.items():
        (package / f"{file}.py").write_text(text)
    (tmp_path / "outer" / "far.py").write_text("")
    found = [
        file.relative_to(tmp_path).as_posix() for file in reachable([tmp_path / "start.py"], ["package"], tmp_path)
    ]
    assert found == [
        "package/circle.py",
        "package/helper.py",
        "package/inner/__init__.py",
        "package/inner/deep.py",
        "start.py",
    ]
