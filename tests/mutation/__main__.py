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
from tests.mutation.running import TIME_LIMIT, kill, record

CACHE = Path(".mutation")
"""Recordings of tests, and the results of the last run."""
EQUIVALENT = Path("tests/mutation/equivalent.yaml")
HEADER = "# No test noticed these. An equivalent one belongs in equivalent.yaml, with its reason in place of `at`.\n"
OUTCOMES = ("killed", "timed out", "survived", "equivalent")

Killers = Mapping[Mutant, str | None]
"""What killed each mutant; None for those that survived."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", help="files or folders to change; all packages by default")
    parser.add_argument("--sample", type=int, help="the number of mutants to draw at random")
    parser.add_argument("--seed", type=int, default=0, help="which sample (default: %(default)s)")
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
    found = [each for each in everything if not options.modules or each.module.startswith(tuple(options.modules))]
    if not found:
        parser.error(f"nothing to change in {' '.join(options.modules)}; the packages are {', '.join(tests)}")
    if options.sample is not None:
        found = random.Random(options.seed).sample(found, min(options.sample, len(found)))
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
        killers = dict(zip(found, kill(lanes, found, tests, records), strict=True))
    problems = _report(killers, equivalent, config["least_killed"])
    _write(killers, equivalent, root / CACHE)
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"{used:.0f} seconds of CPU time. The survivors are listed in {CACHE / 'survivors.yaml'}.")
    return 1 if problems else 0


def _test_files(root: Path, paths: Sequence[str]) -> list[str]:
    found = (path for place in paths for path in [root / place, *(root / place).rglob("test_*.py")])
    return sorted(str(path.relative_to(root)) for path in found if path.suffix == ".py")


def _prepare(preload: Sequence[str]) -> None:
    """Import what all tests need, and make the tests cheap and repeatable, before processes are forked."""
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for name in preload:
        import_module(name)
    phases, checks = (Phase.explicit, Phase.generate), list(HealthCheck)
    settings.register_profile(
        "mutation", derandomize=True, database=None, deadline=None, phases=phases, suppress_health_check=checks
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
    keys = [Key(*(entry.get(name) for name in Key._fields)) for entry in entries]
    wrong = [entry for entry, key in zip(entries, keys, strict=True) if key not in known or not entry.get("reason")]
    if wrong:
        sys.exit(f"{EQUIVALENT} has entries that fit no mutant, or have no reason:\n{yaml.safe_dump(wrong)}")
    return set(keys)


def _report(killers: Killers, equivalent: Container[Key], least: float) -> list[str]:
    """Print what became of the mutants of every file; print and return what makes the command fail."""
    counts: Counter[tuple[str, str]] = Counter()
    problems = []
    for mutant, killer in killers.items():
        outcome = "timed out" if killer == TIME_LIMIT else "killed"
        if not killer:
            outcome = "equivalent" if mutant.key in equivalent else "survived"
        elif mutant.key in equivalent:
            problems.append(f"{EQUIVALENT} lists a mutant that {killer} kills: {mutant}")
        counts.update([(mutant.module, outcome), (mutant.package, outcome)])
    print(f"{'':45}" + "".join(f"{outcome:>12}" for outcome in OUTCOMES) + f"{'killed':>10}")
    packages = {mutant.package for mutant in killers}
    for name in sorted({name for name, _ in counts}):
        killed, timed_out, survived, _ = numbers = [counts[name, outcome] for outcome in OUTCOMES]
        # A test that hangs has not failed: whoever waits for it learns nothing of the change.
        share = 100 * killed / max(killed + timed_out + survived, 1)
        print(f"{name:45}" + "".join(f"{number:12}" for number in numbers) + f"{share:9.1f}%")
        if name in packages and killed + timed_out + survived and share < least:
            problems.append(f"{name}: fewer than {least} % of the mutants were killed")
    others = Counter(killer for killer in killers.values() if killer and "::" not in killer)
    print(f"Ended by something else than a test: {', '.join(f'{n} by {name}' for name, n in others.items()) or 'none'}")
    print("\n".join(problems))
    return problems


def _write(killers: Killers, equivalent: Container[Key], folder: Path) -> None:
    """Write what killed each mutant, and the list of those that nothing did."""
    survivors = [mutant for mutant, killer in killers.items() if not killer and mutant.key not in equivalent]
    entries = [{"at": f"{mutant.module}:{mutant.line}", **mutant.key._asdict()} for mutant in survivors]
    text = yaml.safe_dump(entries, sort_keys=False, width=1000, allow_unicode=True)
    (folder / "survivors.yaml").write_text(HEADER + text, encoding="utf-8")
    named = {str(mutant): killer for mutant, killer in killers.items()}
    (folder / "killers.json").write_text(json.dumps(named, indent=0), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
