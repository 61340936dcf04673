"""Declaration of torchvision's operators. It cannot be undone: tests import the module with torch's replaced.

That torchvision can be imported after the real one is what test_description.py needs, among others.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from workflow.bench.support.config import ROOT

FILE = ROOT / "mkor_core" / "torchvision_operators.py"
BOTH = [f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")]


class Library:
    """Stands for torch.library.Library."""

    def __init__(self, namespace: str, kind: str) -> None:
        self.kind = f"{kind} of {namespace}"
        self.defined: list[str] = []

    def define(self, schema: str) -> None:
        self.defined.append(schema)


@pytest.fixture
def package(tmp_path: Path) -> SimpleNamespace:
    """An installed torchvision with a compiled library."""
    (tmp_path / "_C.so").touch()
    (tmp_path / "image.so").touch()
    return SimpleNamespace(origin=str(tmp_path / "__init__.py"))


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ModuleType, list[str]]]:
    """Import the module where torchvision is or is not installed and torch has operators; also list loaded files."""

    def run(package: Any, has: tuple[str, ...] = (), fits: bool = False) -> tuple[ModuleType, list[str]]:
        loaded: list[str] = []
        operators = SimpleNamespace(**dict.fromkeys(has))

        def load(path: Path) -> None:
            loaded.append(path.name)
            if not fits:
                raise OSError("libcudart.so: cannot open shared object file")
            vars(operators).update(nms=None, qnms=None)

        monkeypatch.setattr(importlib.util, "find_spec", {"torchvision": package}.get)
        monkeypatch.setattr(torch.ops, "torchvision", operators)
        monkeypatch.setattr(torch.ops, "load_library", load)
        monkeypatch.setattr(torch.library, "Library", Library)
        spec = importlib.util.spec_from_file_location("operators_again", FILE)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, loaded

    return run


@pytest.mark.parametrize(
    ("has", "fits", "declared"),
    [
        ((), True, None),
        (("nms",), True, None),
        (("nms", "qnms"), True, None),
        ((), False, BOTH),
        (("nms",), False, BOTH[1:]),
        (("qnms",), False, BOTH[:1]),
        (("nms", "qnms"), False, None),
    ],
)
def test_operators_are_declared_where_neither_torch_nor_the_installed_library_has_them(
    imported, package, has, fits, declared
):
    """The installed ones come first: if torchvision's library loads, it defines them."""
    module, loaded = imported(package, has, fits)
    assert loaded == ["_C.so"]
    assert (module.LIBRARY and module.LIBRARY.defined) == declared
    assert declared is None or module.LIBRARY.kind == "FRAGMENT of torchvision"


@pytest.mark.parametrize(("package", "declared"), [(None, None), (SimpleNamespace(origin=None), BOTH)])
def test_nothing_is_loaded_without_torchvision_or_of_one_without_files(imported, package, declared):
    """Such as an empty folder of that name on the path."""
    module, loaded = imported(package)
    assert loaded == []
    assert (module.LIBRARY and module.LIBRARY.defined) == declared
