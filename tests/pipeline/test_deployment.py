"""The workflow in other places: imported with a prefix, deployed by conda, drawn without a number of cores."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import yaml

from tests.support.fork_server import commands_fork, snakemake
from workflow.bench.support.config import ROOT

FIGURE = "fig01_mkor_diagram"

IMPORTER = f"""
config["hardware"] = "test"

module mkor:
    snakefile: "{ROOT}/workflow/Snakefile"
    config: config
    prefix: "imported/mkor"

use rule * from mkor as mkor_*

rule own:
    input: "imported/mkor/figures/{FIGURE}.pdf"
    output: "own.txt"
    shell: "echo ${{{{PYTHONPATH-unset}}}} > {{output}}"
"""

CONDA = """#!/bin/sh
# Stands for conda: makes "environments" that hold one program, python, which records how it was called.
case "$*" in
    *--version*) echo conda 25.9.0 ;;
    *info*) echo '{{"conda_prefix": "{base}", "conda_version": "25.9.0", "platform": "linux-64"}}' ;;
    *channel_priority*) echo '{{"get": {{"channel_priority": "strict"}}}}' ;;
    *create*)
        while [ $# -gt 0 ]; do
            case "$1" in --prefix) prefix=$2 ;; --file) file=$2 ;; esac
            shift
        done
        mkdir -p "$prefix/bin" "$prefix/conda-meta"
        cp "$file" "{base}/created.yaml"
        cp "{base}/python" "$prefix/bin/python" ;;
esac
"""
ACTIVATE = 'export PATH="$1/bin:$PATH" CONDA_PREFIX="$1"\n'
PYTHON = """#!/bin/sh
echo "$0 $* $CONDA_PREFIX" >> "{base}/called.txt"
mkdir -p results/test/embedded/figures
for suffix in png pdf rst; do echo drawn > "results/test/embedded/figures/{figure}.$suffix"; done
"""


def test_another_workflow_imports_this_one_with_a_prefix_and_draws_a_figure(tmp_path):
    """A package ``workflow`` of the importer's own hides nothing, and its rules get none of this one's variables."""
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow" / "__init__.py").touch()
    (tmp_path / "Snakefile").write_text(IMPORTER)
    environment = {**os.environ, **commands_fork()}
    environment.pop("PYTHONPATH", None)
    done = snakemake(tmp_path, "--cores", "1", "own.txt", environment=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own.txt").read_text() == "unset\n"
    made = {file.relative_to(tmp_path).as_posix() for file in (tmp_path / "imported").rglob("*.pdf")}
    assert made == {f"imported/mkor/figures/{FIGURE}.pdf", f"imported/mkor/results/test/embedded/figures/{FIGURE}.pdf"}
    assert {path.name for path in tmp_path.iterdir()} == {".snakemake", "Snakefile", "imported", "own.txt", "workflow"}


def test_conda_deployment_runs_commands_in_the_environment_that_it_made(tmp_path):
    base, folder = tmp_path / "conda", tmp_path / "work"
    (base / "bin").mkdir(parents=True)
    folder.mkdir()
    for file, text in (("bin/conda", CONDA), ("bin/activate", ACTIVATE), ("python", PYTHON)):
        (base / file).write_text(text.format(base=base, figure=FIGURE) if file != "bin/activate" else text)
        (base / file).chmod(stat.S_IRWXU)
    # Snakemake is a fork, but the word python in its commands is left alone.
    server = {"FORK_SERVER": commands_fork()["FORK_SERVER"], "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **server, "PATH": f"{base}/bin:{os.environ['PATH']}"}
    arguments = (f"results/test/embedded/figures/{FIGURE}.pdf", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1")
    options = ("--config", "hardware=test", "--software-deployment-method", "conda")
    done = snakemake(folder, *arguments, *options, environment=environment)
    assert done.returncode == 0, done.stderr
    program, *call, active = (base / "called.txt").read_text().split()
    assert program == f"{active}/bin/python"
    assert Path(active).parent == folder / ".snakemake" / "conda"
    assert call[:2] == ["-m", "workflow.bench.make_artefact"]
    used = yaml.safe_load((base / "created.yaml").read_text())
    assert used == yaml.safe_load((ROOT / "workflow" / "envs" / "runtime.yaml").read_text())


def test_the_graph_of_rules_needs_no_number_of_cores(tmp_path):
    arguments = ("--snakefile", str(ROOT / "Snakefile"), "--rulegraph", "--config", "hardware=test")
    done = snakemake(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("digraph")
