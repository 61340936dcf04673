"""Which rank does what for which layer (Pauloski et al., SC '21, section 3): pure logic, no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """Ranks in a grid: columns are groups of gradient workers, rows are groups that one of them sends updates to.

    Rank r stands in row ``r // columns`` and column ``r % columns``.
    """

    rows: int
    columns: int

    def column(self, index: int) -> tuple[int, ...]:
        """Return the ranks of a column: the gradient workers of the layers given to it."""
        return tuple(range(index, self.rows * self.columns, self.columns))

    def row(self, index: int) -> tuple[int, ...]:
        """Return the ranks of a row."""
        return tuple(range(index * self.columns, (index + 1) * self.columns))


def make_grid(world_size: int, worker_fraction: float) -> Grid:
    """Return the grid with ``max(1, world_size * worker_fraction)`` gradient workers a layer.

    Raises:
        ValueError: that number is not whole, or does not divide the number of ranks.
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
    """One layer's place: the rank that refreshes it, and the column of its gradient workers."""

    owner: int
    column: int


def assign(costs: Mapping[str, float], grid: Grid) -> dict[str, Assignment]:
    """Give layers, most costly first, to the least loaded column, and in it to the least loaded rank.

    Ties go to the earlier name, column and rank, so that all ranks come to the same result.
    """
    load = dict.fromkeys(range(grid.rows * grid.columns), 0.0)
    places: dict[str, Assignment] = {}
    for name in sorted(costs, key=lambda name: -costs[name]):
        column = min(range(grid.columns), key=lambda index: sum(load[rank] for rank in grid.column(index)))
        owner = min(grid.column(column), key=lambda rank: load[rank])
        load[owner] += costs[name]
        places[name] = Assignment(owner, column)
    return {name: places[name] for name in costs}
