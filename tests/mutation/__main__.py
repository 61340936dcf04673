"""Change the code in one place at a time, and list the changes that no test notices.

``make test-mutations`` runs this. The tables ``tool.mutation`` of pyproject.toml name the packages and their tests. The
changes are made in copies of the repository. Those that no test notices are written to .mutation/survivors.yaml; a
change that makes no difference belongs in tests/mutation/equivalent.yaml, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from importlib import import_module
from pathlib import Path

import yaml
from hypothesis import HealthCheck, Phase, settings

from tests.mutation.lanes import Lanes
from tests.mutation.mutants import Key, Mutant, mutants
from tests.mutation.recording import record
from tests.mutation.runners import kill

SEED = 0
"""The seed of a sample."""
CACHE = Path(".mutation")
"""Recordings of tests, and the results of the last run."""
EQUIVALENT = Path("tests/mutation/equivalent.yaml")
HEADER = "# No test noticed these. An equivalent one belongs in equivalent.yaml, with its reason in place of `at`.\n"

Outcomes = Mapping[Mutant, str | None]
"""What killed each mutant; None for those that survived."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", help="files or folders to change; all packages by default")
    parser.add_argument("--sample", type=int, help="the number of mutants to draw at random, always the same ones")
    parser.add_argument("--workers", type=int, default=2, help="processes that work side by side")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(f"stopped by {signal.Signals(number).name}"))
    root = Path.cwd()
    config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutation"]
    tests = {package: _test_files(root, paths) for package, paths in config["tests"].items()}
    sources = {name: [str(file.relative_to(root)) for file in sorted((root / name).rglob("*.py"))] for name in tests}
    everything = [mutant for name, files in sources.items() for file in files for mutant in mutants(root, name, file)]
    equivalent = _equivalent(root, everything)
    found = [mutant for mutant in everything if mutant.module.startswith(tuple(options.modules))]
    found = found if options.modules else everything
    if not found:
        parser.error(f"nothing to change in {' '.join(options.modules)}; the packages are {', '.join(tests)}")
    if options.sample is not None:
        found = random.Random(SEED).sample(found, min(options.sample, len(found)))
    (root / CACHE).mkdir(exist_ok=True)
    _prepare(config["preload"])
    with (
        tempfile.TemporaryDirectory(prefix="mutation-", ignore_cleanup_errors=True) as scratch,
        Lanes(root, Path(scratch), options.workers) as lanes,
    ):
        needed = sorted({file for mutant in found for file in tests[mutant.package]})
        traced = {
            file: [name for package in tests if file in tests[package] for name in sources[package]] for file in needed
        }
        records = record(lanes, traced, root / CACHE)
        outcomes = dict(zip(found, kill(lanes, found, tests, records), strict=True))
    _write(outcomes, equivalent, root / CACHE)
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"{used:.0f} seconds of CPU time. The survivors are listed in {CACHE / 'survivors.yaml'}.")
    return 1 if _problems(outcomes, equivalent, config["least_killed"]) else 0


def _test_files(root: Path, paths: Sequence[str]) -> list[str]:
    files = [
        file for path in paths for file in ([root / path] if path.endswith(".py") else (root / path).rglob("test_*.py"))
    ]
    return sorted(str(file.relative_to(root)) for file in files)


def _prepare(preload: Sequence[str]) -> None:
    """Import what all tests need, and make the tests cheap and repeatable, before processes are forked."""
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for name in preload:
        import_module(name)
    settings.register_profile(
        "mutation",
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutation")


def _equivalent(root: Path, everything: Sequence[Mutant]) -> set[Key]:
    """Return the keys of the mutants that are listed as equivalent, each with a reason.

    Raises:
        SystemExit: an entry fits no mutant, or has no reason.
    """
    file = root / EQUIVALENT
    entries = (yaml.safe_load(file.read_text(encoding="utf-8")) or []) if file.exists() else []
    known = {mutant.key for mutant in everything}
    keys = {Key(**{name: entry.get(name) for name in Key._fields}) for entry in entries if entry.get("reason")}
    wrong = [entry for entry in entries if Key(*(entry.get(name) for name in Key._fields)) not in keys & known]
    if wrong:
        sys.exit(f"{EQUIVALENT} has entries that fit no mutant, or have no reason:\n{yaml.safe_dump(wrong)}")
    return keys


def _write(outcomes: Outcomes, equivalent: Container[Key], folder: Path) -> None:
    """Print what became of the mutants of every file, and write the list of those that survived."""
    counts = _counts(outcomes, equivalent)
    print(f"{'':45}{'killed':>10}{'survived':>10}{'equivalent':>12}{'killed':>10}")
    for name in sorted({name for name, _ in counts}):
        killed, survived, same = (counts[name, outcome] for outcome in ("killed", "survived", "equivalent"))
        print(f"{name:45}{killed:10}{survived:10}{same:12}{100 * killed / max(killed + survived, 1):9.1f}%")
    others = Counter(killer for killer in outcomes.values() if killer and "::" not in killer)
    other_ends = ", ".join(f"{number} by {killer}" for killer, number in others.items())
    print(f"Killed by something else than a test: {other_ends or 'none'}")
    survivors = [mutant for mutant, killer in outcomes.items() if not killer and mutant.key not in equivalent]
    entries = [{"at": mutant.place, **mutant.key._asdict()} for mutant in survivors]
    text = yaml.safe_dump(entries, sort_keys=False, width=1000, allow_unicode=True)
    (folder / "survivors.yaml").write_text(HEADER + text, encoding="utf-8")
    killers = {str(mutant): killer for mutant, killer in outcomes.items()}
    (folder / "killers.json").write_text(json.dumps(killers, indent=0), encoding="utf-8")


def _counts(outcomes: Outcomes, equivalent: Container[Key]) -> Counter[tuple[str, str]]:
    """Return numbers of mutants by file or package, and by what became of them."""
    counts: Counter[tuple[str, str]] = Counter()
    for mutant, killer in outcomes.items():
        outcome = "killed" if killer else "equivalent" if mutant.key in equivalent else "survived"
        counts.update([(mutant.module, outcome), (mutant.package, outcome)])
    return counts


def _problems(outcomes: Outcomes, equivalent: Container[Key], least: float) -> list[str]:
    """Print and return what makes the command fail."""
    problems = [
        f"{EQUIVALENT} lists a mutant that {killer} kills: {mutant}"
        for mutant, killer in outcomes.items()
        if killer and mutant.key in equivalent
    ]
    counts = _counts(outcomes, equivalent)
    for package in sorted({mutant.package for mutant in outcomes}):
        killed, survived = counts[package, "killed"], counts[package, "survived"]
        if 100 * killed < least * (killed + survived):
            problems.append(f"{package}: fewer than {least} % of the mutants were killed")
    print("\n".join(problems))
    return problems


if __name__ == "__main__":
    sys.exit(main())
