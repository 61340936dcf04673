"""Inverse factors J of MKOR: dense ``[d, d]``, or windowed, as the last w update vectors.

Both kinds are immutable tuples of tensors with the same methods, so that a method can use either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from mkor_core import linalg

UpdateRule = Literal["published", "sherman_morrison", "released"]
"""A2, A3 and A4 of ALGORITHMS.md."""

_DENSE_RULES = {
    "published": linalg.published,
    "sherman_morrison": linalg.sherman_morrison,
    "released": linalg.released,
}


class DenseInverse(NamedTuple):
    """An inverse factor kept as its matrix."""

    matrix: Tensor
    """J ``[d, d]``, symmetric."""

    def stabilize(self, threshold: float, blend: float) -> DenseInverse:
        """Return J stabilized (A1)."""
        return DenseInverse(linalg.stabilize(self.matrix, threshold, blend))

    def update(self, rule: UpdateRule, vector: Tensor, decay: float) -> DenseInverse:
        """Return J updated with v ``[d]`` by a rule (A2, A3 or A4). O(d^2)."""
        return DenseInverse(_DENSE_RULES[rule](self.matrix, vector, decay))

    def add(self, vector: Tensor, weight: float) -> DenseInverse:
        """Return the inverse of ``J^-1 + weight v v^T``. O(d^2)."""
        return DenseInverse(linalg.sherman_morrison_add(self.matrix, vector, weight))

    def diagonal(self) -> Tensor:
        """Return J's diagonal ``[d]``."""
        return self.matrix.diagonal()

    def matmul(self, other: Tensor) -> Tensor:
        """Return ``J M`` for M ``[d]`` or ``[d, m]``. O(d^2 m)."""
        return self.matrix @ other

    def rmatmul(self, other: Tensor) -> Tensor:
        """Return ``M J`` for M ``[m, d]``. O(d^2 m)."""
        return other @ self.matrix

    def to(self, dtype: torch.dtype) -> DenseInverse:
        """Return J in another dtype."""
        return DenseInverse(self.matrix.to(dtype))

    def state(self, name: str) -> dict[str, Tensor]:
        """Return the tensors under which a layer's state keeps the factor ``name``."""
        return {name: self.matrix}


class WindowedInverse(NamedTuple):
    """``J = c I - U diag(s) U^T``: an inverse factor kept as its last w update vectors ("Windowed factors").

    Every rule keeps this form: it fades c and s, and appends the column ``J v`` with a new weight. Once w columns are
    in use, the oldest is overwritten. Memory O(w d) in place of d^2.
    """

    scale: Tensor
    """c, a scalar."""
    columns: Tensor
    """U ``[d, w]``."""
    weights: Tensor
    """s ``[w]``; negative for A2, which is why they are not folded into U."""
    position: Tensor
    """The number of updates so far, an int64 scalar."""

    def stabilize(self, threshold: float, blend: float) -> WindowedInverse:
        """Return J stabilized (A1): ``c <- zeta c + 1 - zeta``, ``s <- zeta s`` where it acts. O(w d)."""
        return self._blend_with_identity(linalg.stabilizer_weight(self.diagonal(), threshold, blend))

    def update(self, rule: UpdateRule, vector: Tensor, decay: float) -> WindowedInverse:
        """Return J updated with v ``[d]`` by a rule (A2, A3 or A4). O(w d)."""
        if rule == "released":
            blended = self._blend_with_identity(decay)
            return blended.add(vector, 1.0)
        projected = self.matmul(vector)
        quadratic = vector.dot(projected)
        if rule == "published":
            faded = self._replace(scale=decay * self.scale, weights=decay * self.weights)
            return faded._append(projected, -linalg.published_weight(quadratic, decay))
        faded = self._replace(scale=self.scale / decay, weights=self.weights / decay)
        return faded._append(projected, linalg.sherman_morrison_weight(quadratic, decay))

    def add(self, vector: Tensor, weight: float) -> WindowedInverse:
        """Return the inverse of ``J^-1 + weight v v^T``. O(w d)."""
        projected = self.matmul(vector)
        return self._append(projected, linalg.addition_weight(vector.dot(projected), weight))

    def diagonal(self) -> Tensor:
        """Return J's diagonal ``[d]``, ``c - sum_k s_k U_ik^2``. O(w d)."""
        return self.scale - self.columns.square() @ self.weights

    def matmul(self, other: Tensor) -> Tensor:
        """Return ``J M`` for M ``[d]`` or ``[d, m]``. O(w d m)."""
        # Multiply from right to left, so that no [d, d] matrix is formed.
        weights = self.weights if other.dim() == 1 else self.weights[:, None]
        return self.scale * other - self.columns @ (weights * (self.columns.T @ other))

    def rmatmul(self, other: Tensor) -> Tensor:
        """Return ``M J`` for M ``[m, d]``. O(w d m)."""
        return self.matmul(other.T).T

    def to(self, dtype: torch.dtype) -> Self:
        """Return J in another dtype."""
        return self._replace(scale=self.scale.to(dtype), columns=self.columns.to(dtype), weights=self.weights.to(dtype))

    def state(self, name: str) -> dict[str, Tensor]:
        """Return the tensors under which a layer's state keeps the factor ``name``."""
        return {f"{name}_{field}": tensor for field, tensor in self._asdict().items()}

    def _blend_with_identity(self, weight: Tensor | float) -> WindowedInverse:
        return self._replace(scale=weight * self.scale + (1 - weight), weights=weight * self.weights)

    def _append(self, column: Tensor, weight: Tensor) -> WindowedInverse:
        # A mask in place of an index: the position lives on the device, and reading it would make the host wait.
        window = self.weights.numel()
        slot = torch.arange(window, device=column.device) == self.position % window
        return self._replace(
            columns=torch.where(slot, column[:, None], self.columns),
            weights=torch.where(slot, weight, self.weights),
            position=self.position + 1,
        )


Inverse = DenseInverse | WindowedInverse


def identity(dimension: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Inverse:
    """Return J = I, dense or, if ``window`` is not None, with room for that many columns."""
    if window is None:
        return DenseInverse(torch.eye(dimension, dtype=dtype, device=device))
    return WindowedInverse(
        torch.ones((), dtype=dtype, device=device),
        torch.zeros(dimension, window, dtype=dtype, device=device),
        torch.zeros(window, dtype=dtype, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
    )


def from_state(state: Mapping[str, Tensor], name: str) -> Inverse:
    """Return the factor ``name`` of a layer's state, dense or windowed as it was stored."""
    if name in state:
        return DenseInverse(state[name])
    return WindowedInverse(*(state[f"{name}_{field}"] for field in WindowedInverse._fields))


def precondition(left: Inverse, grad: Tensor, right: Inverse) -> Tensor:
    """Return ``V = J_L D J_R`` for a gradient D ``[d_out, d_in]``; left: J_L of d_out, right: J_R of d_in.

    Equal to ``(J_R (x) J_L) vec(D)`` with column-stacking ``vec``. O(d_out d_in (d_out + d_in)) for dense factors,
    O(w d_out d_in) for windowed ones.
    """
    return right.rmatmul(left.matmul(grad))
