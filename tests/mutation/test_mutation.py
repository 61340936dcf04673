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
from tests.mutation.mutants import Key, mutants
from tests.mutation.running import TIME_LIMIT

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
    """A folder with the planted code, which is the same after the test."""
    folder = tmp_path / "project"
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    (tmp_path / "temporary").mkdir()
    yield folder
    files = {file for name in ("planted", "tests") for file in (folder / name).rglob("*") if file.is_file()}
    assert {str(file.relative_to(folder)): file.read_text() for file in files} | PROJECT == PROJECT


def start(project, *arguments):
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "TMPDIR": str(project.parent / "temporary")}
    line = [sys.executable, "-m", "tests.mutation", "--workers", "1", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(line, cwd=project, env=environment, text=True, **pipes)


def test_what_a_weak_test_misses_is_listed_and_nothing_else(project):
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


def test_an_interrupt_leaves_no_process_and_no_file(project):
    command = start(project, "planted/endless.py")
    temporary = project.parent / "temporary"
    assert command.stdout.readline().startswith("recorded")
    mutant = PROJECT["planted/endless.py"].replace("number += 1", "number -= 1")
    wait_until(lambda: [file for file in temporary.glob("*/*/copy/planted/endless.py") if file.read_text() == mutant])
    command.send_signal(signal.SIGINT)
    output, _ = command.communicate(timeout=60)
    assert "stopped by SIGINT" in output
    assert command.returncode == 1
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
    ("text", "expected"),
    [
        ("x = a < b", ["< -> <="]),
        ("x = a == 'x'", ["== -> !=", "'x' -> 'XXx'"]),
        ("x = a in ('x', 'y')", ["in -> not in", "'x' -> 'XXx'", "'y' -> 'XXy'"]),
        ("x = a and not b", ["and -> or", "not -> nothing"]),
        ("x = a + a + b", ["+ -> -", "+ -> - (2)"]),
        ("x = a[2:b]", ["upper bound -> none", "2 -> 3"]),
        ("x = {'x': f'{a + 1}'}", ["'x' -> 'XXx'"]),
        ("x = max(a, b) if a else 0", ["condition -> not", "max -> min", "0 -> 1"]),
        ("x = a.max(b)", ["max -> min"]),
        ("x = [c for c in a if c]", ["condition -> not"]),
        ("x = zip(a, b, strict=True)", []),
        ("x = print('text' + a)", []),
        ("f(a)", ["call -> pass"]),
        ("a += 1", ["+= -> -=", "1 -> 2"]),
        ("if a:\n    raise ValueError(f'{a + 1}' + str(2))", ["condition -> not", "raise -> pass"]),
        ("def f(a: int = 1) -> list[2]:\n    'text'\n    return a", ["1 -> 2", "return -> return None"]),
        ("assert a > 1", []),
        ("import a", []),
        ("A = int | 2", []),
        ("if TYPE_CHECKING:\n    a = 1", []),
        ("@overload\ndef f(a=1): ...", []),
        ("@dataclass(frozen=True)\nclass A:\n    b: Annotated[int, 3]", []),
        ("match a:\n    case 'x' if b:\n        pass", ["condition -> not", "'x' -> 'XXx'"]),
        ("logger.info('text', a + 1)", ["call -> pass"]),
    ],
)
def test_a_line_is_changed(tmp_path, text, expected):
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


def test_what_a_mutant_s_end_counts_for(tmp_path, capsys):
    """Equivalent ones do not count, one that hangs is not killed, and one that is killed is not equivalent."""
    first, second = changes(tmp_path, "x = a < b < c\n")
    assert command._report({first: "a.py::test", second: None}, {second.key}, 95) == []
    assert command._report({first: "a.py::test", second: TIME_LIMIT}, set(), 50) == []
    assert "fewer than 95 %" in command._report({first: "a.py::test", second: TIME_LIMIT}, set(), 95)[0]
    assert "Ended by something else than a test: 1 by the time limit" in capsys.readouterr().out
    assert "a.py::test kills" in command._report({first: "a.py::test"}, {first.key}, 95)[0]


def test_every_mutant_that_is_listed_as_equivalent_exists():
    entries = yaml.safe_load((ROOT / command.EQUIVALENT).read_text(encoding="utf-8"))
    modules = {entry["module"] for entry in entries}
    known = {mutant.key for module in modules for mutant in mutants(ROOT, "", module, compiles=False)}
    assert [entry for entry in entries if Key(*(entry[name] for name in Key._fields)) not in known] == []
