"""The RO-Crate of a run: what it holds, what it says of every file and job, and what its profiles demand."""

from __future__ import annotations

import hashlib
import html
import json
import re
import shlex
import zipfile
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import markupsafe
import pytest

from tests.support import records
from tests.support.experiments import block, load, optimizer, options, write
from workflow.bench import crate
from workflow.bench.analysis.captions import as_rst
from workflow.bench.plan import Plan
from workflow.bench.results.private_names import PrivateNames
from workflow.bench.results.ro_crate import METADATA, RECORDS, WORKFLOW, job_records
from workflow.bench.support.config import ROOT
from workflow.bench.training.record import RunFolder

Entity = dict[str, Any]


@pytest.fixture
def plan(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Results of one experiment, and Snakemake's records of three jobs in the working folder."""
    write(folder, "one", block(optimizer("sgd")))
    plan = load(folder)
    log = "logs/train/one/sgd.log"
    for file in ("one.csv", "one.runs.csv", "one/sgd.csv", "tables/claims.csv", log, "runs/a/x.csv"):
        (plan.results / file).parent.mkdir(parents=True, exist_ok=True)
        (plan.results / file).write_text(f"{file}\n")
    (plan.results / log).write_text("cost: 12.5 core-seconds in 20.0 s, peak 640 MB\n")
    monkeypatch.chdir(tmp_path)
    results = str(plan.results)
    train = f"python -m workflow.bench.train one sgd --results=x 2> {results}/{log}"
    put_record(f"{results}/one/sgd.csv", "train-one-sgd", train, 10.0, log=[f"{results}/{log}"])
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


def test_every_file_is_described_by_its_checksum_and_the_same_results_give_the_same_bytes(plan):
    archive = packed(plan)
    first = (plan.results / "crate.zip").read_bytes()
    packed(plan)
    assert (plan.results / "crate.zip").read_bytes() == first
    graph = graph_of(archive)
    names = set(archive.namelist()) - {METADATA}
    assert set(ids(graph["./"]["hasPart"])) == names
    for name in names:
        content = archive.read(name)
        assert graph[name]["sha256"] == hashlib.sha256(content).hexdigest()
        assert graph[name]["contentSize"] == str(len(content))
    here = f"results/{plan.hardware}/embedded"
    assert {f"{here}/one.csv", f"{here}/one/sgd.csv", f"{here}/tables/claims.csv", f"{here}/specs.json"} <= names
    assert {WORKFLOW, "config/experiments/one.yaml", "mkor_core/maths/linalg.py", "LICENSE", "README.md"} <= names
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


LINKS = ("figures", "report/more", "tables/aa_test.md", "report.html", "specs/x.json", "two/x.csv")
IN_CONFIG = ("config/secret.yaml", "config/tuned", "config/tiers/more")


@pytest.mark.parametrize(
    ("name", "leads_to"),
    [
        *(
            (name, leads_to)
            for name in ("figures/fig01.png", "config/more")
            for leads_to in ("file", "folder", "nothing")
        ),
        *((name, "folder") for name in (*LINKS, *IN_CONFIG)),
    ],
)
def test_a_link_among_results_and_configuration_is_refused(plan, capsys, tmp_path, name, leads_to):
    private = tmp_path / "private"
    if leads_to == "file":
        private.write_text("a private key")
    elif leads_to == "folder":
        private.mkdir()
        (private / "fig01.png").write_text("a private key")
    link = tmp_path / name if name.startswith("config/") else plan.results / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(private)
    assert crate.main(options(tmp_path / "config")) == 1
    said = capsys.readouterr().err
    assert said == f"{link}: is a link, to {private}; put the file or folder itself in its place\n"
    assert not (plan.results / "crate.zip").exists()


def test_what_goes_in_is_listed_and_hidden_files_stay_out(plan, capsys, tmp_path):
    config = tmp_path / "config"
    for file in (config / ".env", config / ".cache" / "x", plan.results / "tables" / ".half.csv.x.unfinished"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("a private key")
    (config / ".#lock").symlink_to("nowhere")
    names = packed(plan).namelist()
    assert not [name for name in names if "/." in name or name.startswith(".")]
    said = capsys.readouterr().out.splitlines()
    here = f"results/{plan.hardware}/embedded"
    in_config = sum(name.startswith("config/tiers/") for name in names)
    assert f"  config/tiers/: {in_config} files" in said
    assert f"  {here}/tables/: 1 file" in said
    assert f"  mkor_core/: {sum(name.startswith('mkor_core/') for name in names)} files" in said
    assert any(line.startswith("  LICENSE, Makefile, README.md, ") for line in said)
    counted = [re.fullmatch(r"  (\S+/): (\d+) files?", line) for line in said]
    outside = sum("/" not in name for name in names)
    assert sum(int(match[2]) for match in counted if match) + outside == len(names)


def test_no_text_names_a_folder_of_the_machine_or_its_user(plan, tmp_path, monkeypatch):
    """Truth: the names themselves, searched for in every file, as each kind of file spells them."""
    home = tmp_path / "home" / "ann o'x"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "ann o'x")
    folders = (str(ROOT), str(home), str(tmp_path))
    paths = [f"{folder}{end}" for folder in folders for end in ("", "/", "/.venv/bin:$PATH", "/x y")]
    paths += ["/scratch/ann o'x/data", "file:///scratch/ann o'x/a/ann o'x/b"]
    text = "\n".join(paths)
    table = f"<td>{html.escape(text)}</td>"
    script = json.dumps({"caption": as_rst(" ".join(paths)), "table": table, "paths": paths})
    uri = f"data:text/html;charset=utf8;filename=x.html;base64,{b64encode(table.encode()).decode()}"
    page = f"<script>let x = {script}; let y = {script.replace('/', chr(92) + '/')}; let z = '{uri}'</script>"
    for name, content in {
        "report/sources.txt": "".join(f"1 2 {path}\n" for path in paths),
        "snakemake-report.html": f"{page}{table}{markupsafe.escape(text)}",
        "report.html": " ".join(quote(path, safe=safe) for path in paths for safe in ("", "/")),
        "report/settings.json": json.dumps({path: path for path in paths}),
        "tables/claims.rst": as_rst(" ".join(paths)),
    }.items():
        (plan.results / name).parent.mkdir(exist_ok=True)
        (plan.results / name).write_text(content)
    (plan.results / "figures").mkdir()
    (plan.results / "figures" / "x.png").write_bytes(str(ROOT).encode())
    export = f"export PYTHONPATH={ROOT} PYTHONSAFEPATH=1 PATH={ROOT}/.venv/bin:$PATH; python -m workflow.bench.train"
    put_record(f"{plan.results}/tables/claims.csv", "claims", f"{export} {' '.join(map(shlex.quote, paths))}", 50.0)
    archive = packed(plan)
    here = f"results/{plan.hardware}/embedded"
    for name in archive.namelist():
        if not name.endswith(".png"):
            found = archive.read(name).decode()
            found += "".join(b64decode(inner).decode() for inner in re.findall(r";base64,([\w+/]+=*)", found))
            plain = html.unescape(unquote(found)).replace("\\", "").replace('"\'"', "")
            for private in (*folders, "home/ann", "ann o'x", "ann%20o"):
                assert private not in plain, (name, private)
    assert archive.read(f"{here}/figures/x.png") == str(ROOT).encode()
    assert json.loads(archive.read(f"{here}/report/settings.json")) == {path: path for path in map(public, paths)}
    (job,) = (each for each in of_type(graph_of(archive), "CreateAction") if each["name"] == "claims: claims.csv")
    assert job["description"].startswith(
        "export PYTHONPATH=. PYTHONSAFEPATH=1 PATH=./.venv/bin:$PATH; "
        "python -m workflow.bench.train . ./ './.venv/bin:$PATH'"
    )


def public(path: str) -> str:
    """Return how a crate spells one of the paths of the test above."""
    for folder, place in ((str(ROOT), "."), (str(Path.home()), "~"), (str(Path.cwd()), ".")):
        path = path.replace(folder, place)
    return path.replace("ann o'x", "user")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ann-b /home/anna /home/ann.old /home/ann", "/home/ann-b /home/anna ~.old ~"),
        ("https://x.org/work /work/x a/work /worker -I=/work", "https://x.org/work ./x a/work /worker -I=."),
        (
            "https://github.com/ann/x data/ann/x /ann/x /lus/ann",
            "https://github.com/ann/x data/ann/x /user/x /lus/user",
        ),
        (
            "/lus/ann.csv /lus/ann. /lus/joann /lus/annika /lus/ann-x",
            "/lus/ann.csv /lus/user. /lus/joann /lus/annika /lus/ann-x",
        ),
        ("PATH=/a:/lus/ann/bin:/usr/bin; ann", "PATH=/a:/lus/user/bin:/usr/bin; ann"),
    ],
)
def test_only_these_names_are_hidden(text: str, shown: str):
    private = PrivateNames({Path("/home/ann"): "~", Path("/work"): ".", Path("/"): "nothing"}, "ann")
    assert private.hidden("x.txt", text.encode()).decode() == shown
    assert PrivateNames({}, None).hidden("x.txt", text.encode()).decode() == text
    # Bytes that are no text in UTF-8 stay.
    assert private.hidden("x.csv", b"\xff\0 /home/ann/x \xe9") == b"\xff\0 ~/x \xe9"


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
