"""Audit the optimizers of torch, timm, pytorch_optimizer and heavyball: ``make audit``.

Each optimizer is audited in a forked process with a limit on its time. The reproducer of each failure is then run by
itself; one that does not show the failure makes the property not applicable.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import inspect
import io
import multiprocessing
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from baselines.audit import BadSubject, Subject, properties
from mkor_core import torchvision_operators  # noqa: F401  (before timm, which imports torchvision)

PACKAGES = {
    "torch": "torch.optim",
    "timm": "timm.optim",
    "pytorch_optimizer": "pytorch_optimizer",
    "heavyball": "heavyball",
}
"""Modules by the names of their packages."""
EXCLUDED = {
    "heavyball:SAMWrapper": "it wraps another optimizer.",
    "pytorch_optimizer:LoRARite": "it trains pairs of LoRA's factors.",
    "pytorch_optimizer:Magma": "it wraps another optimizer.",
    "pytorch_optimizer:SCIONLight": "it keeps momentum in .grad, so that gradients must not be zeroed.",
    "pytorch_optimizer:SaRA": "it trains only weights below a threshold.",
}
"""What cannot train the audit's models by intention, with the reason from its documentation."""
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
    """Return what is found of an optimizer, in a process of its own, as are the reproducers."""
    if target in EXCLUDED:
        return Row(package, version(package), target.partition(":")[2], 0, 0, 0, f"not audited: {EXCLUDED[target]}")
    found = _in_process(_audit, target, slow)
    if found is None:
        found = (0, 0, 0), [], f"no end within {TIME_LIMIT} s of work"
    (held, failed, other), failures, reason = found
    shown = [text for text, script in failures if not _in_process(_run, script)]
    counts = held, len(shown), other + failed - len(shown)
    return Row(package, version(package), target.partition(":")[2], *counts, reason or "; ".join(shown))


def _audit(target: str, slow: bool) -> tuple[tuple[int, int, int], list[tuple[str, str]], str]:
    """Return the numbers of verdicts, each failure with its script, and the reason if nothing was audited."""
    try:
        subject = Subject(target)
    except BadSubject as error:
        return (0, 0, 0), [], f"not audited: {error}"
    verdicts = [(prop, prop.verdict(subject)) for prop in properties(slow=slow)]
    failed = [(prop, verdict) for prop, verdict in verdicts if verdict.found == "failed"]
    held = sum(verdict.found == "held" for _, verdict in verdicts)
    counts = held, len(failed), len(verdicts) - held - len(failed)
    return counts, [(f"{prop}: {verdict.statement}", verdict.reproducer) for prop, verdict in failed], ""


def _run(script: str) -> bool:
    exec(compile(script, "reproducer.py", "exec"), {"__name__": "__main__"})
    return True


def _in_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a forked process; None if it raises an error or works too long."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (TIME_LIMIT, TIME_LIMIT))
        torch.set_num_threads(1)
        quiet = io.StringIO()
        with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet), contextlib.suppress(Exception):
            send.send(work(*arguments))

    process = context.Process(target=limited)
    process.start()
    send.close()
    try:
        return receive.recv()
    except EOFError:
        return None
    finally:
        process.join()


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
    parser.add_argument("--workers", type=int, default=1, help="optimizers that are audited at a time")
    chosen = parser.parse_args()
    todo = [(package, target) for package in chosen.packages for target in classes(package)]
    rows: dict[int, Row] = {}
    with ThreadPoolExecutor(chosen.workers) as pool:
        futures = {pool.submit(audited, *one, slow=chosen.slow): place for place, one in enumerate(todo)}
        for future in as_completed(futures):
            rows[futures[future]] = future.result()
            print(*future.result(), flush=True)
            write([rows[place] for place in sorted(rows)], chosen.out)


if __name__ == "__main__":
    main()
