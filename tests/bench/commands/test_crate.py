"""The RO-Crate of a run: what it holds, what it says of every file and job, and what its profiles demand."""

from __future__ import annotations

import hashlib
import json
import zipfile
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import records
from tests.support.experiments import block, load, make_folder, optimizer, options, write
from workflow.bench import crate
from workflow.bench.plan import Plan
from workflow.bench.results.job_records import METADATA as RECORDS
from workflow.bench.results.job_records import job_records
from workflow.bench.results.ro_crate import METADATA, WORKFLOW
from workflow.bench.training.record import RunFolder

Entity = dict[str, Any]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Results of one experiment, and Snakemake's records of three jobs in the working folder."""
    folder = make_folder(tmp_path / "config")
    write(folder, "one", block(optimizer("sgd")))
    plan = load(folder)
    for file in (
        "one.csv",
        "one.runs.csv",
        "one/sgd.csv",
        "tables/claims.csv",
        "logs/train/one/sgd.log",
        "runs/a/x.csv",
    ):
        (plan.results / file).parent.mkdir(parents=True, exist_ok=True)
        (plan.results / file).write_text(f"{file}\n")
    (plan.results / "logs/train/one/sgd.log").write_text("cost: 12.5 core-seconds in 20.0 s, peak 640 MB\n")
    monkeypatch.chdir(tmp_path)
    results = str(plan.results)
    train = f"python -m workflow.bench.train one sgd --results=x 2> {results}/logs/train/one/sgd.log"
    put_record(f"{results}/one/sgd.csv", "train-one-sgd", train, 10.0, log=[f"{results}/logs/train/one/sgd.log"])
    aggregated = {"shellcmd": "python -P -m workflow.bench.aggregate one", "input": [f"{results}/one/sgd.csv"]}
    put_record(f"{results}/one.csv", "aggregate", start=20.0, **aggregated)
    put_record(f"{results}/one.runs.csv", "aggregate", start=20.0, **aggregated)
    put_record(f"{results}/report/sources.txt", "report_sources", "cksum -- x > y", 30.0)
    put_record(f"{results}/tables/half.csv", "half", "python -m workflow.bench.train", 5.0, incomplete=True)
    put_record(f"{results}/tables/newer.csv", "newer", "python -m workflow.bench.train", 5.0, record_format_version=99)
    put_record("figures/fig01.pdf", "publish", "cp x y", 40.0)
    return plan


def put_record(output: str, rule: str, shellcmd: str, start: float, **fields: Any) -> None:
    """Write a record as Snakemake does: the name in base64, folders for a part that is too long for a file name."""
    name = urlsafe_b64encode(output.encode()).decode()
    file = Path(
        RECORDS, *(f"@{name[at : at + 50]}" for at in range(0, len(name) - 50, 50)), name[-(len(name) % 50 or 50) :]
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    record = {"rule": rule, "shellcmd": shellcmd, "starttime": start, "endtime": start + 5, "input": [], "log": []}
    file.write_text(json.dumps({"record_format_version": 6, "incomplete": False, **record, **fields}))


def packed(plan: Plan, *more: str) -> zipfile.ZipFile:
    assert crate.main([*options(plan.results.parents[2] / "config"), *more]) == 0
    return zipfile.ZipFile(plan.results / "crate.zip")


def graph_of(archive: zipfile.ZipFile) -> dict[str, Entity]:
    entities = json.loads(archive.read(METADATA))["@graph"]
    assert not [name for name, number in Counter(entity["@id"] for entity in entities).items() if number > 1]
    return {entity["@id"]: entity for entity in entities}


def ids(value: Any) -> list[str]:
    return [reference["@id"] for reference in (value if isinstance(value, list) else [value] if value else [])]


def of_type(graph: dict[str, Entity], kind: str) -> Iterator[Entity]:
    return (entity for entity in graph.values() if kind in entity["@type"])


def test_jobs_are_read_from_the_records_of_snakemake(plan):
    """Truth: what was written; an incomplete one, one of another version and one of another folder are left out."""
    found = [(job.rule, len(job.outputs), len(job.inputs)) for job in job_records(plan.results)]
    assert found == [("train-one-sgd", 1, 0), ("aggregate", 2, 1), ("report_sources", 1, 0)]
    assert job_records(plan.results, plan.results) == []


def test_every_file_is_described_by_its_checksum(plan):
    archive = packed(plan)
    graph = graph_of(archive)
    names = set(archive.namelist()) - {METADATA}
    assert set(ids(graph["./"]["hasPart"])) == names
    for name in names:
        content = archive.read(name)
        assert graph[name]["sha256"] == hashlib.sha256(content).hexdigest()
        assert graph[name]["contentSize"] == str(len(content))
    here = f"results/{plan.hardware}/embedded"
    assert {f"{here}/one.csv", f"{here}/one/sgd.csv", f"{here}/tables/claims.csv", f"{here}/specs.json"} <= names
    assert {WORKFLOW, "config/experiments/one.yaml", "mkor_core/linalg.py", "LICENSE", "README.md"} <= names
    assert not [name for name in names if "logs" in name or "/runs/" in name or "__pycache__" in name]


def test_every_job_names_its_command_tool_files_and_what_it_used(plan):
    graph = graph_of(packed(plan, "--agent=A. Person"))
    here = f"results/{plan.hardware}/embedded"
    train, aggregate, sources = (graph[f"#job/{number}"] for number in range(3))
    assert train["description"].startswith("python -m workflow.bench.train one sgd")
    assert (train["startTime"], train["endTime"]) == ("1970-01-01T00:00:10+00:00", "1970-01-01T00:00:15+00:00")
    assert ids(train["instrument"]) == ["workflow/bench/train.py"]
    assert ids(train["result"]) == ids(aggregate["object"]) == [f"{here}/one/sgd.csv"]
    assert ids(aggregate["result"]) == [f"{here}/one.csv", f"{here}/one.runs.csv"]
    assert ids(sources["instrument"]) == ["workflow/rules/report.smk"]
    assert [graph[name]["value"] for name in ids(train["resourceUsage"])] == ["12.5", "640"]
    assert graph["#run"]["startTime"] == train["startTime"]
    assert graph[ids(graph["#run"]["agent"])[0]]["name"] == "A. Person"


def test_software_has_the_versions_that_trained(plan):
    run = next(iter(plan.runs.values()))
    folder = RunFolder.of(plan.results, run.id)
    records.put(folder, run, "finished", steps=20)
    records.rewrite(folder, packages={"torch": "1.2.3"}, python="3.4.5")
    graph = graph_of(packed(plan))
    assert graph["pkg:pypi/torch"]["softwareVersion"] == "1.2.3"
    assert graph["https://www.python.org"]["softwareVersion"] == "3.4.5"


@pytest.mark.parametrize("recorded", [True, False])
def test_what_the_profiles_demand(plan, recorded):
    """Truth: the MUST rules of the Process, Workflow and Provenance Run Crate 0.5 and of Workflow RO-Crate 1.0."""
    if not recorded:
        for file in RECORDS.rglob("*"):
            if file.is_file():
                file.unlink()
    graph = graph_of(packed(plan))
    for entity in graph.values():
        for value in entity.values():
            for name in ids(value) if isinstance(value, dict | list) and "@id" in str(value) else []:
                assert name in graph or name.startswith("https://"), f"{entity['@id']} refers to {name}"
    root, main = graph["./"], graph[WORKFLOW]
    assert {"name", "description", "datePublished", "license"} <= root.keys()
    assert {"https://w3id.org/ro/wfrun/process/0.5", "https://w3id.org/ro/wfrun/workflow/0.5"} <= set(
        ids(root["conformsTo"])
    )
    assert ("https://w3id.org/ro/wfrun/provenance/0.5" in ids(root["conformsTo"])) is recorded
    assert all("CreativeWork" in graph[name]["@type"] for name in ids(root["conformsTo"]))
    assert ids(root["mainEntity"]) == [WORKFLOW]
    assert {"File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"} == set(main["@type"])
    assert "ComputerLanguage" in graph[ids(main["programmingLanguage"])[0]]["@type"]
    runs = [action for action in of_type(graph, "CreateAction") if ids(action["instrument"]) == [WORKFLOW]]
    assert [run["@id"] for run in runs] == ["#run"]
    jobs = [action for action in of_type(graph, "CreateAction") if action not in runs]
    assert len(jobs) == len(list(of_type(graph, "ControlAction"))) == (3 if recorded else 0)
    assert set(ids(root["mentions"])) == {"#run", *(job["@id"] for job in jobs)}
    for job in jobs:
        assert set(ids(job["instrument"])) <= set(ids(main["hasPart"]))
    for step in of_type(graph, "HowToStep"):
        assert step["@id"] in ids(main["step"])
        assert set(ids(step["workExample"])) <= set(ids(main["hasPart"]))
    for control in of_type(graph, "ControlAction"):
        assert graph[ids(control["instrument"])[0]]["@type"] == "HowToStep"
        assert graph[ids(control["object"])[0]] in jobs
    organized = list(of_type(graph, "OrganizeAction"))
    assert len(organized) == recorded
    for action in organized:
        assert "SoftwareApplication" in graph[ids(action["instrument"])[0]]["@type"]
        assert ids(action["result"]) == ["#run"]
        assert len(ids(action["object"])) == len(jobs)
    assert all("propertyID" in value for value in of_type(graph, "PropertyValue"))


def test_the_same_results_give_the_same_bytes(plan):
    packed(plan)
    first = (plan.results / "crate.zip").read_bytes()
    packed(plan)
    assert (plan.results / "crate.zip").read_bytes() == first


def test_a_folder_without_results_or_without_records_is_said(plan, capsys, tmp_path):
    chosen = [*options(tmp_path / "config"), f"--out={tmp_path / 'x.zip'}"]
    assert crate.main([*chosen, "--hardware=nothing"]) == 1
    assert capsys.readouterr().err.endswith("has no tables; run make reproduce first\n")
    assert not (tmp_path / "x.zip").exists()
    for file in RECORDS.rglob("*"):
        if file.is_file():
            file.write_text("damaged")
    assert crate.main(chosen) == 0
    assert "no records of Snakemake" in capsys.readouterr().out
