"""Every experiment has its page in docs/experiments, and the page says what the experiment's file says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from workflow.bench import workloads
from workflow.bench.plan.experiment_files import combinations, label_of
from workflow.bench.support.config import CONFIG, ROOT, read_mapping

PAGES = ROOT / "docs" / "experiments"
FILES = sorted((CONFIG / "experiments").glob("*.yaml"))
HEAD = "| workload | batch | steps | seeds | target | optimizers |"


def facts(block: dict[str, Any], widths: set[int | None]) -> str:
    """Return the table row that a page has for a block; widths: those of all blocks, which it names if they differ."""
    workload = workloads.resolve(**block["workload"])
    batch = f"{workload['batch_size']:,}"
    if "micro_batch_size" in block:
        batch += f", {block['micro_batch_size']:,} at once"
    if "precision" in block:
        batch += f", {block['precision']}"
    target, goal = "none", block.get("target")
    if goal:
        sign, limit = ("≤", goal["below"]) if "below" in goal else ("≥", goal["above"])
        target = f"{goal['split']} {goal['metric']} {sign} {limit}"
    optimizers = []
    for entry in block["optimizers"]:
        runs = combinations(entry)
        # A list of combinations has the values of each run, in order; the lists of a product have each once.
        linked = isinstance(entry.get("sweep"), list)
        values = {name: [run[name] for run in runs] for name in runs[0]} if linked else entry.get("sweep", {})
        swept = [f"{name} {', '.join(map(str, given))}" for name, given in values.items()]
        optimizers.append(f"`{label_of(entry)}`" + (f" ({'; '.join(swept)})" if swept else ""))
    name = f"`{block['workload']['name']}`, {workload['dataset']}"
    if len(widths) > 1:
        name += f", width {workload['hidden_size']}"
    if workload.get("centred_inputs"):
        name += ", centred inputs"
    return f"| {name} | {batch} | {block['steps']:,} | {len(block['seeds'])} | {target} | {', '.join(optimizers)} |"


def sections(text: str) -> dict[str, str]:
    """Return a page's parts by their headings, of whatever depth."""
    parts = re.split(r"^#{2,3} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_there_is_a_page_for_every_experiment_and_no_other():
    assert [page.stem for page in sorted(PAGES.glob("*.md"))] == [file.stem for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_page_says_what_the_experiments_file_says(file: Path):
    """Truth: the file. A row that is missing here is what the page must have."""
    content = read_mapping(file)
    text = (PAGES / f"{file.stem}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {content['title']}\n")
    assert f"In the paper: {content['paper']}." in text
    assert f"`config/experiments/{file.stem}.yaml`" in text
    found = sections(text)
    tiers = [heading.strip("`") for heading in found if heading.startswith("`")]
    assert tiers == list(content["tiers"])
    assert {"What the paper did", "What runs here", "What differs"} <= found.keys()
    for tier, blocks in content["tiers"].items():
        lines = found[f"`{tier}`"].splitlines()
        assert lines.count(HEAD) == 1
        rows = [line for line in lines if line.startswith("| `")]
        widths = {block["workload"].get("hidden_size") for block in blocks}
        assert rows == [facts(block, widths) for block in blocks]
        assert any(line and not line.startswith("|") for line in lines), f"{tier}: a table alone explains nothing"


OUTCOMES = [page for page in sorted(PAGES.glob("*.md")) if "## What came out" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", OUTCOMES, ids=lambda page: page.stem)
def test_what_came_out_is_what_the_references_table_says(page: Path):
    """Truth: the table of the page's name, beside the figure that the page shows."""
    said = sections(page.read_text(encoding="utf-8"))["What came out"]
    (picture,) = re.findall(r"!\[[^]]*\]\(([^)]+)\)", said)
    table = ((page.parent / picture).parents[1] / "tables" / f"{page.stem}.csv").read_text(encoding="utf-8")
    intervals = re.findall(r"-?[\d.]+ \[-?[\d.]+, -?[\d.]+\]", said)
    assert intervals
    assert [interval for interval in intervals if f'"{interval}"' not in table] == []
