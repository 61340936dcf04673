"""The commands, files and tables of README, docs/results.md and CONTRIBUTING exist and are correct."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import torch
from torch import nn

from mkor_core import MKOR, Preconditioner
from workflow.bench.claims import MARK
from workflow.bench.claims.decision import MEANINGS
from workflow.bench.merge import FIGURES
from workflow.bench.plan.artefacts import available, describe
from workflow.bench.results.columns import EVALUATION_COLUMNS, RUN_COLUMNS
from workflow.bench.results.rows import read_csv
from workflow.bench.support.config import ROOT

README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "docs" / "results.md").read_text()


def test_the_training_loop_trains():
    """The snippet's weights are those of preconditioning by hand."""

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    truth = copy.deepcopy(model)
    rows = torch.randn(8, 4)

    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    before, after = snippet.split("loss.backward()")
    names = {"model": model}
    exec(before, names)
    names["loss"] = model(rows).square().mean()
    exec("loss.backward()" + after, names)

    by_hand = Preconditioner(truth, MKOR(inverse_update_period=10))
    truth(rows).square().mean().backward()
    by_hand.step()
    torch.optim.SGD(truth.parameters(), lr=0.1, momentum=0.9).step()
    for ours, theirs in zip(model.parameters(), truth.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_every_artefact_is_listed_with_what_its_module_names_and_every_experiment_with_its_page():
    items = RESULTS.split("## The paper, item by item")[1].split("##")[0]
    listed = re.findall(r"^\| `(\w+)` \|", items, re.MULTILINE)
    assert sorted(listed) == sorted([*available("figures"), *available("tables")])
    linked = set(re.findall(r"\[(\w+)\]\(experiments/\1\.md\)", items))
    assert linked == {file.stem for file in (ROOT / "config" / "experiments").glob("*.yaml")}
    rows = {row[1]: row[2] for row in re.finditer(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|$", RESULTS, re.MULTILINE)}
    for kind in ("figures", "tables"):
        for name in available(kind):
            artefact, made_from = describe(kind, name), rows[name]
            same = re.match(r"as (\w+)", made_from)
            experiments = re.findall(r"\[(\w+)\]\(experiments/", rows[same[1]] if same else made_from)
            if "all experiments" in made_from:
                experiments.append("*")
            probes = re.search(r"probes? ([\w, ]+\w)", made_from)
            assert sorted(experiments) == sorted(artefact.experiments), name
            assert sorted(probes[1].split(", ") if probes else ()) == sorted(artefact.probes), name


def test_every_verdict_and_every_column_is_explained():
    verdicts, columns = RESULTS.split("## How to read a verdict")[1].split("## Columns")
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", verdicts, re.MULTILINE))
    assert {verdict: rows.get(verdict) for verdict in MEANINGS} == MEANINGS
    evaluations, runs = columns.split("\n## ")[0].split("`<experiment>.runs.csv`")
    named = {name for cell in re.findall(r"^\| (`.+?) \|", evaluations, re.MULTILINE) for name in cell.split("`")[1::2]}
    assert named == set(EVALUATION_COLUMNS)
    for name in RUN_COLUMNS.keys() - EVALUATION_COLUMNS.keys():
        phase = re.fullmatch(r"seconds_(?!to_target)(\w+)", name)
        assert re.search(rf"\b{phase[1]}\b" if phase else f"`{name}`", runs), name


def test_the_front_page_is_short_and_its_pictures_are_figures_that_are_kept():
    assert len(README.splitlines()) <= 200
    pictures = {Path(link).stem for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README)}
    assert pictures
    assert pictures <= set(FIGURES)


def test_the_claims_are_those_of_the_reference():
    """Truth: the table of the reference run, cell by cell."""
    (folder,) = re.findall(r"\]\((results/reference/[\w-]+/\w+)/tables/claims\.md\)", README)
    rows = [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in README.splitlines()
        if re.match(r"\| C\d\d \|", line)
    ]
    truth = read_csv(ROOT / folder / "tables" / "claims.csv")
    marked = [{**row, "verdict": f"{row['verdict']} {MARK}" if row["disputed"] else row["verdict"]} for row in truth]
    assert rows == [[row[name] for name in ("id", "claim", "published", "measured", "verdict")] for row in marked]


def test_paths_of_the_layout_exist():
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## Layout")[1].split("##")[0]
    paths = re.findall(
        r"`([\w./]+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    )
    assert len(paths) >= 8
    assert [path for path in paths if not (ROOT / path).exists()] == []
