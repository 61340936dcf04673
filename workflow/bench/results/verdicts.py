"""Verdicts on the claims, as a results folder's table has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from workflow.bench.results.rows import read_csv
from workflow.bench.support.config import ConfigError, shown_path

CLAIMS: Final = Path("tables", "claims.csv")
_NEEDED: Final = ("id", "claim", "verdict")


def read_verdicts(folder: Path) -> dict[str, Mapping[str, str]]:
    """Return the rows of a machine's table of claims by id; none without the table.

    Raises:
        ConfigError: the table is damaged.
        UnreadableError: it cannot be read.
    """
    file = folder / CLAIMS
    rows = read_csv(file) if file.is_file() else []
    if rows and not set(_NEEDED) <= rows[0].keys():
        raise ConfigError(f"{shown_path(file)}: damaged: it lacks one of the columns {', '.join(_NEEDED)}")
    return {row["id"]: row for row in rows}
