"""The verdicts of several machines side by side, and the times that they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from workflow.bench.plan import REFERENCE
from workflow.bench.results.rows import read_verdicts

MEASURED_BY: Final = "machine"
_TIMES: Final = ("measured", "projected")
"""The columns of the hardware table that hold a machine's time; one of them has a text."""
_OF_A_ROW: Final = ("repeats or runs", "reached", "iterations", "iterations measured on", "data")
"""Its columns that tell a machine's measurement and not what was measured."""


class MachineEntry(NamedTuple):
    """One machine's verdicts at a tier."""

    hardware: str
    name: str
    """The name of its column."""
    claims: Mapping[str, Mapping[str, str]]
    """Its rows of ``claims.csv`` by id; none if its claims were not decided."""
    is_reference: bool = False
    """Whether other verdicts are compared with these."""


def gather(results: Path, compared: Iterable[Path]) -> tuple[MachineEntry, ...]:
    """Return this machine and the other folders that have verdicts.

    The committed results of the same hardware are the reference, else the first committed ones.
    """
    hardware = results.resolve().parent.name
    others = {folder.resolve(): read_verdicts(folder) for folder in compared if folder.resolve() != results.resolve()}
    committed = [folder for folder, claims in others.items() if claims and folder.is_relative_to(REFERENCE)]
    reference = min(committed, key=lambda folder: folder.parent.name != hardware, default=None)
    entries = [MachineEntry(hardware, f"{hardware} (this run)", read_verdicts(results))]
    for folder, claims in others.items():
        if claims:
            name, is_reference = folder.parent.name, folder == reference
            entries.append(MachineEntry(name, f"{name} (reference)" if is_reference else name, claims, is_reference))
    return tuple(entries)


def side_by_side(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the rows of the hardware table with one column of times for each machine."""
    names = list(dict.fromkeys(row[MEASURED_BY] for row in rows))
    merged: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        # What was measured is the key; a machine that measured it too adds a column.
        about = {key: text for key, text in row.items() if key not in (MEASURED_BY, *_TIMES, *_OF_A_ROW)}
        times = merged.setdefault(tuple(about.values()), {**about, **dict.fromkeys(names, "")})
        times[row[MEASURED_BY]] = row["measured"] or (f"{row['projected']} projected" if row["projected"] else "")
    return list(merged.values())
