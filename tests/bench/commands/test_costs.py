"""What the jobs of a run cost: the lines in their logs, the sums, and the table in the documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.experiments import block, load, make_folder, optimizer, options, write
from workflow.bench import costs
from workflow.bench.plan import Plan
from workflow.bench.plan.artefacts import available
from workflow.bench.support.config import CONFIG, ROOT, read_mapping
from workflow.bench.support.cost_line import Cost, cost_in

PAGE = ROOT / "docs" / "costs.md"


def test_a_command_counts_itself_and_its_children():
    """Truth: two processes that each use the processor for half a second."""
    busy = "import time\nwhile time.process_time() < 0.5:\n    pass\n"
    code = (
        "import subprocess, sys\nfrom workflow.bench.support.cost_line import exit_with_cost\n"
        f"subprocess.run([sys.executable, '-c', {busy!r}], check=True)\n{busy}exit_with_cost(int(sys.argv[1]))"
    )
    done, failed = (
        subprocess.run([sys.executable, "-c", code, status], capture_output=True, text=True, check=False, cwd=ROOT)
        for status in "01"
    )
    cost = cost_in(done.stderr)
    assert cost is not None
    assert cost.core_seconds >= 1.0
    assert cost.seconds >= 0.9
    assert (failed.returncode, failed.stderr) == (1, "")


@pytest.mark.parametrize(
    ("log", "cost"),
    [
        ("", None),
        ("run 1 of 9\nthe cost: 3.0 core-seconds in 2.0 s\n", None),
        ("x\ncost: 3.0 core-seconds in 2.5 s\n", Cost(3.0, 2.5)),
        (
            "cost: 3.0 core-seconds in 2.5 s\nx\ncost: 1.5 core-seconds\ncost: 1.0 core-seconds in 4.0 s\n",
            Cost(5.5, 6.5),
        ),
    ],
)
def test_the_lines_of_a_log_add_up(log, cost):
    assert cost_in(log) == cost


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan of two experiments, with logs of one and of three probes."""
    folder = make_folder(tmp_path / "config")
    write(folder, "one", block(optimizer("sgd"), optimizer("adamw"), seeds=[0, 1]))
    write(folder, "two", block(optimizer("sgd")))
    plan = load(folder)
    for log, text in {
        "train/one/sgd": "cost: 10.0 core-seconds in 20.0 s\ncost: 2.0 core-seconds in 20.0 s\n",
        "aggregate/one": "cost: 1.0 core-seconds in 20.0 s\n",
        "probes/sizes": "cost: 4.0 core-seconds in 20.0 s\n",
        "probes/numerics": "broken off\n",
        "probes/cost_scaling": "cost: 50.0 core-seconds in 30.0 s\ncost: 7.0 core-seconds\n",
        "figures/fig01_mkor_diagram": "cost: 2.0 core-seconds in 20.0 s\n",
    }.items():
        file = plan.results / "logs" / f"{log}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return plan


def test_costs_are_summed_by_experiment_and_probe(plan, capsys):
    found = {row.name: row[1:] for row in costs.rows(plan)}
    assert found["one"] == (4, 13.0, None)
    assert found["two"] == (1, None, None)
    assert found["sizes"] == (None, 4.0, None)
    assert found["numerics"] == (None, None, None)
    assert found["cost_scaling"] == (None, None, 30.0)
    assert found["figures"] == (None, 2.0, None)
    assert costs.main(options(plan.results.parents[2] / "config")) == 0
    said = capsys.readouterr().out
    assert "| one | 4 | 13 |  |" in said
    assert "| all | 5 | 19 | 30 |" in said
    assert "On 2 cores that is 0.7 minutes" in said


def test_the_page_names_every_experiment_and_probe_of_the_tier():
    """Truth: the tier's configuration, and the probes' modules. `python -m workflow.bench.costs` prints the table."""
    rows = re.findall(
        r"^\| (\w+) \| [\d,]* \| ([\d,]*) \| ([\d,]*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    named = {name for name, *_ in rows}
    files = (CONFIG / "experiments").glob("*.yaml")
    experiments = {file.stem for file in files if "embedded" in read_mapping(file)["tiers"]}
    assert named == {*experiments, *available("probes"), "figures", "tables", "all"}
    assert all(cores or alone for _, cores, alone in rows)
