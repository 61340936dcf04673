"""The fingerprint of a run's code: which edits change it, and for which runs."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.experiments import block, load, make_folder, optimizer, options, rows, write
from workflow.bench import aggregate, train
from workflow.bench.plan import Plan
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


def copy_of_code(root: Path) -> Path:
    """Copy the code that trains."""
    for folder in source_code._FOLDERS:
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / source_code._FITS).parent.mkdir()
    shutil.copy(ROOT / source_code._FITS, root / source_code._FITS)
    return root


def by_content(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Return a function that calls another one once for each content of a file, and keeps its results by path."""
    results: dict[bytes, Any] = {}

    def result(file: Path) -> Any:
        content = file.read_bytes()
        if content not in results:
            results[content] = function(file)
        return results[content]

    return cache(result)


@pytest.fixture(scope="module")
def _parsed_once() -> Iterator[None]:
    """Copies differ in one file at most; the others are parsed once for all of them, which would take seconds each."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_tree", "_syntax"):
            patch.setattr(source_code, name, by_content(getattr(source_code, name).__wrapped__))
        yield


@pytest.fixture
def copy(tmp_path: Path, _parsed_once: None) -> Callable[[], Path]:
    """Makes copies of the code that trains, each in a folder of its own: hashes are kept by path."""
    return lambda: copy_of_code(tmp_path / f"copy{len(list(tmp_path.iterdir()))}")


def replaced(file: str, old: str, new: str) -> Callable[[Path], object]:
    def edit(root: Path) -> None:
        text = (root / file).read_text()
        assert old in text
        (root / file).write_text(text.replace(old, new, 1))

    return edit


def appended(file: str, text: str) -> Callable[[Path], object]:
    return lambda root: (root / file).open("a").write(text)


EDITS: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "a comment in mkor_core": (appended("mkor_core/mkor.py", "\n# A comment.\n"), set()),
    "a docstring in mkor_core": (replaced("mkor_core/maths/linalg.py", '    """', '    """Changed. '), set()),
    "other formatting": (replaced("mkor_core/maths/linalg.py", "def ", "\n\n\ndef "), set()),
    "a new file in baselines": (lambda root: (root / "baselines" / "rival.py").write_text("LR = 1.0\n"), set()),
    "an operator in mkor_core": (appended("mkor_core/ranks/comm.py", "\nHALF = 1 / 2\n"), RUNS),
    "an operator in training": (appended("workflow/bench/training/loop.py", "\nHALF = 1 / 2\n"), RUNS),
    "an operator in a workload": (
        appended("workflow/bench/workloads/autoencoder.py", "\nHALF = 1 / 2\n"),
        {run for run in RUNS if run.startswith("autoencoder")},
    ),
    "an operator in a workload's data": (
        appended("workflow/bench/data/corpus.py", "\nHALF = 1 / 2\n"),
        {run for run in RUNS if run.startswith("bert_pretraining")},
    ),
    "an operator in a method": (
        appended("baselines/kfac/kaisa.py", "\nHALF = 1 / 2\n"),
        {run for run in RUNS if run.endswith("kaisa")},
    ),
    "an operator in a base": (
        appended("baselines/first_order/lamb.py", "\nHALF = 1 / 2\n"),
        {run for run in RUNS if run.endswith(("lamb", "eva"))},
    ),
    "an operator in a helper of two methods": (
        appended("baselines/parts/groups.py", "\nHALF = 1 / 2\n"),
        {run for run in RUNS if run.endswith(("lamb", "eva", "adamw"))},
    ),
    "an operator of a probe": (appended("workflow/bench/probes/memory.py", "\nHALF = 1 / 2\n"), set()),
}


def test_fingerprints_are_the_same_wherever_the_repository_lies(tmp_path: Path):
    assert fingerprints(copy_of_code(tmp_path / "copy")) == fingerprints(ROOT)


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_changes_the_fingerprints_of_the_runs_that_it_can_change(copy, name):
    edit, expected = EDITS[name]
    edited = copy()
    edit(edited)
    before, after = fingerprints(ROOT), fingerprints(edited)
    assert {run for run in RUNS if after[run] != before[run]} == expected


def test_a_run_depends_on_the_code_of_the_run_that_it_starts_from(copy):
    edited = copy()
    appended("baselines/kfac/kaisa.py", "\nHALF = 1 / 2\n")(edited)
    tuned, pretrained = spec("bert_span", "adamw", None), spec("bert_pretraining", "kaisa", "lamb")
    assert code_fingerprint([tuned], edited) == code_fingerprint([tuned])
    assert code_fingerprint([tuned, pretrained], edited) != code_fingerprint([tuned, pretrained])


def test_the_plan_names_the_runs_that_a_run_starts_from(tmp_path: Path):
    folder = make_folder(tmp_path / "config")
    write(folder, "first", block(optimizer("sgd")))
    start = {"experiment": "first", "optimizer": "sgd"}
    write(folder, "second", block(optimizer("mkor"), start_from=start))
    plan = load(folder)
    (first,), (second,) = plan.job("first", "sgd").runs, plan.job("second", "mkor").runs
    assert second.start_from == first.id
    assert second.lineage == (second.spec, first.spec)


def test_probes_depend_on_every_method_and_workload(copy):
    edited = copy()
    assert probe_fingerprint(edited) == probe_fingerprint()
    again = copy()
    EDITS["a new file in baselines"][0](again)
    assert probe_fingerprint(again) != probe_fingerprint()


def test_probes_depend_on_the_laws_that_their_rows_are_computed_with(copy):
    edited = copy()
    replaced("workflow/bench/analysis/fits.py", "(period - 1)", "period")(edited)
    assert probe_fingerprint(edited) != probe_fingerprint()
    assert fingerprints(edited) == fingerprints(ROOT)


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


def test_a_process_keeps_the_fingerprint_of_the_code_that_it_loaded(copy):
    root = copy()
    before = fingerprints(root)
    appended("mkor_core/mkor.py", "\nHALF = 1 / 2\n")(root)
    assert fingerprints(root) == before


def test_changed_code_marks_the_runs_of_one_workload_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The mark is in the table of runs; `make status` and `make refresh` ask the same function."""
    folder = make_folder(tmp_path / "config")
    resnet = {"name": "resnet20", "dataset": "digits", "batch_size": 16}
    write(folder, "one", block(optimizer("sgd"), steps=2, evaluate_every=2), tier="embedded")
    write(folder, "two", block(optimizer("sgd"), steps=2, evaluate_every=2, workload=resnet), tier="embedded")
    for name in ("one", "two"):
        assert train.main([name, "sgd", *options(folder)]) == 0
    hashed = source_code._syntax
    changed = ROOT / "workflow/bench/workloads/autoencoder.py"
    monkeypatch.setattr(source_code, "_syntax", lambda file: "changed" if file == changed else hashed(file))
    plan = load(folder)
    assert _marks(plan, folder) == {"one": "false", "two": "true"}


def _marks(plan: Plan, folder: Path) -> dict[str, str]:
    for name in ("one", "two"):
        assert aggregate.main([name, *options(folder)]) == 0
    return {name: rows(plan.results / f"{name}.runs.csv")[0]["code_current"] for name in ("one", "two")}
