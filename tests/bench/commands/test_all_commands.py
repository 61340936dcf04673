"""``python -m workflow.bench``: one list of all commands, and the same code under one name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.bench.support.test_command_line import parser_of
from workflow.bench import __main__ as bench
from workflow.bench.support.config import ROOT

FOLDER = ROOT / "workflow" / "bench"


def called(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_table_holds_every_command():
    """Truth: the modules at the top of workflow/bench; those of other packages are named one by one."""
    modules = {f"workflow.bench.{file.stem}" for file in FOLDER.glob("[!_]*.py")} | {"workflow.bench.plan"}
    assert set(bench.COMMANDS.values()) == {*modules, "workflow.bench.data.cifar", "baselines.audit"}
    assert all(bench.file_of(module).is_file() for module in bench.COMMANDS.values())


@pytest.mark.parametrize(("name", "module"), bench.COMMANDS.items())
def test_the_list_says_of_each_command_what_its_own_help_says(name, module):
    """Truth: the description of the command's parser, which this test imports and the list does not."""
    command = f"{module}.__main__" if bench.file_of(module).name == "__main__.py" else module
    described = " ".join((parser_of(command).description or "").split())
    assert bench.purpose(module)
    assert described.startswith(bench.purpose(module)), name


def test_the_list_has_every_command_once_in_lines_that_fit():
    lines = "\n".join(bench.listing()).splitlines()
    assert max(map(len, lines)) <= 120
    names = [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("   ")]
    assert names == list(bench.COMMANDS)
    assert len(names) > 15


def test_the_list_imports_no_command():
    """Truth: what the interpreter has imported after it. PyTorch and pandas take seconds."""
    code = (
        "import sys; from workflow.bench.__main__ import main; main(['--help']); "
        "print({'torch', 'pandas', 'matplotlib', 'workflow.bench.status'} & set(sys.modules), file=sys.stderr)"
    )
    done = called("-c", code)
    assert (done.returncode, done.stderr) == (0, "set()\n")
    assert done.stdout == called("-m", "workflow.bench").stdout


@pytest.mark.parametrize("argument", ["results/reference/intel-xeon-2-cores/embedded", "nowhere", "--wrong"])
def test_a_command_prints_and_exits_alike_under_both_names(argument):
    """Truth: one that works, one that fails, one that argparse refuses."""
    one, other = called("-m", "workflow.bench", "costs", argument), called("-m", "workflow.bench.costs", argument)
    assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr)


def test_a_hyphen_may_stand_for_an_underscore_and_an_error_is_one_line_here_too():
    done = called("-m", "workflow.bench", "make-artefact", "fig01_mkor_diagram", "--results=/proc/none")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "/proc/none" in done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"), [("statsu", "mean status?"), ("trian", "mean train"), ("x" * 99, "--help lists")]
)
def test_an_unknown_command_is_refused_in_one_line_with_what_was_meant(capsys, typed, meant):
    assert bench.main([typed]) == 2
    said = capsys.readouterr().err
    assert meant in said
    assert said.count("\n") == 1
    assert len(said) <= 120
