"""Inverse factors J of MKOR, of one layer or of a stack of layers: dense, or windowed, as a few weighted columns.

A1 to A4 are the equations of `mkor_core.reference`, here in forms that write no temporary of J's size. Leading
dimensions, written as ``...``, number the layers of a stack. Factors are views of a layer state's tensors and are
updated in place; ``accept`` is a boolean tensor ``[...]``, and a factor for which it is false stays as it is to the
last bit, so that a step can be skipped without copies. None is true everywhere. Nothing is read back to the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mkor_core.devices import ALIGNMENT, aligned, upload
from mkor_core.maths import linalg

LONG = 4096
"""Entries of a matrix from which products with vectors, one by one, are faster on a CPU than a batched product."""

UpdateRule = Literal["published", "sherman_morrison", "released"]
"""A2, A3 and A4."""


@dataclass(frozen=True)
class Rule:
    """How a factor is updated: ``J <- gain J' + weight (J' v)(J' v)^T``, where ``J' = b J + (1 - b) I``."""

    name: UpdateRule
    decay: float
    """Gamma, the weight of the old factor."""
    threshold: float
    """Epsilon, the largest entry of a factor that is not stabilized."""
    blend: float
    """Zeta, the weight of a stabilized factor against the identity."""

    @cached_property
    def gain(self) -> float:
        """What the rule multiplies J' by."""
        return {"published": self.decay, "sherman_morrison": 1 / self.decay, "released": 1.0}[self.name]

    @cached_property
    def fold_period(self) -> int:
        """A number of updates in which a dense factor's c changes by at most a factor of a million."""
        # An update multiplies c by a number between gamma zeta and 1 / (gamma zeta). With gamma = 0.9 and zeta = 0.8,
        # these are 0.72 and 1.39, and 42 updates stay within a factor of a million.
        most = -math.log(self.decay * self.blend)
        return max(1, int(math.log(1e6) / most))

    def blend_weight(self, diagonal: Tensor, accept: Tensor | None) -> Tensor:
        """Return b ``[...]``, by the stabilizer (A1) and by A4, given J's diagonal ``[..., d]``.

        The largest entry of a positive definite matrix lies on its diagonal. The stabilizer also acts when a diagonal
        entry is not positive. Only half-precision rounding causes that; left alone the entry grows without bound.
        """
        acts = (diagonal.amax(-1) > self.threshold) | (diagonal.amin(-1) <= 0)
        # Zeta where the stabilizer acts, otherwise 1; the host does not know where.
        weight = 1 - (1 - self.blend) * acts.to(diagonal.dtype)
        if self.name == "released":
            weight = weight * self.decay  # A4 blends with the identity too: two blends are one
        return weight if accept is None else torch.where(accept, weight, 1)

    def weight(self, quadratic: Tensor) -> Tensor:
        """Return the weight of ``(J' v)(J' v)^T`` for ``quadratic = v^T J' v``: positive for A2, else negative.

        It is 0 where rounding has made v^T J' v, and so J', not positive; and NaN for A2 where that has overflowed.
        Along a persistent mean A2 doubles J at every update, in spite of the stabilizer; a weight of 0, which an
        infinite v^T J' v would give, would drop the update silently.
        """
        gamma = self.decay
        if self.name == "published":
            weight = (1 - gamma) / (gamma**2 * (1 + gamma * (1 - gamma) * quadratic))
            return torch.where(quadratic.isfinite(), torch.where(quadratic > 0, weight, 0), torch.nan)
        ratio = (1 - gamma) / gamma
        # (gamma J'^-1 + (1 - gamma) v v^T)^-1 for A3, (J'^-1 + v v^T)^-1 for A4
        # By Sherman and Morrison: J' / gamma - (ratio / gamma) / (1 + ratio q) (J' v)(J' v)^T for A3, and for A4
        # J' - 1 / (1 + q) (J' v)(J' v)^T, where q is v^T J' v.
        scale, share = (ratio / gamma, ratio) if self.name == "sherman_morrison" else (1.0, 1.0)
        return torch.where(quadratic > 0, -scale / (1 + share * quadratic), 0)


class DenseInverse(NamedTuple):
    """``J = c K``: an inverse factor as a scaled matrix ("Dense factors in place").

    The scalars of an update (the gain, the stabilizer's weight) change c alone, so that K is read twice and written
    once, and no temporary of its size is made.
    """

    matrix: Tensor
    """K ``[..., d, d]``, symmetric."""
    scale: Tensor
    """c ``[...]``, positive."""

    def update_(self, rule: Rule, vector: Tensor, number: int, accept: Tensor | None = None) -> None:
        """Stabilize J (A1) and update it with v ``[..., d]`` (A2, A3 or A4). O(d^2).

        number: that of the update (from 0), which decides when c is multiplied into K.
        """
        # Where accept is false, all that follows multiplies c and K by 1 and adds 0 to them.
        if number % rule.fold_period == 0:
            self._fold_(accept)
        # J' = b c K + (1 - b) I = c' (K + (1 - b) / c' I) with c' = b c
        diagonal = self.matrix.diagonal(dim1=-2, dim2=-1)  # a view: to add to it changes K
        blend = rule.blend_weight(self.scale[..., None] * diagonal, accept)
        scale = self.scale * blend
        diagonal.add_(((1 - blend) / scale)[..., None])
        # J = gain c' K' + weight (c' K' v)(c' K' v)^T = (gain c') (K' + weight c' / gain (K' v)(K' v)^T)
        projected, quadratic = self._projected(vector, scale, accept)
        gain = rule.gain if accept is None else torch.where(accept, torch.full_like(scale, rule.gain), 1)
        self.scale.copy_(scale * gain)
        self._add_(projected, rule.weight(quadratic) * scale / gain, 1 if rule.name == "published" else -1)

    def add_(self, vector: Tensor, weight: float, accept: Tensor | None = None) -> None:
        """Make J the inverse of ``J^-1 + weight v v^T``: a further rank of an update. O(d^2)."""
        projected, quadratic = self._projected(vector, self.scale, accept)
        # J - weight / (1 + weight v^T J v) (J v)(J v)^T, with J v = c K v; then divided by c, which K does not contain.
        change = torch.where(quadratic > 0, -weight / (1 + weight * quadratic), 0)
        self._add_(projected, change * self.scale, -1)

    def to_matrix(self) -> Tensor:
        """Return J ``[..., d, d]``."""
        return self.scale[..., None, None] * self.matrix

    def times(self, matrix: Tensor) -> Tensor:
        """Return ``J M`` ``[..., d, n]``."""
        return self.scale[..., None, None] * (self.matrix @ matrix)

    def _projected(self, vector: Tensor, scale: Tensor, accept: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return ``K v`` and ``scale v^T K v``, both 0 where ``accept`` is false."""
        vector = _masked(vector, accept)
        projected = matvec(self.matrix, vector)
        return projected, scale * dot(vector, projected)

    def _add_(self, vector: Tensor, weight: Tensor, sign: int) -> None:
        """Add ``weight v v^T`` to K; sign: that of the weight."""
        # With the root of the weight in both factors, entries [i, k] and [k, i] are products of the same two numbers.
        add_outer_(self.matrix, vector * (sign * weight).sqrt()[..., None], sign)

    def _fold_(self, accept: Tensor | None) -> None:
        """Multiply c into K, so that neither overflows nor vanishes."""
        if accept is None:
            self.matrix.mul_(self.scale[..., None, None])
            self.scale.fill_(1)
        else:
            self.matrix.mul_(torch.where(accept, self.scale, 1)[..., None, None])
            self.scale.copy_(torch.where(accept, 1, self.scale))


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

    def update_(self, rule: Rule, vector: Tensor, number: int, accept: Tensor | None = None) -> None:
        """Stabilize J (A1) and update it with v ``[..., d]`` (A2, A3 or A4). O(w d).

        number: that of the update (from 0), which decides the row to write. If `is_full`, `truncate_` comes first.
        """
        # J' = b (c I - U diag(s) U^T) + (1 - b) I
        blend = rule.blend_weight(self._diagonal(), accept)
        scale, weights = blend * self.scale + (1 - blend), blend[..., None] * self.weights
        # J = gain J' + weight (J' v)(J' v)^T: J' v is the new column
        vector = _masked(vector, accept)
        projected = scale[..., None] * vector - matvec(self.rows.mT, weights * matvec(self.rows, vector))
        # U diag(s) U^T is subtracted, so s has the opposite sign of the rule's weight.
        weight = -rule.weight(dot(vector, projected))
        gain = rule.gain if accept is None else torch.where(accept, torch.full_like(scale, rule.gain), 1)
        self.scale.copy_(scale * gain)
        self.weights.copy_(weights * (gain[..., None] if isinstance(gain, Tensor) else gain))
        slot = self.slot(number)
        own_weight, row = self.weights[..., slot], self.rows[..., slot, :]
        if accept is None:
            own_weight.copy_(weight)
            row.copy_(projected)
        else:  # a window that has not been truncated, because the step is skipped, has a column there
            torch.where(accept, weight, own_weight, out=own_weight)
            torch.where(accept[..., None], projected, row, out=row)

    def is_full(self, number: int) -> bool:
        """Return whether all w rows are in use before an update (from 0)."""
        window, kept = self._sizes()
        # Of w = 8 rows a truncation keeps 4: the window is full before updates 8, 12, 16, ...
        return number >= window and (number - window) % (window - kept) == 0

    def slot(self, number: int) -> int:
        """Return the row that an update (from 0) writes."""
        window, kept = self._sizes()
        # With w = 8, updates 0 to 7 write rows 0 to 7, then updates 8 to 11 rows 4 to 7, updates 12 to 15 the same.
        return number if number < window else kept + (number - window) % (window - kept)

    def truncate_(self, pairs: tuple[Tensor, Tensor], accept: Tensor | None = None) -> None:
        """Keep the w / 2 leading eigenpairs of ``U diag(s) U^T``; pairs: `eigenpairs` of `gram`."""
        rows, weights, dropped, common = linalg.truncated(self.rows, self.weights, *pairs, self._sizes()[1])
        new = [(self.rows, rows), (self.weights, weights), (self.dropped, dropped)]
        if common is not None:
            # Rows that span everything take from all directions what c I gives to them, and both would grow without
            # bound: c I - Z diag(l) Z^T = (c - m) I - Z diag(l - m) Z^T for an orthogonal Z.
            new.append((self.scale, self.scale - common))
        for tensor, value in new:
            if accept is not None:
                # accept [L] as [L, 1, 1] for rows [L, w, d], as [L, 1] for weights.
                value = torch.where(accept.view(accept.shape + (1,) * (value.dim() - accept.dim())), value, tensor)
            tensor.copy_(value)

    def gram(self) -> Tensor:
        """Return the matrix of which `truncate_` takes the eigenpairs."""
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
        return self.scale[..., None] - matvec(linalg.entrywise(self.rows, self.rows).mT, self.weights)

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
        return DenseInverse(linalg.identity(dimension, dtype, device, leading), one)
    rows = aligned((*leading, window, dimension), dtype, device)
    return WindowedInverse(rows, one.new_zeros(*leading, window), one, torch.zeros_like(one))


def eigenpairs(gram: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues and eigenvectors of a `WindowedInverse.gram` on the device of its window.

    The host computes them, since a GPU's routine makes it wait for a report of failure. A gram matrix that is still on
    the device is copied, which does make it wait.

    Raises:
        LinAlgError: the decomposition has failed.
    """
    if gram.is_meta:  # a device without values has no host that could decompose them
        return torch.empty_like(gram[..., 0]), torch.empty_like(gram)
    # eigh raises an error for a NaN. The factor still becomes NaN: `linalg.truncated` multiplies by its rows.
    on_host = gram.cpu().nan_to_num(0, 0, 0)
    values, vectors = torch.linalg.eigh(on_host)
    return upload(values, device), upload(vectors, device)


def state_of(inverse: Inverse, name: str) -> dict[str, Tensor]:
    """Return the tensors under which a layer's state keeps the factor ``name``: ``left``, ``left_scale``, ..."""
    matrix, *others = inverse._fields  # matrix, scale; or rows, weights, scale, dropped
    return {name: getattr(inverse, matrix), **{f"{name}_{field}": getattr(inverse, field) for field in others}}


def from_state(state: Mapping[str, Tensor], name: str, dtype: torch.dtype | None = None) -> Inverse:
    """Return the factor ``name`` of a layer's state, dense or windowed as it was stored.

    A view of the state; in another dtype than the one it is stored in, its matrix or its columns are a copy.
    """
    main, scale = state[name], state[f"{name}_scale"]
    main = main if dtype is None else main.to(dtype)
    weights = state.get(f"{name}_weights")
    if weights is None:
        return DenseInverse(main, scale)
    return WindowedInverse(main, weights, scale, state[f"{name}_dropped"])


def _masked(vector: Tensor, accept: Tensor | None) -> Tensor:
    """Return v ``[..., d]``, and 0 in its place where ``accept`` is false; 0 v would keep a NaN."""
    return vector if accept is None else torch.where(accept[..., None], vector, 0)


def matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return ``M v`` ``[..., m]`` for M ``[..., m, n]`` and v ``[..., n]``."""
    if matrix.dim() == 2:
        return matrix @ vector
    if matrix.device.type == "cpu" and matrix[0].numel() >= LONG:
        # A batched product of one column is several times slower than products with a vector.
        products = []
        for m, v in zip(matrix, vector, strict=True):
            products.append(m @ v)
        return torch.stack(products)
    if vector.stride(-1) != 1:  # a column of a matrix
        return (matrix @ vector[..., None])[..., 0]
    # As a row, since a GPU's library takes the entries of a column for rows that start 4 bytes apart. In a stack of
    # vectors of 1025 entries the second one would start between wide words.
    is_cpu = vector.device.type == "cpu"  # which loads what is not aligned as fast
    if not is_cpu and any(stride * vector.element_size() % ALIGNMENT for stride in vector.stride()[:-1]):
        vector = aligned(vector.shape, vector.dtype, vector.device, torch.empty).copy_(vector)
    return (vector[..., None, :] @ matrix.mT)[..., 0, :]


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return ``sum(a * b)`` over the last dimension."""
    return torch.dot(a, b) if a.dim() == 1 else (a * b).sum(-1)


def add_outer_(matrix: Tensor, vector: Tensor, sign: int) -> None:
    """Add ``sign v v^T`` to M ``[..., d, d]`` in place, without a temporary; exactly symmetric if M is."""
    if matrix.dim() == 2:
        matrix.addr_(vector, vector, alpha=sign)
    elif matrix.device.type == "cpu":
        for m, v in zip(matrix, vector, strict=True):
            m.addr_(v, v, alpha=sign)
    else:
        # There is no addr_ for a stack. This broadcasts [L, d, 1] and [L, 1, d] within one kernel.
        matrix.addcmul_(vector[..., :, None], vector[..., None, :], value=sign)
