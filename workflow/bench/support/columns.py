"""Tables of text for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]], names: int, *, remarks: int = 0) -> Iterator[str]:
    """Yield rows of cells as indented lines, the heads first.

    The first ``names`` columns and the last ``remarks`` are aligned at the left, the others at the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        is_left = [index < names or index >= len(row) - remarks for index in range(len(row))]
        each = zip(row, widths, is_left, strict=True)
        cells = [cell.ljust(width) if left else cell.rjust(width) for cell, width, left in each]
        yield ("  " + "  ".join(cells)).rstrip()
