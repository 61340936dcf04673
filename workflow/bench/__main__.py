"""``python -m workflow.bench COMMAND ...``: every command of the bench under one name.

``python -m workflow.bench.COMMAND`` runs the same module. This one imports no command before it is called, so that the
list of all takes a moment.
"""

from __future__ import annotations

import ast
import runpy
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from workflow.bench.support.command_line import show
from workflow.bench.support.config import ROOT

PROGRAM: Final = "python -m workflow.bench"
_WIDTH: Final = 120

GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "plan and train": ("plan", "train", "tune", "evidence"),
    "data": ("fetch", "prepare", "cifar"),
    "see how a run stands": ("status", "costs", "partial", "refresh"),
    "measure and compare": ("timing", "compare", "audit"),
    "draw and report": ("aggregate", "make_artefact", "report", "snakemake_report"),
    "share results": ("crate", "merge", "keep", "adopt"),
    "write pages of the repository": (
        "list_hyperparameters",
        "list_searches",
        "summarize",
        "describe",
        "count_workloads",
    ),
}
_ELSEWHERE: Final = {"cifar": "workflow.bench.data.cifar", "audit": "baselines.audit"}
COMMANDS: Final[Mapping[str, str]] = {
    name: _ELSEWHERE.get(name, f"workflow.bench.{name}") for group in GROUPS.values() for name in group
}
"""The module of each command."""


def file_of(module: str) -> Path:
    """Return the file that runs a module; that of a package is its ``__main__``."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def purpose(module: str) -> str:
    """Return the first sentence of what a command's parser says of it, without importing the command."""
    tree = ast.parse(file_of(module).read_text())
    (main,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    described = main if "main.__doc__" in ast.unparse(main) else tree
    text = " ".join((ast.get_docstring(described) or "").split("\n\n")[0].split())
    return text.split(". ")[0].split(": ``")[0].removesuffix(".")


def listing() -> Iterator[str]:
    """Yield the lines of the help: the commands by group, each with its purpose."""
    yield f"usage: {PROGRAM} COMMAND ...   ({PROGRAM} COMMAND --help tells a command's options)"
    indent = max(map(len, COMMANDS)) + 4
    for group, names in GROUPS.items():
        yield f"\n{group}:"
        for name in names:
            first = f"  {name}".ljust(indent)
            yield textwrap.fill(purpose(COMMANDS[name]), _WIDTH, initial_indent=first, subsequent_indent=" " * indent)
    yield "\nEach probe has a command of its own: python -m workflow.bench.probes.NAME --help"


def refusal(name: str) -> str:
    """Return the line that refuses a name, with the commands that are written much like it."""
    close = get_close_matches(name.replace("-", "_"), COMMANDS, n=2)
    hint = f"did you mean {' or '.join(close)}?" if close else f"{PROGRAM} --help lists them"
    return f"there is no command '{name[:40]}': {hint}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names with the other arguments, as ``python -m`` runs its module."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        show(listing())
        return 0
    module = COMMANDS.get(name.replace("-", "_"))
    if module is None:
        print(refusal(name), file=sys.stderr)
        return 2
    sys.argv = [str(file_of(module)), *rest]
    # The module ends the process itself, with its exit status; jobs of the pipeline print their cost before that.
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
