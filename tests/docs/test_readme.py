"""The commands, files and tables of README, docs/results.md and CONTRIBUTING exist and are correct."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

import baselines
from baselines.muon import normuon
from baselines.parts.layered import LayeredModel
from mkor_core import MKOR, Preconditioner
from workflow.bench.claims.decision import MEANINGS
from workflow.bench.merge import FIGURES
from workflow.bench.plan.artefacts import available, describe
from workflow.bench.results.columns import EVALUATION_COLUMNS, RUN_COLUMNS
from workflow.bench.results.rows import read_csv
from workflow.bench.site.front_page import Facts
from workflow.bench.support.config import ROOT

README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "docs" / "results.md").read_text()
FACTS = Facts.read()


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


def test_the_line_that_takes_a_rival_into_ones_own_loop_runs():
    """Truth: the optimizer that its own file makes, on the same model and data."""
    imported, built = re.findall(r"`(from baselines import build|optimizer, preconditioner = build\(.*?\))`", README)
    weights = []
    for by_page in (True, False):
        torch.manual_seed(0)
        model, rows = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(8, 4)
        names: dict[str, Any] = {"model": model}
        exec(f"{imported}\n{built}", names)
        optimizer = names["optimizer"] if by_page else normuon.optimizer_for(LayeredModel.of(model), lr=0.02)
        assert names["preconditioner"] is None
        for _ in range(3):
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
        weights.append([parameter.detach() for parameter in model.parameters()])
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)


def test_every_optimizer_of_the_table_can_be_built_and_stands_with_its_numbers():
    """Truth: the field's tables, read with pandas."""
    rows = [line.split("|")[1:-1] for line in README.splitlines() if re.match(r"\| `\w+` \|", line)]
    assert len(rows) >= 8
    results, costs = (pd.read_csv(FACTS.field / "tables" / f"field_{name}.csv") for name in ("results", "costs"))
    experiments = ["field_language_model", "field_alexnet", "field_autoencoder"]
    (base,) = re.findall(r"a step / (\w+)'s", README)
    step = costs.set_index(["experiment", "optimizer"])["ms a step"]
    for cells in rows:
        label, iterations, time, cost, state = (cell.strip().strip("`") for cell in cells)
        assert label in baselines.available()
        for shown, column in ((iterations, "steps / base"), (time, "time / base")):
            own = results[results["optimizer"] == label].set_index("experiment")[column]
            assert shown == ", ".join(f"{value:.2f}" for value in own.reindex(experiments).fillna(1.0)), label
        assert cost == f"{step[experiments[0], label] / step[experiments[0], base]:.2f}"
        kept = costs[(costs["experiment"] == experiments[0]) & (costs["optimizer"] == label)]
        assert state == f"{kept['state / parameters'].iloc[0]:.1f}"


def test_the_front_page_is_two_screens_and_its_pictures_are_figures_that_are_kept():
    assert len(README.splitlines()) <= 110
    prose = re.sub(r"```.*?```|<!--.*?-->|^\|.*?$|\]\(.*?\)", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len(re.findall(r"\S*\w\S*", prose)) <= 900, "tables and code do not count"
    pictures = {Path(link).stem for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README)}
    assert pictures
    assert pictures <= set(FIGURES)


SAID = {
    "confirmed": r"(seen on the prox|holds \()",
    "refuted": r"(not seen on the prox|does not hold|better than claimed)",
    "no difference": "no difference on the prox",
    "inconclusive": "open",
    "not tested": "not tested$",
}
"""How the words of a verdict begin."""


def test_the_claims_are_those_of_the_reference():
    """Truth: the table of the reference's run, row by row, and its runs."""
    rows = [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in README.splitlines()
        if re.match(r"\| C\d\d \|", line)
    ]
    truth = read_csv(FACTS.evidence / "tables" / "claims.csv")
    assert f"]({FACTS.evidence.relative_to(ROOT).as_posix()}/tables/claims.md)" in README
    assert [row[0] for row in rows] == [row["id"] for row in truth]
    for (name, _, proxy, quantity, verdict), row in zip(rows, truth, strict=True):
        assert re.match(SAID[row["verdict"]], verdict), name
        assert proxy == row.get("proxy", proxy), name
        assert verdict == row.get("wording", verdict), name
        stated, _, measured = quantity.rpartition(": ") if row["measured"] else (row["quantity"], "", "")
        assert stated.startswith(row["quantity"]), name
        numbers = re.findall(r"-?\d[\d.e+-]*(?![\d.]* parts)", measured)
        assert set(numbers) <= set(re.findall(r"-?\d[\d.e+-]*", row["measured"])), name


def test_paths_of_the_layout_exist():
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## Layout")[1].split("##")[0]
    paths = re.findall(
        r"`([\w./]+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    )
    assert len(paths) >= 8
    assert [path for path in paths if not (ROOT / path).exists()] == []
