"""Eigenpairs where the solver of float32 fails, as MKL's did in runs of the field."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baselines.parts.eigenpairs import eigenpairs


def _matrix() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=generator)
    return root @ root.T


def _raise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    raise torch.linalg.LinAlgError("the algorithm failed to converge")  # type: ignore[attr-defined]


def _nan(matrix: Tensor) -> tuple[Tensor, Tensor]:
    return matrix[0] * torch.nan, matrix * torch.nan


@pytest.mark.parametrize("failing", [_nan, _raise])
def test_where_float32_fails_float64_answers(failing, monkeypatch):
    """Truth: the matrix, put together again."""
    matrix, solver = _matrix(), torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda each: (failing if each.dtype == torch.float32 else solver)(each))
    values, vectors = eigenpairs(matrix)
    assert values.dtype == vectors.dtype == torch.float32
    torch.testing.assert_close(vectors * values @ vectors.T, matrix)


def test_where_float32_succeeds_its_answer_stays_to_the_last_bit():
    matrix = _matrix()
    for ours, truth in zip(eigenpairs(matrix), torch.linalg.eigh(matrix), strict=True):
        assert torch.equal(ours, truth)


def test_a_matrix_with_nan_has_no_eigenpairs():
    with pytest.raises(torch.linalg.LinAlgError):
        eigenpairs(_matrix().fill_(torch.nan))
