"""Audit the optimizers of torch, timm, pytorch_optimizer and heavyball: ``make audit``.

Each optimizer is audited in a forked process with a limit on its time. The reproducer of each failure is then run by
itself; one that does not show the failure makes the property not applicable.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch

from baselines.audit import BadSubject, Subject
from baselines.audit.__main__ import audit_of
from mkor_core import torchvision_operators  # noqa: F401  (before timm, which imports torchvision)

PACKAGES = {
    "torch": "torch.optim",
    "timm": "timm.optim",
    "pytorch_optimizer": "pytorch_optimizer",
    "heavyball": "heavyball",
}
"""Modules by the names of their packages."""
TIME_LIMIT = 180
"""Seconds of work for one optimizer."""
PAGE = Path("docs/audit.md")
MARKS = ("<!-- table of `make audit` -->\n", "<!-- end of the table -->\n")


class Row(NamedTuple):
    """What was found of one optimizer."""

    package: str
    version: str
    optimizer: str
    held: int
    failed: int
    not_applicable: int
    failures: str
    """Names and measured statements of the properties that failed, or the reason for which nothing was audited."""


def classes(package: str) -> Iterator[str]:
    """Yield the targets of a package's optimizers, without those that it only passes on."""
    name = PACKAGES[package]
    for key, cls in sorted(vars(import_module(name)).items()):
        own = inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
        if own and cls.__name__ == key and cls.__module__.split(".")[0] == package and not inspect.isabstract(cls):
            yield f"{name}:{key}"


def audited(package: str, target: str, *, slow: bool) -> Row:
    """Return what is found of an optimizer, in a process of its own."""
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(target, slow, send))
    process.start()
    send.close()
    try:
        counts, failures = receive.recv()
    except EOFError:
        counts, failures = (0, 0, 0), f"no end within {TIME_LIMIT} s of work"
    process.join()
    return Row(package, version(package), target.partition(":")[2], *counts, failures)


def _work(target: str, slow: bool, send: multiprocessing.connection.Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (TIME_LIMIT, TIME_LIMIT))
    try:
        audit = audit_of(Subject(target), slow=slow)
    except BadSubject as error:
        send.send(((0, 0, 0), f"not audited: {error}"))
        return
    failed = [(prop, verdict) for prop, verdict in audit.verdicts if verdict.found == "failed"]
    shown = [(prop, verdict) for prop, verdict in failed if shows(verdict.reproducer)]
    doubtful = len(failed) - len(shown)
    counts = audit.count("held"), len(shown), audit.count("not applicable") + doubtful
    send.send((counts, "; ".join(f"{prop}: {verdict.statement}" for prop, verdict in shown)))


def shows(script: str) -> bool:
    """Return whether a reproducer, run by itself, ends with an error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "reproducer.py")
        path.write_text(script)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        run = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, check=False)
    return run.returncode != 0


def table(rows: list[Row]) -> str:
    """Return the table of the page: what was audited, then a line for each optimizer."""
    lines = []
    for package in dict.fromkeys(row.package for row in rows):
        own = [row for row in rows if row.package == package]
        done = [row for row in own if row.held]
        clean = sum(not row.failed for row in done)
        counts = f"{len(done)} of {len(own)} optimizers audited, {clean} without a failure"
        lines.append(f"- {package} {own[0].version}: {counts}")
    lines += ["", "| package | optimizer | held | failed | not applicable | failures |", "|---|---|---|---|---|---|"]
    for row in rows:
        names = ", ".join(part.partition(":")[0] for part in row.failures.split("; ")) if row.failed else row.failures
        cells = (row.package, row.optimizer, row.held, row.failed, row.not_applicable, names.replace("|", "/"))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


def write(rows: list[Row], out: Path) -> None:
    """Write the CSV file and the page's table."""
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    PAGE.write_text(f"{before}{MARKS[0]}\n{table(rows)}\n{MARKS[1]}{after}", encoding="utf-8")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("packages", nargs="*", default=[*PACKAGES])
    parser.add_argument("--out", type=Path, default=Path("results/reference/audit.csv"))
    parser.add_argument("--slow", action="store_true", help="also what starts processes or compiles")
    chosen = parser.parse_args()
    rows = []
    for package in chosen.packages:
        for target in classes(package):
            rows.append(audited(package, target, slow=chosen.slow))
            print(*rows[-1], flush=True)
            write(rows, chosen.out)


if __name__ == "__main__":
    main()
