"""The audit. Truth: optimizers with one planted fault each, and torch's own, which have none."""

from __future__ import annotations

import csv
import inspect
import json
import math
import subprocess
import sys

import pytest
import torch

from baselines import available
from baselines.audit import BadSubject, Subject, descent, properties
from baselines.audit.__main__ import main
from baselines.audit.facts import facts
from baselines.audit.subject import LONGEST_REPRODUCER
from tests.baselines import planted
from tests.support.hyperparameters import options
from workflow.bench.support.config import ROOT

PROPERTIES = {prop.name: prop for prop in properties()}
NOTICED = {
    "DeadDecay": "hyperparameters act",
    "DeadEps": "hyperparameters act",
    "DeadFirstBeta": "hyperparameters act",
    "DeadSecondBeta": "hyperparameters act",
    "DeadMaximize": "maximize climbs",
    "HalfMaximize": "maximize climbs",
    "Climbs": "descends",
    "HalfState": "resumes",
    "NoState": "resumes",
    "LostSteps": "resumes",
    "LostKeys": "resumes",
    "ByIdentity": "resumes",
    "InClass": "same bits",
    "ForgetfulRate": "a changed lr is used",
    "FirstRate": "a changed lr is used",
    "FrozenTensorRate": "a tensor lr is read at each step",
    "TensorRateTwice": "lr can be a tensor",
    "FirstGroupsRate": "groups are optimizers",
    "FirstGroupsDecay": "groups are optimizers",
    "LastGroupsBetas": "groups are optimizers",
    "DefaultsWin": "groups override defaults",
    "SharedMomentum": "parameters are independent",
    "OneCounter": "late parameters start afresh",
    "CountsAll": "unused parameters change nothing",
    "DecaysUnused": "unused parameters stay",
    "MovesWithoutGradients": "no gradients no step",
    "ClosureTwice": "a closure is evaluated once",
    "ClosureWithoutGradients": "a closure is evaluated once",
    "ClosureForgotten": "a closure is evaluated once",
    "ForeachDiffers": "foreach is the loop",
    "ForeachSkipsLast": "foreach is the loop",
    "SkipsVectors": "all shapes move",
    "SkipsScalars": "all shapes move",
    "SkipsStrided": "layouts of weights",
    "WritesToACopy": "layouts of weights",
    "ReadsMemory": "layouts of gradients",
    "ChangesGradients": "gradients stay",
    "KeepsFirstGradient": "zeroed gradients are as good as none",
    "HiddenNan": "no hidden nan",
    "GlobalNoise": "random numbers stay",
    "PythonNoise": "same bits",
    "HostsRate": "hosts agree",
    "ProcessRate": "hosts agree",
    "HashedRate": "processes agree",
    "CopySharesState": "deep copies are equal",
    "PickleLosesState": "pickles are equal",
    "RoundsState": "resumes in bfloat16",
    "UnsafeState": "loads safely",
    "FlatLosesState": "flat distributed checkpoint",
    "BadValuesAccepted": "bad values are refused",
    "BetasUnchecked": "bad values are refused",
    "AnyName": "unknown names are refused",
    "OrderMatters": "order of parameters",
    "EmptyPoisons": "empty parameters",
    "RealPartOnly": "complex parameters",
    "SparseSkipped": "sparse gradients",
    "WidensWeights": "trains in bfloat16",
    "DoublesOnRanks": "ranks are one process",
    "ShardsAlone": "shards are one process",
    "CompiledDiffers": "compiled is eager",
}
"""The planted faults, and the property that each is noticed by."""
MISSED = {"DecaysTwice", "WrongCorrection"}
"""Faults that no property can see without the method's definition: another hyperparameter would be right."""
TORCHS = [
    name
    for name, cls in sorted(vars(torch.optim).items())
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
]
DEAR = {"hyperparameters act", "descends", "trains in float64", "trains in bfloat16"}
"""Quick properties that may train for thousands of steps; test_methods.py has such tests with chosen values."""
CHEAP = [prop for prop in properties(slow=False) if prop.name not in DEAR]


def subject(name: str) -> Subject:
    return Subject(f"{planted.__name__}:{name}")


def test_at_least_19_of_20_planted_faults_are_noticed():
    faults = {name for name, cls in vars(planted).items() if inspect.isclass(cls) and issubclass(cls, planted.Sound)}
    assert faults - {"Sound"} == NOTICED.keys() | MISSED
    assert len(NOTICED) >= max(40, 19 * len(MISSED))


@pytest.mark.parametrize("fault", NOTICED)
def test_a_planted_fault_is_noticed(fault, monkeypatch):
    """By its property, with a measured statement and a reproducer of few lines, however slow the machine is."""
    monkeypatch.setattr(descent, "SWEEP_LIMIT", math.inf)
    verdict = PROPERTIES[NOTICED[fault]].verdict(subject(fault))
    assert verdict.found == "failed", verdict
    assert verdict.statement
    assert len(verdict.reproducer.splitlines()) <= LONGEST_REPRODUCER


@pytest.mark.parametrize("prop", properties(), ids=str)
def test_an_optimizer_without_a_fault_is_not_called_wrong(prop):
    prop.check(subject("Sound"))


@pytest.mark.parametrize("fault", sorted(MISSED))
def test_what_the_audit_cannot_see_is_not_called_wrong(fault):
    for prop in CHEAP:
        prop.check(subject(fault))


@pytest.mark.parametrize("name", TORCHS)
def test_no_optimizer_of_torch_is_called_wrong(name):
    tested = Subject(f"torch.optim:{name}")
    for prop in properties(slow=False) if name in ("AdamW", "SGD") else CHEAP:
        prop.check(tested)


@pytest.mark.parametrize("name", available())
def test_every_optimizer_of_the_project_holds_what_applies(name):
    """With short periods, so that a resume cuts them in the middle and at their ends."""
    tested = Subject(name, options(name))
    for prop in CHEAP:
        prop.check(tested)


def test_a_check_of_a_property_that_failed_raises_its_statement_and_its_reproducer():
    with pytest.raises(AssertionError, match=r"weight_decya=0.1 is accepted\n\nimport torch"):
        PROPERTIES["unknown names are refused"].check(subject("AnyName"))


def test_the_page_lists_the_properties():
    page = (ROOT / "docs" / "audit.md").read_text()
    rows = [f"| {prop} | {prop.statement} |" for prop in properties()]
    assert "\n".join(rows) in page
    assert f"{len(rows)} such properties" in page


def test_the_table_of_libraries_holds_80_optimizers_and_properties_that_exist():
    """`make audit` writes it, and the page's table with it."""
    with (ROOT / "results" / "reference" / "audit.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    audited = [row for row in rows if int(row["held"])]
    assert len(audited) >= 80
    assert {row["package"] for row in audited} >= {"torch", "timm", "pytorch_optimizer"}
    failures = [part.partition(": ")[0] for row in audited for part in filter(None, row["failures"].split("; "))]
    assert set(failures) <= {prop.name for prop in properties()}
    assert not any(int(row["failed"]) for row in audited if row["package"] == "torch")
    page = (ROOT / "docs" / "audit.md").read_text()
    assert all(f"| {row['package']} | {row['optimizer']} | {row['held']} | {row['failed']} |" in page for row in rows)


def test_a_reproducer_ends_with_the_fault_when_it_is_run_by_itself(tmp_path):
    verdict = PROPERTIES["resumes"].verdict(subject("LostSteps"))
    script = tmp_path / "reproducer.py"
    script.write_text(verdict.reproducer)
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert run.returncode == 1
    assert f"AssertionError: {verdict.statement}" in run.stderr


@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_the_command_prints_each_failure_with_its_reproducer(form, capsys):
    assert main([f"{planted.__name__}:AnyName", "--quick", "--format", form]) == 1
    printed = capsys.readouterr().out
    assert "import AnyName" in printed
    assert "weight_decya=0.1 is accepted" in printed
    if form == "json":
        report = json.loads(printed)
        failed = [row["property"] for row in report["properties"] if row["verdict"] == "failed"]
        assert "unknown names are refused" in failed
        assert len(report["facts"]) == 7


@pytest.mark.parametrize(
    ("target", "file", "message"),
    [
        ("torch.optim:Adamw", None, "torch.optim:Adamw cannot be imported: "),
        ("torch.nn:Linear", None, "torch.nn:Linear is neither a torch.optim.Optimizer nor a mkor_core.Method."),
        ("adams", None, "unknown optimizer 'adams'; choose one of "),
        ("torch.optim:SGD", '{"momentun": 1}', "torch.optim:SGD trains none of the audit's models: "),
        ("torch.optim:SGD", "[1]", "must hold a mapping of hyperparameters, not list."),
        ("torch.optim:SGD", "{", "cannot be read: "),
    ],
)
def test_what_cannot_be_audited_is_said_in_one_line(target, file, message, tmp_path, capsys):
    path = tmp_path / "values.json"
    path.write_text(file or "{}")
    assert main([target, "--hyperparameters", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_hyperparameters_come_from_json_or_yaml(tmp_path, capsys):
    for name, text in (("values.json", '{"lr": 0.02}'), ("values.yaml", "lr: 0.02\n")):
        path = tmp_path / name
        path.write_text(text)
        assert main(["sgd", "--quick", "--format", "json", "--hyperparameters", str(path)]) == 0
        assert "lr=0.02" in json.loads(capsys.readouterr().out)["setting"]


def test_facts_name_whom_an_optimizer_equals():
    found = dict(facts(subject("Sound")))
    assert "AdamW" in found["equal to"]
    assert found["state"].startswith("8")
    assert found["a permutation of gradients"].startswith("turns the steps alike")
    assert found["a rotation of gradients"].startswith("changes the steps")
    assert found["the loss times 1024"].startswith("invariant")
    sgd = dict(facts(Subject("torch.optim:SGD")))
    assert sgd["equal to"] == "SGD"
    assert sgd["the loss times 1024"].startswith("equivariant")


def test_methods_of_the_core_can_be_audited():
    tested = Subject("baselines:KAISA", {"factor_update_period": 1, "inverse_update_period": 2})
    for prop in [*CHEAP, PROPERTIES["ranks are one process"], PROPERTIES["shards are one process"]]:
        prop.check(tested)


def test_an_optimizer_that_trains_nothing_is_refused():
    with pytest.raises(BadSubject, match=r"trains none of the audit's models: "):
        Subject("torch.optim:Adam", {"fused": True, "foreach": True})
