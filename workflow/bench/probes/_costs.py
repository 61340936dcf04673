"""The operations and bytes of each piece of an optimizer's step, by formulas, and the least time that they take.

A layer's gradient D is ``[m, n]``; its factors are ``[m, m]`` and ``[n, n]``; N rows (tokens) reach it in a step. Each
tensor is read and written once by each operation that needs it, in float32; activations have ``ACTIVATION_BYTES``. The
bias, a border of D of ``m`` numbers, is left out. The least time of a layer's piece is the larger of bytes over
bandwidth and operations over rate; pieces follow one another. docs/performance.md has the formulas as a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

FLOAT: Final = 4
ACTIVATION_BYTES: Final = 2
EIGEN_OPERATIONS: Final = 9
"""Operations of a symmetric eigendecomposition with vectors, in multiples of d^3 (Golub and Van Loan, section 8.3)."""


class CostedLayer(NamedTuple):
    """A linear layer."""

    m: int
    """Outputs."""
    n: int
    """Inputs."""
    shares_input: bool = False
    """Whether another layer has the same input, whose rows are read once for both."""
    has_bias: bool = False
    """Whether it has a bias, which costs leave out."""


ENCODER_LAYER: Final = (
    CostedLayer(1024, 1024),
    CostedLayer(1024, 1024, shares_input=True),
    CostedLayer(1024, 1024, shares_input=True),
    CostedLayer(1024, 1024),
    CostedLayer(4096, 1024),
    CostedLayer(1024, 4096),
)
BERT_LARGE: Final = (*24 * ENCODER_LAYER, CostedLayer(1024, 1024), CostedLayer(1024, 1024))
"""The 146 layers that are preconditioned."""


@dataclass(frozen=True)
class LayerCost:
    """What some work must do: operations (a multiplication and an addition are two), and bytes read and written."""

    operations: float
    bytes: float

    def milliseconds(self, machine: MachineModel) -> float:
        """Return the least time on a machine."""
        return 1000 * max(self.bytes / machine.bandwidth, self.operations / machine.rate)

    def times(self, factor: float) -> LayerCost:
        """Return the cost of a share or a multiple of the work."""
        return LayerCost(factor * self.operations, factor * self.bytes)


class MachineModel(NamedTuple):
    """A machine's peaks."""

    name: str
    bandwidth: float
    """Bytes a second, read and written together."""
    rate: float
    """Operations of matrix products a second."""


def capture_means(layer: CostedLayer, rows: int) -> LayerCost:
    """Return the cost of the mean input row; the mean gradient row is the bias's gradient, which costs nothing."""
    read = 0 if layer.shares_input else rows * layer.n
    return LayerCost(read, ACTIVATION_BYTES * read + FLOAT * layer.n * (not layer.shares_input))


def capture_moments(layer: CostedLayer, rows: int) -> LayerCost:
    """Return the cost of KAISA's ``X^T X`` and ``G^T G``."""
    squares = layer.m**2 + layer.n**2
    return LayerCost(2 * rows * squares, ACTIVATION_BYTES * rows * (layer.m + layer.n) + FLOAT * squares)


def factor_update(d: int) -> LayerCost:
    """Return the cost of a dense factor's update, ``u = J v``, ``J += c u u^T``: J is read twice and written once."""
    return LayerCost(4 * d**2, FLOAT * (3 * d**2 + 4 * d))


def windowed_update(d: int, window: int) -> LayerCost:
    """Return the cost of a windowed factor's new column ``c v - U (s * U^T v)``: U is read twice."""
    return LayerCost(4 * window * d, FLOAT * (2 * window * d + 3 * d + 2 * window))


def precondition_dense(layer: CostedLayer) -> LayerCost:
    """Return the cost of ``J_L D J_R``; the product in between is written and read."""
    m, n = layer.m, layer.n
    return LayerCost(2 * m * n * (m + n), FLOAT * (m**2 + n**2 + 4 * m * n))


def precondition_windowed(layer: CostedLayer, window: int) -> LayerCost:
    """Return the cost for factors of ``window`` columns.

    D is read for its products with U_L and U_R, once for both at best; then ``D -= A B^T`` of inner size 2w reads and
    writes it.
    """
    m, n, w = layer.m, layer.n, window
    return LayerCost(8 * w * m * n, FLOAT * (3 * m * n + 4 * w * (m + n)))


def precondition_eva(layer: CostedLayer) -> LayerCost:
    """Return the cost of ``(D - c g a^T) / damping`` with ``c`` of ``g^T D a``: D is read twice and written once."""
    m, n = layer.m, layer.n
    return LayerCost(4 * m * n, FLOAT * (3 * m * n + 2 * (m + n)))


def precondition_kaisa(layer: CostedLayer) -> LayerCost:
    """Return the cost of ``Q_L ((Q_L^T D Q_R) / (eigenvalues)) Q_R^T``, four products and a division."""
    m, n = layer.m, layer.n
    return LayerCost(4 * m * n * (m + n) + m * n, FLOAT * (2 * m**2 + 2 * n**2 + 10 * m * n))


def decompose_kaisa(layer: CostedLayer) -> LayerCost:
    """Return the cost of both factors' eigendecompositions."""
    return LayerCost(EIGEN_OPERATIONS * (layer.m**3 + layer.n**3), 2 * FLOAT * (layer.m**2 + layer.n**2))


def sgd(layer: CostedLayer) -> LayerCost:
    """Return the cost of SGD's step with momentum: weight, gradient and velocity are read, two of them written."""
    return LayerCost(4 * layer.m * layer.n, 5 * FLOAT * layer.m * layer.n)


def adamw(layer: CostedLayer) -> LayerCost:
    """Return the cost of AdamW's step: four tensors are read, three written."""
    return LayerCost(12 * layer.m * layer.n, 7 * FLOAT * layer.m * layer.n)


def both_updates(layer: CostedLayer, window: int | None = None) -> Sequence[LayerCost]:
    """Return the costs of the updates of a layer's two factors; window: None for dense ones."""
    sides = (layer.m, layer.n)
    return [factor_update(d) if window is None else windowed_update(d, window) for d in sides]


def least_ms(costs: Iterable[LayerCost], machine: MachineModel) -> float:
    """Return the least time of works that follow one another."""
    return sum(cost.milliseconds(machine) for cost in costs)
