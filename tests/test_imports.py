"""Imports point one way: each room of the code may use only those that this file allows it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache

import pytest

from workflow.bench.support.config import ROOT

ROOMS: dict[str, set[str]] = {
    "leaves": set(),
    "maths": {"leaves"},
    "capture": {"leaves"},
    "method": {"leaves", "maths", "capture"},
    "ranks": {"leaves", "capture", "method"},
    "kernels": {"leaves", "capture", "method"},
    "engines": {"leaves", "maths", "capture", "method", "ranks", "kernels"},
    "saving": {"leaves", "capture", "method", "ranks"},
    "step": {"leaves", "maths", "capture", "method", "ranks", "kernels", "engines", "saving"},
    "mkor": {"leaves", "maths", "capture", "method"},
    "support": set(),
    "data": {"support"},
    "workloads": {"support", "data"},
    "plan": {"support", "data", "workloads"},
    "downloads": {"support", "data", "plan"},
    "training": {"support", "data", "workloads", "plan"},
    "results": {"support", "plan", "training"},
    "analysis": {"support", "plan", "results"},
    "claims": {"support", "plan", "results", "analysis"},
    "tables": {"support", "plan", "results", "analysis", "claims"},
    "figures": {"support", "plan", "results", "analysis"},
    "site": {"support", "plan", "results", "analysis", "claims"},
    "probes": {"support", "data", "workloads", "plan", "training", "analysis.fits"},
    "cluster": {"support", "data", "plan", "downloads", "training", "results", "probes._links", "probes._costs"},
}
"""The rooms of mkor_core, of workflow/bench in the order of the data, and workflow/cluster; what each may import.

Maths and capture know nothing of methods."""

COMMANDS = "commands"
"""The modules at the top of workflow/bench, which a user can type."""
BENCH = {*list(ROOMS)[list(ROOMS).index("support") :], COMMANDS}
ROOMS[COMMANDS] = BENCH - {COMMANDS, "cluster"}

CORE_ROOMS = {
    **dict.fromkeys(("devices", "experts", "ranges", "torchvision_operators"), "leaves"),
    **dict.fromkeys(("applied", "attachment", "preconditioner"), "step"),
    **dict.fromkeys(("mkor", "mkor_h", "reference"), "mkor"),
}
"""The rooms of modules at the top of mkor_core; another is a room of its own."""

KERNELS = tuple(f"mkor_core.kernels.{name}" for name in ("applying", "device", "finding"))
"""The modules that need Triton, which the library runs without."""

LARGEST_FOLDER = 12
"""Modules in a folder of mkor_core and baselines."""

PACKAGES = {"mkor_core": set(), "baselines": {"mkor_core"}, "workflow": {"mkor_core", "baselines"}}
"""Top-level packages, and the others that each may import."""

NO_TORCH = ("support", "plan", "downloads", "results", "analysis", "claims", "tables", "figures", "site")


def imports(source: str) -> Iterator[str]:
    """Yield the dotted names that a module imports, those of a package's members as well."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def sources(package: str) -> Mapping[str, str]:
    """Return the modules of a package by dotted name."""
    files = sorted((ROOT / package).rglob("*.py"))
    assert files, package
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file.read_text() for file in files}


def room_of(name: str) -> str | None:
    """Return the room of a dotted name, None for a package that is no room."""
    parts = name.split(".")
    if parts[0] == "mkor_core" and len(parts) > 1 and parts[1] not in ("__init__", "__version__"):
        return CORE_ROOMS.get(parts[1], parts[1])
    if parts[:2] == ["workflow", "cluster"]:
        return "cluster"
    if parts[:2] != ["workflow", "bench"] or len(parts) < 3 or parts[2] == "__init__":
        return None
    return parts[2] if parts[2] in ROOMS else COMMANDS


def wrong_turns(modules: Mapping[str, str]) -> list[str]:
    """Return the imports inside a package that its order does not allow."""
    found = []
    for module, source in modules.items():
        package = module.partition(".")[0]
        if (own := room_of(module)) is None:
            continue
        for name in set(imports(source)):
            room, parts = room_of(name), name.split(".")[2:]
            if not name.startswith(f"{package}.") or room not in ROOMS or room == own:
                continue
            inside = {room, ".".join(parts[:2])}
            # "from room import module" names the room on the way to a module that is allowed.
            on_the_way = any(allowed.split(".")[:-1] == parts for allowed in ROOMS[own])
            if not on_the_way and not inside & ROOMS[own]:
                found.append(f"{module} imports {name}")
    return found


def cycles(modules: Mapping[str, str]) -> list[str]:
    """Return the modules that import each other, directly or not."""
    graph = {module: (set(imports(source)) & modules.keys()) - {module} for module, source in modules.items()}
    while leaves := [module for module, used in graph.items() if not used & graph.keys()]:
        for module in leaves:
            del graph[module]
    return sorted(graph)


def test_every_room_has_its_place_in_the_order():
    bench = ROOT / "workflow" / "bench"
    folders = {path.name for path in bench.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders | {"cluster", COMMANDS} == BENCH
    assert {room_of(name) for name in sources("mkor_core")} - {None} == set(ROOMS) - BENCH


@pytest.mark.parametrize("package", ["mkor_core", "workflow"])
def test_no_import_runs_back(package):
    assert wrong_turns(sources(package)) == []


def test_modules_import_each_other_in_no_circle():
    everything = {name: source for package in PACKAGES for name, source in sources(package).items()}
    assert cycles(everything) == []


@pytest.mark.parametrize(
    ("module", "wrong"),
    [
        ("workflow.bench.support.files", "from workflow.bench.plan import Plan"),
        ("workflow.bench.training.loop", "from workflow.bench.results import rows"),
        ("workflow.bench.analysis.curves", "from workflow.bench.claims.decision import Condition"),
        ("workflow.bench.figures.fig02_bert_loss", "from workflow.bench.tables import claims"),
        ("workflow.bench.probes.scaling", "from workflow.bench.analysis.estimates import estimate"),
        ("workflow.bench.plan.plan", "import workflow.bench.train"),
        ("workflow.cluster.preflight", "from workflow.bench.analysis import estimates"),
        ("mkor_core.maths.linalg", "from mkor_core.capture.layer import Layer"),
        ("mkor_core.method", "from mkor_core.engines import stacks"),
        ("mkor_core.mkor", "from mkor_core.ranks import comm"),
        ("mkor_core.engines.stacks", "from mkor_core.preconditioner import Preconditioner"),
    ],
)
def test_an_import_that_is_turned_round_is_found(module, wrong):
    assert wrong_turns({module: f"{wrong}\n"}) != []


def test_a_circle_inside_a_room_is_found():
    modules = dict(sources("workflow"))
    modules["workflow.bench.plan.targets"] += "\nfrom workflow.bench.plan.runs import Run\n"
    assert {"workflow.bench.plan.targets", "workflow.bench.plan.runs"} <= set(cycles(modules))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_leftward(package):
    for module, source in sources(package).items():
        used = {name.split(".")[0] for name in imports(source)} & {*PACKAGES, "tests", "benchmarks"}
        assert used <= PACKAGES[package] | {package}, f"{module} imports {used}"


def test_the_core_needs_torch_and_the_standard_library_only():
    for module, source in sources("mkor_core").items():
        used = {name.split(".")[0] for name in imports(source)}
        # torch itself depends on typing_extensions. Modules of kernels are imported where Triton is installed.
        extra = {"triton"} if module in KERNELS else set()
        foreign = used - {"torch", "typing_extensions", "mkor_core"} - extra - sys.stdlib_module_names
        assert not foreign, f"{module} imports {foreign}"


def test_few_modules_use_private_functions_of_torch():
    """Those that the docstring of capture/autograd.py names; a later torch may lack them."""
    modules = {**sources("mkor_core"), **sources("baselines")}
    calls = {
        name
        for name, source in modules.items()
        if re.search(r"torch\.([\w.]+\.)?_[a-z]\w*\(|torch\._C|_getframe", source)
    }
    core = ("capture.autograd", "engines.engine", "kernels.fused", "saving.attached")
    assert calls == {"baselines.first_order.lamb", *(f"mkor_core.{name}" for name in core)}


@pytest.mark.parametrize("package", ["mkor_core", "baselines"])
def test_a_folder_can_be_taken_in_at_a_glance(package):
    folders = [folder for folder in (ROOT / package, *(ROOT / package).iterdir()) if folder.is_dir()]
    sizes = {folder.name: len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: size for name, size in sizes.items() if size > LARGEST_FOLDER} == {}


def test_the_specification_fits_on_a_page_and_needs_no_other_module():
    source = sources("mkor_core")["mkor_core.reference"]
    assert len(source.splitlines()) <= 200
    used = {name for name in imports(source) if name.startswith("mkor_core")}
    assert used == {"mkor_core.mkor", "mkor_core.mkor.MKOR"}, "it takes MKOR's hyperparameters, and nothing else"


def test_rooms_that_read_and_plan_import_no_torch():
    """One process imports all of them, and names the first module with which torch comes."""
    names = [
        name.removesuffix(".__init__")
        for room in NO_TORCH
        for name in sources(f"workflow/bench/{room}")
        if "__main__" not in name
    ]
    code = f"""
import importlib, sys
for name in {names}:
    importlib.import_module(name)
    if "torch" in sys.modules:
        sys.exit(name)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_core_does_not_import_the_compiler():
    """It takes a second. Models that are compiled bring it themselves."""
    code = "import mkor_core, sys; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_only_commands_lie_at_the_top_of_the_bench():
    """A command is a module that can be run: it ends in its ``main``."""
    for file in (ROOT / "workflow" / "bench").glob("*.py"):
        if file.name != "__init__.py":
            assert 'if __name__ == "__main__":' in file.read_text(), file.name


LONGEST_MODULE, LONGEST_FUNCTION = 400, 60


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_and_functions_can_be_read_at_one_sitting(package):
    too_long = []
    for module, source in sources(package).items():
        if (lines := len(source.splitlines())) > LONGEST_MODULE:
            too_long.append(f"{module}: {lines} lines")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    too_long.append(f"{module}.{node.name}: {length} lines")
    assert too_long == []
