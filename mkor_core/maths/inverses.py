"""Inverse factors J of MKOR, of one layer or of a stack of layers: dense, or windowed, as a few weighted columns.

Leading dimensions, written as ``...``, number the layers of a stack. Factors are views of a layer state's tensors and
are updated in place; ``accept`` is a boolean tensor ``[...]``, and a factor for which it is false stays as it is to the
last bit, so that a step can be skipped without copies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mkor_core.maths import linalg
from mkor_core.transfers import upload

UpdateRule = Literal["published", "sherman_morrison", "released"]
"""A2, A3 and A4 of `mkor_core.mkor.MKOR`."""


class Rule(NamedTuple):
    """How a factor is updated."""

    name: UpdateRule
    decay: float
    """Gamma, the weight of the old factor."""
    threshold: float
    """The largest entry of a factor that is not stabilized."""
    blend: float
    """The weight of a stabilized factor against the identity."""

    def identity_blend(self, diagonal: Tensor, accept: Tensor) -> Tensor:
        """Return b in ``J' = b J + (1 - b) I``, by the stabilizer and by A4; diagonal: J's ``[..., d]``."""
        weight = linalg.stabilizer_weight(diagonal, self.threshold, self.blend)
        # A4 is J' = beta J + (1 - beta) I before the update: two blends with the identity are one.
        return torch.where(accept, weight * self.decay if self.name == "released" else weight, 1)

    def gain(self, accept: Tensor, like: Tensor) -> Tensor:
        """Return the factor by which the update multiplies J' beside its rank-1 term."""
        gain = {"published": self.decay, "sherman_morrison": 1 / self.decay, "released": 1.0}[self.name]
        return torch.where(accept, torch.full_like(like, gain), 1)

    @property
    def fold_period(self) -> int:
        """A number of updates in which a dense factor's c changes by at most a factor of a million."""
        most = -math.log(self.decay * self.blend)
        return max(1, int(math.log(1e6) / most))

    def signed_weight(self, quadratic: Tensor) -> Tensor:
        """Return the weight of ``(J' v)(J' v)^T``, for ``quadratic = v^T J' v``: positive for A2, else negative."""
        match self.name:
            case "published":
                return linalg.published_weight(quadratic, self.decay)
            case "sherman_morrison":
                return -linalg.sherman_morrison_weight(quadratic, self.decay)
            case "released":
                return -linalg.addition_weight(quadratic, 1.0)


class DenseInverse(NamedTuple):
    """``J = c K``: an inverse factor as a scaled matrix ("Dense factors in place").

    The scalars of an update (the division by gamma, the stabilizer's weight) change c alone, so that K is read twice
    and written once, and no temporary of its size is made.
    """

    matrix: Tensor
    """K ``[..., d, d]``, symmetric."""
    scale: Tensor
    """c ``[...]``, positive."""

    def update_(self, rule: Rule, vector: Tensor, number: int, accept: Tensor) -> None:
        """Stabilize J (A1) and update it with v ``[..., d]`` (A2, A3 or A4). O(d^2).

        number: that of the update (from 0), which decides when c is multiplied into K.
        """
        if number % rule.fold_period == 0:
            self._fold_(accept)
        diagonal = self.matrix.diagonal(dim1=-2, dim2=-1)
        blend = rule.identity_blend(self.scale[..., None] * diagonal, accept)
        scale = self.scale * blend
        # b c K + (1 - b) I = b c (K + (1 - b) / (b c) I)
        diagonal.add_(((1 - blend) / scale)[..., None])
        projected, quadratic = self._projected(vector, scale, accept)
        gain = rule.gain(accept, scale)
        self.scale.copy_(scale * gain)
        # gain b c K + weight (b c K v)(b c K v)^T, divided by the new c = gain b c
        weight = rule.signed_weight(quadratic) * scale / gain
        sign = 1 if rule.name == "published" else -1
        # With the root of the weight in both factors, entries [i, k] and [k, i] are products of the same two numbers.
        linalg.add_outer_(self.matrix, projected * (sign * weight).sqrt()[..., None], sign)

    def add_(self, vector: Tensor, weight: float, accept: Tensor) -> None:
        """Make J the inverse of ``J^-1 + weight v v^T``: a further rank of an update. O(d^2)."""
        projected, quadratic = self._projected(vector, self.scale, accept)
        root = (linalg.addition_weight(quadratic, weight) * self.scale).sqrt()
        linalg.add_outer_(self.matrix, projected * root[..., None], -1)

    def _projected(self, vector: Tensor, scale: Tensor, accept: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``K v`` and ``scale v^T K v``, both 0 where ``accept`` is false."""
        vector = _masked(vector, accept)
        projected = linalg.matvec(self.matrix, vector)
        return projected, scale * linalg.inner(vector, projected)

    def _fold_(self, accept: Tensor) -> None:
        """Multiply c into K, so that neither overflows nor vanishes."""
        self.matrix.mul_(torch.where(accept, self.scale, 1)[..., None, None])
        self.scale.copy_(torch.where(accept, 1, self.scale))

    def to_matrix(self) -> Tensor:
        """Return J ``[..., d, d]``."""
        return self.scale[..., None, None] * self.matrix

    def times(self, matrix: Tensor) -> Tensor:
        """Return ``J M`` ``[..., d, n]``."""
        return self.scale[..., None, None] * (self.matrix @ matrix)


class WindowedInverse(NamedTuple):
    """``J = c I - U diag(s) U^T``: an inverse factor as at most w weighted columns.

    Every rule keeps this form: it fades c and s, and appends the column ``J v`` with a new weight. Once w columns are
    in use, they are replaced by the w / 2 leading eigenpairs of ``U diag(s) U^T``, which contain a persistent mean that
    the oldest columns would take with them. Memory O(w d) in place of d^2.
    """

    rows: Tensor
    """``U^T`` ``[..., w, d]``: a column of U is written as one contiguous row."""
    weights: Tensor
    """s ``[..., w]``; negative for A2, which is why they are not folded into U."""
    scale: Tensor
    """c ``[...]``."""
    dropped: Tensor
    """The largest eigenvalue ``[...]`` that the last truncation has dropped: a bound on its error of J."""

    def update_(self, rule: Rule, vector: Tensor, number: int, accept: Tensor) -> None:
        """Stabilize J (A1) and update it with v ``[..., d]`` (A2, A3 or A4). O(w d).

        number: that of the update (from 0), which decides the row to write. If `is_full`, `truncate_` comes first.
        """
        blend = rule.identity_blend(self._diagonal(), accept)
        scale, weights = blend * self.scale + (1 - blend), blend[..., None] * self.weights
        vector = _masked(vector, accept)
        along = weights * linalg.matvec(self.rows, vector)
        projected = scale[..., None] * vector - linalg.matvec(self.rows.mT, along)
        weight = -rule.signed_weight(linalg.inner(vector, projected))
        gain = rule.gain(accept, scale)
        slot = self.slot(number)
        self.scale.copy_(scale * gain)
        self.weights.copy_(weights * gain[..., None])
        self.weights[..., slot].copy_(weight)
        self.rows[..., slot, :].copy_(projected)

    def is_full(self, number: int) -> bool:
        """Return whether all w rows are in use before an update (from 0)."""
        window, kept = self._sizes()
        return number >= window and (number - window) % (window - kept) == 0

    def slot(self, number: int) -> int:
        """Return the row that an update (from 0) writes."""
        window, kept = self._sizes()
        return number if number < window else kept + (number - window) % (window - kept)

    def truncate_(self, gram: Tensor, accept: Tensor) -> None:
        """Keep the w / 2 leading eigenpairs of ``U diag(s) U^T``; gram: its `linalg.window_gram`.

        The host computes the eigenpairs, since a GPU's routine makes it wait for a report of failure. A gram matrix
        that is still on the device is copied, which does make it wait.
        """
        if gram.is_meta:  # a device without values has no host that could decompose them
            values, vectors = torch.empty_like(gram[..., 0]), torch.empty_like(gram)
        else:
            on_host = gram.cpu().nan_to_num(0, 0, 0)
            values, vectors = (upload(part, self.rows.device) for part in torch.linalg.eigh(on_host))
        new = linalg.truncated(self.rows, self.weights, values, vectors, self._sizes()[1])
        for tensor, value in zip((self.rows, self.weights, self.dropped), new, strict=True):
            tensor.copy_(torch.where(accept.view(accept.shape + (1,) * (value.dim() - accept.dim())), value, tensor))

    def gram(self) -> Tensor:
        """Return what `truncate_` takes."""
        return linalg.window_gram(self.rows, self.weights)

    def to_matrix(self) -> Tensor:
        """Return J ``[..., d, d]``."""
        identity = torch.eye(self.rows.shape[-1], dtype=self.rows.dtype, device=self.rows.device)
        return self.scale[..., None, None] * identity - self.rows.mT @ (self.weights[..., None] * self.rows)

    def times(self, matrix: Tensor) -> Tensor:
        """Return ``J M`` ``[..., d, n]``."""
        return self.scale[..., None, None] * matrix - self.rows.mT @ (self.weights[..., None] * (self.rows @ matrix))

    def _diagonal(self) -> Tensor:
        """Return J's diagonal ``[..., d]``, ``c - sum_k s_k U_ik^2``."""
        return self.scale[..., None] - linalg.matvec(self.rows.square().mT, self.weights)

    def _sizes(self) -> tuple[int, int]:
        """Return w, and the number of eigenpairs that a truncation keeps."""
        window = self.weights.shape[-1]
        return window, window // 2


Inverse = DenseInverse | WindowedInverse


def identity(
    leading: tuple[int, ...], dimension: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> Inverse:
    """Return J = I, dense or, if ``window`` is not None, with room for that many columns.

    leading: the ``...``. dtype: that of the matrix or the columns; scalars and weights are kept in at least float32.
    """
    one = torch.ones(leading, dtype=torch.promote_types(dtype, torch.float32), device=device)
    if window is None:
        matrix = torch.zeros(*leading, dimension, dimension, dtype=dtype, device=device)
        matrix.diagonal(dim1=-2, dim2=-1).fill_(1)
        return DenseInverse(matrix, one)
    rows = torch.zeros(*leading, window, dimension, dtype=dtype, device=device)
    return WindowedInverse(rows, one.new_zeros(*leading, window), one, torch.zeros_like(one))


def state_of(inverse: Inverse, name: str) -> dict[str, Tensor]:
    """Return the tensors under which a layer's state keeps the factor ``name``: ``left``, ``left_scale``, ..."""
    matrix, *others = inverse._fields
    return {name: getattr(inverse, matrix), **{f"{name}_{field}": getattr(inverse, field) for field in others}}


def from_state(state: Mapping[str, Tensor], name: str) -> Inverse:
    """Return the factor ``name`` of a layer's state, dense or windowed as it was stored."""
    kind = WindowedInverse if f"{name}_weights" in state else DenseInverse
    _, *others = kind._fields
    return kind(state[name], *(state[f"{name}_{field}"] for field in others))


def _masked(vector: Tensor, accept: Tensor) -> Tensor:
    """Return v ``[..., d]``, and 0 in its place where ``accept`` is false; 0 v would keep a NaN."""
    return torch.where(accept[..., None], vector, 0)
