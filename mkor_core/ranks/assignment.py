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
        return tuple(range(index, self.rows * self.columns, self.columns))  # in steps of a row's length

    def row(self, index: int) -> tuple[int, ...]:
        """Return the ranks in a row."""
        return tuple(range(index * self.columns, (index + 1) * self.columns))


def make_grid(world_size: int, worker_fraction: float) -> Grid:
    """Return the grid with ``max(1, world_size * worker_fraction)`` gradient workers per layer.

    Raises:
        ValueError: the number of gradient workers is not whole, or does not divide the number of ranks.
    """
    workers = max(1.0, world_size * worker_fraction)
    # Fractions are rounded: 98 * (2 / 98) is 1.9999999999999998, which means 2 workers.
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
    # Costs of 8, 4, 4 and 2 for layers a, b, c and d, on columns (0, 2) and (1, 3): a goes to rank 0; b to rank 1,
    # whose column is empty; c to rank 3, since column 1 has 4 and column 0 has 8; d to rank 2, as both have 8.
    load: defaultdict[int, float] = defaultdict(float)
    assignments: dict[str, Assignment] = {}
    # The sort is stable and min() takes the first of equals. Ranks that disagreed on an owner would call broadcasts
    # from different sources, and hang.
    for name in sorted(costs, key=lambda name: -costs[name]):
        column = min(range(grid.columns), key=lambda index: sum(load[rank] for rank in grid.column(index)))
        owner = min(grid.column(column), key=lambda rank: load[rank])
        load[owner] += costs[name]
        assignments[name] = Assignment(owner, column)
    return {name: assignments[name] for name in costs}  # in the order of the layers again
