"""What the jobs of a run cost: the lines in their logs, the sums, and the table in the documentation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.experiments import block, load, optimizer, options, write
from workflow.bench import costs
from workflow.bench.plan import REFERENCE, Plan
from workflow.bench.plan.artefacts import available, describe
from workflow.bench.results.costs import FILE, logged_costs, read_costs, text_of
from workflow.bench.support.config import CONFIG, ROOT, ConfigError, read_mapping
from workflow.bench.support.cost_line import Cost, cost_in


def test_a_command_counts_itself_and_its_children():
    """Truth: two processes that each use the processor for half a second, and far less memory than who starts them."""
    here = b"x" * 300_000_000
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
    assert cost.peak_mb is not None
    assert 5 < cost.peak_mb < len(here) / 1e6
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
        ("cost: 3.0 core-seconds in 2.5 s, peak 80 MB\ncost: 1.5 core-seconds, peak 90 MB\n", Cost(4.5, 2.5, 90.0)),
    ],
)
def test_the_lines_of_a_log_add_up(log, cost):
    assert cost_in(log) == cost


@pytest.fixture
def plan(folder: Path) -> Plan:
    """A plan of two experiments, with logs of one and of three probes."""
    write(folder, "one", block(optimizer("sgd"), optimizer("adamw"), seeds=[0, 1]))
    write(folder, "two", block(optimizer("sgd")))
    plan = load(folder)
    for log, text in {
        "train/one/sgd": "cost: 10.0 core-seconds in 20.0 s\ncost: 2.0 core-seconds in 20.0 s\n",
        "aggregate/one": "cost: 1.0 core-seconds in 20.0 s\n",
        "probes/sizes": "cost: 4.0 core-seconds in 20.0 s, peak 400 MB\n",
        "probes/numerics": "broken off\n",
        "probes/cost_scaling": "cost: 50.0 core-seconds in 30.0 s\ncost: 7.0 core-seconds\n",
        "figures/fig01_mkor_diagram": "cost: 2.0 core-seconds in 20.0 s\n",
    }.items():
        file = plan.results / "logs" / f"{log}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return plan


def test_costs_are_summed_by_experiment_and_probe(plan, capsys):
    # A run resets its process's peak, so the largest may be in the table of runs alone.
    (plan.results / "one.runs.csv").write_text("run,peak_memory_bytes\na,700000000\nb,\n")
    found = {cost.name: cost[1:] for cost in logged_costs(plan)}
    assert found["one"] == (4, 13.0, None, 700.0)
    assert found["two"] == (1, None, None, None)
    assert found["sizes"] == (None, 4.0, None, 400.0)
    assert found["numerics"] == (None, None, None, None)
    assert found["cost_scaling"] == (None, None, 30.0, None)
    assert found["figures"] == (None, 2.0, None, None)
    assert costs.main(options(plan.results.parents[2] / "config")) == 0
    said = capsys.readouterr().out
    assert "| one | 4 | 13 |  | 700 |" in said
    assert "| all | 5 | 19 | 30 | 700 |" in said
    assert "On 2 cores that is 0.7 minutes" in said


def test_runs_count_that_the_logs_do_not_know(plan):
    """Truth: the seconds of the runs of this machine; of a shared run in the first experiment."""
    table = "run,hardware,wall_seconds\na,test,{}\nb,test,\nc,test,5.5\n"
    for seconds, cost in ((7.0, 13.0), (20.5, 26.0)):
        (plan.results / "one.runs.csv").write_text(table.format(seconds))
        (plan.results / "two.runs.csv").write_text("run,hardware,wall_seconds\nc,test,5.5\nd,test,2.5\n")
        found = {cost.name: cost.core_seconds for cost in logged_costs(plan)}
        assert (found["one"], found["two"]) == (cost, 2.5)
    (plan.results / "two.runs.csv").write_text("run,hardware,wall_seconds\nd,elsewhere,2.5\n")
    assert {cost.name: cost.core_seconds for cost in logged_costs(plan)}["two"] is None


def test_without_a_logged_job_the_command_says_so(plan, capsys):
    shutil.rmtree(plan.results / "logs")
    assert costs.main(options(plan.results.parents[2] / "config")) == 1
    assert capsys.readouterr().err.endswith(" has logged its cost; run make reproduce first\n")


def test_costs_are_kept_in_a_file(plan, tmp_path, capsys):
    (tmp_path / FILE).write_text(text_of(logged_costs(plan)))
    assert read_costs(tmp_path / FILE) == list(logged_costs(plan))
    assert costs.main([str(tmp_path), *options(plan.results.parents[2] / "config")]) == 0
    assert "| cost_scaling |  |  | 30 |  |" in capsys.readouterr().out
    assert costs.main([str(tmp_path / "absent")]) == 1
    assert "has no costs.csv" in capsys.readouterr().err
    for text in ("name,runs\none,2\n", text_of(logged_costs(plan)).replace("13", "x")):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(ConfigError, match="damaged"):
            read_costs(tmp_path / FILE)


@pytest.mark.parametrize("file", sorted(REFERENCE.glob(f"*/embedded/{FILE}")), ids=lambda file: file.parent.parent.name)
def test_a_reference_has_the_cost_of_every_experiment_and_probe(file):
    """Truth: the tier's configuration, and the experiments that the probes' modules name; other tiers' have no cost."""
    kept = read_costs(file)
    files = (CONFIG / "experiments").glob("*.yaml")
    experiments = {file.stem for file in files if "embedded" in read_mapping(file)["tiers"]}
    named = {probe: set(describe("probes", probe).experiments) for probe in available("probes")}
    probes = {probe for probe, measured in named.items() if not measured or measured & {"*", *experiments}}
    assert {cost.name for cost in kept} == {*experiments, *probes, "figures", "tables"}
    assert all(cost.core_seconds or cost.seconds_alone for cost in kept)
