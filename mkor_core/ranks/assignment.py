"""KAISA's assignment of layers to ranks (Pauloski et al., SC '21, section 3), without tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """Ranks in a grid; rank r is in row ``r // columns`` and column ``r % columns``.

    A column is a group of gradient workers, which precondition the layers assigned to it. A row is a group of
    receivers: each rank in it sends the updates of its column's layers to the rest. With 4 ranks and 2 gradient workers
    per layer, the columns are (0, 2) and (1, 3), and the rows are (0, 1) and (2, 3).
    """

    rows: int
    columns: int

    def column(self, index: int) -> tuple[int, ...]:
        """Return the ranks in a column."""
        return tuple(range(index, self.rows * self.columns, self.columns))

    def row(self, index: int) -> tuple[int, ...]:
        """Return the ranks in a row."""
        return tuple(range(index * self.columns, (index + 1) * self.columns))


def make_grid(world_size: int, worker_fraction: float) -> Grid:
    """Return the grid with ``max(1, world_size * worker_fraction)`` gradient workers per layer.

    Raises:
        ValueError: the number of gradient workers is not whole, or does not divide the number of ranks.
    """
    workers = max(1.0, world_size * worker_fraction)
    rows = round(workers)
    if abs(workers - rows) > 1e-9 or world_size % rows:
        raise ValueError(
            f"grad_worker_fraction={worker_fraction!r} gives {workers:g} gradient workers on {world_size} ranks: "
            "it must be a whole number that divides them."
        )
    return Grid(rows, world_size // rows)


@dataclass(frozen=True)
class Assignment:
    """The place of one layer in the grid."""

    owner: int
    """The rank that refreshes it."""
    column: int
    """The column of its gradient workers."""


def assign(costs: Mapping[str, float], grid: Grid) -> dict[str, Assignment]:
    """Return each layer's assignment, given the cost of its refresh.

    Layers go, most costly first, to the least loaded column, and in it to the least loaded rank. Ties go to the earlier
    name, column and rank, so that all ranks compute the same assignment.
    """
    load: defaultdict[int, float] = defaultdict(float)
    assignments: dict[str, Assignment] = {}
    for name in sorted(costs, key=lambda name: -costs[name]):
        column = min(range(grid.columns), key=lambda index: sum(load[rank] for rank in grid.column(index)))
        owner = min(grid.column(column), key=lambda rank: load[rank])
        load[owner] += costs[name]
        assignments[name] = Assignment(owner, column)
    return {name: assignments[name] for name in costs}
