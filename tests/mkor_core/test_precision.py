"""The precision of matrix products: set for the preconditioner's work, and as the program had it afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from mkor_core import MKOR, Preconditioner
from mkor_core.capture.autograd import matmul_precision

CUBLAS, ONEDNN = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def settings() -> tuple[str, str]:
    return CUBLAS.fp32_precision, ONEDNN.fp32_precision


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = settings()
    yield
    torch.set_float32_matmul_precision("highest")
    CUBLAS.fp32_precision, ONEDNN.fp32_precision = before


@pytest.mark.parametrize("chosen", [lambda: None, lambda: torch.set_float32_matmul_precision("high"), lambda: mix()])
@pytest.mark.parametrize(
    ("precision", "expected"),
    [("highest", ("ieee", "ieee")), ("high", ("tf32", "tf32")), ("medium", ("tf32", "bf16"))],
)
def test_a_precision_holds_inside_and_what_the_program_chose_afterwards(precision, expected, chosen):
    """With torch's old functions and its new settings, of which a mixture makes the old functions fail."""
    chosen()
    before = settings()
    inside = []

    def fail() -> None:
        inside.append(settings())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), matmul_precision(precision):
        fail()
    assert inside == [expected]
    assert settings() == before


def mix() -> None:
    """Choose two precisions by the new settings."""
    CUBLAS.fp32_precision, ONEDNN.fp32_precision = "tf32", "ieee"
    with pytest.raises(RuntimeError, match="legacy"):
        torch.get_float32_matmul_precision()


def test_before_the_new_settings_the_old_functions_serve(monkeypatch):
    monkeypatch.setattr(torch.backends, "cuda", object())
    monkeypatch.setattr(torch.backends, "mkldnn", object())
    with matmul_precision("high"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(("given", "expected"), [(None, ("ieee", "ieee")), ("medium", ("tf32", "bf16"))])
def test_gradients_are_preconditioned_in_the_precision_and_factors_updated_in_the_highest(given, expected, monkeypatch):
    seen: dict[str, tuple[str, str]] = {}
    for name in ("refresh", "apply"):
        original = getattr(MKOR, name)

        def spy(self, *args, name=name, original=original, **options):
            seen[name] = settings()
            original(self, *args, **options)

        monkeypatch.setattr(MKOR, name, spy)
    model = nn.Linear(3, 2)
    preconditioner = Preconditioner(model, MKOR(), precision=given)
    assert preconditioner.precision == (given or "highest")
    model(torch.randn(4, 3)).sum().backward()
    preconditioner.step()
    assert seen == {"refresh": ("ieee", "ieee"), "apply": expected}
