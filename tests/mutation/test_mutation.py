"""The mutation tool, on planted code with a weak and a strong test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.mutation import __main__ as command
from tests.mutation.mutants import Key, Mutant, mutants

ROOT = Path(__file__).parents[2]
PROJECT = {
    "pyproject.toml": """
[tool.mutation]
least_killed = 95
preload = []
[tool.mutation.tests]
planted = ["tests"]
""",
    "planted/inner/weak.py": """
from functools import cache

LIMIT = 3


class Small:
    largest = 4

    def holds(self, value):
        return value < self.largest


@cache
def over(value):
    return value > LIMIT
""",
    "planted/strong.py": """
NAMES = {"one": 1}


def one():
    total = 0
    total += NAMES["one"]
    return total
""",
    "planted/endless.py": """
def count():
    number = 0
    while number < 1:
        number += 1
    return 1
""",
    "tests/test_planted.py": """
from planted.endless import count
from planted.strong import one
from planted.inner.weak import Small, over

def test_over():
    assert over(5) and not over(2)

def test_holds():
    assert Small().holds(1) and not Small().holds(9)

def test_one():
    assert one() == 1

def test_count():
    assert count() == 1
""",
}


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    (tmp_path / "temporary").mkdir()
    return folder


def start(project, *arguments):
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "TMPDIR": str(project.parent / "temporary")}
    line = [sys.executable, "-m", "tests.mutation", "--workers", "1", *arguments]
    return subprocess.Popen(
        line, cwd=project, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def source(project):
    return {name: (project / name).read_text() for name in PROJECT} | {
        str(file): file.read_bytes()
        for name in ("planted", "tests")
        for file in sorted((project / name).rglob("*"))
        if file.is_file()
    }


def test_what_a_weak_test_misses_is_listed_and_nothing_else(project):
    before = source(project)
    command = start(project, "planted/inner/weak.py", "planted/strong.py")
    output, _ = command.communicate(timeout=120)
    survivors = yaml.safe_load((project / ".mutation" / "survivors.yaml").read_text())
    assert [(entry["at"], entry["function"], entry["change"]) for entry in survivors] == [
        ("planted/inner/weak.py:4", "", "3 -> 4"),
        ("planted/inner/weak.py:8", "Small", "4 -> 5"),
        ("planted/inner/weak.py:11", "Small.holds", "< -> <="),
        ("planted/inner/weak.py:16", "over", "> -> >="),
    ], output
    assert command.returncode == 1
    assert "planted: fewer than 95 % of the mutants were killed" in output
    assert source(project) == before


def test_an_interrupt_leaves_no_process_no_file_and_the_source_as_it_was(project):
    before = source(project)
    command = start(project, "planted/endless.py")
    temporary = project.parent / "temporary"
    assert command.stdout.readline().startswith("recorded")
    mutant = PROJECT["planted/endless.py"].replace("number += 1", "number -= 1")
    wait_until(lambda: [file for file in temporary.glob("*/*/copy/planted/endless.py") if file.read_text() == mutant])
    command.send_signal(signal.SIGINT)
    output, _ = command.communicate(timeout=60)
    assert "stopped by SIGINT" in output
    assert command.returncode == 1
    assert source(project) == before
    wait_until(lambda: not list(temporary.iterdir()))
    links = [link for link in Path("/proc").glob("[0-9]*/cwd") if link.exists()]
    assert [link for link in links if temporary in link.resolve().parents] == []


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def changes(tmp_path, text):
    (tmp_path / "module.py").write_text(text)
    return mutants(tmp_path, ".", "module.py")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a < b", ["< -> <="]),
        ("a == 'x'", ["== -> !=", "'x' -> 'XXx'"]),
        ("a in ('x', 'y')", ["in -> not in", "'x' -> 'XXx'", "'y' -> 'XXy'"]),
        ("a and not b", ["and -> or", "not -> nothing"]),
        ("a + a + b", ["+ -> -", "+ -> - (2)"]),
        ("a[2:b]", ["upper bound -> none", "2 -> 3"]),
        ("{'x': f'{a + 1}'}", ["'x' -> 'XXx'"]),
        ("max(a, b) if a else 0", ["condition -> not", "max -> min", "0 -> 1"]),
        ("[c for c in a if c]", ["condition -> not"]),
        ("zip(a, b, strict=True)", []),
        ("print('text' + a)", []),
    ],
)
def test_an_expression_is_changed(tmp_path, line, expected):
    assert [mutant.key.change for mutant in changes(tmp_path, f"x = {line}\n")] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f(a)", ["call -> pass"]),
        ("a += 1", ["+= -> -=", "1 -> 2"]),
        ("if a:\n    raise ValueError(f'{a + 1}' + str(2))", ["condition -> not", "raise -> pass"]),
        ("def f(a: int = 1) -> list[2]:\n    'text'\n    return a", ["1 -> 2", "return -> return None"]),
        ("assert a > 1", []),
        ("import a", []),
        ("@dataclass(frozen=True)\nclass A:\n    b: Annotated[int, 3]", []),
        ("match a:\n    case 'x' if b:\n        pass", ["condition -> not", "'x' -> 'XXx'"]),
        ("logger.info('text', a + 1)", ["call -> pass"]),
    ],
)
def test_a_statement_is_changed(tmp_path, text, expected):
    assert [mutant.key.change for mutant in changes(tmp_path, text + "\n")] == expected


def test_a_key_survives_a_shift_and_no_change_moves_a_line(tmp_path):
    text = "def f(a):\n    return (\n        a\n        + 1\n    )\n\n\ndef g():\n    return 2\n"
    here, shifted = changes(tmp_path, text), changes(tmp_path, "\n\n" + text)
    assert [mutant.key for mutant in here] == [mutant.key for mutant in shifted]
    assert [mutant.line + 2 for mutant in here] == [mutant.line for mutant in shifted]
    assert all(mutant.apply(text).splitlines()[7] == "def g():" for mutant in here)


def test_an_entry_that_fits_no_mutant_is_refused(tmp_path):
    found = changes(tmp_path, "x = a < b\n")
    entry = {**found[0].key._asdict(), "reason": "a is never b"}
    file = tmp_path / command.EQUIVALENT
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump([entry]))
    assert command._equivalent(tmp_path, found) == {found[0].key}
    for wrong in ({**entry, "source": "y = a < b"}, {**entry, "reason": ""}):
        file.write_text(yaml.safe_dump([wrong]))
        with pytest.raises(SystemExit, match="fit no mutant, or have no reason"):
            command._equivalent(tmp_path, found)


def test_a_mutant_that_is_called_equivalent_and_is_killed_is_a_problem():
    mutant = Mutant(
        Key("planted/inner/weak.py", "f", "x = a < b", "< -> <="),
        "planted",
        1,
        frozenset({1}),
        False,
        (4, 9),
        "(a <= b)",
    )
    assert command._problems({mutant: None}, {mutant.key}, 95) == []
    assert "test_a kills" in command._problems({mutant: "test_a"}, {mutant.key}, 95)[0]


def test_every_mutant_that_is_listed_as_equivalent_exists():
    entries = yaml.safe_load((ROOT / command.EQUIVALENT).read_text(encoding="utf-8"))
    known = {mutant.key for module in {entry["module"] for entry in entries} for mutant in mutants(ROOT, "", module)}
    assert [entry for entry in entries if Key(*(entry[name] for name in Key._fields)) not in known] == []
