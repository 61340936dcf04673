"""Declaration of torchvision's operators. Each test runs in a new process, since a declaration cannot be undone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from workflow.bench.support.config import ROOT

FITTING = """
import torch

library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def run(code: str, *paths: Path) -> str:
    """Run ``code`` with ``paths`` first on the import path, and return its output."""
    before = f"import sys\nsys.path[:0] = {[str(path) for path in (*paths, ROOT)]}\n"
    done = subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_torchvision_and_what_imports_it_can_be_imported():
    printed = run(
        "import baselines._torchvision_operators\n"
        "import torchvision, torch\n"
        "print(torchvision.models.resnet18(num_classes=3).eval()(torch.zeros(1, 3, 32, 32)).shape)"
    )
    assert printed == "torch.Size([1, 3])"


def test_nothing_is_declared_where_torch_has_the_operators():
    printed = run(FITTING + "from baselines import _torchvision_operators\nprint(_torchvision_operators.LIBRARY)")
    assert printed == "None"


@pytest.mark.parametrize("fits", [True, False])
def test_the_installed_operators_come_first(tmp_path, fits):
    """If torchvision's library loads, it defines the operators; otherwise they are declared."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('imported too early')")
    (tmp_path / "torchvision" / "_C.so").touch()
    load = "exec(FITTING, globals())" if fits else "raise OSError('libcudart.so: cannot open shared object file')"
    printed = run(
        f"import torch\nFITTING = {FITTING!r}\n"
        f"def load(path):\n    print(path)\n    {load}\n"
        "torch.ops.load_library = load\n"
        "from baselines import _torchvision_operators\n"
        "print(_torchvision_operators.LIBRARY is None, hasattr(torch.ops.torchvision, 'nms'))",
        tmp_path,
    )
    path, rest = printed.splitlines()
    assert path == str(tmp_path / "torchvision" / "_C.so")
    assert rest == f"{fits} True"


def test_nothing_is_declared_without_torchvision():
    printed = run(
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'torchvision' else found(name)\n"
        "from baselines import _torchvision_operators\n"
        "import torch\n"
        "print(_torchvision_operators.LIBRARY, hasattr(torch.ops.torchvision, 'nms'))"
    )
    assert printed == "None False"
