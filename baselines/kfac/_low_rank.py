"""Symmetric factors as a few eigenpairs: decompositions, inverses, and the base of KFAC with such factors."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from baselines.parts.eigenpairs import eigenpairs
from baselines.parts.matrices import shortened
from baselines.parts.means import CountsBatches
from mkor_core.capture.statistics import LayerShape
from mkor_core.devices import upload
from mkor_core.maths.linalg import test_matrix
from mkor_core.method import LayerState, Method
from mkor_core.ranges import AT_LEAST_1, DECAY, POSITIVE

OVERSAMPLING = 10
"""Columns of a sketch beyond the rank."""


class Pairs(NamedTuple):
    """``Q diag(values) Q^T``, an approximation of a positive semidefinite matrix ``[d, d]``."""

    basis: Tensor
    """Q ``[d, k]``, with orthonormal columns."""
    values: Tensor
    """``[k]``, none of them negative, descending."""

    def solve(self, right: Tensor, damping: Tensor, rest: Tensor) -> Tensor:
        """Return the inverse times Y ``[d, n]``: 1 / (values + damping) along Q, 1 / rest along everything else."""
        along = self.basis.T @ right
        weights = 1 / (self.values + damping) - 1 / rest
        return self.basis @ (weights[:, None] * along) + right / rest

    def divided(self, right: Tensor, share: float, faded: Tensor | None) -> Tensor:
        """Return RS-KFAC's damped inverse times Y ``[d, n]``: the share of the largest value is added to all.

        faded: the weight that a start from I would still have, which the thesis code adds too; it then takes the
        smallest kept value for all that are left out. None: those are 0.
        """
        damping = share * self.values.amax()
        if faded is None:
            return self.solve(right, damping, damping)
        return self.solve(right, damping + faded, damping + faded + self.values.amin())


def leading(matrix: Tensor, rank: int) -> Pairs:
    """Return the ``rank`` leading eigenpairs of a matrix ``[d, d]``, by a dense decomposition."""
    values, vectors = eigenpairs(matrix)
    return Pairs(vectors.flip(1)[:, :rank], values.flip(0)[:rank].clamp(min=0))


def randomized_svd(matrix: Tensor, rank: int, power: int, seed: int) -> Pairs:
    """Return the leading singular triples' right side, found by a sketch of ``rank + 10`` columns and power steps."""
    basis = _range(matrix, rank, power, seed)
    _, values, rows = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
    return Pairs(rows[:rank].T, values[:rank])


def randomized_eigh(matrix: Tensor, rank: int, power: int, seed: int) -> Pairs:
    """Return the leading eigenpairs of the matrix restricted to such a sketch's range ("SRE")."""
    basis = _range(matrix, rank, power, seed)
    inner = leading(basis.T @ matrix @ basis, rank)
    return Pairs(basis @ inner.basis, inner.values)


def _range(matrix: Tensor, rank: int, power: int, seed: int) -> Tensor:
    """Return an orthonormal basis of ``A^power Omega``; Omega is the `test_matrix` of the seed."""
    dimension = len(matrix)
    start = test_matrix(dimension, min(rank + OVERSAMPLING, dimension), seed)
    basis = upload(start.to(matrix.dtype), matrix.device)
    for _ in range(power):
        basis = torch.linalg.qr(matrix @ basis).Q
    return basis


def brand(pairs: Pairs, columns: Tensor, decay: float, rank: int) -> Pairs:
    """Return the leading pairs of ``decay Q diag(values) Q^T + (1 - decay) Y Y^T``, Y ``[d, n]``.

    Brand's update, O(d (k + n)^2), exact but for the crop. It forms no matrix ``[d, d]`` unless ``k + n`` is larger.
    """
    dimension, kept = pairs.basis.shape
    new = 1 - decay
    if kept + columns.shape[1] >= dimension:
        scaled = pairs.basis * pairs.values
        return leading(decay * scaled @ pairs.basis.T + new * columns @ columns.T, rank)
    inside = pairs.basis.T @ columns
    outside, triangle = torch.linalg.qr(columns - pairs.basis @ inside)
    coordinates = torch.cat([inside, triangle])
    inner = new * coordinates @ coordinates.T
    inner.diagonal()[:kept] += decay * pairs.values
    turned = leading(inner, rank)
    return Pairs(torch.cat([pairs.basis, outside], 1) @ turned.basis, turned.values)


@dataclass(frozen=True, kw_only=True)
class LowRankKFAC(CountsBatches, Method):
    """KFAC, ``V = C^-1 D A^-1``, with inverses from eigenpairs that a subclass keeps up to date (`named_pairs`)."""

    fixed_in_state: ClassVar[tuple[str, ...]] = ("rank",)

    rank: Annotated[int, AT_LEAST_1, "the number of eigenpairs of a factor"] = 220
    damping: Annotated[float, POSITIVE, "the share of the largest eigenvalue that is added to all"] = 0.1
    factor_decay: Annotated[float, DECAY, "the weight of the old factor"] = 0.95
    factor_update_period: Annotated[int, AT_LEAST_1, "steps between two updates of the factors"] = 10
    update_clip: Annotated[float | None, POSITIVE, "the largest root mean square of a layer's update"] = 0.07
    thesis_code: bool = False
    """The code of the author's thesis adds factor_decay^k to the damping after k updates, and takes the smallest kept
    eigenvalue for all that are left out, in place of 0."""

    @property
    @abstractmethod
    def first_eigenvalue(self) -> float:
        """The multiple of I from which the factors start."""

    @property
    @abstractmethod
    def keeps_factors(self) -> bool:
        """Whether the state also has the factors themselves, ``left`` and ``right``."""

    @override
    def initial_state(
        self, shape: LayerShape, dtype: torch.dtype, device: torch.device, leading: tuple[int, ...] = ()
    ) -> LayerState:
        state: LayerState = {"batches": torch.zeros((), dtype=torch.int64, device=device)}
        for side, d in (("left", shape.d_out), ("right", shape.d_in)):
            kept = min(d, self.rank)
            basis = torch.eye(d, kept, dtype=dtype, device=device)
            values = torch.full((kept,), self.first_eigenvalue, dtype=dtype, device=device)
            state |= named_pairs(side, Pairs(basis, values))
            if self.keeps_factors:
                state[side] = self.first_eigenvalue * torch.eye(d, dtype=dtype, device=device)
        return state

    @override
    def accumulates(self, step: int) -> bool:
        return step % self.factor_update_period == 0

    @override
    def precondition(self, state: LayerState, grad: Tensor) -> Tensor:
        update = self._divided(state, "right", self._divided(state, "left", grad).T).T
        return shortened(update, self.update_clip)

    @override
    def one_sided(self, state: LayerState, grad: Tensor) -> dict[str, Tensor]:
        return {"left": self._divided(state, "left", grad), "right": self._divided(state, "right", grad.T).T}

    def faded(self, state: LayerState) -> Tensor:
        """Return the weight that a start from I would still have in the factors."""
        return torch.pow(self.factor_decay, state["batches"].to(state["left_values"].dtype))

    def _divided(self, state: LayerState, side: str, matrix: Tensor) -> Tensor:
        """Return a damped factor's inverse times a matrix."""
        faded = self.faded(state) if self.thesis_code else None
        return pairs_of(state, side).divided(matrix, self.damping, faded)


def pairs_of(state: LayerState, side: str) -> Pairs:
    """Return the eigenpairs of a layer's factor, ``left`` or ``right``."""
    return Pairs(state[f"{side}_vectors"], state[f"{side}_values"])


def named_pairs(side: str, pairs: Pairs) -> LayerState:
    """Return the eigenpairs of a factor under the names that a layer's state has for them."""
    return {f"{side}_vectors": pairs.basis, f"{side}_values": pairs.values}
