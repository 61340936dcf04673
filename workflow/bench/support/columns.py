"""Tables of text for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]], names: int) -> Iterator[str]:
    """Yield rows of cells as indented lines, the heads first: the first ``names`` columns left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:names], widths[:names], strict=True)]
        cells += [cell.rjust(width) for cell, width in zip(row[names:], widths[names:], strict=True)]
        yield "  " + "  ".join(cells)
