"""Linear maps with Kronecker-product weights, computed by two linear layers that optimizers treat as any others."""

from __future__ import annotations

from torch import Tensor, nn


class KroneckerLinear(nn.Module):
    """The map ``x -> (P kron B) x`` without bias, for P ``[a1, a2]`` and B ``[b1, b2]``.

    With x as a matrix ``[a2, b2]`` in row-major order it is ``P x B^T``: ``inner`` applies B to each of the a2 rows of
    an example, ``outer`` applies P to each of the b1 columns of what comes out. So they have a2 and b1 times as many
    rows as there are examples.

    Args:
        outer: ``(a1, a2)``.
        inner: ``(b1, b2)``.
    """

    def __init__(self, outer: tuple[int, int], inner: tuple[int, int]) -> None:
        super().__init__()
        self.outer = nn.Linear(outer[1], outer[0], bias=False)
        self.inner = nn.Linear(inner[1], inner[0], bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[..., a1 b1]`` for ``[..., a2 b2]``."""
        matrices = inputs.unflatten(-1, (self.outer.in_features, self.inner.in_features))
        return self.outer(self.inner(matrices).mT).mT.flatten(-2)


def factor_sizes(name: str, width: int, outer: int) -> tuple[int, int]:
    """Return the sizes (outer, width / outer) of the factors of a square map.

    Raises:
        ValueError: ``outer`` does not divide the width, which has the ``name``.
    """
    if width % outer:
        raise ValueError(f"outer_size={outer} must divide {name}={width}.")
    return outer, width // outer
